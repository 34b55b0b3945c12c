//! A host without a service: sockets, slots and rings are provided in this process, so that devices can be tested against each
//! other with nothing else running.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdmux_link::ring::DEFAULT_CAPACITY;
use rdmux_link::udp::GroupOptions;
use rdmux_link::wire::PacketWire;
use rdmux_link::{Board, Doorbell, McastSocket, PeerBell, RingPair, SharedMem, UdpGroup};
pub use rdmux_testing::qp::ALL_ACCESS as ALL;
use rdmux_testing::qp::{connected_to, steps};
use rdmux_verbs::control::{
    Control, ControlError, ControlEvent, DeviceKind, DriverWire, HostInfo, Limits, RingEnd,
    RingPeer, SlotGrant,
};
use rdmux_verbs::counters::{Counter, PAGE_COUNTERS};
use rdmux_verbs::port::{GidEntry, Port, PortEvent};
use rdmux_verbs::transport::attr::{AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_verbs::transport::iwarp::StreamParams;
use rdmux_verbs::transport::wr::{Completion, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge};
use rdmux_verbs::wire::{Gid, Guid, Mtu, Qkey, Qpn};
use rdmux_verbs::{Cq, Device, Mr, MrInit, Pd, Qp, QpInit, Srq};

/// A lab: one machine with some hosts, each with one address.
pub struct Lab {
    port: u16,
    /// Holds the port on an address that no host has, so that no other lab gets it meanwhile.
    _held: UdpSocket,
    hosts: Mutex<BTreeMap<IpAddr, Host>>,
    /// Whether processes of one host may share memory.
    rings: bool,
}

struct Host {
    group: UdpGroup,
    members: BTreeMap<u16, Arc<Inbox>>,
    next: u16,
}

/// Pending events of the lab for a device.
struct Inbox {
    notify: Doorbell,
    events: Mutex<VecDeque<ControlEvent>>,
    gone: Mutex<bool>,
    rings: Mutex<BTreeMap<u16, RingEnd>>,
}

/// A group that a process receives on an address, and its member queue pairs.
struct JoinedGroup {
    socket: McastSocket,
    members: Vec<Qpn>,
}

/// A hook for rings, called before the process that requested them gets them.
type AtRings = Box<dyn FnOnce(&mut RingEnd) + Send>;

pub struct LabControl {
    lab: Arc<Lab>,
    info: HostInfo,
    /// The entries of the GID table.
    rows: Mutex<Vec<Option<IpAddr>>>,
    /// An entry whose address is removed when it is requested.
    fleeting: Mutex<Option<u8>>,
    /// The address on which groups are joined from now on.
    joined_on: Mutex<IpAddr>,
    groups: Mutex<BTreeMap<(Gid, IpAddr), JoinedGroup>>,
    /// A hook that is called before a queue pair is detached.
    at_detach: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// A hook that is called when rings are made, before the process that requested them gets them.
    at_rings: Mutex<Option<AtRings>>,
    inbox: Arc<Inbox>,
    counters: SharedMem,
    ended: Mutex<Vec<(Qpn, u64)>>,
    wire: Mutex<Option<Arc<PacketWire>>>,
    board: Option<Arc<Board>>,
}

impl Lab {
    pub fn new(rings: bool) -> Arc<Self> {
        let held = UdpSocket::bind("127.77.200.254:0").unwrap();
        let port = held.local_addr().unwrap().port();
        Arc::new(Self { port, _held: held, hosts: Mutex::default(), rings })
    }

    fn options(&self) -> GroupOptions {
        GroupOptions { port: self.port, header_info: false, ..GroupOptions::default() }
    }

    /// Creates a process on the host with this address.
    pub fn process(self: &Arc<Self>, ip: &str) -> (Arc<Device>, Arc<LabControl>) {
        self.process_told(ip, DeviceKind::default(), |_| {})
    }

    /// Adds a process like [`process`](Self::process), with a board, so that other processes can be given access to its memory.
    pub fn process_with_board(self: &Arc<Self>, ip: &str) -> (Arc<Device>, Arc<LabControl>) {
        let mut control = self.control(ip, DeviceKind::default(), |_| {});
        Arc::get_mut(&mut control).unwrap().board = Some(Arc::new(Board::create().unwrap()));
        (Device::open(control.clone()).unwrap(), control)
    }

    /// Adds a process like [`process`](Self::process), with a device that the test drives.
    pub fn driven_process(self: &Arc<Self>, ip: &str) -> (Arc<Device>, Arc<LabControl>) {
        let control = self.control(ip, DeviceKind::default(), |_| {});
        (Device::open_driven(control.clone()).unwrap(), control)
    }

    /// Adds a process like [`driven_process`](Self::driven_process), with a device whose connections are streams.
    pub fn driven_stream_process(self: &Arc<Self>, ip: &str) -> (Arc<Device>, Arc<LabControl>) {
        let control = self.control(ip, DeviceKind::Iwarp, |_| {});
        (Device::open_driven(control.clone()).unwrap(), control)
    }

    /// Adds a process like [`process`](Self::process), with a device whose connections are streams.
    pub fn stream_process(self: &Arc<Self>, ip: &str) -> (Arc<Device>, Arc<LabControl>) {
        self.process_told(ip, DeviceKind::Iwarp, |_| {})
    }

    /// Adds a process like [`process`](Self::process), with a device of any kind. `change` changes the description of the host.
    pub fn process_told(
        self: &Arc<Self>,
        ip: &str,
        kind: DeviceKind,
        change: impl FnOnce(&mut HostInfo),
    ) -> (Arc<Device>, Arc<LabControl>) {
        let control = self.control(ip, kind, change);
        (Device::open(control.clone()).unwrap(), control)
    }

    fn control(
        self: &Arc<Self>,
        ip: &str,
        kind: DeviceKind,
        change: impl FnOnce(&mut HostInfo),
    ) -> Arc<LabControl> {
        let ip: IpAddr = ip.parse().unwrap();
        let mut hosts = self.hosts.lock().unwrap();
        let host = self.host(&mut hosts, ip);
        let slot = host.next;
        host.next += 1;
        let inbox = Arc::new(Inbox {
            notify: Doorbell::new().unwrap(),
            events: Mutex::default(),
            gone: Mutex::new(false),
            rings: Mutex::default(),
        });
        host.members.insert(slot, inbox.clone());
        drop(hosts);
        let mut info = HostInfo {
            kind,
            host: ip.to_string(),
            device: kind.device_name().into(),
            node_guid: Guid(1),
            adapter: None,
            ports: vec![Port::over_ip(kind, Guid(1), vec![entry(Some(ip))])],
            slot: SlotGrant { slot, first_index: 7 },
            limits: Limits::default(),
            privileged: true,
        };
        change(&mut info);
        let counters = SharedMem::create("lab", PAGE_COUNTERS).unwrap();
        let ended = Mutex::default();
        let (lab, wire) = (self.clone(), Mutex::default());
        Arc::new(LabControl {
            lab,
            info,
            rows: Mutex::new(vec![Some(ip)]),
            fleeting: Mutex::default(),
            joined_on: Mutex::new(ip),
            groups: Mutex::default(),
            at_detach: Mutex::default(),
            at_rings: Mutex::default(),
            inbox,
            counters,
            ended,
            wire,
            board: None,
        })
    }

    /// Removes an address and adds it again: its port is free in between.
    pub fn reopen(&self, ip: &str) {
        let ip = ip.parse().unwrap();
        let mut hosts = self.hosts.lock().unwrap();
        hosts.remove(&ip);
        self.host(&mut hosts, ip);
    }

    /// Reopens a device like [`reopen`](Self::reopen), but waits until the port is free.
    pub fn reopen_when_free(&self, ip: &str) {
        let address = ip.parse().unwrap();
        self.hosts.lock().unwrap().remove(&address);
        while UdpGroup::open(address, &self.options()).is_err() {
            std::thread::yield_now();
        }
        self.reopen(ip);
    }

    fn host<'a>(&self, hosts: &'a mut BTreeMap<IpAddr, Host>, ip: IpAddr) -> &'a mut Host {
        hosts.entry(ip).or_insert_with(|| Host {
            group: UdpGroup::open(ip, &self.options()).unwrap(),
            members: BTreeMap::new(),
            next: 1,
        })
    }
}

/// Creates an entry of the GID table.
fn entry(ip: Option<IpAddr>) -> GidEntry {
    let of = |ip: IpAddr| GidEntry {
        gid: Gid::from(ip),
        interface: "lo".into(),
        interface_index: 1,
        mtu: Mtu::M4096,
        ..GidEntry::empty()
    };
    ip.map_or_else(GidEntry::empty, of)
}

impl LabControl {
    fn ip(&self) -> IpAddr {
        self.info.host.parse().unwrap()
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.counters.words()[counter as usize].load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns all counters that are not zero.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let all = Counter::ALL.iter().map(|c| (c.name(), self.count(*c)));
        all.filter(|(_, n)| *n != 0).collect()
    }

    /// Makes the device's packets use this wire, if set before the first packet.
    pub fn bring(&self, wire: Arc<PacketWire>) {
        *self.wire.lock().unwrap() = Some(wire);
    }

    /// Sends the device an event, as the service would.
    pub fn tell(&self, event: ControlEvent) {
        self.inbox.events.lock().unwrap().push_back(event);
        self.inbox.notify.ring().unwrap();
    }

    /// Sets the host's addresses, each in its entry, and notifies the device.
    pub fn readdress(&self, rows: &[Option<&str>]) {
        let rows: Vec<_> = rows.iter().map(|row| row.map(|ip| ip.parse().unwrap())).collect();
        self.follow_rows(&mut self.rows.lock().unwrap(), rows);
    }

    /// Makes the address of an entry disappear when the device requests it.
    pub fn lose_when_asked_for(&self, gid_index: u8) {
        *self.fleeting.lock().unwrap() = Some(gid_index);
    }

    /// Sets the address on which groups are joined.
    pub fn join_on(&self, ip: &str) {
        *self.joined_on.lock().unwrap() = ip.parse().unwrap();
    }

    /// Sets the hook that is called before the next queue pair is detached from a group.
    pub fn at_detach(&self, f: impl FnOnce() + Send + 'static) {
        *self.at_detach.lock().unwrap() = Some(Box::new(f));
    }

    /// Sets the hook for the rings that are made next, called before the device gets them.
    pub fn at_rings(&self, f: impl FnOnce(&mut RingEnd) + Send + 'static) {
        *self.at_rings.lock().unwrap() = Some(Box::new(f));
    }

    /// Ends the process, without notifying the others of its host yet.
    pub fn leave(&self) {
        let mut hosts = self.lab.hosts.lock().unwrap();
        hosts.get_mut(&self.ip()).unwrap().members.remove(&self.info.slot.slot);
    }

    fn make_rings(&self, peer: RingPeer) -> Result<Option<(u16, RingEnd)>, ControlError> {
        if !self.lab.rings || peer.host.is_some() {
            return Ok(None);
        }
        let peer = peer.slot;
        let hosts = self.lab.hosts.lock().unwrap();
        let Some(other) = hosts[&self.ip()].members.get(&peer).cloned() else { return Ok(None) };
        let (near, far) = RingPair::create(DEFAULT_CAPACITY).unwrap();
        let (our_bell, their_bell) = PeerBell::pair().unwrap();
        let end = |fds: rdmux_link::RingFds, bell: PeerBell| RingEnd {
            tx: fds.tx,
            rx: fds.rx,
            bell,
            known_as: 0,
            reach: None,
        };
        let theirs = end(far, their_bell);
        let own = self.info.slot.slot;
        // The peer may have requested rings meanwhile: the rings of the first request are used.
        let mut made = self.inbox.rings.lock().unwrap();
        if let Some(first) = made.remove(&peer) {
            return Ok(Some((peer, first)));
        }
        other.rings.lock().unwrap().insert(
            own,
            RingEnd {
                tx: theirs.tx.try_clone().unwrap(),
                rx: theirs.rx.try_clone().unwrap(),
                bell: PeerBell::from_fd(theirs.bell.duplicate().unwrap()).unwrap(),
                known_as: 0,
                reach: None,
            },
        );
        other.events.lock().unwrap().push_back(ControlEvent::Ring { peer: own, end: theirs });
        other.notify.ring().unwrap();
        Ok(Some((peer, end(near, our_bell))))
    }

    fn follow_rows(&self, known: &mut Vec<Option<IpAddr>>, rows: Vec<Option<IpAddr>>) {
        let entries = rows.iter().copied().map(entry).collect();
        let ports = vec![Port::over_ip(self.info.kind, Guid(1), entries)];
        *known = rows;
        self.tell(ControlEvent::Ports { ports, events: vec![(1, PortEvent::GidChange)] });
    }

    /// Returns the queue pairs whose streams have ended.
    pub fn ended(&self) -> Vec<Qpn> {
        let ended = self.ended_streams().into_iter();
        ended.filter_map(|(qpn, number)| (number == NUMBER).then_some(qpn)).collect()
    }

    /// Returns the streams that the device has reported as ended.
    pub fn ended_streams(&self) -> Vec<(Qpn, u64)> {
        self.ended.lock().unwrap().clone()
    }

    /// Simulates the death of the service.
    pub fn die(&self) {
        *self.inbox.gone.lock().unwrap() = true;
        self.inbox.notify.ring().unwrap();
    }
}

impl Control for LabControl {
    fn info(&self) -> &HostInfo {
        &self.info
    }
    fn attach_address(&self, gid_index: u8, slot: u16) -> Result<OwnedFd, ControlError> {
        let mut rows = self.rows.lock().unwrap();
        if self.fleeting.lock().unwrap().take_if(|row| *row == gid_index).is_some() {
            let mut left = rows.clone();
            left[usize::from(gid_index)] = None;
            self.follow_rows(&mut rows, left);
        }
        let ip = rows.get(usize::from(gid_index)).copied().flatten();
        let ip = ip.ok_or_else(|| ControlError::Refused {
            what: format!("attach GID index {gid_index}"),
            why: "it is empty".to_owned(),
            errno: libc::EINVAL,
        })?;
        let mut hosts = self.lab.hosts.lock().unwrap();
        Ok(self.lab.host(&mut hosts, ip).group.socket(slot).unwrap())
    }
    fn attach_wire(&self, _: u8, _: u8, _: u16) -> Result<Option<DriverWire>, ControlError> {
        Ok(self.wire.lock().unwrap().clone().map(DriverWire::Other))
    }
    fn new_slot(&self) -> Result<SlotGrant, ControlError> {
        let mut hosts = self.lab.hosts.lock().unwrap();
        let host = hosts.get_mut(&self.ip()).unwrap();
        let slot = host.next;
        host.next += 1;
        host.members.insert(slot, self.inbox.clone());
        Ok(SlotGrant { slot, first_index: 0 })
    }
    fn connect_ring(&self, peer: RingPeer) -> Result<Option<(u16, RingEnd)>, ControlError> {
        let mut rings = self.make_rings(peer)?;
        if let Some((_, end)) = &mut rings {
            let first = self.at_rings.lock().unwrap().take();
            first.into_iter().for_each(|first| first(end));
        }
        Ok(rings)
    }
    fn board(&self) -> Option<&Arc<Board>> {
        self.board.as_ref()
    }
    fn attach_multicast(
        &self,
        _: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, ControlError> {
        let local = *self.joined_on.lock().unwrap();
        let mut groups = self.groups.lock().unwrap();
        if let Some(joined) = groups.get_mut(&(mgid, local)) {
            joined.members.push(qpn);
            return Ok(None);
        }
        let socket = McastSocket::join(mgid.ip(), local, &self.lab.options()).unwrap();
        let fd = socket.port().as_fd().try_clone_to_owned().unwrap();
        groups.insert((mgid, local), JoinedGroup { socket, members: vec![qpn] });
        Ok(Some(fd))
    }
    fn detach_multicast(&self, _: u8, qpn: Qpn, mgid: Gid) -> Result<(), ControlError> {
        let first = self.at_detach.lock().unwrap().take();
        first.into_iter().for_each(|first| first());
        if *self.inbox.gone.lock().unwrap() {
            return Err(ControlError::Gone);
        }
        self.groups.lock().unwrap().retain(|(group, _), joined| {
            if *group == mgid {
                joined.members.retain(|member| *member != qpn);
            }
            if joined.members.is_empty() {
                joined.socket.leave(1).unwrap();
            }
            !joined.members.is_empty()
        });
        Ok(())
    }
    fn stream_ended(&self, qpn: Qpn, number: u64) {
        self.ended.lock().unwrap().push((qpn, number));
    }
    fn stray(&self, _: std::net::SocketAddr, _: IpAddr, _: &[u8]) {}
    fn counters(&self) -> &SharedMem {
        &self.counters
    }
    fn notify_fd(&self) -> BorrowedFd<'_> {
        self.inbox.notify.as_fd()
    }
    fn poll_event(&self) -> Result<Option<ControlEvent>, ControlError> {
        if *self.inbox.gone.lock().unwrap() {
            return Err(ControlError::Gone);
        }
        let event = self.inbox.events.lock().unwrap().pop_front();
        if event.is_none() {
            self.inbox.notify.clear();
        }
        Ok(event)
    }
}

/// A queue pair with everything that it needs: memory, its region, and the other objects.
pub struct Node {
    pub device: Arc<Device>,
    pub control: Arc<LabControl>,
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub mr: Mr,
    pub memory: *mut u8,
    _owner: Vec<u64>,
}

pub fn caps() -> QpCaps {
    QpCaps {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 32,
        max_recv_sge: 4,
        max_inline_data: 256,
    }
}

impl Node {
    pub fn new(lab: &Arc<Lab>, ip: &str, qp_type: QpType, bytes: usize) -> Self {
        let (device, control) = lab.process(ip);
        let pd = Pd::new(&device);
        Self::on(device, control, pd, qp_type, bytes, None)
    }

    pub fn on(
        device: Arc<Device>,
        control: Arc<LabControl>,
        pd: Pd,
        qp_type: QpType,
        bytes: usize,
        srq: Option<Srq>,
    ) -> Self {
        Self::with_caps((device, control), &pd, (qp_type, caps()), bytes, srq)
    }

    /// Creates a node like [`on`](Self::on), with queues of other lengths.
    pub fn with_caps(
        (device, control): (Arc<Device>, Arc<LabControl>),
        pd: &Pd,
        (qp_type, caps): (QpType, QpCaps),
        bytes: usize,
        srq: Option<Srq>,
    ) -> Self {
        let cqe = 4 * (caps.max_send_wr + caps.max_recv_wr);
        let cq = Cq::new(&device, cqe, None, 0).unwrap();
        let pd = pd.clone();
        let init = QpInit {
            qp_type,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq,
            caps,
            sq_sig_all: false,
            context: 0,
        };
        let qp = Qp::new(&pd, init).unwrap();
        let mut owner = vec![0_u64; bytes.div_ceil(8)];
        let memory: *mut u8 = owner.as_mut_ptr().cast();
        // SAFETY: the node owns the memory and drops the region first (fields drop in order).
        let mr = unsafe { Mr::register(&pd, MrInit::own(memory, bytes, ALL)).unwrap() };
        Self { device, control, pd, cq, qp, mr, memory, _owner: owner }
    }

    pub fn gid(&self) -> Gid {
        self.device.gid(1, 0).unwrap().gid
    }
    pub fn base(&self) -> u64 {
        self.mr.range().start
    }
    pub fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: within the node's memory, as the test knows.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.memory.add(at), bytes.len()) };
    }
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: within the node's memory, as the test knows.
        unsafe { std::ptr::copy(self.memory.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }
    pub fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.base() + at as u64;
        Sge { addr, length: u32::try_from(length).unwrap(), lkey: self.mr.lkey() }
    }
    pub fn send(&self, wr_id: u64, op: SendOp, at: usize, len: usize) {
        let sges = [self.sge(at, len)];
        self.post(wr_id, op, SendData::Sges(&sges));
    }
    pub fn post(&self, wr_id: u64, op: SendOp, data: SendData<'_>) {
        let flags = SendFlags::SIGNALED;
        self.qp.post_send(&SendWr { flags, ..SendWr::new(wr_id, op, data) }).unwrap();
    }
    pub fn recv(&self, wr_id: u64, at: usize, len: usize) {
        self.qp.post_recv(&RecvWr { wr_id, sges: &[self.sge(at, len)] }).unwrap();
    }
    /// Polls until a completion arrives.
    pub fn wait(&self) -> Completion {
        let mut out = [Completion::EMPTY];
        while self.cq.poll(&mut out) == 0 {
            std::thread::yield_now();
        }
        out[0]
    }

    pub fn connect(&self, peer: &Self) {
        self.connect_to(peer.gid(), peer.qp.qpn());
    }

    /// Connects like [`connect`](Self::connect), but only to RTR.
    pub fn connect_rtr(&self, peer: &Self) {
        self.connect_as(peer.gid(), peer.qp.qpn(), QpState::Rtr);
    }

    /// Returns the slot of the process.
    pub fn control_slot(&self) -> u16 {
        self.control.info.slot.slot
    }

    pub fn connect_to(&self, dgid: Gid, dest_qpn: Qpn) {
        self.connect_as(dgid, dest_qpn, QpState::Rts);
    }

    fn connect_as(&self, dgid: Gid, dest_qpn: Qpn, last: QpState) {
        let attr = connected_to(dgid, dest_qpn, &self.qp.query());
        for (state, mask) in steps(self.qp.init().qp_type, last) {
            self.qp.modify(&QpAttr { state, path_mtu: Mtu::M4096, ..attr }, mask).unwrap();
        }
    }

    pub fn ready_ud(&self, qkey: Qkey) {
        let mut attr = QpAttr { state: QpState::Init, port_num: 1, qkey, ..self.qp.query() };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        self.qp.modify(&attr, init).unwrap();
        attr.state = QpState::Rtr;
        self.qp.modify(&attr, AttrMask::STATE).unwrap();
        attr.state = QpState::Rts;
        self.qp.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN).unwrap();
    }
}

/// Two connected nodes.
pub fn pair(qp_type: QpType, same_host: bool, bytes: usize) -> (Node, Node) {
    let lab = Lab::new(same_host);
    let a = Node::new(&lab, "127.77.200.1", qp_type, bytes);
    let b =
        Node::new(&lab, if same_host { "127.77.200.1" } else { "127.77.200.2" }, qp_type, bytes);
    a.connect(&b);
    b.connect(&a);
    assert_eq!(a.qp.is_same_host(), same_host);
    (a, b)
}

/// A stream with neither CRC nor markers.
pub const PLAIN: StreamParams = StreamParams {
    initiator: true,
    crc: false,
    tx_markers: false,
    rx_markers: false,
    ord: 4,
    ird: 4,
    rtr: None,
};

/// The number of every stream.
pub const NUMBER: u64 = 7;

/// Two queue pairs over a stream, whose messages do not wait for receives.
pub fn stream_pair(params: &StreamParams, bytes: usize) -> (Node, Node) {
    waiting_stream_pair(params, bytes, Duration::ZERO)
}

/// Creates a pair like [`stream_pair`], each with the shared receive queue that `srq` creates for its device.
pub fn stream_pair_with(
    params: &StreamParams,
    bytes: usize,
    srq: impl Fn(&Arc<Device>) -> Option<Srq>,
) -> (Node, Node) {
    make_stream_pair(params, bytes, srq, Duration::ZERO)
}

/// Creates a pair like [`stream_pair`], with messages that wait for receives.
pub fn waiting_stream_pair(
    params: &StreamParams,
    bytes: usize,
    receive_wait: Duration,
) -> (Node, Node) {
    make_stream_pair(params, bytes, |_| None, receive_wait)
}

/// Two queue pairs over a stream with these parameters; `a` is the initiator.
fn make_stream_pair(
    params: &StreamParams,
    bytes: usize,
    srq: impl Fn(&Arc<Device>) -> Option<Srq>,
    receive_wait: Duration,
) -> (Node, Node) {
    let lab = Lab::new(false);
    let node = |ip| {
        let (device, control) = lab.stream_process(ip);
        let (pd, srq) = (Pd::new(&device), srq(&device));
        Node::on(device, control, pd, QpType::Rc, bytes, srq)
    };
    let (a, b) = (node("127.0.0.1"), node("127.0.0.2"));
    join(&a, &b, params, receive_wait);
    (a, b)
}

/// Gives two queue pairs a stream.
pub fn join(a: &Node, b: &Node, params: &StreamParams, receive_wait: Duration) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let reverse = StreamParams {
        initiator: !params.initiator,
        tx_markers: params.rx_markers,
        rx_markers: params.tx_markers,
        ord: params.ird,
        ird: params.ord,
        ..*params
    };
    give(a, near, params, receive_wait);
    give(b, far, &reverse, receive_wait);
}

/// Gives a queue pair its end of a stream.
pub fn give(node: &Node, stream: TcpStream, params: &StreamParams, receive_wait: Duration) {
    let attr = QpAttr { state: QpState::Init, port_num: 1, access: ALL, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    node.qp.modify(&attr, mask).unwrap();
    node.control.tell(ControlEvent::Stream {
        qpn: node.qp.qpn(),
        number: NUMBER,
        stream: stream.into(),
        params: *params,
        receive_wait,
    });
    node.device.sync_control();
    assert_eq!(node.qp.state(), QpState::Rts);
}

/// Bytes that differ from position to position.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8 ^ seed)).collect()
}

/// Another process, and zeroed memory in it.
pub struct Child {
    pub pid: i32,
    pub addr: u64,
    process: std::process::Child,
}

impl Child {
    /// Kills the child and waits until it is gone.
    pub fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts a process that waits for its input to end. Its own stack serves as memory: a program that only waits never uses the
/// stack's lowest mapped page.
pub fn child_with_memory() -> Child {
    let mut command = std::process::Command::new("cat");
    let process = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = i32::try_from(process.id()).unwrap();
    // The pages below the stack pointer of a started program are zero or no longer used. Once it waits for input, its mappings do
    // not change.
    let addr = loop {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let waits = std::fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok();
        let stack = maps.lines().find(|l| l.ends_with("[stack]"));
        let started = maps.lines().any(|l| l.contains("libc"));
        if let (Some(line), true, true) = (stack, waits, started) {
            break u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        }
        std::thread::yield_now();
    };
    Child { pid, addr, process }
}

/// Returns whether a thread of this process sleeps, or has ended.
pub fn rests(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
}
