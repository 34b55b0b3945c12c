//! Handles clients' requests.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rdmux_cm::iw::StreamId;
use rdmux_link::SharedMem;
use rdmux_runtime::closing::Foreign;
use rdmux_verbs::control::{DeviceKind, SERVICE_SLOT, slot_of};
use rdmux_verbs::counters::{self, PAGE_COUNTERS};
use rdmux_verbs::kind::{self, KindRow};
use rdmux_verbs::port::Port;
use rdmux_verbs::xrc::hub::{MemberId, TargetEvent};
use rdmux_wire::Qpn;
use rdmux_wire::mad::MgmtClass;

use super::clients::{Client, ClientId, DeviceSide, Gone};
use super::core::{Core, encode};
use super::counters::Count;
use super::host_rings::Found;
use super::mad::AgentKey;
use super::outgoing::is_refused;
use super::ports::ib::Greeting;
use super::ports::{self, PortId, ServicePort, SocketWanted};
use super::rings::END_DESCRIPTORS;
use super::shares::no_descriptors;
use crate::proto::socket::{self, MessageError};
use crate::proto::{
    AgentRequest, ClientKind, DeviceRow, Failure, Notify, Reply, Request, Response, VERSION,
    Welcome,
};

/// Messages that are read from one client before others get their turn.
const MAX_ROW: usize = 64;
/// Requests that are served for one client before others get their turn. A message is always served whole.
const MAX_REQUESTS: u64 = 256;
/// Time for which a client is served before others get their turn. The current message is completed.
const TURN: Duration = Duration::from_millis(1);
/// Descriptors that may wait for a process to read its notifications. With more, it gets no further ring.
pub(super) const MAX_UNREAD_DESCRIPTORS: usize = 64;
/// Maximum number of slots of one process.
const MAX_SLOTS: usize = 64;

/// The outcome of a request.
enum Outcome {
    /// The reply, with its descriptors.
    Reply(Reply, Vec<OwnedFd>),
    /// A greeting: the reply may follow later.
    Greeting(Greeting),
    /// The reply follows later.
    Later,
    /// The request has no reply.
    Silent,
    /// The client broke the protocol.
    Break(String),
}

/// A reply and its descriptors.
type Answer = Result<(Response, Vec<OwnedFd>), Failure>;

impl From<Answer> for Outcome {
    fn from(result: Answer) -> Self {
        match result {
            Ok((response, fds)) => Self::Reply(Ok(response), fds),
            Err(failure) => Self::Reply(Err(failure), Vec::new()),
        }
    }
}
impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply, Vec::new())
    }
}

/// Converts an error of the kernel.
pub(super) fn failure(e: &io::Error) -> Failure {
    Failure::new(e.raw_os_error().unwrap_or(libc::EIO), e.to_string())
}

impl Core {
    /// Serves messages that a process sent before it ended, such as its last answers to connection requests. Bounded by [`MAX_ROW`].
    pub(super) fn serve_rest(&mut self, id: ClientId, buf: &mut [u8]) {
        self.drop_late_reply(id);
        let _ = (0..MAX_ROW).all(|_| self.serve_next(id, buf));
    }

    /// Serves a client's messages, and sends the replies, until its turn is over. Further messages wait.
    pub(super) fn serve(&mut self, id: ClientId, buf: &mut [u8]) {
        let (began, before) = (Instant::now(), self.counts.get(Count::Requests));
        for _ in 0..MAX_ROW {
            if !self.serve_next(id, buf) {
                return;
            }
            let served = self.counts.get(Count::Requests) - before;
            if served >= MAX_REQUESTS || began.elapsed() >= TURN {
                return;
            }
        }
    }

    /// Serves one message. Returns whether more may be waiting.
    pub(super) fn serve_next(&mut self, id: ClientId, buf: &mut [u8]) -> bool {
        if self.late.has_reply(id) {
            return false;
        }
        let Some(client) = self.clients.get(id).filter(|_| !self.is_doomed(id)) else {
            return false;
        };
        let (user, mut fds) = (client.uid, Vec::new());
        let keep = |fd| fds.push(self.closer.foreign(user, fd));
        match socket::try_recv_each(client.rpc.as_fd(), buf, keep) {
            Ok(_) if !fds.is_empty() && self.closer.is_full(user) => {
                let why = "a descriptor while too many of its user's are still being closed";
                self.doom(id, Gone::Broke(why.to_owned()));
            }
            Ok(bytes) => self.serve_message(id, bytes, fds),
            Err(MessageError::WouldBlock) => return false,
            Err(MessageError::Closed | MessageError::Io(_)) => self.doom(id, Gone::Closed),
            Err(e) => self.doom(id, Gone::Broke(e.to_string())),
        }
        true
    }

    /// Serves the requests of a message. Descriptors and the reply belong to the last one.
    fn serve_message(&mut self, id: ClientId, mut bytes: &[u8], mut fds: Vec<Foreign>) {
        while !bytes.is_empty() {
            let (request, rest) = match socket::decode_first::<Request>(bytes) {
                Ok(first) => first,
                Err(e) => return self.doom(id, Gone::Broke(e.to_string())),
            };
            bytes = rest;
            self.counts.add(Count::Requests);
            let fds = if bytes.is_empty() { std::mem::take(&mut fds) } else { Vec::new() };
            match self.handle_request(id, request, fds) {
                Outcome::Silent => {}
                Outcome::Later if bytes.is_empty() => {}
                Outcome::Break(why) => return self.doom(id, Gone::Broke(why)),
                Outcome::Reply(reply, fds) if bytes.is_empty() => self.reply(id, &reply, fds),
                Outcome::Greeting(greeting) if bytes.is_empty() => self.take_greeting(greeting),
                Outcome::Reply(..) | Outcome::Greeting(_) | Outcome::Later => {
                    let why = "a request that follows one with a reply in the same message";
                    return self.doom(id, Gone::Broke(why.to_owned()));
                }
            }
        }
    }

    /// Sends a client the reply to its request, after the events that the request has caused.
    pub(super) fn reply(&mut self, id: ClientId, reply: &Reply, fds: Vec<OwnedFd>) {
        if reply.is_err() {
            self.counts.add(Count::Refusals);
        }
        // Events of the request are sent before the reply.
        self.flush_events();
        let Some(client) = self.clients.get(id) else { return };
        let Some(bytes) = encode(reply, &mut self.scratch) else { return };
        if self.late.has_reply(id) {
            // The client sent several requests at once.
            return self.replied(id, Err(MessageError::WouldBlock));
        }
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        match socket::send_bytes(client.rpc.as_fd(), bytes, &borrowed) {
            Err(e) if is_refused(&e) => {
                let bytes = bytes.to_vec();
                self.put_off_reply(id, bytes, fds);
            }
            sent => self.replied(id, sent),
        }
    }

    fn handle_request(&mut self, id: ClientId, request: Request, fds: Vec<Foreign>) -> Outcome {
        let kind = self.clients.get(id).and_then(|c| c.kind);
        match (kind, request) {
            (None, Request::Hello { version, kind }) => {
                Outcome::Greeting(Greeting { client: id, version, kind, fds })
            }
            (None, _) => Outcome::Break("a request before the greeting".to_owned()),
            (Some(_), Request::Hello { .. }) => Outcome::Break("a second greeting".to_owned()),
            (Some(_), Request::HoldView { devices }) => self.hold_view(id, devices, fds).into(),
            (Some(ClientKind::Host), Request::OfferRing(offer)) => {
                match self.take_offer(id, offer, fds) {
                    Some((response, fds)) => Outcome::Reply(Ok(response), fds),
                    None => Outcome::Later,
                }
            }
            (Some(_), _) if !fds.is_empty() => {
                Outcome::Break("a request with an unexpected descriptor".to_owned())
            }
            (Some(ClientKind::Host), Request::CommitRing) => {
                self.commit_ring(id);
                Outcome::Silent
            }
            (Some(ClientKind::Host), _) => Outcome::Break(
                "a request of another host's service that does not concern rings".to_owned(),
            ),
            (Some(ClientKind::Tool), request) => self.handle_tool(id, request),
            (Some(ClientKind::Device(_)), request) => self.handle_device(id, request),
        }
    }

    /// Answers a client's greeting.
    pub(super) fn answer_greeting(&mut self, greeting: Greeting) {
        let id = greeting.client;
        match self.handle_hello(greeting) {
            Ok(greeted) => match greeted {
                Ok((response, fds)) => self.reply(id, &Ok(response), fds),
                Err(failure) => self.reply(id, &Err(failure), Vec::new()),
            },
            Err(why) => self.doom(id, Gone::Broke(why.to_owned())),
        }
    }

    /// Returns the reply to a greeting, or how it breaks the protocol.
    fn handle_hello(&mut self, greeting: Greeting) -> Result<Answer, &'static str> {
        let Greeting { client: id, version, kind, fds } = greeting;
        let default = DeviceKind::default();
        if version != VERSION {
            // The version is at the same place in every protocol version.
            return Ok(self.welcome(id, default, 0, 0).map(|welcome| (welcome, Vec::new())));
        }
        if let Err(failure) = self.permit(id) {
            return Ok(Err(failure));
        }
        let n = fds.len();
        let mut fds = fds.into_iter();
        let device = match (kind, fds.next()) {
            (ClientKind::Tool | ClientKind::Host, None) => None,
            (ClientKind::Device(kind), None) => Some((kind, None)),
            (ClientKind::Device(kind), Some(board)) if n == 1 => {
                // Other processes of the client's user get the board.
                let board =
                    board.into_memfd().ok_or("a greeting with a descriptor that is not a board")?;
                Some((kind, Some(board)))
            }
            _ => return Err("a greeting with the wrong descriptors"),
        };
        let greeted = match device {
            None => self.welcome(id, default, 0, 0).map(|welcome| (welcome, Vec::new())),
            Some((kind, board)) => self.add_device(id, kind, board),
        };
        if let Some(client) = self.clients.get_mut(id)
            && greeted.is_ok()
        {
            client.kind = Some(kind);
            let device_kind = client.device_kind();
            self.tell_capture(id);
            if device_kind.is_some_and(DeviceKind::is_on_fabric) {
                for at in self.adapter.every() {
                    self.tell_table(id, at);
                }
            }
            self.watch_view();
        }
        Ok(greeted)
    }

    /// Sets up a process with a device.
    fn add_device(
        &mut self,
        id: ClientId,
        kind: DeviceKind,
        board: Option<OwnedFd>,
    ) -> Result<(Response, Vec<OwnedFd>), Failure> {
        let share = self.descriptors_for(id, 3).map_err(|e| no_descriptors(libc::EMFILE, &e))?;
        let (notify, theirs) = self.open_notify(id).map_err(|e| failure(&e))?;
        let counters = SharedMem::create("rdmux-counters", PAGE_COUNTERS);
        let counters = counters.map_err(|e| failure(&e))?;
        counters::declare_schema(&counters);
        let page = counters.duplicate().map_err(|e| failure(&e))?;
        let (slot, first_index) = self.take_slot(id)?;
        if let Some(client) = self.clients.get_mut(id) {
            client.device = Some(DeviceSide { notify, board, counters, _share: share });
        }
        Ok((self.welcome(id, kind, slot, first_index)?, vec![theirs, page]))
    }

    /// Returns whether a client runs as the host's owner or as root.
    fn is_privileged(&self, id: ClientId) -> bool {
        let owner = rustix::process::geteuid().as_raw();
        self.clients.get(id).is_some_and(|client| [0, owner].contains(&client.uid))
    }

    /// Checks that a client's user may use the host. If the configuration names no users, every client that can connect
    /// may.
    fn permit(&self, id: ClientId) -> Result<(), Failure> {
        let users = &self.options.config.service.users;
        let uid = self.clients.get(id).map_or(0, |client| client.uid);
        if users.is_empty() || users.contains(&uid) || self.is_privileged(id) {
            return Ok(());
        }
        let why = format!(
            "user {uid} may not use the host; `users` in the table [service] of its owner's \
             configuration lets others use it"
        );
        Err(Failure::new(libc::EPERM, why))
    }

    /// Checks that a client may do what is reserved to the owner.
    fn permit_owner(&self, id: ClientId, what: &str) -> Result<(), Failure> {
        if self.is_privileged(id) {
            return Ok(());
        }
        let why = format!("only the owner of the service and root may {what}");
        Err(Failure::new(libc::EPERM, why))
    }

    fn welcome(&self, id: ClientId, kind: DeviceKind, slot: u16, first_index: u16) -> Reply {
        Ok(Response::Welcome(Box::new(Welcome {
            version: VERSION,
            host: self.options.host.to_string(),
            network: self.network,
            devices: self.devices(),
            slot,
            first_index,
            port: self.options.config.service.port,
            limits: self.options.config.limits.of(kind),
            privileged: self.is_privileged(id),
        })))
    }

    /// Returns the devices of this host.
    pub(super) fn devices(&self) -> Vec<DeviceRow> {
        let device = |row: &KindRow| DeviceRow {
            kind: row.kind,
            name: row.device_name.to_owned(),
            node_guid: ports::of(row.kind).node_guid(self, row.kind),
            adapter: ports::of(row.kind).adapter(self),
            ports: self.ports_of(row.kind),
        };
        kind::rows().iter().map(device).collect()
    }

    /// Returns the ports of the device of a kind.
    pub(super) fn ports_of(&self, kind: DeviceKind) -> Vec<Port> {
        ports::of(kind).describe(self, kind)
    }

    fn take_slot(&mut self, id: ClientId) -> Result<(u16, u16), Failure> {
        let full = |why: String| Failure::new(libc::ENOMEM, why);
        let client = self.clients.get_mut(id).ok_or_else(|| full("gone".to_owned()))?;
        if client.slots.len() >= MAX_SLOTS {
            return Err(full(format!("the process has {MAX_SLOTS} slots already, the maximum")));
        }
        // One socket on each address, and one at each port of the adapter.
        let sockets = self.addresses.rows().count() + self.adapter.iter().count();
        let grant = self.slots.take(id, client.uid, sockets).map_err(full)?;
        client.slots.push(grant.0);
        self.addresses.recycle(grant.0);
        self.adapter.iter().for_each(|adapter| adapter.data.recycle(grant.0));
        Ok(grant)
    }

    /// Handles a request of a tool.
    fn handle_tool(&mut self, id: ClientId, request: Request) -> Outcome {
        match request {
            Request::Status => self.tell_status().into(),
            Request::Capture => self
                .permit_owner(id, "capture")
                .and_then(|()| self.start_capture(id))
                .map(|fd| (Response::Done, vec![fd]))
                .into(),
            Request::Stay => self
                .permit_owner(id, "keep it up")
                .map(|()| self.options.idle_exit = None)
                .map(|()| Response::Done)
                .into(),
            Request::Shutdown => self.handle_shutdown(id).into(),
            Request::View { devices } => self.tell_view(id, devices).into(),
            Request::UserNamespace => self.tell_user_namespace(id).into(),
            _ => Outcome::Break("a request that needs a device".to_owned()),
        }
    }

    fn handle_shutdown(&mut self, id: ClientId) -> Reply {
        self.permit_owner(id, "end it")?;
        self.stopping = true;
        Ok(Response::Done)
    }

    /// Handles a request of a process with a device.
    fn handle_device(&mut self, id: ClientId, request: Request) -> Outcome {
        match request {
            Request::AttachAddress { port, gid_index, slot } => {
                let targets = self.is_hub(id);
                let wanted = SocketWanted { port, gid_index, slot, targets };
                self.attach_address(id, &wanted).map(|fd| (Response::Done, vec![fd])).into()
            }
            Request::NewSlot => self
                .take_slot(id)
                .map(|(slot, first_index)| Response::Slot { slot, first_index })
                .into(),
            Request::ReleaseSlot { slot, next_index } => {
                self.release_slot(id, slot, next_index).map(|()| Response::Done).into()
            }
            Request::ConnectRing { host: None, peer } => self.connect_ring(id, peer).into(),
            Request::ConnectRing { host: Some(host), peer } => {
                match self.find_host_ring(id, host, peer) {
                    Found::Now(response, fds) => Outcome::Reply(Ok(response), fds),
                    Found::Later => Outcome::Later,
                }
            }
            Request::NoHostRings => {
                if let Some(client) = self.clients.get_mut(id) {
                    client.host_rings = false;
                }
                Outcome::Silent
            }
            Request::AttachMulticast { port, qpn, mgid } => self
                .check_qpn(id, qpn)
                .and_then(|()| self.check_port(id, port))
                .and_then(|()| self.port_of(id).attach_multicast(self, id, port, qpn, mgid))
                .map(|fd| (Response::Done, fd.into_iter().collect()))
                .into(),
            Request::DetachMulticast { port, qpn, mgid } => {
                let left = self.check_port(id, port);
                let left = left
                    .and_then(|()| self.port_of(id).detach_multicast(self, id, port, qpn, mgid));
                left.map(|()| Response::Done).into()
            }
            Request::Stray { src, dst, bytes } => {
                self.handle_stray(id, src, dst, &bytes);
                Outcome::Silent
            }
            Request::Violation { port, violation } => {
                self.tell_violation(id, port, &violation);
                Outcome::Silent
            }
            Request::StreamEnded { qpn, number } => {
                self.handle_qp_stream_ended(id, qpn, StreamId(number));
                Outcome::Silent
            }
            Request::OpenChannel => self
                .open_channel(id)
                .map(|(channel, fd)| (Response::Channel(channel), vec![fd]))
                .into(),
            Request::HoldChannel { channel } => self.hold_channel(id, channel).into(),
            Request::PutBack { events } => self.put_back(id, &events).into(),
            Request::Cm(request) => self.handle_cm(id, request).into(),
            Request::CmSoon(request) if request.may_be_soon() => {
                self.handle_cm_soon(id, request);
                Outcome::Silent
            }
            Request::Agent(request) => self.handle_agent(id, request).into(),
            Request::OpenHub => self.open_hub(id).map(|fd| (Response::Done, vec![fd])).into(),
            Request::TargetEvent { qpn, event, holders } if self.is_hub(id) => {
                let holders = holders.into_iter().map(MemberId).collect();
                self.tell_target_event(&TargetEvent { qpn, event, holders });
                Outcome::Silent
            }
            other => self.handle_tool(id, other),
        }
    }

    fn attach_address(&mut self, id: ClientId, wanted: &SocketWanted) -> Result<OwnedFd, Failure> {
        self.check_slot(id, wanted.slot)?;
        self.check_port(id, wanted.port)?;
        self.port_of(id).socket(self, id, wanted)
    }

    fn check_port(&self, id: ClientId, port: u8) -> Result<(), Failure> {
        let kind = self.clients.get(id).and_then(Client::device_kind).unwrap_or_default();
        if (1..=self.ports_of(kind).len()).contains(&usize::from(port)) {
            return Ok(());
        }
        let why = format!("{} has no port {port}", kind.device_name());
        Err(Failure::new(libc::EINVAL, why))
    }

    /// Returns the ports of a client's kind of device.
    fn port_of(&self, id: ClientId) -> &'static dyn ServicePort {
        ports::of(self.clients.get(id).and_then(Client::device_kind).unwrap_or_default())
    }

    fn release_slot(&mut self, id: ClientId, slot: u16, next_index: u16) -> Result<(), Failure> {
        self.check_slot(id, slot)?;
        if let Some(client) = self.clients.get_mut(id) {
            client.slots.retain(|&s| s != slot);
        }
        self.remove_slot(slot, Some(next_index));
        Ok(())
    }

    /// Returns rings to the process of a slot. Processes are known by their first slots. The other process gets its
    /// ends in a notification, the first time.
    fn connect_ring(
        &mut self,
        id: ClientId,
        peer: u16,
    ) -> Result<(Response, Vec<OwnedFd>), Failure> {
        let no_ring = Ok((Response::NoRing, Vec::new()));
        // Devices of different kinds are not linked.
        let kind = self.clients.get(id).and_then(Client::device_kind);
        // A slot that belongs to no process is the hub's.
        let hub_slot = || self.hub_slot(kind.unwrap_or_default());
        let peer = if peer == SERVICE_SLOT { hub_slot().unwrap_or(peer) } else { peer };
        let Some(owner) = self.slots.owner(peer).filter(|&owner| owner != id) else {
            return no_ring;
        };
        let first_slot = |id| {
            let client = self.clients.get(id).filter(|client| client.device.is_some())?;
            client.slots.first().copied().filter(|_| client.device_kind() == kind)
        };
        let (Some(slot), Some(peer)) = (first_slot(id), first_slot(owner)) else {
            return no_ring;
        };
        let is_known = self.rings.has(slot, peer);
        if !is_known && self.unread_descriptors(owner) >= MAX_UNREAD_DESCRIPTORS {
            // The descriptors of its end would wait, too.
            return no_ring;
        }
        // The process that asks pays for both ends, so that no user can use up another's share.
        let cost = if is_known { 0 } else { 2 * END_DESCRIPTORS };
        let Ok(share) = self.descriptors_for(id, cost) else {
            // Such processes need no ring.
            return no_ring;
        };
        let rings = || -> io::Result<_> {
            let (ours, new) = self.rings.connect(slot, peer, share)?;
            let mut ours = Vec::from(ours);
            ours.extend(self.reach_of(owner, id)?);
            if !new {
                return Ok((ours, None));
            }
            let mut theirs = Vec::from(self.rings.end_of(peer, slot)?);
            theirs.extend(self.reach_of(id, owner)?);
            Ok((ours, Some(theirs)))
        };
        let (ours, theirs) = rings().map_err(|e| failure(&e))?;
        if let Some(theirs) = theirs {
            self.notify(owner, &Notify::Ring { peer: slot, known_as: peer }, theirs);
        }
        Ok((Response::Ring { peer, known_as: slot }, ours))
    }

    /// Returns how many descriptors wait for a client to read its socket.
    fn unread_descriptors(&self, id: ClientId) -> usize {
        let device = self.clients.get(id).and_then(|client| client.device.as_ref());
        device.map_or(0, |device| device.notify.waiting_descriptors())
    }

    /// Returns the descriptors by which `who` accesses the memory of `of`: all, or none.
    fn reach_of(&self, of: ClientId, who: ClientId) -> io::Result<Vec<OwnedFd>> {
        let both = self.clients.get(of).zip(self.clients.get(who));
        match both.and_then(|(of, who)| of.reach_for(who)) {
            Some((board, pidfd)) => Ok(vec![board.try_clone()?, pidfd.try_clone()?]),
            None => Ok(Vec::new()),
        }
    }

    /// Handles a datagram that a client received at one of the host's addresses, as it says. Its source cannot be verified.
    fn handle_stray(&mut self, id: ClientId, src: SocketAddr, dst: IpAddr, bytes: &[u8]) {
        let kind = self.clients.get(id).and_then(Client::device_kind).unwrap_or_default();
        if !kind.has_qp1_of_host() || self.addresses.find(dst).is_none() {
            return self.counts.add(Count::DropStray);
        }
        match bytes.get(4..).and_then(|b| b.first_chunk()) {
            Some(word) => {
                let qpn = Qpn::new(u32::from_be_bytes(*word));
                self.process_stray((kind, qpn), src, dst, bytes);
            }
            None => self.counts.add(Count::DropMalformed),
        }
    }

    fn handle_agent(&mut self, id: ClientId, request: AgentRequest) -> Reply {
        match request {
            AgentRequest::Register { port, qpn, class, class_version, methods } => {
                let device = self.clients.get(id).and_then(Client::device_kind).unwrap_or_default();
                let port = PortId { device, number: port };
                let class = MgmtClass(class);
                let key = AgentKey { port, qpn, class, class_version };
                let waiting = self.shares.requests.none(self.user_of(id));
                self.agents.register((id, waiting), key, methods).map(Response::Agent)
            }
            AgentRequest::Unregister { agent } => {
                self.agents.unregister(id, agent).map(|()| Response::Done)
            }
            AgentRequest::Send { agent, to, timeout_ms, retries, mad } => {
                let wait = (Duration::from_millis(timeout_ms.into()), retries);
                let (port, mad) = self.agents.send(self.now(), id, agent, to, &mad, wait)?;
                self.send_agent_mad(port, &to, &mad);
                self.drain_outbox();
                Ok(Response::Done)
            }
        }
    }

    fn check_slot(&self, id: ClientId, slot: u16) -> Result<(), Failure> {
        if self.slots.owner(slot) == Some(id) {
            return Ok(());
        }
        Err(Failure::new(libc::EPERM, format!("slot {slot} does not belong to this process")))
    }

    fn check_qpn(&self, id: ClientId, qpn: Qpn) -> Result<(), Failure> {
        if self.slots.owner(slot_of(qpn)) == Some(id) {
            return Ok(());
        }
        Err(Failure::new(libc::EPERM, format!("queue pair {qpn} does not belong to this process")))
    }
}
