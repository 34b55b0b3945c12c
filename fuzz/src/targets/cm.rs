//! The connection manager under a script, in communication with itself and with strangers.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rdmux_cm::{
    ChannelId, CmOption, Config, ConnParam, Courtesy, Event, Failover, GroupAddr, GroupWish,
    IdHandle, IdOption, JoinFlags, JoinQuery, LocalAddress, MadPath, Manager, Path, PathData,
    PathQuery, PortSpace, Redirect, Refusal, RouteQuery, Sink, Time,
};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord};
use rdmux_wire::{Gid, Guid, Mtu, Qpn};

/// Runs commands and datagrams in any order, as the input defines.
pub fn cm_manager(data: &[u8]) {
    Script::new(data).run();
}

/// Delivers datagrams to a host that listens on every service in the captures, and on those of XRC.
pub fn cm_mad(data: &[u8]) {
    let mut s = Script::new(&[]);
    for (ps, qp_type) in [
        (PortSpace::Tcp, QpType::Rc),
        (PortSpace::Udp, QpType::Ud),
        (PortSpace::Ib, QpType::XrcRecv),
    ] {
        for port in [7174, 7471] {
            let id = s.manager.create_id(CHANNEL, ps, qp_type, 0).expect("a new id");
            s.manager.bind(id, SocketAddr::new(HERE, port), true).expect("a free port");
            // One of the ids reports all messages.
            let told = IdOption::Cm(CmOption::Messages(port == 7174));
            s.manager.set_option(id, told).expect("it may be set at any time");
            s.manager.listen(id, 8).expect("it is bound");
        }
    }
    for chunk in data.chunks(256) {
        s.strange_mad(chunk);
        while let Some(id) = s.world.new_ids.pop() {
            let _ = s.manager.accept(s.now, id, &ConnParam::default(), &mut s.world);
        }
        while let Some(id) = s.world.asked.pop() {
            let _ = s.manager.answer_alternate(id, &Refusal::default(), &mut s.world);
        }
        s.pass_time();
    }
    s.end();
}

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
/// A second address of this host.
const HERE_TOO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const CHANNEL: ChannelId = ChannelId(1);

/// The requests of the manager.
#[derive(Default)]
struct World {
    sent: VecDeque<(MadPath, [u8; 256])>,
    queries: Vec<(IdHandle, RouteQuery)>,
    /// Open path queries, and the last one that has ended.
    paths: Vec<(IdHandle, PathQuery)>,
    stale: Option<(IdHandle, PathQuery)>,
    joins: Vec<(IdHandle, JoinQuery)>,
    /// Groups that were requested and neither refused nor left since.
    groups: Vec<(IdHandle, u64)>,
    new_ids: Vec<IdHandle>,
    /// Ids whose peers requested another alternate path.
    asked: Vec<IdHandle>,
}

impl Sink for World {
    fn send_mad(&mut self, path: &MadPath, mad: &[u8; 256]) {
        rdmux_wire::cm::CmMad::parse(mad).expect("it sends what can be read");
        self.sent.push_back((*path, *mad));
        if self.sent.len() > 64 {
            self.sent.pop_front();
        }
    }
    fn event(&mut self, _: ChannelId, event: Event) {
        if event.listen_id.is_some() {
            self.new_ids.push(event.id);
        }
        if event.kind == rdmux_cm::EventKind::AlternateRequest {
            self.asked.push(event.id);
        }
        if event.mad.is_some() {
            event.message().expect("a message that can be read was its cause");
        }
    }
    fn resolve(&mut self, id: IdHandle, query: RouteQuery) {
        self.queries.push((id, query));
    }
    fn query_path(&mut self, id: IdHandle, query: PathQuery) {
        assert!(self.paths.iter().all(|(of, _)| *of != id), "an id asks for two paths at once");
        self.paths.push((id, query));
    }
    fn cancel_path(&mut self, id: IdHandle, attempt: u32) {
        let open = |(of, query): &(IdHandle, PathQuery)| (*of, query.attempt) == (id, attempt);
        let at = self.paths.iter().position(open).expect("took back a query that is not open");
        self.stale = Some(self.paths.swap_remove(at));
    }
    fn join_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.groups.push((id, query.context));
        self.joins.push((id, query));
    }
    fn leave_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        assert!(self.forget(id, query.context), "left a group that it has not");
        // A driver does not answer a cancelled query.
        self.joins.retain(|(of, q)| (*of, q.context) != (id, query.context));
    }
}

impl World {
    /// Removes a group. Returns whether it was there.
    fn forget(&mut self, id: IdHandle, group: u64) -> bool {
        let at = self.groups.iter().position(|g| *g == (id, group));
        at.map(|at| self.groups.swap_remove(at)).is_some()
    }
}

/// Returns a group and its context.
fn wish(data: &mut &[u8]) -> (u64, GroupWish) {
    let mut byte = || data.split_off_first().copied().unwrap_or(0);
    let (context, kind, last, bits) = (byte() % 4, byte(), byte(), byte());
    let mgid = Gid([&[0xff, 0x12, 0x40, 0x1b], &[0; 11][..], &[last]]
        .concat()
        .try_into()
        .unwrap_or([0; 16]));
    let flags = if kind & 8 == 0 { JoinFlags::FullMember } else { JoinFlags::SendOnlyFullMember };
    let wish = match kind % 8 {
        0..3 => GroupWish::address(Ipv4Addr::new(239, 1, 1, last), flags),
        3 => GroupWish::address(Ipv6Addr::from(mgid.0), flags),
        4 => GroupWish::address(mgid, flags),
        5 => GroupWish::address(GroupAddr::NEW, flags),
        _ => {
            let mask =
                McMemberRecordMask::from_bits_truncate(u64::from(bits) << 8 | u64::from(last));
            GroupWish::Record { record: McMemberRecord { mgid, ..McMemberRecord::default() }, mask }
        }
    };
    (context.into(), wish)
}

/// The manager and its world, with the rest of the input.
struct Script<'a> {
    data: &'a [u8],
    now: Time,
    manager: Manager,
    world: World,
    ids: Vec<IdHandle>,
}

impl<'a> Script<'a> {
    fn new(data: &'a [u8]) -> Self {
        let mut manager = Manager::new(Config::default(), [7; 32]);
        let mut world = World::default();
        let device = (0, TransportType::Ib);
        let address = LocalAddress::over_ip(HERE, device, Guid(1), Mtu::M1024);
        let other = LocalAddress::over_ip(HERE_TOO, device, Guid(1), Mtu::M1024);
        manager.set_addresses(Time::ZERO, vec![address, other], &mut world);
        Self { data, now: Time::ZERO, manager, world, ids: Vec::new() }
    }

    fn byte(&mut self) -> u8 {
        let Some((&b, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        b
    }
    /// Returns one of the ids ever created.
    fn id(&mut self) -> IdHandle {
        let n = usize::from(self.byte());
        self.ids.append(&mut self.world.new_ids);
        match self.ids.len() {
            0 => IdHandle(n as u64),
            all => self.ids[n % all],
        }
    }
    /// Returns one of a few addresses and ports, so that they coincide.
    fn address(&mut self) -> SocketAddr {
        let b = self.byte();
        let ip = match b % 8 {
            0 => IpAddr::from([0, 0, 0, 0]),
            1 => THERE,
            2 => "::1".parse().expect("an address"),
            _ => HERE,
        };
        SocketAddr::new(ip, u16::from(b / 64) * 1000)
    }

    fn run(mut self) {
        while !self.data.is_empty() {
            match self.byte() % 27 {
                0 | 1 => self.create(),
                2..=10 => self.command(),
                11..=14 => self.connection_command(),
                15..=19 => self.deliver(),
                20 => self.answer(),
                21 => self.answer_paths(),
                22 => {
                    let n = self.data.len().min(64);
                    let (mad, rest) = self.data.split_at(n);
                    self.data = rest;
                    self.strange_mad(mad);
                }
                23 => self.pass_time(),
                24 | 25 => self.message_command(),
                _ => {
                    self.manager.handle_unreachable(self.now, THERE, &mut self.world);
                }
            }
        }
        self.end();
    }

    /// Destroys all ids and checks that nothing is left.
    fn end(mut self) {
        self.manager.channel_gone(self.now, CHANNEL, &mut self.world);
        self.manager.channel_gone(self.now, ChannelId(2), &mut self.world);
        assert_eq!(self.manager.ids().count(), 0, "ids without a channel");
        assert_eq!(self.world.paths, [], "path queries that nobody took back");
        assert_eq!(self.world.groups, [], "groups that nobody will leave");
        for _ in 0..10_000 {
            let Some(at) = self.manager.poll_timeout() else {
                assert_eq!(self.manager.connections(), 0, "connections without an end");
                return;
            };
            self.now = self.now.max(at);
            self.manager.handle_timeout(self.now, &mut self.world);
        }
        panic!("the timers never end");
    }

    fn create(&mut self) {
        let b = self.byte();
        let (ps, qp_type) = match b % 6 {
            0 | 1 => (PortSpace::Tcp, QpType::Rc),
            2 => (PortSpace::Udp, QpType::Ud),
            3 => (PortSpace::Tcp, QpType::Uc),
            4 => (PortSpace::Ib, QpType::XrcSend),
            _ => (PortSpace::Ib, QpType::XrcRecv),
        };
        let channel = ChannelId(1 + u64::from(b >= 128));
        self.ids.extend(self.manager.create_id(channel, ps, qp_type, 0));
    }

    fn command(&mut self) {
        let (id, now) = (self.id(), self.now);
        let (m, w) = (&mut self.manager, &mut self.world);
        let limit = Duration::from_secs(1);
        let _ = match self.data.first().map_or(0, |b| b % 12) {
            0 => m.listen(id, 2).map(drop),
            1 => m.resolve_route(now, id, limit, w),
            2 => m.take(id),
            3 => m.migrate(id, ChannelId(2)).map(drop),
            4 => m.set_option(id, IdOption::ReuseAddr(true)),
            5 => m.set_option(id, IdOption::AfOnly(true)),
            6 => {
                let (context, wish) = wish(&mut self.data);
                m.join(now, id, wish, context, w)
            }
            7 => {
                let (context, _) = wish(&mut self.data);
                m.leave(now, id, context, w).map(drop)
            }
            8 => m.destroy(now, id, w).map(drop),
            9 => m.query(id).map(drop),
            _ => {
                self.byte();
                let address = self.address();
                let (m, w) = (&mut self.manager, &mut self.world);
                if address.port().is_multiple_of(2000) {
                    m.bind(id, address, true).map(drop)
                } else {
                    m.resolve_addr(now, id, None, address.into(), limit, true, w)
                }
            }
        };
        self.byte();
    }

    fn connection_command(&mut self) {
        let (id, what, param) = (self.id(), self.byte(), self.byte());
        let param = ConnParam {
            private_data: vec![param; usize::from(param)],
            responder_resources: param,
            initiator_depth: param,
            retry_count: param,
            rnr_retry_count: param,
            qp_num: Qpn::new(param.into()),
            ..ConnParam::default()
        };
        let (now, m, w) = (self.now, &mut self.manager, &mut self.world);
        let _ = match what % 8 {
            0 | 1 => m.connect(now, id, &param, w),
            2 | 3 => m.accept(now, id, &param, w),
            4 => m.reject(now, id, what.into(), &param.private_data, w),
            5 => m.establish(now, id, w),
            6 => m.disconnect(now, id, w),
            _ => m.notify(now, id, w),
        };
    }

    /// Executes an optional command of a connection.
    fn message_command(&mut self) {
        let (id, what, n) = (self.id(), self.byte(), self.byte());
        let at = |b: u8| if b.is_multiple_of(2) { HERE } else { HERE_TOO };
        let (from, to) = (at(self.byte()), at(self.byte()));
        let record = PathRecord {
            sgid: from.into(),
            dgid: to.into(),
            mtu: if n > 200 { n } else { Mtu::M1024.code() },
            ..PathRecord::default()
        };
        let flags = if n > 240 { u32::from(n) } else { PathData::ALTERNATE };
        let records = [PathData { flags: flags | PathData::BIDIRECTIONAL, record }];
        let (now, m, w) = (self.now, &mut self.manager, &mut self.world);
        let data = vec![n; usize::from(n)];
        let refusal = |reason: u16, info: &[u8]| Refusal {
            reason,
            info: info.to_vec(),
            private_data: data.clone(),
        };
        let _ = match what % 9 {
            0 => m.load_alternate(now, id, &records, &data, w),
            1 => m.answer_alternate(id, &refusal(u16::from(n % 3), &[]), w),
            2 => m.ask_for_time(id, n / 4, &data, w),
            3 => {
                let gid = if n > 128 { Gid::from(to) } else { Gid([n; 16]) };
                let info = Redirect { gid, ..Redirect::default() }.to_info();
                let reason = [24, 25, 4][usize::from(n % 3)];
                m.reject_with(
                    now,
                    id,
                    &Refusal { private_data: Vec::new(), ..refusal(reason, &info) },
                    w,
                )
            }
            4 => m.reject_with(now, id, &refusal(n.into(), &data), w),
            5 => m.set_private_data(id, Courtesy::Rtu, &data),
            6 => m.migrated(id),
            7 => m.set_option(id, IdOption::Cm(CmOption::Messages(n > 64))),
            _ => {
                let option = match n % 9 {
                    0 => CmOption::RemoteResponseTimeout(n),
                    1 => CmOption::MaxRetries(n / 8),
                    2 => CmOption::StartingPsn(u32::from(n) << 17),
                    3 => CmOption::Failover(Failover::from_code(n / 64).unwrap_or_default()),
                    4 => CmOption::ServiceTimeout(n / 8),
                    5 => CmOption::LocalEecn(u32::from(n) << 17),
                    6 => CmOption::RemoteEecn(u32::from(n) << 17),
                    7 => CmOption::RdcExists(n > 64),
                    _ => CmOption::MaxRedirects(n / 16),
                };
                m.set_option(id, IdOption::Cm(option))
            }
        };
    }

    /// Delivers a sent datagram as from the peer: unchanged, twice, modified or not at all.
    fn deliver(&mut self) {
        let how = self.byte();
        let Some((path, mut mad)) = self.world.sent.pop_front() else { return };
        match how {
            0..=15 => return,
            16..=31 => self.world.sent.push_back((path, mad)),
            32..=63 => {
                let (at, v) = (usize::from(self.byte()), self.byte());
                mad[at] ^= v;
            }
            _ => {}
        }
        let path = path.seen_by_peer();
        self.manager.handle_mad(self.now, &path, &mad, &mut self.world);
    }

    fn strange_mad(&mut self, bytes: &[u8]) {
        let mut mad = [0; 256];
        mad[..bytes.len()].copy_from_slice(bytes);
        let path = MadPath::between(HERE, THERE);
        self.manager.handle_mad(self.now, &path, &mad, &mut self.world);
        self.manager.handle_mad(self.now, &path, bytes, &mut self.world);
    }

    /// Answers the manager's queries, as its driver does.
    fn answer(&mut self) {
        let (good, now) = (self.byte() > 32, self.now);
        for (id, query) in std::mem::take(&mut self.world.queries) {
            if good {
                let answer = query.over_ip(HERE, 0);
                self.manager.handle_resolved(now, id, answer, &mut self.world);
            } else {
                self.manager.handle_resolve_failed(now, id, 113, &mut self.world);
            }
        }
        for (id, query) in std::mem::take(&mut self.world.joins) {
            let result = if good { query.over_ip(64, Mtu::M1024) } else { Err(1) };
            if result.is_err() {
                self.world.forget(id, query.context);
            }
            self.manager.handle_joined(now, id, query, result, &mut self.world);
        }
    }

    /// Answers some of the path queries, and again one that has ended.
    fn answer_paths(&mut self) {
        let (how, now) = (self.byte(), self.now);
        if let Some((id, query)) = self.world.stale.filter(|_| how.is_multiple_of(3)) {
            let before = self.manager.query(id).ok();
            let answer = if how > 127 { Ok(query.by_address) } else { Err(113) };
            self.manager.handle_path(now, id, query.attempt, answer, &mut self.world);
            assert_eq!(self.manager.query(id).ok(), before, "an answer too late counts");
        }
        if self.world.paths.is_empty() {
            return;
        }
        let (id, query) = self.world.paths.swap_remove(usize::from(how) % self.world.paths.len());
        let answer = match how % 4 {
            0 => Err(110),
            1 => Ok(query.by_address),
            _ => Ok(self.strange_path(&query)),
        };
        self.manager.handle_path(now, id, query.attempt, answer, &mut self.world);
        self.world.stale = Some((id, query));
    }

    /// Returns a path with LIDs, or with values that no port has.
    fn strange_path(&mut self, query: &PathQuery) -> Path {
        let mut path = query.by_address;
        path.av.is_global = self.byte().is_multiple_of(2);
        path.av.dlid = self.byte().into();
        path.av.sl = self.byte();
        path.av.static_rate = self.byte();
        path.av.hop_limit = self.byte();
        path.av.flow_label = u32::from(self.byte()) << 13;
        path.packet_lifetime = self.byte();
        path.pkey_index = self.byte().into();
        path.mtu = Mtu::from_code(self.byte()).unwrap_or(path.mtu);
        path
    }

    fn pass_time(&mut self) {
        let ms = u64::from(self.byte()) * u64::from(self.byte());
        self.now = self.now.after(Duration::from_millis(ms));
        if let Some(at) = self.manager.poll_timeout() {
            self.now = self.now.max(at);
            self.manager.handle_timeout(self.now, &mut self.world);
            let next = self.manager.poll_timeout();
            assert!(next.is_none_or(|n| n > self.now), "a timer that is over stays");
        }
    }
}
