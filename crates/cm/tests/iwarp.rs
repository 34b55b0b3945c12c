//! iWARP connections: two managers, and streams between them that the test carries.

mod net;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use net::{CLIENT, Host, SECOND, SERVER, param};
use rdmux_cm::iw::{self, StreamId, StreamWish};
use rdmux_cm::{
    CmError, Command, Config, ConnParam, EventKind, EventParam, IdHandle, IdOption, LocalAddress,
    Manager, OnlyDevice, PortSpace, Time,
};
use rdmux_transport::attr::{QpState, QpType, TransportType};
use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind, Startup};
use rdmux_wire::iwarp::terminate::Fault;
use rdmux_wire::iwarp::{fpdu, rtr, terminate};

const SERVER_HOST: usize = 0;
const CLIENT_HOST: usize = 1;
const EPROTO: i32 = 71;
const ECONNRESET: i32 = 104;
const ETIMEDOUT: i32 = 110;
const ECONNREFUSED: i32 = 111;

/// One end of a stream: its host and its number.
type End = (usize, StreamId);

/// Two hosts and TCP between them.
struct World {
    hosts: Vec<Host>,
    now: Time,
    /// The other end of each stream.
    peers: BTreeMap<End, End>,
    /// Bytes in flight, or the end of the stream.
    flights: VecDeque<(End, Option<Vec<u8>>)>,
    /// How many bytes arrive at a time.
    piece: usize,
    /// The streams that queue pairs got.
    handed: Vec<(usize, Qpn, StreamParams)>,
    closed: Vec<(usize, Qpn)>,
    /// The numbers of the streams that were handed over, in the same order.
    numbers: Vec<StreamId>,
    /// How often the initiator's connection is to be reset when its request arrives.
    resets: u32,
    /// All bytes sent, unsegmented.
    sent: Vec<(usize, Vec<u8>)>,
}

impl World {
    fn new(config: Config) -> Self {
        let hosts = (1..=2u8).map(|n| {
            let ip = [10, 0, 0, n].into();
            let mut cm = Manager::new(config.clone(), [n; 32]);
            let roce = net::local_address(ip, n.into());
            let iwarp = LocalAddress { device: 1, transport: TransportType::Iwarp, ..roce.clone() };
            let mut out = net::Out::default();
            cm.set_addresses(Time::ZERO, vec![roce, iwarp], &mut out);
            Host { cm, out, ip, other_ip: None }
        });
        Self {
            hosts: hosts.collect(),
            now: Time::ZERO,
            peers: BTreeMap::new(),
            flights: VecDeque::new(),
            piece: usize::MAX,
            handed: Vec::new(),
            closed: Vec::new(),
            numbers: Vec::new(),
            resets: 0,
            sent: Vec::new(),
        }
    }

    fn at(&self) -> SocketAddr {
        (self.hosts[SERVER_HOST].ip, 7174).into()
    }

    fn id(&mut self, host: usize) -> IdHandle {
        let channel = if host == SERVER_HOST { SERVER } else { CLIENT };
        let iwarp = Some(OnlyDevice { device: 1, transport: TransportType::Iwarp });
        let cm = &mut self.hosts[host].cm;
        cm.create_id_on(channel, PortSpace::Tcp, QpType::Rc, iwarp, 5).unwrap()
    }

    fn listener(&mut self, backlog: u32) -> IdHandle {
        let (id, at) = (self.id(SERVER_HOST), self.at());
        let cm = &mut self.hosts[SERVER_HOST].cm;
        cm.bind(id, at, false).unwrap();
        assert_eq!(cm.stream_listener(id).unwrap().local, at);
        cm.listen(id, backlog).unwrap();
        id
    }

    fn routed(&mut self) -> IdHandle {
        let (id, now, at) = (self.id(CLIENT_HOST), self.now, self.at());
        let host = &mut self.hosts[CLIENT_HOST];
        host.cm.resolve_addr(now, id, None, at.into(), SECOND, false, &mut host.out).unwrap();
        let (_, query) = host.out.queries.pop_front().unwrap();
        let answer = query.over_ip(host.ip, 0);
        host.cm.handle_resolved(now, id, answer, &mut host.out);
        host.cm.resolve_route(now, id, SECOND, &mut host.out).unwrap();
        host.answer_paths(now);
        host.out.events.clear();
        id
    }

    fn connect(&mut self, id: IdHandle, param: &ConnParam) -> Result<(), CmError> {
        let now = self.now;
        let host = &mut self.hosts[CLIENT_HOST];
        host.cm.connect(now, id, param, &mut host.out)
    }

    fn connecting(&mut self, param: &ConnParam) -> IdHandle {
        let id = self.routed();
        self.connect(id, param).unwrap();
        id
    }

    fn accept(&mut self, id: IdHandle, param: &ConnParam) -> Result<(), CmError> {
        let now = self.now;
        let host = &mut self.hosts[SERVER_HOST];
        host.cm.accept(now, id, param, &mut host.out)
    }

    /// Establishes a connection. Returns the active and the passive id.
    fn connected(&mut self, wish: &ConnParam) -> (IdHandle, IdHandle) {
        let active = self.connecting(wish);
        self.run_until_idle();
        let passive = self.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id;
        self.accept(passive, &param(0x22)).unwrap();
        self.run_until_idle();
        (active, passive)
    }

    /// Carries everything until no more is in flight.
    fn run_until_idle(&mut self) {
        loop {
            let wish = (0..self.hosts.len())
                .find_map(|host| Some((host, self.hosts[host].out.streams.pop_front()?)));
            if let Some((host, wish)) = wish {
                self.does(host, wish);
            } else if let Some((to, what)) = self.flights.pop_front() {
                self.arrives(to, what);
            } else if !self.timers() {
                break;
            }
        }
    }

    /// Handles all deadlines that are due at once.
    fn timers(&mut self) -> bool {
        let now = self.now;
        let due = |h: &&mut Host| h.cm.poll_timeout().is_some_and(|at| at <= now);
        let Some(host) = self.hosts.iter_mut().find(due) else { return false };
        host.cm.handle_timeout(now, &mut host.out);
        true
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.run_until_idle();
    }

    fn does(&mut self, host: usize, wish: StreamWish) {
        let now = self.now;
        match wish {
            StreamWish::Connect { stream, local, remote, .. } => {
                let from = (host, stream);
                let server = self.hosts.iter().position(|h| h.ip == remote.ip());
                let Some(to) = server.filter(|_| remote == self.at()) else {
                    let h = &mut self.hosts[host];
                    return h.cm.handle_stream_ended(now, stream, ECONNREFUSED, &mut h.out);
                };
                let other = self.hosts[to].cm.handle_stream_accepted(now, remote, local);
                self.peers.insert(from, (to, other));
                self.peers.insert((to, other), from);
                let h = &mut self.hosts[host];
                h.cm.handle_stream_connected(now, stream, local, &mut h.out);
            }
            StreamWish::Send { stream, bytes } => {
                self.sent.push((host, bytes.clone()));
                if let Some(&to) = self.peers.get(&(host, stream)) {
                    let pieces = bytes.chunks(self.piece.min(bytes.len()));
                    self.flights.extend(pieces.map(|piece| (to, Some(piece.to_vec()))));
                }
            }
            StreamWish::Close { stream } | StreamWish::Reset { stream } => {
                if let Some(to) = self.peers.remove(&(host, stream)) {
                    self.flights.push_back((to, None));
                }
            }
            StreamWish::HandOver { stream, qpn, params } => {
                self.peers.remove(&(host, stream));
                self.handed.push((host, qpn, params));
                self.numbers.push(stream);
            }
            StreamWish::CloseQp { qpn, .. } => self.closed.push((host, qpn)),
            StreamWish::Unlisten(_) => {}
        }
    }

    fn arrives(&mut self, (host, stream): End, what: Option<Vec<u8>>) {
        let now = self.now;
        let Some(&peer) = self.peers.get(&(host, stream)) else { return };
        let h = &mut self.hosts[host];
        match what {
            Some(_) if host == SERVER_HOST && self.resets > 0 => {
                self.resets -= 1;
                self.peers.remove(&(host, stream));
                h.cm.handle_stream_ended(now, stream, ECONNRESET, &mut h.out);
                self.flights.push_back((peer, None));
            }
            Some(bytes) => {
                assert!(bytes.len() <= h.cm.stream_wants(stream).max(bytes.len()));
                h.cm.handle_stream_data(now, stream, &bytes, &mut h.out);
            }
            None => {
                self.peers.remove(&(host, stream));
                h.cm.handle_stream_ended(now, stream, ECONNRESET, &mut h.out);
            }
        }
    }

    /// Answers the client with this frame, as a responder that the test plays.
    fn answered(&mut self, wish: &ConnParam, flags: Flags, enhanced: Option<Enhanced>) {
        self.connecting(wish);
        let stream = self.scripted();
        let reply =
            Startup { kind: Kind::Reply, flags, revision: 2, enhanced, private_data: b"hi" };
        let mut bytes = vec![0; reply.len()];
        reply.emit(&mut bytes);
        self.tell(stream, &bytes);
    }

    /// Connects the client to a peer that the test plays.
    fn scripted(&mut self) -> StreamId {
        let now = self.now;
        let host = &mut self.hosts[CLIENT_HOST];
        let Some(StreamWish::Connect { stream, local, .. }) = host.out.streams.pop_front() else {
            panic!("it does not connect")
        };
        host.cm.handle_stream_connected(now, stream, local, &mut host.out);
        let Some(StreamWish::Send { .. }) = host.out.streams.pop_front() else { panic!() };
        stream
    }

    fn tell(&mut self, stream: StreamId, bytes: &[u8]) {
        let now = self.now;
        let host = &mut self.hosts[CLIENT_HOST];
        host.cm.handle_stream_data(now, stream, bytes, &mut host.out);
    }

    /// Connects to the server as a peer that the test plays, and sends these bytes.
    fn stranger(&mut self, bytes: &[u8]) -> StreamId {
        let (now, at) = (self.now, self.at());
        let host = &mut self.hosts[SERVER_HOST];
        let stream = host.cm.handle_stream_accepted(now, at, "10.0.0.9:5".parse().unwrap());
        host.cm.handle_stream_data(now, stream, bytes, &mut host.out);
        stream
    }

    fn end(mut self) {
        for host in &mut self.hosts {
            for id in host.cm.ids().collect::<Vec<_>>() {
                let _events = host.cm.destroy(self.now, id, &mut host.out);
            }
        }
        self.run_until_idle();
        self.pass(Duration::from_secs(3600));
        for host in &self.hosts {
            host.assert_empty();
        }
    }
}

fn wish(peer_to_peer: bool) -> ConnParam {
    ConnParam { peer_to_peer: Some(peer_to_peer), ..param(0x11) }
}

fn either(event: &rdmux_cm::Event) -> Option<bool> {
    match &event.param {
        EventParam::Conn(param) => param.peer_to_peer,
        _ => None,
    }
}

/// Returns the fault that a Terminate reports.
fn fault(bytes: &[u8]) -> Fault {
    let framing = fpdu::Framing { crc: true, markers: false };
    let frame = framing.parse(0, bytes).unwrap().unwrap();
    terminate::Terminate::parse(&frame.contiguous().unwrap()[18..]).unwrap().fault
}

#[test]
fn mpa_negotiation_is_the_same_for_every_tcp_segmentation() {
    for peer_to_peer in [true, false] {
        for piece in [1, 2, 3, 7, 19, 20, 21, usize::MAX] {
            let mut world = World::new(Config::default());
            world.piece = piece;
            world.listener(1);
            let (active, passive) = world.connected(&wish(peer_to_peer));
            for (host, id) in [(SERVER_HOST, passive), (CLIENT_HOST, active)] {
                let event = world.hosts[host].event(EventKind::Established);
                assert_eq!((event.id, either(&event)), (id, Some(peer_to_peer)));
                let agreed = event.negotiated.unwrap();
                assert_eq!((agreed.max_rd_atomic, agreed.max_dest_rd_atomic), (4, 4));
                // No attributes are left to be set.
                let mask = |state| agreed.qp_attr(state).1;
                assert_eq!(mask(QpState::Rtr), mask(QpState::Sqd));
            }
            let rtr = peer_to_peer.then_some(Rtr::Write);
            assert_eq!(world.handed.len(), 2);
            for (host, qpn, params) in &world.handed {
                let number = if *host == SERVER_HOST { 0x22 } else { 0x11 };
                assert_eq!((*qpn, params.rtr), (Qpn::new(number), rtr));
            }
            // Request, reply, and in peer-to-peer mode one frame: no more.
            assert_eq!(world.sent.len(), 2 + usize::from(peer_to_peer));
            world.end();
        }
    }
}

#[test]
fn passive_side_is_established_only_after_the_rtr_frame() {
    let mut world = World::new(Config::default());
    world.listener(1);
    world.connecting(&wish(true));
    world.run_until_idle();
    let request = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest);
    assert_eq!(either(&request), Some(true));
    assert_eq!(request.param.private_data(), [1, 2, 3]);
    world.accept(request.id, &param(0x22)).unwrap();
    assert!(world.hosts[SERVER_HOST].events().is_empty() && world.handed.is_empty());
    world.run_until_idle();
    world.hosts[SERVER_HOST].event(EventKind::Established);
    world.end();
}

#[test]
fn iwarp_disconnected_is_raised_once_when_the_tcp_stream_ends() {
    let mut world = World::new(Config::default());
    world.listener(1);
    let (active, _) = world.connected(&wish(true));
    for host in &mut world.hosts {
        host.event(EventKind::Established);
    }
    let now = world.now;
    let host = &mut world.hosts[CLIENT_HOST];
    host.cm.disconnect(now, active, &mut host.out).unwrap();
    host.cm.disconnect(now, active, &mut host.out).unwrap();
    world.run_until_idle();
    assert_eq!(world.closed, [(CLIENT_HOST, Qpn::new(0x11))]);
    assert!(world.hosts[CLIENT_HOST].events().is_empty());
    let streams: Vec<_> =
        world.handed.iter().map(|h| (h.0, h.1)).zip(world.numbers.clone()).collect();
    for ((host, qpn), stream) in streams {
        let host = &mut world.hosts[host];
        for _ in 0..2 {
            host.cm.handle_qp_stream_ended(now, qpn, stream, &mut host.out);
        }
        host.event(EventKind::Disconnected);
    }
    let host = &mut world.hosts[CLIENT_HOST];
    host.cm.disconnect(now, active, &mut host.out).unwrap();
    world.end();
}

#[test]
fn mpa_reject_is_rejected_econnrefused_with_private_data() {
    let mut world = World::new(Config::default());
    world.listener(1);
    world.connecting(&wish(true));
    world.run_until_idle();
    let request = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest);
    let now = world.now;
    let host = &mut world.hosts[SERVER_HOST];
    let too_long = host.cm.reject(now, request.id, 28, &[0; 509], &mut host.out);
    assert!(matches!(too_long, Err(CmError::PrivateData { max: 508, .. })));
    host.cm.reject(now, request.id, 28, b"no", &mut host.out).unwrap();
    world.run_until_idle();
    let refused = world.hosts[CLIENT_HOST].event(EventKind::Rejected);
    assert_eq!((refused.status, refused.param.private_data()), (-ECONNREFUSED, &b"no"[..]));
    world.end();
}

#[test]
fn mpa_v2_request_that_is_reset_is_retried_once_with_v1() {
    let mut world = World::new(Config::default());
    world.listener(4);
    world.resets = 1;
    world.connecting(&wish(true));
    world.run_until_idle();
    let request = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest);
    assert_eq!(either(&request), Some(false));
    world.accept(request.id, &param(0x22)).unwrap();
    world.run_until_idle();
    assert_eq!(either(&world.hosts[CLIENT_HOST].event(EventKind::Established)), Some(false));
    world.hosts[SERVER_HOST].event(EventKind::Established);
    let (_, first) = &world.sent[0];
    let (_, second) = &world.sent[1];
    assert_eq!((first[17], second[17]), (2, 1));
    assert_eq!(world.hosts[CLIENT_HOST].cm.stream_counters().fallbacks, 1);
    // A second reset is final.
    world.resets = 2;
    world.connecting(&ConnParam { qp_num: Qpn::new(5), ..wish(true) });
    world.run_until_idle();
    assert_eq!(world.hosts[CLIENT_HOST].event(EventKind::Rejected).status, -ECONNRESET);
    world.end();
}

#[test]
fn mpa_v1_configuration_sends_v1_requests_with_512_bytes_of_private_data() {
    let iwarp = iw::Config { revision: iw::Revision::V1, ..Default::default() };
    let mut world = World::new(Config { iwarp, ..Config::default() });
    world.listener(1);
    world.connected(&ConnParam { private_data: vec![7; 512], ..wish(true) });
    assert_eq!(either(&world.hosts[CLIENT_HOST].event(EventKind::Established)), Some(false));
    world.end();
}

#[test]
fn mpa_reply_with_bad_rtr_or_ird_is_answered_by_terminate() {
    let enhanced = |write: bool, ird, ord| Enhanced {
        peer_to_peer: true,
        rtr_send: !write,
        rtr_write: write,
        rtr_read: false,
        ird,
        ord,
    };
    for (answer, told) in [
        (enhanced(false, 4, 4), Fault::MpaNoMatchingRtr),
        (enhanced(true, 4, 500), Fault::MpaInsufficientIrd),
    ] {
        let mut world = World::new(Config::default());
        world.answered(&wish(true), Flags::default(), Some(answer));
        assert_eq!(world.hosts[CLIENT_HOST].event(EventKind::ConnectError).status, -EPROTO);
        let mut wishes = world.hosts[CLIENT_HOST].out.streams.drain(..);
        let Some(StreamWish::Send { bytes, .. }) = wishes.next() else { panic!() };
        assert_eq!(fault(&bytes), told);
        assert!(matches!(wishes.next(), Some(StreamWish::Close { .. })));
        drop(wishes);
        world.end();
    }
    let mut world = World::new(Config::default());
    world.connecting(&wish(true));
    let stream = world.scripted();
    world.tell(stream, b"SSH-2.0-OpenSSH_9.9\r\n");
    assert_eq!(world.hosts[CLIENT_HOST].event(EventKind::ConnectError).status, -EPROTO);
    assert_eq!(world.hosts[CLIENT_HOST].cm.stream_counters().bad_reply, 1);
    world.end();
}

#[test]
fn stream_reset_before_hand_over_raises_established_then_disconnected() {
    let flags = Flags::default();
    let enhanced = Enhanced {
        peer_to_peer: true,
        rtr_send: false,
        rtr_write: true,
        rtr_read: false,
        ird: 4,
        ord: 4,
    };
    let mut world = World::new(Config::default());
    world.answered(&wish(true), flags, Some(enhanced));
    let now = world.now;
    let host = &mut world.hosts[CLIENT_HOST];
    let Some(&StreamWish::HandOver { stream, .. }) = host.out.streams.back() else { panic!() };
    assert!(host.cm.is_stream_up(stream));
    host.cm.handle_stream_ended(now, stream, ECONNRESET, &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::Established, 0), (EventKind::Disconnected, 0)]);
    assert!(!host.cm.is_stream_up(stream));
    world.end();
    // The same at the other side, which has nothing to send after its reply.
    let mut world = World::new(Config::default());
    world.listener(1);
    let stream = world.stranger(&request(""));
    let id = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id;
    assert!(!world.hosts[SERVER_HOST].cm.is_stream_up(stream));
    world.accept(id, &param(0x22)).unwrap();
    let now = world.now;
    let host = &mut world.hosts[SERVER_HOST];
    assert!(host.cm.is_stream_up(stream));
    host.cm.handle_stream_ended(now, stream, ECONNRESET, &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::Established, 0), (EventKind::Disconnected, 0)]);
    world.end();
}

#[test]
fn missing_mpa_reply_request_or_rtr_frame_times_out() {
    // The initiator gets no reply.
    let mut world = World::new(Config::default());
    world.connecting(&wish(true));
    world.scripted();
    world.pass(Duration::from_secs(9));
    assert!(world.hosts[CLIENT_HOST].events().is_empty());
    world.pass(Duration::from_secs(1));
    assert_eq!(world.hosts[CLIENT_HOST].event(EventKind::Unreachable).status, -ETIMEDOUT);
    world.end();
    // The initiator sends nothing, or half of its request.
    let mut world = World::new(Config::default());
    world.listener(1);
    world.stranger(b"");
    world.stranger(&Kind::Request.key()[..9]);
    world.pass(Duration::from_secs(5));
    let resets = world.hosts[SERVER_HOST].cm.stream_counters().silent;
    assert_eq!((resets, world.hosts[SERVER_HOST].cm.connections()), (2, 0));
    assert!(world.hosts[SERVER_HOST].events().is_empty());
    world.end();
    // The first frame does not arrive.
    let mut world = World::new(Config::default());
    world.listener(1);
    let request = request("A");
    world.stranger(&request);
    let id = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id;
    world.accept(id, &param(0x22)).unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(world.hosts[SERVER_HOST].event(EventKind::Unreachable).status, -ETIMEDOUT);
    world.end();
}

/// Returns the request of a peer with the flags of these letters.
fn request(letters: &str) -> Vec<u8> {
    let has = |letter| letters.contains(letter);
    let enhanced = Enhanced {
        peer_to_peer: has('A'),
        rtr_send: has('B'),
        rtr_write: has('C'),
        rtr_read: has('D'),
        ird: 4,
        ord: 4,
    };
    let frame = Startup {
        kind: Kind::Request,
        flags: Flags::default(),
        revision: 2,
        enhanced: Some(enhanced),
        private_data: b"",
    };
    let mut bytes = vec![0; frame.len()];
    frame.emit(&mut bytes);
    bytes
}

#[test]
fn rtr_frame_other_than_the_negotiated_one_is_connect_error() {
    let framing = fpdu::Framing { crc: false, markers: false };
    let bad_read = rtr::read(framing).to_vec();
    for (letters, first, good) in [
        ("AC", rtr::write(framing).to_vec(), true),
        ("AD", rtr::read(framing).to_vec(), true),
        ("AB", rtr::send(framing).to_vec(), true),
        ("AC", rtr::read(framing).to_vec(), false),
        ("AD", rtr::write(framing).to_vec(), false),
        ("AB", rtr::write(framing).to_vec(), false),
        ("AC", vec![0xff; 64], false),
        ("AC", vec![0; 8], false),
        // A Read that requests data.
        ("AD", [&bad_read[..35], &[1], &bad_read[36..]].concat(), false),
    ] {
        let mut world = World::new(Config::default());
        world.listener(1);
        let stream = world.stranger(&request(letters));
        let id = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id;
        world.accept(id, &param(0x22)).unwrap();
        world.hosts[SERVER_HOST].out.streams.clear();
        let now = world.now;
        let host = &mut world.hosts[SERVER_HOST];
        for byte in &first {
            host.cm.handle_stream_data(now, stream, &[*byte], &mut host.out);
        }
        if good {
            host.event(EventKind::Established);
            // A Read is answered.
            let answered = matches!(host.out.streams.front(), Some(StreamWish::Send { .. }));
            assert_eq!(answered, letters == "AD");
            assert!(matches!(host.out.streams.back(), Some(StreamWish::HandOver { .. })));
        } else {
            assert_eq!(host.event(EventKind::ConnectError).status, -EPROTO, "{letters}");
            assert!(matches!(host.out.streams.back(), Some(StreamWish::Reset { .. })));
        }
        world.end();
    }
}

#[test]
fn stream_that_does_not_begin_with_an_mpa_request_is_reset() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[0; 20], b"MPA ID Rep Frame\0\x02\0\0", {
        &b"MPA ID Req Frame\0\x03\0\0"[..]
    }] {
        let mut world = World::new(Config::default());
        world.listener(1);
        world.stranger(bytes);
        let host = &mut world.hosts[SERVER_HOST];
        assert!(matches!(host.out.streams.back(), Some(StreamWish::Reset { .. })));
        assert_eq!((host.cm.stream_counters().bad_request, host.cm.connections()), (1, 0));
        world.end();
    }
}

#[test]
fn mpa_requests_beyond_the_backlog_wait_and_none_is_lost() {
    let mut world = World::new(Config::default());
    world.listener(2);
    for qpn in 0x100..0x105 {
        world.connecting(&ConnParam { qp_num: Qpn::new(qpn), ..wish(true) });
    }
    world.run_until_idle();
    let mut accepted = 0;
    while accepted < 5 {
        let events = world.hosts[SERVER_HOST].events();
        let requests: Vec<IdHandle> =
            (events.iter()).filter(|e| e.kind == EventKind::ConnectRequest).map(|e| e.id).collect();
        assert!(!requests.is_empty() && requests.len() <= 2, "{requests:?}");
        for id in requests {
            world.accept(id, &param(0x200 + accepted)).unwrap();
            accepted += 1;
        }
        world.run_until_idle();
    }
    assert_eq!(world.hosts[CLIENT_HOST].kinds(), [(EventKind::Established, 0); 5]);
    world.end();
}

#[test]
fn tcp_stream_without_listener_is_kept_for_the_grace_time_then_reset() {
    let mut world = World::new(Config::default());
    let first = world.listener(1);
    let now = world.now;
    let host = &mut world.hosts[SERVER_HOST];
    let _events = host.cm.destroy(now, first, &mut host.out);
    world.connecting(&wish(true));
    world.run_until_idle();
    let second = world.listener(1);
    world.run_until_idle();
    let request = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(second));
    world.hosts[SERVER_HOST].cm.take(request.id).unwrap();
    // The stream is kept only briefly.
    let now = world.now;
    let host = &mut world.hosts[SERVER_HOST];
    let _events = host.cm.destroy(now, second, &mut host.out);
    world.connecting(&ConnParam { qp_num: Qpn::new(3), ..wish(true) });
    world.run_until_idle();
    assert!(world.hosts[CLIENT_HOST].events().iter().all(|e| e.kind != EventKind::Rejected));
    world.pass(SECOND);
    world.pass(SECOND);
    assert_eq!(world.hosts[CLIENT_HOST].kinds(), [(EventKind::Rejected, -ECONNRESET)]);
    world.end();
}

#[test]
fn accept_after_the_peers_stream_ended_is_econnreset() {
    let mut world = World::new(Config::default());
    world.listener(1);
    let stream = world.stranger(&request("AC"));
    let id = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id;
    let now = world.now;
    let host = &mut world.hosts[SERVER_HOST];
    host.cm.handle_stream_ended(now, stream, 0, &mut host.out);
    let error = world.accept(id, &param(0x22)).unwrap_err();
    assert_eq!(error.errno(), ECONNRESET);
    let host = &mut world.hosts[SERVER_HOST];
    assert_eq!(host.kinds(), [], "the request is not answered");
    // A program that accepted without waiting for the result gets the event then, once.
    for _ in 0..2 {
        host.cm.handle_refused(id, Command::Accept, ECONNRESET, &mut host.out);
    }
    assert_eq!(host.kinds(), [(EventKind::ConnectError, -ECONNRESET)]);
    world.end();
}

#[test]
fn iwarp_id_destroyed_in_any_state_raises_no_event_and_closes_its_stream() {
    for steps in 0..5 {
        for host in [SERVER_HOST, CLIENT_HOST] {
            let mut world = World::new(Config::default());
            world.listener(1);
            let active = if steps == 0 { world.routed() } else { world.connecting(&wish(true)) };
            let mut passive = None;
            if steps >= 2 {
                world.run_until_idle();
                passive = Some(world.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id);
            }
            if let Some(id) = passive.filter(|_| steps >= 3) {
                world.accept(id, &param(0x22)).unwrap();
            }
            if steps >= 4 {
                world.run_until_idle();
            }
            let id = if host == CLIENT_HOST { Some(active) } else { passive };
            let Some(id) = id else { continue };
            let now = world.now;
            let h = &mut world.hosts[host];
            h.out.events.clear();
            let _events = h.cm.destroy(now, id, &mut h.out);
            world.run_until_idle();
            assert!(world.hosts[host].events().is_empty(), "{steps}");
            if steps == 4 {
                assert_eq!(world.closed.len(), 1);
            }
            world.end();
        }
    }
}

#[test]
fn peer_to_peer_mode_is_taken_from_param_then_option_then_configuration() {
    for (of_param, option, config, holds) in [
        (Some(true), Some(false), false, true),
        (Some(false), Some(true), true, false),
        (None, Some(true), false, true),
        (None, Some(false), true, false),
        (None, None, true, true),
        (None, None, false, false),
    ] {
        let iwarp = iw::Config { peer_to_peer: config, ..Default::default() };
        let mut world = World::new(Config { iwarp, ..Config::default() });
        world.listener(1);
        let id = world.routed();
        if let Some(option) = option {
            let cm = &mut world.hosts[CLIENT_HOST].cm;
            cm.set_option(id, IdOption::PeerToPeer(option)).unwrap();
        }
        world.connect(id, &ConnParam { peer_to_peer: of_param, ..param(0x11) }).unwrap();
        world.run_until_idle();
        let request = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest);
        assert_eq!(either(&request), Some(holds));
        world.end();
    }
}

#[test]
fn connect_of_a_qp_that_already_has_a_stream_is_invalid() {
    let mut world = World::new(Config::default());
    world.connecting(&wish(true));
    let second = world.routed();
    let error = world.connect(second, &wish(true)).unwrap_err();
    assert!(matches!(error, CmError::Invalid { .. }), "{error}");
    let long = ConnParam { private_data: vec![0; 509], ..param(7) };
    let error = world.connect(second, &long).unwrap_err();
    assert!(matches!(error, CmError::PrivateData { max: 508, .. }), "{error}");
    world.end();
}

#[test]
fn udp_uc_and_ib_port_spaces_cannot_bind_an_iwarp_device() {
    let mut world = World::new(Config::default());
    let iwarp = Some(OnlyDevice { device: 1, transport: TransportType::Iwarp });
    let at = world.at();
    for (space, qp_type) in
        [(PortSpace::Udp, QpType::Ud), (PortSpace::Tcp, QpType::Uc), (PortSpace::Ib, QpType::Rc)]
    {
        let cm = &mut world.hosts[SERVER_HOST].cm;
        let id = cm.create_id_on(SERVER, space, qp_type, iwarp, 0).unwrap();
        let error = cm.bind(id, at, false).unwrap_err();
        assert!(matches!(error, CmError::AddrNotAvailable { .. }), "{error}");
        // Ids of all devices have the other one.
        let id = cm.create_id(SERVER, space, qp_type, 0).unwrap();
        cm.bind(id, at, false).unwrap();
        assert_eq!(cm.query(id).unwrap().device.unwrap().transport, TransportType::Ib);
        assert!(cm.stream_listener(id).is_none());
    }
    world.end();
}

/// Connects a peer to a port of the server, as a driver accepts it. Returns also the streams that were reset for it.
fn comes(world: &mut World, port: u16, from: &str) -> (StreamId, Vec<StreamId>) {
    let (now, at) = (world.now, SocketAddr::new(world.at().ip(), port));
    let Host { cm, out, .. } = &mut world.hosts[SERVER_HOST];
    assert!(cm.accepts_streams(at));
    let mut reset = Vec::new();
    while let Some(stream) = cm.stream_to_shed(at) {
        cm.shed_stream(stream, out);
        assert_eq!(out.streams.pop_front(), Some(StreamWish::Reset { stream }));
        reset.push(stream);
    }
    let from = SocketAddr::new(from.parse().unwrap(), 5);
    (cm.handle_stream_accepted(now, at, from), reset)
}

fn few(max_half_open: usize, max_half_open_in_all: usize) -> World {
    let iwarp = iw::Config { max_half_open, max_half_open_in_all, ..iw::Config::default() };
    World::new(Config { iwarp, ..Config::default() })
}

#[test]
fn half_open_streams_beyond_the_listeners_limit_shed_the_oldest_of_the_source() {
    let mut world = few(4, 100);
    world.listener(1);
    let (honest, _) = comes(&mut world, 7174, "10.0.0.8");
    let silent: Vec<StreamId> = (0..3).map(|_| comes(&mut world, 7174, "10.0.0.9").0).collect();
    for oldest in silent {
        assert_eq!(comes(&mut world, 7174, "10.0.0.9").1, [oldest]);
    }
    assert!(comes(&mut world, 7175, "10.0.0.9").1.is_empty(), "another listener has room");
    let host = &mut world.hosts[SERVER_HOST];
    assert_eq!((host.cm.stream_counters().shed, host.cm.stream_wants(honest)), (3, 20));
    // A connection whose request has arrived is not half-open.
    let request = Startup {
        kind: Kind::Request,
        flags: Flags::default(),
        revision: 1,
        enhanced: None,
        private_data: b"",
    };
    let mut bytes = vec![0; request.len()];
    request.emit(&mut bytes);
    host.cm.handle_stream_data(world.now, honest, &bytes, &mut host.out);
    host.event(EventKind::ConnectRequest);
    host.cm.shed_stream(honest, &mut host.out);
    assert!(host.out.streams.is_empty());
    assert!(comes(&mut world, 7174, "10.0.0.7").1.is_empty(), "it has made room");
    world.end();
}

#[test]
fn half_open_streams_beyond_the_total_limit_shed_those_of_the_fullest_listener() {
    let mut world = few(4, 6);
    let (first, _) = comes(&mut world, 1, "10.0.0.9");
    for port in [1, 1, 1, 2, 3] {
        assert!(comes(&mut world, port, "10.0.0.9").1.is_empty());
    }
    assert_eq!(comes(&mut world, 4, "10.0.0.9").1, [first]);
    let cm = &world.hosts[SERVER_HOST].cm;
    assert!(cm.any_stream_to_shed().is_some());
    world.end();
}

#[test]
fn untaken_mpa_requests_stop_accepts_of_their_own_listener_only() {
    let mut world = few(2, 100);
    world.listener(1);
    for qpn in 0x11..0x14 {
        world.connecting(&ConnParam { qp_num: Qpn::new(qpn), ..wish(true) });
        world.run_until_idle();
    }
    let at = world.at();
    let other = SocketAddr::new(at.ip(), 1);
    let host = &mut world.hosts[SERVER_HOST];
    assert!(!host.cm.accepts_streams(at) && host.cm.accepts_streams(other));
    let request = host.event(EventKind::ConnectRequest).id;
    host.cm.take(request).unwrap();
    world.run_until_idle();
    assert!(world.hosts[SERVER_HOST].cm.accepts_streams(at));
    world.end();
}

/// The address of a link-local listener is compared without the interface that its connections' addresses have.
#[test]
fn link_local_listener_matches_streams_without_their_scope_id() {
    let mut world = few(2, 100);
    let (of_listener, of_stream) =
        ("[fe80::1]:7174".parse().unwrap(), "[fe80::1%2]:7174".parse().unwrap());
    let from = "[fe80::2%2]:5".parse().unwrap();
    let now = world.now;
    let Host { cm, out, .. } = &mut world.hosts[SERVER_HOST];
    let mut addresses = vec![net::local_address("fe80::1".parse().unwrap(), 1)];
    addresses[0].device = 1;
    addresses[0].transport = TransportType::Iwarp;
    cm.set_addresses(now, addresses, out);
    let iwarp = Some(OnlyDevice { device: 1, transport: TransportType::Iwarp });
    let id = cm.create_id_on(SERVER, PortSpace::Tcp, QpType::Rc, iwarp, 5).unwrap();
    cm.bind(id, of_listener, false).unwrap();
    cm.listen(id, 1).unwrap();
    let silent: Vec<_> = (0..2).map(|_| cm.handle_stream_accepted(now, of_stream, from)).collect();
    assert_eq!(cm.stream_to_shed(of_listener), Some(silent[0]));
    // The program has one request, and two wait for it.
    let third = cm.handle_stream_accepted(now, of_stream, from);
    for stream in [silent[0], silent[1], third] {
        assert!(cm.accepts_streams(of_listener));
        cm.handle_stream_data(now, stream, &request("AC"), out);
    }
    assert_eq!(cm.stream_to_shed(of_listener), None);
    assert!(!cm.accepts_streams(of_listener));
    let first = world.hosts[SERVER_HOST].event(EventKind::ConnectRequest).id;
    world.hosts[SERVER_HOST].cm.take(first).unwrap();
    world.run_until_idle();
    assert!(world.hosts[SERVER_HOST].cm.accepts_streams(of_listener));
    world.end();
}

#[test]
fn device_removal_closes_the_iwarp_listening_socket_once() {
    let mut world = World::new(Config::default());
    let listener = world.listener(1);
    let now = world.now;
    let Host { cm, out, ip, .. } = &mut world.hosts[SERVER_HOST];
    cm.set_addresses(now, vec![net::local_address(*ip, 1)], out);
    assert_eq!(out.events.pop_front().unwrap().1.kind, EventKind::DeviceRemoval);
    assert_eq!(out.streams, [StreamWish::Unlisten(listener)]);
    let _events = cm.destroy(now, listener, out).unwrap();
    assert_eq!(out.streams.len(), 1, "once");
    world.end();
}

#[test]
fn stream_end_of_a_qps_earlier_connection_is_ignored() {
    let mut world = World::new(Config::default());
    world.listener(1);
    world.connected(&wish(true));
    let end = |world: &mut World, nth: usize| {
        let ((host, qpn, _), stream) = (world.handed[nth], world.numbers[nth]);
        let (now, host) = (world.now, &mut world.hosts[host]);
        host.events();
        host.cm.handle_qp_stream_ended(now, qpn, stream, &mut host.out);
        host.events().len()
    };
    assert_eq!((end(&mut world, 0), end(&mut world, 1)), (1, 1));
    world.connected(&wish(true));
    assert_eq!((end(&mut world, 0), end(&mut world, 1)), (0, 0), "those are over");
    assert_eq!((end(&mut world, 2), end(&mut world, 3)), (1, 1));
    world.end();
}
