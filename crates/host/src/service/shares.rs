//! The resources that the users of a host share. [`rdmux_runtime::Shares`] limits how much one user may have. Slots
//! have their own shares.

use rdmux_cm::IdHandle;
use rdmux_runtime::{Exceeded, Share, Shares};
use rdmux_verbs::xrc::hub;

use super::clients::ClientId;
use super::core::Core;
use super::ports::ib::{MAX_MEMBERS, MAX_QUERIES};
use crate::proto::Failure;

/// Maximum number of bytes of events and notifications that wait for processes to read them.
const MAX_WAITING: usize = 256 * 1024 * 1024;

/// Maximum number of requests in management datagrams that wait for a response.
const MAX_REQUESTS: usize = 64 * 1024;

/// Groups that ids of users may have a port of the adapter join on InfiniBand: as many as subnet administration lets one port create
/// when switches have room for 1,024, as those of rdmux have.
const MAX_GROUPS: usize = 768;

/// The resources that the users of a host share.
#[derive(Debug)]
pub(super) struct HostShares {
    /// Descriptors of the service.
    pub(super) descriptors: Shares,
    /// Connection manager ids: as many as there are ephemeral ports, because each may use one.
    pub(super) ids: Shares,
    /// Queue pairs in groups of InfiniBand.
    pub(super) members: Shares,
    /// Groups of InfiniBand that ids have joined, each counted once for a user and port.
    pub(super) groups: Shares,
    /// Queries to subnet administration for ids that wait for an answer.
    pub(super) queries: Shares,
    /// Requests in management datagrams that wait for a response.
    pub(super) requests: Shares,
    /// Bytes of messages that wait for processes to read their sockets.
    pub(super) waiting: Shares,
}

impl HostShares {
    pub(super) fn new(cm: &rdmux_cm::Config) -> Self {
        Self {
            descriptors: Shares::of_descriptors(),
            ids: Shares::new(cm.ephemeral_ports.len()),
            members: Shares::new(MAX_MEMBERS),
            groups: Shares::new(MAX_GROUPS),
            queries: Shares::new(MAX_QUERIES),
            requests: Shares::new(MAX_REQUESTS),
            waiting: Shares::new(MAX_WAITING),
        }
    }
}

/// The objects of the hub of a kind of device, which users share likewise.
#[derive(Debug)]
pub(super) struct HubShares {
    srqs: Shares,
    targets: Shares,
    regions: Shares,
}

impl HubShares {
    pub(super) fn new() -> Self {
        let of = |kind: hub::Shared| Shares::new(kind.total());
        Self {
            srqs: of(hub::Shared::Srq),
            targets: of(hub::Shared::Target),
            regions: of(hub::Shared::Region),
        }
    }
}

impl hub::Shares for HubShares {
    fn take(&self, user: u32, of: hub::Shared) -> Result<hub::Share, String> {
        let shares = match of {
            hub::Shared::Srq => &self.srqs,
            hub::Shared::Target => &self.targets,
            hub::Shared::Region => &self.regions,
        };
        let share = shares.take(user, 1).map_err(|exceeded| exceeded.to_string())?;
        Ok(Box::new(share))
    }
}

impl Core {
    /// Takes descriptors of the service from the share of a client's user.
    pub(super) fn descriptors_for(
        &self,
        client: ClientId,
        count: usize,
    ) -> Result<Share, Exceeded> {
        self.shares.descriptors.take(self.user_of(client), count)
    }

    /// Makes the share for a client's unread messages, empty at first.
    pub(super) fn waiting_of(&self, client: ClientId) -> Share {
        self.shares.waiting.none(self.user_of(client))
    }

    /// Returns the user of an id.
    pub(super) fn user_of_id(&self, id: IdHandle) -> u32 {
        self.client_of(id).map_or(super::clients::NOBODY, |client| self.user_of(client))
    }

    /// Returns the user of a client. A client that is gone counts as [`NOBODY`](super::clients::NOBODY), a user like
    /// any other.
    pub(super) fn user_of(&self, client: ClientId) -> u32 {
        self.clients.get(client).map_or(super::clients::NOBODY, |client| client.uid)
    }
}

/// Makes the error for a lack of descriptors.
pub(super) fn no_descriptors(errno: i32, e: &Exceeded) -> Failure {
    Failure::new(errno, format!("the user's share of the service's descriptors is used up: {e}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};

    use rdmux_cm::{ChannelId, PortSpace};
    use rdmux_transport::attr::QpType;
    use rdmux_verbs::control::DeviceKind;

    use super::super::clients::Gone;
    use super::super::counters::Count;
    use super::super::requests::MAX_UNREAD_DESCRIPTORS;
    use super::super::slots::Slots;
    use super::super::testing;
    use super::*;
    use crate::proto::socket::{self, MAX_MESSAGE};
    use crate::proto::{ClientKind, CmReply, CmRequest, Notify, Reply, Request, Response, VERSION};

    /// Users other than the owner.
    const GREEDY: u32 = 4001;
    const OTHER: u32 = 4002;

    /// A connected process.
    struct Process {
        id: ClientId,
        socket: OwnedFd,
        /// The descriptors of replies.
        fds: Vec<OwnedFd>,
    }

    impl Process {
        fn of(core: &mut Core, user: u32) -> Self {
            let (socket, ours) = socket::pair().unwrap();
            for end in [&socket, &ours] {
                socket::set_nonblocking(end, true).unwrap();
            }
            let id = core.add_client(ours).unwrap();
            core.clients.get_mut(id).unwrap().uid = user;
            Self { id, socket, fds: Vec::new() }
        }

        fn ask(&mut self, core: &mut Core, request: &Request) -> Reply {
            socket::send(self.socket.as_fd(), request, &[], &mut Vec::new()).unwrap();
            core.serve(self.id, &mut vec![0; MAX_MESSAGE]);
            let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
            let bytes = socket::recv_bytes(self.socket.as_fd(), &mut buf, &mut fds).unwrap();
            self.fds.append(&mut fds);
            socket::decode(bytes).unwrap()
        }

        fn greet(&mut self, core: &mut Core) -> Result<(), Failure> {
            let kind = ClientKind::Device(DeviceKind::Roce);
            self.ask(core, &Request::Hello { version: VERSION, kind }).map(|_| ())
        }

        fn greeted(core: &mut Core, user: u32) -> Self {
            let mut process = Self::of(core, user);
            process.greet(core).unwrap();
            process
        }

        fn open_channel(&mut self, core: &mut Core) -> Result<ChannelId, Failure> {
            match self.ask(core, &Request::OpenChannel)? {
                Response::Channel(channel) => Ok(channel),
                other => panic!("{other:?}"),
            }
        }

        fn create_id(&mut self, core: &mut Core, channel: ChannelId) -> Result<IdHandle, Failure> {
            let (space, qp_type) = (PortSpace::Tcp, QpType::Rc);
            let request =
                CmRequest::CreateId { id: None, channel, space, qp_type, only: None, context: 0 };
            match self.ask(core, &Request::Cm(request))? {
                Response::Cm(CmReply::Id(id)) => Ok(id),
                other => panic!("{other:?}"),
            }
        }

        fn end(self, core: &mut Core) {
            core.doom(self.id, Gone::Died);
            core.bury();
        }
    }

    fn owner() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn processes_of_one_user_leave_slots_for_others_and_the_owner() {
        let (mut core, _dir) = testing::core();
        core.slots = Slots::new(Shares::new(usize::MAX));
        let mut greedy = Vec::new();
        let refused = loop {
            let mut process = Process::of(&mut core, GREEDY);
            if let Err(refused) = process.greet(&mut core) {
                break refused;
            }
            while process.ask(&mut core, &Request::NewSlot).is_ok() {}
            greedy.push(process);
        };
        assert_eq!(refused.errno, libc::ENOMEM);
        assert!(refused.why.contains("user 4001 holds 1023 of 2047"), "{}", refused.why);
        for user in [OTHER, owner()] {
            Process::greeted(&mut core, user).ask(&mut core, &Request::NewSlot).unwrap();
        }
        // Slots stay charged to the user when its processes end.
        greedy.drain(..).for_each(|process| process.end(&mut core));
        let again = Process::greeted(&mut core, GREEDY);
        assert!(core.clients.get(again.id).unwrap().slots[0] < 1024);
    }

    #[test]
    fn processes_of_one_user_leave_descriptors_for_others_and_the_owner_until_they_end() {
        let (mut core, _dir) = testing::core();
        core.shares.descriptors = Shares::new(32);
        let mut greedy = [GREEDY; 2].map(|user| Process::greeted(&mut core, user));
        let refused = |core: &mut Core, process: &mut Process| {
            (0..32).find_map(|_| process.open_channel(core).err()).unwrap()
        };
        for process in &mut greedy {
            let refused = refused(&mut core, process);
            assert_eq!(refused.errno, libc::EMFILE);
            assert!(refused.why.contains("user 4001 holds 16 of 32"), "{}", refused.why);
        }
        let mut late = Process::of(&mut core, GREEDY);
        assert_eq!(late.greet(&mut core).unwrap_err().errno, libc::EMFILE);
        for user in [OTHER, owner()] {
            Process::greeted(&mut core, user).open_channel(&mut core).unwrap();
        }
        let [first, _second] = greedy;
        first.end(&mut core);
        late.greet(&mut core).unwrap();
        late.open_channel(&mut core).unwrap();
    }

    #[test]
    fn hub_objects_of_one_user_leave_half_to_others_and_any_number_to_the_owner() {
        let shares = HubShares::new();
        let take = |user, of| hub::Shares::take(&shares, user, of);
        for (of, half) in [(hub::Shared::Srq, 8191), (hub::Shared::Target, 8191)] {
            let kept: Vec<_> = std::iter::from_fn(|| take(GREEDY, of).ok()).collect();
            assert_eq!(kept.len(), half);
            let why = take(GREEDY, of).unwrap_err();
            assert!(why.contains("user 4001 holds 8191 of 16383"), "{why}");
            take(OTHER, of).unwrap();
            take(owner(), of).unwrap();
        }
        take(GREEDY, hub::Shared::Region).unwrap();
    }

    #[test]
    fn exhausted_descriptor_share_gives_no_rings() {
        let (mut core, _dir) = testing::core();
        let ring = |core: &mut Core, process: &mut Process, to: ClientId| {
            let peer = core.clients.get(to).unwrap().slots[0];
            process.ask(core, &Request::ConnectRing { host: None, peer }).unwrap()
        };
        let [mut one, mut two] = [GREEDY, OTHER].map(|user| Process::greeted(&mut core, user));
        let [mut own, mut owns] = [owner(); 2].map(|user| Process::greeted(&mut core, user));
        let (first, second) = (one.id, two.id);
        core.shares.descriptors = Shares::new(8);
        for (from, to) in [(&mut one, second), (&mut two, first)] {
            assert!(matches!(ring(&mut core, from, to), Response::NoRing));
        }
        for to in [first, first, second, owns.id] {
            assert!(matches!(ring(&mut core, &mut own, to), Response::Ring { .. }));
        }
        // A pair that exists costs nothing.
        assert!(matches!(ring(&mut core, &mut one, own.id), Response::Ring { .. }));
        own.end(&mut core);
        assert!(matches!(ring(&mut core, &mut owns, first), Response::Ring { .. }));
    }

    #[test]
    fn rings_that_one_user_asks_for_leave_the_share_of_the_other_user() {
        let (mut core, _dir) = testing::core();
        let mut one = Process::greeted(&mut core, GREEDY);
        let others: Vec<_> = (0..8).map(|_| Process::greeted(&mut core, OTHER)).collect();
        core.shares.descriptors = Shares::new(48);
        let mut ring = |core: &mut Core, other: &Process| {
            let peer = core.clients.get(other.id).unwrap().slots[0];
            let answer = one.ask(core, &Request::ConnectRing { host: None, peer }).unwrap();
            matches!(answer, Response::Ring { .. })
        };
        let rings = others.iter().filter(|other| ring(&mut core, other)).count();
        assert_eq!(rings, 4, "half of the descriptors are six for each");
        assert!(core.shares.descriptors.take(OTHER, 12).is_ok());
        one.end(&mut core);
        assert!(core.shares.descriptors.take(GREEDY, 24).is_ok());
    }

    #[test]
    fn ids_of_one_user_leave_ports_for_others_and_the_owner_until_they_are_destroyed() {
        let (mut core, _dir) = testing::core();
        core.shares.ids = Shares::new(8);
        let process = |core: &mut Core, user| {
            let mut process = Process::greeted(core, user);
            let channel = process.open_channel(core).unwrap();
            (process, channel)
        };
        let (mut one, first) = process(&mut core, GREEDY);
        let (mut two, second) = process(&mut core, GREEDY);
        let id = one.create_id(&mut core, first).unwrap();
        for _ in 0..3 {
            two.create_id(&mut core, second).unwrap();
        }
        let refused = one.create_id(&mut core, first).unwrap_err();
        assert_eq!(refused.errno, libc::ENOMEM);
        assert!(refused.why.contains("user 4001 holds 4 of 8"), "{}", refused.why);
        let (mut other, channel) = process(&mut core, OTHER);
        other.create_id(&mut core, channel).unwrap();
        let (mut own, channel) = process(&mut core, owner());
        for _ in 0..9 {
            own.create_id(&mut core, channel).unwrap();
        }
        one.ask(&mut core, &Request::Cm(CmRequest::Destroy { id })).unwrap();
        one.create_id(&mut core, first).unwrap();
        two.end(&mut core);
        for _ in 0..3 {
            one.create_id(&mut core, first).unwrap();
        }
        assert!(one.create_id(&mut core, first).is_err());
        // Ids that peers' requests make count, too; at the limit no further request is accepted.
        let (space, qp_type) = (PortSpace::Tcp, QpType::Rc);
        let id = core.manager.create_id(first, space, qp_type, 0).unwrap();
        let event = rdmux_cm::Event {
            id,
            context: 0,
            listen_id: Some(id),
            kind: rdmux_cm::EventKind::ConnectRequest,
            status: 0,
            param: rdmux_cm::EventParam::None,
            route: None,
            negotiated: None,
            mad: None,
        };
        core.put_event(first, &event);
        let accept = CmRequest::Accept { id, param: rdmux_cm::ConnParam::default() };
        let refused = one.ask(&mut core, &Request::Cm(accept)).unwrap_err();
        assert_eq!(refused.errno, libc::ENOMEM);
        assert!(refused.why.contains("user 4001 holds 5 of 8"), "{}", refused.why);
    }

    #[test]
    fn process_that_does_not_read_notifications_gets_no_more_rings() {
        let (mut core, _dir) = testing::core();
        let [mut one, two] = [GREEDY, OTHER].map(|user| Process::greeted(&mut core, user));
        let notify = two.fds[0].as_fd();
        let waiting = |core: &Core| {
            core.clients.get(two.id).unwrap().device.as_ref().unwrap().notify.waiting_descriptors()
        };
        while waiting(&core) < MAX_UNREAD_DESCRIPTORS {
            let fds = vec![File::open("/dev/null").unwrap().into()];
            core.notify(two.id, &Notify::PeerGone { slot: 0 }, fds);
        }
        let peer = core.clients.get(two.id).unwrap().slots[0];
        let request = Request::ConnectRing { host: None, peer };
        assert_eq!(one.ask(&mut core, &request), Ok(Response::NoRing));
        assert_eq!(core.rings.len(), 0);
        let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
        while socket::try_recv_bytes(notify, &mut buf, &mut fds).is_ok() {
            core.flush_notify(two.id);
        }
        assert!(matches!(one.ask(&mut core, &request), Ok(Response::Ring { .. })));
    }

    #[test]
    fn status_counts_the_ids_of_each_process() {
        let (mut core, _dir) = testing::core();
        let [mut one, mut two] = [GREEDY; 2].map(|user| Process::greeted(&mut core, user));
        for (process, ids) in [(&mut one, 2), (&mut two, 3)] {
            for _ in 0..ids {
                let channel = process.open_channel(&mut core).unwrap();
                process.create_id(&mut core, channel).unwrap();
            }
        }
        let counts =
            [one.id, two.id].map(|id| core.client_status(core.clients.get(id).unwrap()).ids);
        assert_eq!(counts, [2, 3]);
    }

    #[test]
    fn slots_released_while_a_process_does_not_read_are_told_once_each() {
        let (mut core, _dir) = testing::core();
        let [mut one, two] = [GREEDY, OTHER].map(|user| Process::greeted(&mut core, user));
        let Response::Slot { slot, .. } = one.ask(&mut core, &Request::NewSlot).unwrap() else {
            panic!("no slot");
        };
        let mut released = BTreeSet::from([slot]);
        one.ask(&mut core, &Request::ReleaseSlot { slot, next_index: 0 }).unwrap();
        for _ in 0..10_000 {
            let Response::Slot { slot, .. } = one.ask(&mut core, &Request::NewSlot).unwrap() else {
                panic!("no slot");
            };
            released.insert(slot);
            one.ask(&mut core, &Request::ReleaseSlot { slot, next_index: 0 }).unwrap();
        }
        assert!(!core.is_doomed(two.id));
        // A process whose rings arrive after the news of its slot's last owner is told again when it ends.
        let ring = Notify::Ring { peer: slot, known_as: 0 };
        core.notify(two.id, &ring, Vec::new());
        core.notify_all(&Notify::PeerGone { slot });
        let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
        let mut told = Vec::new();
        while let Ok(bytes) = socket::try_recv_bytes(two.fds[0].as_fd(), &mut buf, &mut fds) {
            told.push(socket::decode::<Notify>(bytes).unwrap());
            core.flush_notify(two.id);
        }
        let gone = |n: &Notify| match n {
            Notify::PeerGone { slot } => Some(*slot),
            _ => None,
        };
        assert_eq!(told.iter().filter_map(gone).collect::<BTreeSet<_>>(), released);
        assert!(told.len() < 1000, "{}", told.len());
        let [.., before, last] = &told[..] else { panic!("{told:?}") };
        assert!(matches!(before, Notify::Ring { .. }), "{before:?}");
        assert_eq!(gone(last), Some(slot));
    }

    #[test]
    fn processes_of_one_user_that_do_not_read_leave_memory_for_others() {
        let (mut core, _dir) = testing::core();
        let bytes = 64 * 1024;
        core.shares.waiting = Shares::new(bytes);
        let event = |id| rdmux_cm::Event {
            id,
            context: 0,
            listen_id: None,
            kind: rdmux_cm::EventKind::User,
            status: 0,
            param: rdmux_cm::EventParam::None,
            route: None,
            negotiated: None,
            mad: Some(vec![0; 256]),
        };
        let fill = |core: &mut Core, user| {
            let mut process = Process::greeted(core, user);
            let channel = process.open_channel(core).unwrap();
            let is_waiting = |core: &Core| core.channels[&channel].out.is_waiting();
            let wanted = 4 * bytes / 256;
            let mut waits = 0;
            while waits < wanted && !core.is_doomed(process.id) {
                core.put_event(channel, &event(IdHandle(1)));
                core.flush_events();
                waits += usize::from(is_waiting(core));
            }
            (waits, process)
        };
        let (first, one) = fill(&mut core, GREEDY);
        assert!((1..=bytes / 2 / 256 + 1).contains(&first), "{first}");
        let (second, two) = fill(&mut core, GREEDY);
        assert_eq!(second, 0, "its user may have no more");
        let (third, other) = fill(&mut core, OTHER);
        assert!((bytes / 8 / 256..=bytes / 4 / 256 + 1).contains(&third), "{third}");
        assert_eq!(fill(&mut core, owner()).0, 4 * bytes / 256);
        // Unread messages of processes that are gone no longer count.
        drop((one, two, other));
        core.bury();
        assert_eq!(fill(&mut core, GREEDY).0, first);
    }

    #[test]
    fn requests_sent_before_process_exit_are_still_served() {
        let (mut core, _dir) = testing::core();
        let process = Process::greeted(&mut core, OTHER);
        let take = Request::CmSoon(CmRequest::Take { id: IdHandle(1) });
        let many = postcard::to_stdvec(&take).unwrap().repeat(1000);
        for _ in 0..3 {
            socket::send_bytes(process.socket.as_fd(), &many, &[]).unwrap();
        }
        let before = core.counts.get(Count::Requests);
        core.serve_rest(process.id, &mut vec![0; MAX_MESSAGE]);
        assert_eq!(core.counts.get(Count::Requests) - before, 3000);
    }

    #[test]
    fn a_turn_ends_after_many_requests_however_few_messages_they_come_in() {
        let (mut core, _dir) = testing::core();
        let process = Process::greeted(&mut core, OTHER);
        let take = Request::CmSoon(CmRequest::Take { id: IdHandle(1) });
        let many = postcard::to_stdvec(&take).unwrap().repeat(1000);
        for _ in 0..2 {
            socket::send_bytes(process.socket.as_fd(), &many, &[]).unwrap();
        }
        let before = core.counts.get(Count::Requests);
        let mut turn = || {
            core.serve(process.id, &mut vec![0; MAX_MESSAGE]);
            core.counts.get(Count::Requests) - before
        };
        assert_eq!([turn(), turn()], [1000, 2000]);
    }
}
