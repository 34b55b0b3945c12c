//! A network of hosts for tests: instant, in order, on a clock that the test moves.
#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs of it")]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdmux_cm::iw::StreamWish;
use rdmux_cm::{
    ChannelId, Config, ConnParam, Event, EventKind, IdHandle, JoinQuery, LocalAddress, MadPath,
    Manager, Path, PathQuery, PortSpace, RouteQuery, Sink, Time,
};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::cm::{CmMad, Message};
use rdmux_wire::{Gid, Guid, Mtu, Qpn};

/// The output of a manager.
#[derive(Default)]
pub struct Out {
    /// Datagrams sent, with their paths.
    pub mads: VecDeque<(MadPath, [u8; 256])>,
    /// Events, with the channel of each.
    pub events: VecDeque<(ChannelId, Event)>,
    /// Address queries not yet answered.
    pub queries: VecDeque<(IdHandle, RouteQuery)>,
    /// Ids whose address queries were cancelled.
    pub unresolved: Vec<IdHandle>,
    /// Path queries not yet answered.
    pub paths: VecDeque<(IdHandle, PathQuery)>,
    /// Path queries that were cancelled.
    pub cancelled: Vec<(IdHandle, u32)>,
    /// Multicast joins requested.
    pub joins: Vec<(IdHandle, JoinQuery)>,
    /// Multicast leaves requested.
    pub leaves: Vec<(IdHandle, JoinQuery)>,
    /// TCP operations requested.
    pub streams: VecDeque<StreamWish>,
}

impl Sink for Out {
    fn send_mad(&mut self, path: &MadPath, mad: &[u8; 256]) {
        self.mads.push_back((*path, *mad));
    }
    fn event(&mut self, channel: ChannelId, event: Event) {
        self.events.push_back((channel, event));
    }
    fn resolve(&mut self, id: IdHandle, query: RouteQuery) {
        self.queries.push_back((id, query));
    }
    fn cancel_resolve(&mut self, id: IdHandle) {
        self.unresolved.push(id);
    }
    fn query_path(&mut self, id: IdHandle, query: PathQuery) {
        self.paths.push_back((id, query));
    }
    fn cancel_path(&mut self, id: IdHandle, attempt: u32) {
        self.cancelled.push((id, attempt));
    }
    fn join_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.joins.push((id, query));
    }
    fn leave_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.leaves.push((id, query));
    }
    fn stream(&mut self, wish: StreamWish) {
        self.streams.push_back(wish);
    }
}

/// A host with its manager.
pub struct Host {
    /// The manager of the host's ids.
    pub cm: Manager,
    /// The manager's output that the network has not processed yet.
    pub out: Out,
    /// The host's first address.
    pub ip: IpAddr,
    /// A second address of the same device, if it has two.
    pub other_ip: Option<IpAddr>,
}

impl Host {
    /// Returns the events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        self.out.events.drain(..).map(|(_, event)| event).collect()
    }
    /// Returns their kinds and statuses.
    pub fn kinds(&mut self) -> Vec<(EventKind, i32)> {
        self.events().iter().map(|e| (e.kind, e.status)).collect()
    }
    /// Returns the only event since the last call, which must be of this kind.
    #[track_caller]
    pub fn event(&mut self, kind: EventKind) -> Event {
        let mut events = self.events();
        assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [kind]);
        events.remove(0)
    }
    /// Returns the pending path query.
    #[track_caller]
    pub fn path_query(&mut self) -> PathQuery {
        assert_eq!(self.out.paths.len(), 1);
        self.out.paths.pop_front().unwrap().1
    }
    /// Answers a path query.
    pub fn answer_path(
        &mut self,
        now: Time,
        id: IdHandle,
        attempt: u32,
        answer: Result<Path, i32>,
    ) {
        self.cm.handle_path(now, id, attempt, answer, &mut self.out);
    }
    /// Answers all path queries as RoCE does.
    pub fn answer_paths(&mut self, now: Time) {
        while let Some((id, query)) = self.out.paths.pop_front() {
            self.answer_path(now, id, query.attempt, Ok(query.by_address));
        }
    }
    /// Leak test: asserts that no ids, connections, deadlines or ports are left.
    #[track_caller]
    pub fn assert_empty(&self) {
        let cm = &self.cm;
        let left = (cm.ids().count(), cm.connections(), cm.deadlines(), cm.ports_in_use());
        assert_eq!(left, (0, 0, 0, 0), "ids, connections, deadlines, ports of {}", self.ip);
    }
}

/// Returns whether a message is delivered. It must be called only once for each.
pub type Filter = Box<dyn FnMut(&Message) -> bool>;

/// Hosts and the network that connects them.
pub struct Net {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The network's clock.
    pub now: Time,
    /// The names of all messages sent.
    pub log: Vec<&'static str>,
    /// Decides which messages arrive; those for which it returns false are lost.
    pub filter: Filter,
}

/// The event channel of listeners.
pub const SERVER: ChannelId = ChannelId(1);
/// The event channel of connecting ids.
pub const CLIENT: ChannelId = ChannelId(2);
/// One second.
pub const SECOND: Duration = Duration::from_secs(1);

/// Returns the `n`th host's RoCE address.
pub fn local_address(ip: IpAddr, n: u64) -> LocalAddress {
    let node_guid = Guid(0x5254_00ff_fe47_0000 + n);
    let address = LocalAddress::over_ip(ip, (0, TransportType::Ib), node_guid, Mtu::M1024);
    LocalAddress { sgid_index: 3, ..address }
}

impl Net {
    /// Creates hosts 10.0.0.1, 10.0.0.2 and so on.
    pub fn new(count: u8) -> Self {
        Self::with(count, Config::default())
    }

    /// Creates hosts 10.0.0.1, 10.0.0.2 and so on with this configuration.
    pub fn with(count: u8, config: Config) -> Self {
        Self::of(count, config, |n| IpAddr::from([10, 0, 0, n]))
    }

    /// Creates hosts fd00::1, fd00::2 and so on.
    pub fn v6(count: u8) -> Self {
        Self::of(count, Config::default(), |n| {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)])
        })
    }

    fn of(count: u8, config: Config, ip: impl Fn(u8) -> IpAddr) -> Self {
        let hosts = (1..=count).map(|n| {
            let ip = ip(n);
            let mut cm = Manager::new(config.clone(), [n; 32]);
            let addrs = vec![local_address(ip, n.into())];
            cm.set_addresses(Time::ZERO, addrs, &mut Out::default());
            Host { cm, out: Out::default(), ip, other_ip: None }
        });
        let filter: Filter = Box::new(|_| true);
        Self { hosts: hosts.collect(), now: Time::ZERO, log: Vec::new(), filter }
    }

    /// Creates hosts with two addresses each: 10.0.0.N and 10.0.1.N.
    pub fn with_two_addresses(count: u8) -> Self {
        let mut net = Self::new(count);
        for (n, host) in (1..=count).zip(&mut net.hosts) {
            let ips = [host.ip, IpAddr::from([10, 0, 1, n])];
            let address = |index: u8| LocalAddress {
                sgid_index: index,
                ..local_address(ips[usize::from(index)], n.into())
            };
            host.cm.set_addresses(Time::ZERO, vec![address(0), address(1)], &mut host.out);
            host.other_ip = Some(ips[1]);
        }
        net
    }

    /// Returns the only message that a host has sent, which is not delivered.
    #[track_caller]
    pub fn sent(&mut self, host: usize) -> (MadPath, CmMad) {
        let (path, mad) = self.hosts[host].out.mads.pop_front().expect("it was sent");
        assert!(self.hosts[host].out.mads.is_empty(), "and nothing else");
        (path, CmMad::parse(&mad).unwrap())
    }

    /// Sends a message to a host from its peer.
    pub fn say(&mut self, from: usize, to: usize, tid: u64, message: impl Into<Message>) {
        let path = MadPath::between(self.hosts[from].ip, self.hosts[to].ip);
        self.deliver(&path, &CmMad::new(tid, message.into()).to_bytes());
    }

    /// Answers queries and carries messages until nothing is in flight.
    pub fn run_until_idle(&mut self) {
        while self.step() {}
    }

    fn step(&mut self) -> bool {
        for from in 0..self.hosts.len() {
            let host = &mut self.hosts[from];
            if let Some((id, query)) = host.out.queries.pop_front() {
                self.answer(from, id, &query);
                return true;
            }
            if !host.out.paths.is_empty() {
                host.answer_paths(self.now);
                return true;
            }
            if let Some((path, mad)) = host.out.mads.pop_front() {
                self.carry(&path, &mad);
                return true;
            }
        }
        false
    }

    fn answer(&mut self, from: usize, id: IdHandle, query: &RouteQuery) {
        let known = self.hosts.iter().any(|h| h.ip == query.dst.ip());
        let known = known || query.dst.ip().is_multicast();
        let host = &mut self.hosts[from];
        if known {
            let answer = query.over_ip(query.src_hint.unwrap_or(host.ip), 0);
            host.cm.handle_resolved(self.now, id, answer, &mut host.out);
        } else {
            host.cm.handle_resolve_failed(self.now, id, 113, &mut host.out);
        }
    }

    fn carry(&mut self, path: &MadPath, mad: &[u8; 256]) {
        assert_eq!(path.remote_qpn, Qpn::QP1);
        let message = CmMad::parse(mad).expect("we send what can be read").message;
        self.log.push(message.name());
        if (self.filter)(&message) {
            self.deliver(path, mad);
        }
    }

    /// Delivers a datagram to its destination host.
    pub fn deliver(&mut self, path: &MadPath, mad: &[u8]) {
        let arrived = path.seen_by_peer();
        let to = path.remote();
        let is_at = |ip: &IpAddr| Gid::from(*ip) == to;
        let hosts = &mut self.hosts;
        if let Some(host) = hosts.iter_mut().find(|h| is_at(&h.ip) || h.other_ip.iter().any(is_at))
        {
            host.cm.handle_mad(self.now, &arrived, mad, &mut host.out);
        }
    }

    /// Advances time by at least `d` and handles all that happens meanwhile.
    pub fn pass(&mut self, d: Duration) {
        let end = self.now.after(d);
        loop {
            self.run_until_idle();
            let next = self.hosts.iter().filter_map(|h| h.cm.poll_timeout()).min();
            match next {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
            for host in &mut self.hosts {
                host.cm.handle_timeout(self.now, &mut host.out);
            }
        }
        self.now = end;
    }

    /// Advances time until no deadline is left.
    pub fn exhaust(&mut self) {
        while self.hosts.iter().any(|h| h.cm.deadlines() > 0) {
            self.pass(Duration::from_secs(600));
        }
        self.run_until_idle();
    }

    /// Returns the address of a port of a host.
    pub fn addr(&self, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts[host].ip, port)
    }

    /// Creates a listener on port 7174 of a host's own address, for requests of ids of this type.
    pub fn listener(&mut self, host: usize, qp_type: QpType) -> IdHandle {
        let addr = self.addr(host, 7174);
        let cm = &mut self.hosts[host].cm;
        let qp_type = if qp_type == QpType::XrcSend { QpType::XrcRecv } else { qp_type };
        let id = cm.create_id(SERVER, space(qp_type), qp_type, 77).unwrap();
        cm.bind(id, addr, false).unwrap();
        cm.listen(id, 16).unwrap();
        id
    }

    /// Creates an id on `host` with a route to port 7174 of `to`.
    pub fn routed(&mut self, host: usize, to: usize, qp_type: QpType) -> IdHandle {
        let dst = self.addr(to, 7174);
        let now = self.now;
        let h = &mut self.hosts[host];
        let id = h.cm.create_id(CLIENT, space(qp_type), qp_type, 88).unwrap();
        h.cm.resolve_addr(now, id, None, dst.into(), SECOND, false, &mut h.out).unwrap();
        self.run_until_idle();
        let h = &mut self.hosts[host];
        h.cm.resolve_route(now, id, SECOND, &mut h.out).unwrap();
        h.answer_paths(now);
        h.out.events.retain(|(_, e)| e.id != id);
        id
    }

    /// Resolves a route and sends REQ or SIDR_REQ.
    pub fn connecting(&mut self, host: usize, to: usize, qp_type: QpType) -> IdHandle {
        let id = self.routed(host, to, qp_type);
        let now = self.now;
        let h = &mut self.hosts[host];
        h.cm.connect(now, id, &param(0x11), &mut h.out).unwrap();
        id
    }

    /// Connects host 1 to host 0. Returns the active and the passive id.
    pub fn connected(&mut self, qp_type: QpType) -> (IdHandle, IdHandle) {
        let active = self.connecting(1, 0, qp_type);
        self.run_until_idle();
        let passive = self.hosts[0].event(EventKind::ConnectRequest).id;
        let now = self.now;
        let server = &mut self.hosts[0];
        server.cm.accept(now, passive, &param(0x22), &mut server.out).unwrap();
        self.run_until_idle();
        let client = &mut self.hosts[1];
        client.event(EventKind::ConnectResponse);
        client.cm.establish(now, active, &mut client.out).unwrap();
        self.run_until_idle();
        self.hosts[0].event(EventKind::Established);
        (active, passive)
    }

    /// Destroys an id. Returns the number of its events.
    pub fn destroy(&mut self, host: usize, id: IdHandle) -> u32 {
        let now = self.now;
        let h = &mut self.hosts[host];
        h.cm.destroy(now, id, &mut h.out).unwrap()
    }

    /// Destroys all ids, waits, and asserts that nothing is leaked.
    #[track_caller]
    pub fn end(mut self) {
        for host in &mut self.hosts {
            for id in host.cm.ids().collect::<Vec<_>>() {
                let _events = host.cm.destroy(self.now, id, &mut host.out);
            }
        }
        self.exhaust();
        for host in &self.hosts {
            host.assert_empty();
        }
    }
}

/// Returns the port space of a type of queue pair.
pub fn space(qp_type: QpType) -> PortSpace {
    match qp_type {
        QpType::Ud => PortSpace::Udp,
        QpType::Rc | QpType::Uc => PortSpace::Tcp,
        QpType::XrcSend | QpType::XrcRecv => PortSpace::Ib,
    }
}

/// Returns connection parameters for this queue pair.
pub fn param(qpn: u32) -> ConnParam {
    ConnParam {
        private_data: vec![1, 2, 3],
        responder_resources: 4,
        initiator_depth: 5,
        retry_count: 7,
        rnr_retry_count: 6,
        qp_num: Qpn::new(qpn),
        ..ConnParam::default()
    }
}
