//! iWARP connection setup: commands, and peers that send anything on their streams, in any order.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdmux_cm::iw::{StreamId, StreamWish};
use rdmux_cm::{
    ChannelId, Config, ConnParam, Event, EventKind, IdHandle, JoinQuery, LocalAddress, MadPath,
    Manager, PathQuery, PortSpace, RouteQuery, Sink, Time,
};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::{Guid, Mtu, Qpn};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PORT: u16 = 7174;
const CHANNEL: ChannelId = ChannelId(1);

/// Runs the input as a script: each byte is a step, or belongs to the preceding one.
pub fn cm_streams(data: &[u8]) {
    let mut script = Script::new(data);
    while !script.data.is_empty() {
        script.step();
    }
    script.end();
}

/// The driver's state of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Socket {
    Connecting,
    Open,
}

/// The driver's state, and the manager's pending queries.
#[derive(Default)]
struct World {
    sockets: BTreeMap<StreamId, Socket>,
    /// Queue pairs with a stream.
    qps: Vec<(Qpn, StreamId)>,
    new_ids: Vec<IdHandle>,
    route: Option<RouteQuery>,
    path: Option<PathQuery>,
}

impl Sink for World {
    fn send_mad(&mut self, _: &MadPath, _: &[u8; 256]) {
        panic!("there is no RoCE here");
    }
    fn event(&mut self, _: ChannelId, event: Event) {
        if event.kind == EventKind::ConnectRequest {
            self.new_ids.push(event.id);
        }
    }
    fn resolve(&mut self, _: IdHandle, query: RouteQuery) {
        self.route = Some(query);
    }
    fn query_path(&mut self, _: IdHandle, query: PathQuery) {
        self.path = Some(query);
    }
    fn join_multicast(&mut self, _: IdHandle, _: JoinQuery) {}
    fn leave_multicast(&mut self, _: IdHandle, _: JoinQuery) {}
    fn stream(&mut self, wish: StreamWish) {
        match wish {
            StreamWish::Connect { stream, .. } => {
                let before = self.sockets.insert(stream, Socket::Connecting);
                assert!(before.is_none(), "a number that is in use");
            }
            StreamWish::Send { stream, bytes } => {
                assert!(bytes.len() <= 532, "{} bytes at once", bytes.len());
                assert!(self.sockets.get(&stream) == Some(&Socket::Open), "sent to nobody");
            }
            StreamWish::Close { stream } | StreamWish::Reset { stream } => {
                assert!(self.sockets.remove(&stream).is_some(), "closed what is not there");
            }
            StreamWish::HandOver { stream, qpn, .. } => {
                assert!(self.sockets.remove(&stream).is_some(), "gave away what is not there");
                assert!(
                    self.qps.iter().all(|&(other, _)| other != qpn),
                    "a second stream for {qpn}"
                );
                self.qps.push((qpn, stream));
            }
            StreamWish::CloseQp { stream, qpn } => {
                assert!(self.qps.contains(&(qpn, stream)), "{qpn} has no stream");
            }
            StreamWish::Unlisten(_) => {}
        }
    }
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
        let device = (1, TransportType::Iwarp);
        let address = LocalAddress::over_ip(HERE, device, Guid(1), Mtu::M1024);
        manager.set_addresses(Time::ZERO, vec![address], &mut world);
        let mut script = Self { data, now: Time::ZERO, manager, world, ids: Vec::new() };
        script.listen();
        script
    }

    fn byte(&mut self) -> u8 {
        let Some((&b, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        b
    }

    fn listen(&mut self) {
        let m = &mut self.manager;
        let id = m.create_id(CHANNEL, PortSpace::Tcp, QpType::Rc, 0).expect("a new id");
        if m.bind(id, SocketAddr::new(HERE, PORT), true).is_ok() && m.listen(id, 2).is_ok() {
            self.ids.push(id);
        }
    }

    /// Returns one of the elements.
    fn pick<T: Copy>(n: u8, all: &[T]) -> Option<T> {
        all.get(usize::from(n) % all.len().max(1)).copied()
    }

    fn stream(&mut self) -> Option<(StreamId, Socket)> {
        let all: Vec<_> = self.world.sockets.iter().map(|(&s, &is)| (s, is)).collect();
        Self::pick(self.byte(), &all)
    }

    fn step(&mut self) {
        match self.byte() % 16 {
            0..=1 => self.accept_stream(),
            2..=6 => self.bytes(),
            7 => self.ends(),
            8..=9 => self.connect(),
            10..=13 => self.command(),
            14 => self.qp_ended(),
            _ => self.pass_time(),
        }
    }

    fn accept_stream(&mut self) {
        let ends = (SocketAddr::new(HERE, PORT), "10.0.0.2:9".parse().expect("an address"));
        if self.manager.accepts_streams(ends.0) {
            if let Some(stream) = self.manager.stream_to_shed(ends.0) {
                self.manager.shed_stream(stream, &mut self.world);
            }
            let stream = self.manager.handle_stream_accepted(self.now, ends.0, ends.1);
            self.world.sockets.insert(stream, Socket::Open);
        }
    }

    /// Delivers some bytes, with or without the beginning of a frame.
    fn bytes(&mut self) {
        let Some((stream, socket)) = self.stream() else { return };
        if socket == Socket::Connecting {
            self.world.sockets.insert(stream, Socket::Open);
            let local = SocketAddr::new(HERE, 40_000);
            let (m, w) = (&mut self.manager, &mut self.world);
            return m.handle_stream_connected(self.now, stream, local, w);
        }
        let head: &[u8] = match self.byte() % 4 {
            0 => b"MPA ID Req Frame",
            1 => b"MPA ID Rep Frame",
            _ => b"",
        };
        let n = usize::from(self.byte()).min(self.data.len());
        let (says, rest) = self.data.split_at(n);
        self.data = rest;
        let mut says = &[head, says].concat()[..];
        while self.world.sockets.contains_key(&stream) {
            let wants = self.manager.stream_wants(stream).min(says.len());
            if wants == 0 {
                break;
            }
            let (now, rest) = says.split_at(wants);
            self.manager.handle_stream_data(self.now, stream, now, &mut self.world);
            says = rest;
        }
    }

    fn ends(&mut self) {
        let Some((stream, _)) = self.stream() else { return };
        let errno = [0, 104, 110, 111, 113][usize::from(self.byte() % 5)];
        self.world.sockets.remove(&stream);
        self.manager.handle_stream_ended(self.now, stream, errno, &mut self.world);
    }

    fn connect(&mut self) {
        let (m, w, now) = (&mut self.manager, &mut self.world, self.now);
        let second = Duration::from_secs(1);
        let Ok(id) = m.create_id(CHANNEL, PortSpace::Tcp, QpType::Rc, 0) else { return };
        let to: SocketAddr = "10.0.0.2:1".parse().expect("an address");
        if m.resolve_addr(now, id, None, to.into(), second, false, w).is_ok() {
            let query = w.route.take().expect("it asks for the way");
            m.handle_resolved(now, id, query.over_ip(HERE, 1), w);
            if m.resolve_route(now, id, second, w).is_ok() {
                let query = w.path.take().expect("it asks for the path");
                m.handle_path(now, id, query.attempt, Ok(query.by_address), w);
            }
            let param = self.param();
            let _ = self.manager.connect(now, id, &param, &mut self.world);
            self.ids.push(id);
        }
    }

    fn param(&mut self) -> ConnParam {
        let b = self.byte();
        ConnParam {
            private_data: vec![b; usize::from(b) * 2],
            responder_resources: b % 8,
            initiator_depth: b / 32,
            qp_num: Qpn::new(u32::from(b) + 2),
            peer_to_peer: [None, Some(true), Some(false)][usize::from(b % 3)],
            ..ConnParam::default()
        }
    }

    fn command(&mut self) {
        self.ids.append(&mut self.world.new_ids);
        let Some(id) = Self::pick(self.byte(), &self.ids) else { return };
        let (what, param) = (self.byte() % 8, self.param());
        let (m, w, now) = (&mut self.manager, &mut self.world, self.now);
        let _ = match what {
            0..=2 => m.accept(now, id, &param, w),
            3 => m.reject(now, id, 28, &param.private_data, w),
            4 => m.disconnect(now, id, w),
            5 => m.take(id),
            6 => m.establish(now, id, w).and(m.notify(now, id, w)),
            _ => {
                self.ids.retain(|&other| other != id);
                let destroyed = m.destroy(now, id, w).map(drop);
                self.listen();
                destroyed
            }
        };
    }

    fn qp_ended(&mut self) {
        let Some((qpn, stream)) = Self::pick(self.byte(), &self.world.qps) else { return };
        self.world.qps.retain(|&other| other != (qpn, stream));
        self.manager.handle_qp_stream_ended(self.now, qpn, stream, &mut self.world);
    }

    fn pass_time(&mut self) {
        self.now = self.now.after(Duration::from_millis(u64::from(self.byte()) * 50));
        self.manager.handle_timeout(self.now, &mut self.world);
    }

    /// Destroys all ids, waits for all streams to end, and checks that nothing is left.
    fn end(mut self) {
        self.manager.channel_gone(self.now, CHANNEL, &mut self.world);
        for _ in 0..10_000 {
            let Some(at) = self.manager.poll_timeout() else {
                assert_eq!(self.manager.connections(), 0, "connections without an end");
                assert!(self.world.sockets.is_empty(), "sockets that nobody closes");
                return;
            };
            self.now = self.now.max(at);
            self.manager.handle_timeout(self.now, &mut self.world);
        }
        panic!("the timers never end");
    }
}
