//! The subnet and the programs' agents, and the passing of datagrams between them.

use std::collections::{HashMap, VecDeque};

use rdmux_runtime::{Share, Shares};
use rdmux_subnet::manager::{Event, Manager};
use rdmux_subnet::partitions::Partitions;
use rdmux_subnet::umad::{
    Config, Errno, FileId, Ports, Registration, Umad, UmadSink, Unsent, UserMad,
};
use rdmux_subnet::{MadPacket, PortEvent, PortId, Sink, Subnet, Time};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Gid, Lid, Pkey};

use super::captures::Captured;
use super::manager::{self, Managed};

/// The subnet, the agents, and the datagrams queued between them.
#[derive(Debug)]
pub(super) struct World {
    subnet: Subnet,
    umad: Umad,
    /// The shares of the bytes of unfinished sends and incoming messages, and those of the programs' files.
    shares: Shares,
    charged: HashMap<FileId, Share>,
    /// Datagrams from the subnet for agents.
    arrived: VecDeque<(PortId, MadPacket)>,
    /// Output of agents for the subnet and the embedded manager.
    sent: FromPrograms,
    /// The embedded subnet manager.
    managed: Option<Managed>,
    /// Events of ports that were not taken yet.
    events: Vec<(PortId, PortEvent)>,
    captured: Captured,
}

/// Maximum number of bytes of all programs' unfinished sends and incoming messages, which users share. One file may have half of a user's
/// share in sends, and as much in incoming messages.
const MAX_UNFINISHED: usize = 1 << 30;

/// The output of the agents.
#[derive(Debug, Default)]
struct FromPrograms {
    asked: VecDeque<Sent>,
    /// The file of the embedded manager, and the requests to it.
    manager: Option<FileId>,
    requests: VecDeque<UserMad>,
}

/// An agent's request to the subnet.
#[derive(Debug)]
enum Sent {
    Packet(PortId, MadPacket),
    IsSm(PortId, bool),
}

/// A receiver of the records that programs can read.
pub(super) trait Reader {
    /// Passes a record to the program that has opened this file.
    fn read(&mut self, file: FileId, record: &UserMad);
}

/// A reader for use before any program exists.
struct Nobody;

impl Reader for Nobody {
    fn read(&mut self, _: FileId, _: &UserMad) {}
}

impl World {
    pub(super) fn new(subnet: Subnet) -> Self {
        Self {
            subnet,
            umad: Umad::new(Config::default()),
            shares: Shares::new(MAX_UNFINISHED),
            charged: HashMap::new(),
            arrived: VecDeque::new(),
            sent: FromPrograms::default(),
            managed: None,
            events: Vec::new(),
            captured: Captured::default(),
        }
    }

    /// Starts a manager: at port 0 of the first switch or, without a switch, at the first adapter's port. Its agents receive the
    /// requests to managers.
    pub(super) fn start_manager(&mut self, config: manager::Config, partitions: Partitions) {
        let ports = || self.subnet.ports().map(|view| view.id());
        let Some(port) = ports().find(|port| port.number == 0).or(ports().next()) else { return };
        let file = self.umad.open(port);
        for registration in manager::REGISTRATIONS {
            // This is the first file, so the classes are free.
            let _ = self.umad.register(file, &registration);
        }
        self.sent.manager = Some(file);
        self.subnet.set_attached(port, true);
        let guid = self.subnet.port(port).map(|view| view.guid()).unwrap_or_default();
        let config = manager::Config { guid, ..config };
        self.managed = Some(Managed::new(port, config, partitions));
        let _ = self.open_is_sm(&mut Nobody, Time::ZERO, port);
    }

    /// Returns whether the embedded manager is on a port.
    pub(super) fn is_managers(&self, port: PortId) -> bool {
        self.managed.as_ref().is_some_and(|managed| managed.port() == port)
    }

    /// Sets other partitions on the embedded manager. Returns whether the fabric has one.
    pub(super) fn set_partitions(&mut self, now: Time, partitions: Partitions) -> bool {
        let managed = self.managed.as_mut();
        managed.map(|managed| managed.set_partitions(now, partitions)).is_some()
    }

    /// Returns the embedded manager.
    pub(super) fn manager(&self) -> Option<&Manager> {
        self.managed.as_ref().map(Managed::manager)
    }

    /// Returns the embedded manager's events since the last call.
    pub(super) fn take_manager_events(&mut self) -> Vec<Event> {
        self.managed.as_mut().map(Managed::take_events).unwrap_or_default()
    }

    pub(super) fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// Returns the subnet, for callers that take its changes or add counts, but change nothing else.
    pub(super) fn subnet_mut(&mut self) -> &mut Subnet {
        &mut self.subnet
    }

    pub(super) fn umad(&self) -> &Umad {
        &self.umad
    }

    /// Returns the captured ports and frames.
    pub(super) fn captured(&mut self) -> &mut Captured {
        &mut self.captured
    }

    /// Returns the events of ports since the last call.
    pub(super) fn take_events(&mut self) -> Vec<(PortId, PortEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Changes the subnet, and carries the resulting datagrams.
    pub(super) fn change<T>(
        &mut self,
        reader: &mut impl Reader,
        now: Time,
        change: impl FnOnce(&mut Subnet, &mut FromSubnet<'_>) -> T,
    ) -> T {
        let mut sink = FromSubnet {
            arrived: &mut self.arrived,
            events: &mut self.events,
            captured: &mut self.captured,
        };
        let result = change(&mut self.subnet, &mut sink);
        self.carry(reader, now);
        result
    }

    /// Sends a program's datagram.
    pub(super) fn write(
        &mut self,
        reader: &mut impl Reader,
        now: Time,
        file: FileId,
        mad: UserMad,
    ) -> Result<(), Errno> {
        self.check_share(file, &mad)?;
        let mut sink = FromAgents { sent: &mut self.sent, reader };
        self.umad.write(now, file, mad, &Tables(&self.subnet), &mut sink)?;
        self.charge();
        self.carry(reader, now);
        Ok(())
    }

    /// Checks whether the user's share has room for a datagram that is kept until it is answered or acknowledged.
    fn check_share(&self, file: FileId, mad: &UserMad) -> Result<(), Errno> {
        let (len, share) = (mad.data.len(), self.charged.get(&file));
        let is_kept = mad.timeout_ms > 0 || len > MAD_LEN;
        let has_room = share.is_none_or(|share| share.check(len.max(MAD_LEN)).is_ok());
        if has_room || !is_kept { Ok(()) } else { Err(Errno::NoMem) }
    }

    /// Adjusts the users' shares to what files keep now. What others send to a user whose share is used up is dropped while it is
    /// incomplete.
    fn charge(&mut self) {
        while let Some((file, bytes)) = self.umad.take_changed() {
            let Some(share) = self.charged.get_mut(&file) else { continue };
            let is_more = bytes > share.count();
            share.set(bytes);
            if is_more && share.check(0).is_err() {
                self.umad.drop_incoming(file);
            }
        }
    }

    /// Checks whether a program may send this.
    pub(super) fn check_write(&self, file: FileId, mad: &UserMad) -> Result<(), Errno> {
        self.umad.check_write(file, mad, &Tables(&self.subnet))?;
        self.check_share(file, mad)
    }

    /// Opens the management interface of a port for a program of this user.
    pub(super) fn open(&mut self, port: PortId, user: u32) -> FileId {
        let file = self.umad.open(port);
        self.charged.insert(file, self.shares.none(user));
        file
    }

    /// Opens a port for a manager, which sets its IsSM bit.
    pub(super) fn open_is_sm(
        &mut self,
        reader: &mut impl Reader,
        now: Time,
        port: PortId,
    ) -> Result<FileId, Errno> {
        let mut sink = FromAgents { sent: &mut self.sent, reader };
        let opened = self.umad.open_issm(port, &mut sink);
        self.carry(reader, now);
        opened
    }

    /// Closes a program's file of either kind.
    pub(super) fn close(&mut self, reader: &mut impl Reader, now: Time, file: FileId) {
        self.umad.close(file, &mut FromAgents { sent: &mut self.sent, reader });
        self.charged.remove(&file);
        self.carry(reader, now);
    }

    pub(super) fn register(&mut self, file: FileId, what: &Registration) -> Result<u32, Errno> {
        self.umad.register(file, what)
    }

    pub(super) fn unregister(&mut self, file: FileId, agent: u32) -> Result<(), Errno> {
        let result = self.umad.unregister(file, agent);
        self.charge();
        result
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        let manager = self.managed.as_ref().and_then(Managed::next_timeout);
        let due = [self.subnet.next_timeout(), self.umad.next_timeout(), manager];
        due.into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, reader: &mut impl Reader, now: Time) {
        self.umad.handle_timeout(now, &mut FromAgents { sent: &mut self.sent, reader });
        self.charge();
        let mut sink = FromSubnet {
            arrived: &mut self.arrived,
            events: &mut self.events,
            captured: &mut self.captured,
        };
        self.subnet.handle_timeout(now, &mut sink);
        self.carry(reader, now);
        self.manage(reader, now);
    }

    /// Lets the embedded manager work, for a slice that delays no client.
    fn manage(&mut self, reader: &mut impl Reader, now: Time) {
        if let Some(managed) = &mut self.managed {
            managed.handle_timeout(now);
        }
        for _ in 0..manager::SLICE {
            let Some(managed) = &mut self.managed else { return };
            let Some((port, packet)) = managed.next_packet(&self.subnet) else { return };
            let mut sink = FromSubnet {
                arrived: &mut self.arrived,
                events: &mut self.events,
                captured: &mut self.captured,
            };
            self.subnet.send(now, port, packet, &mut sink);
            self.carry(reader, now);
        }
    }

    /// Returns the next datagram of subnet administration, and the file that it is written to.
    fn next_of_administration(&mut self) -> Option<(FileId, UserMad)> {
        Some((self.sent.manager?, self.managed.as_mut()?.next_mad()?))
    }

    /// Carries queued datagrams until none are left.
    fn carry(&mut self, reader: &mut impl Reader, now: Time) {
        loop {
            if let Some(sent) = self.sent.asked.pop_front() {
                let mut sink = FromSubnet {
                    arrived: &mut self.arrived,
                    events: &mut self.events,
                    captured: &mut self.captured,
                };
                match sent {
                    Sent::Packet(from, packet) => self.subnet.send(now, from, packet, &mut sink),
                    Sent::IsSm(port, is_sm) => self.subnet.set_is_sm(now, port, is_sm, &mut sink),
                }
            } else if let Some(request) = self.sent.requests.pop_front() {
                if let Some(managed) = &mut self.managed {
                    managed.handle_request(now, &request);
                }
            } else if let Some((file, mad)) = self.next_of_administration() {
                let mut sink = FromAgents { sent: &mut self.sent, reader };
                let back = Unsent::of(&mad);
                let written = self.umad.write(now, file, mad, &Tables(&self.subnet), &mut sink);
                // An answer that finds the queue full is lost: the client repeats its request.
                if let (Err(why), Some(back), Some(managed)) = (written, back, &mut self.managed) {
                    managed.handle_unsent(&back.record(why));
                }
            } else if let Some((port, packet)) = self.arrived.pop_front() {
                // Answers to the manager's many requests bypass the agents.
                let managed = self.managed.as_mut().filter(|m| m.is_answered_by(port, &packet));
                if let Some(managed) = managed {
                    managed.handle_answer(now, &packet);
                    continue;
                }
                let mut sink = FromAgents { sent: &mut self.sent, reader };
                self.umad.arrived(now, port, &packet, &Tables(&self.subnet), &mut sink);
                self.charge();
            } else {
                break;
            }
        }
    }
}

/// Receives the subnet's output.
#[derive(Debug)]
pub(super) struct FromSubnet<'w> {
    arrived: &'w mut VecDeque<(PortId, MadPacket)>,
    events: &'w mut Vec<(PortId, PortEvent)>,
    captured: &'w mut Captured,
}

impl Sink for FromSubnet<'_> {
    fn deliver(&mut self, port: PortId, packet: MadPacket) {
        self.arrived.push_back((port, packet));
    }

    fn port_event(&mut self, port: PortId, event: PortEvent) {
        self.events.push((port, event));
    }

    #[inline]
    fn passed(&mut self, port: PortId, sent: bool, packet: &MadPacket) {
        self.captured.passed(port, sent, packet);
    }
}

/// Receives the agents' output.
struct FromAgents<'w, R> {
    sent: &'w mut FromPrograms,
    reader: &'w mut R,
}

impl<R: Reader> UmadSink for FromAgents<'_, R> {
    fn transmit(&mut self, port: PortId, packet: MadPacket) {
        self.sent.asked.push_back(Sent::Packet(port, packet));
    }

    fn readable(&mut self, file: FileId, record: UserMad) {
        if self.sent.manager == Some(file) {
            return self.sent.requests.push_back(record);
        }
        self.reader.read(file, &record);
    }

    fn set_is_sm(&mut self, port: PortId, is_sm: bool) {
        self.sent.asked.push_back(Sent::IsSm(port, is_sm));
    }
}

/// The tables of ports, for agents.
struct Tables<'w>(&'w Subnet);

impl Ports for Tables<'_> {
    fn lid(&self, port: PortId) -> Option<(Lid, u8)> {
        Some(self.0.port(port).map_or((Lid(0), 0), |view| (view.lid(), view.lmc())))
    }

    fn pkey(&self, port: PortId, index: u16) -> Option<Pkey> {
        self.0.port(port)?.pkey(index)
    }

    fn gid(&self, port: PortId, index: u8) -> Option<Gid> {
        self.0.port(port)?.gid(index)
    }

    /// Finds a P_Key's index. Tables may have holes.
    fn pkey_index(&self, port: PortId, pkey: Pkey) -> Option<u16> {
        let keys = self.0.port(port)?.pkeys();
        let index = keys.iter().position(|key| *key != Pkey(0) && pkey.admits(*key))?;
        u16::try_from(index).ok()
    }

    /// Finds a GID's index. Tables may have holes.
    fn gid_index(&self, port: PortId, gid: Gid) -> Option<u8> {
        let view = self.0.port(port)?;
        (0..view.info().guid_cap).find(|&index| view.gid(index) == Some(gid))
    }
}

#[cfg(test)]
mod tests {
    use rdmux_subnet::topology::Shape;
    use rdmux_subnet::umad::UserAddress;
    use rdmux_subnet::{NodeId, service::Service};
    use rdmux_wire::Guid;
    use rdmux_wire::mad::Method;
    use rdmux_wire::sa::{InformInfo, NodeRecord, SaMad};

    use super::*;

    /// A world with the records that programs have read, and its time.
    struct Net {
        world: World,
        read: Records,
        now: Time,
        tid: u64,
    }

    #[derive(Default)]
    struct Records(Vec<(FileId, UserMad)>);

    impl Reader for Records {
        fn read(&mut self, file: FileId, record: &UserMad) {
            self.0.push((file, record.clone()));
        }
    }

    impl Net {
        /// Makes a subnet whose manager has swept.
        fn up(shape: &str, config: Config) -> Self {
            let shape: Shape = shape.parse().unwrap();
            let subnet =
                Subnet::new(&shape.topology(Guid(0x1000)), rdmux_subnet::Config::default());
            let mut world = World { umad: Umad::new(config), ..World::new(subnet) };
            world.start_manager(manager::Config::default(), Partitions::default());
            let mut net = Self { world, read: Records::default(), now: Time::ZERO, tid: 0 };
            while !net.world.manager().is_some_and(Manager::is_up) {
                net.pass();
            }
            net
        }

        /// Advances time until the next timer.
        fn pass(&mut self) {
            self.now = self.now.max(self.world.next_timeout().expect("it works"));
            self.world.handle_timeout(&mut self.read, self.now);
        }

        /// Runs until all consequences of earlier datagrams are over.
        fn settle(&mut self) {
            let end = self.now.after(std::time::Duration::from_secs(30));
            while self.now < end {
                self.pass();
            }
        }

        /// Opens a program that queries administration and acknowledges nothing.
        fn program(&mut self, node: u32, methods: u128) -> FileId {
            let file = self.world.open(PortId { node: NodeId(node), number: 1 }, 0);
            let what = Registration { methods, rmpp_version: 0, ..Service::REGISTRATION };
            self.world.register(file, &what).unwrap();
            file
        }

        fn ask(&mut self, file: FileId, method: Method, attr_id: u16, tid: u64, data: &[u8]) {
            let mut mad = SaMad::new(method, attr_id, data);
            mad.header.tid = tid;
            let lid = self.world.subnet().port(self.world.managed.as_ref().unwrap().port());
            let address = UserAddress::gsi(lid.unwrap().lid());
            let data = mad.to_bytes().to_vec();
            let (agent, status, timeout_ms, retries) = (0, 0, 1000, 0);
            let mad = UserMad { agent, status, timeout_ms, retries, address, data };
            self.world.write(&mut self.read, self.now, file, mad).unwrap();
        }

        /// Returns how many datagrams with a method a program has read since the last call.
        fn took(&mut self, file: FileId, method: Method) -> usize {
            let is = |(at, mad): &(FileId, UserMad)| *at == file && mad.data[3] == method.0;
            let count = self.read.0.iter().filter(|record| is(record)).count();
            self.read.0.clear();
            count
        }
    }

    #[test]
    fn unfinished_sends_and_incoming_messages_of_a_user_are_within_its_share() {
        let mut net = Net::up("switch:4", Config::default());
        net.world.shares = Shares::of(1000, 16 * MAD_LEN);
        let [one, two, other, owners] = [(1, 1), (2, 1), (3, 2), (3, 1000)]
            .map(|(node, user)| net.world.open(PortId { node: NodeId(node), number: 1 }, user));
        for file in [one, two, other, owners] {
            let what = Registration { methods: 0, rmpp_version: 0, ..Service::REGISTRATION };
            net.world.register(file, &what).unwrap();
        }
        // Requests to a LID that no port has.
        let ask = |net: &mut Net, file: FileId, timeout_ms: u32| {
            let mut mad = SaMad::new(Method::GET, NodeRecord::ATTR_ID, &[]);
            net.tid += 1;
            mad.header.tid = net.tid;
            let (data, address) = (mad.to_bytes().to_vec(), UserAddress::gsi(Lid(0xb000)));
            let mad = UserMad { agent: 0, status: 0, timeout_ms, retries: 0, address, data };
            net.world.check_write(file, &mad)?;
            net.world.write(&mut net.read, net.now, file, mad)
        };
        let accepted =
            |net: &mut Net, file| (0..20).take_while(|_| ask(net, file, 1000).is_ok()).count();
        assert_eq!((accepted(&mut net, one), accepted(&mut net, two)), (8, 0));
        assert_eq!((accepted(&mut net, other), accepted(&mut net, owners)), (4, 20));
        let now = net.now;
        net.world.close(&mut net.read, now, other);
        net.settle();
        assert_eq!(accepted(&mut net, two), 8, "the others have timed out");
        assert_eq!(ask(&mut net, one, 1000), Err(Errno::NoMem));
        ask(&mut net, one, 0).expect("nothing is kept");
    }

    #[test]
    fn subscriber_gets_reports_again_after_unsent_ones_for_lack_of_room() {
        let most = 4;
        let config = Config { outstanding: most, responses_to_peer: most, ..Config::default() };
        let mut net = Net::up("switch:4", config);
        let (subscriber, greedy) = (net.program(2, 1 << Method::REPORT.0), net.program(3, 0));
        let everything = InformInfo {
            lid_range_begin: Lid(0xffff),
            is_generic: 1,
            subscribe: 1,
            notice_type: 0xffff,
            trap_number: 0xffff,
            producer: rdmux_wire::sm::Producer(0x00ff_ffff),
            qpn: rdmux_wire::Qpn::QP1,
            ..InformInfo::default()
        };
        net.ask(subscriber, Method::SET, InformInfo::ATTR_ID, 1, &everything.to_bytes());
        assert_eq!(net.took(subscriber, Method::GET_RESP), 1);
        let mut system = 0x77;
        let mut event = |net: &mut Net| {
            system += 1;
            let now = net.now;
            net.world.change(&mut net.read, now, |subnet, sink| {
                subnet.set_system_guid(now, NodeId(1), Guid(system), sink);
            });
            net.took(subscriber, Method::REPORT)
        };
        let reports = rdmux_subnet::administration::Config::default().reports_of_port;
        for round in 0..reports as u64 {
            for n in 0..most as u64 {
                let tid = round * most as u64 + n;
                net.ask(greedy, Method::GET_TABLE, NodeRecord::ATTR_ID, tid, &[]);
            }
            assert_eq!(event(&mut net), 0, "there is no room");
            net.settle();
            net.took(subscriber, Method::REPORT);
        }
        assert_eq!(event(&mut net), 1);
    }
}
