//! Connections of iWARP between hosts through their services, over real TCP. No queue pairs are
//! involved: the tests take the streams as a device would, and check what arrives through them.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{Host, SECOND, next_cm_event, next_event};
use rdmux_cm::{ConnParam, Event, EventKind, EventParam, IdHandle, IdOption, PortSpace};
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{ConnectOptions, EventChannel, HostClient, HostError, HostName, RuntimeDir};
use rdmux_testing::temp_dir;
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_verbs::control::{Control, ControlEvent, DeviceKind, SLOT_SHIFT};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind, Startup};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A process with an iWARP device, and a channel.
struct Process {
    client: Arc<HostClient>,
    channel: EventChannel,
    /// The numbers of the streams that were received.
    streams: RefCell<BTreeMap<Qpn, u64>>,
}

impl Process {
    fn on(host: &Host) -> Self {
        let options: ConnectOptions = host.connect_options();
        let client = options.connect(&host.options.host, DeviceKind::Iwarp).unwrap();
        let channel = EventChannel::open(&client).unwrap();
        Self { client, channel, streams: RefCell::default() }
    }

    fn qpn(&self, index: u32) -> Qpn {
        Qpn::new(u32::from(self.client.info().slot.slot) << SLOT_SHIFT | index)
    }

    fn id(&self) -> IdHandle {
        self.client.create_id(&self.channel, PortSpace::Tcp, QpType::Rc, 0).unwrap()
    }

    fn expect(&self, kind: EventKind) -> Event {
        let event = next_cm_event(&self.channel);
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    fn listen(&self, host: &Host) -> (IdHandle, u16) {
        let id = self.id();
        let bound = self.client.bind_addr(id, host.at(0)).unwrap();
        assert_eq!(self.client.listen(id, 8).unwrap(), bound);
        (id, bound.port())
    }

    fn resolved(&self, to: SocketAddr) -> IdHandle {
        let id = self.id();
        self.client.resolve_addr(id, None, to, SECOND).unwrap();
        let route = self.expect(EventKind::AddrResolved).route.unwrap();
        assert_eq!(route.device, DeviceKind::Iwarp as u32);
        self.client.resolve_route(id, SECOND).unwrap();
        self.expect(EventKind::RouteResolved);
        id
    }

    fn connecting(&self, to: SocketAddr, param: &ConnParam) -> IdHandle {
        let id = self.resolved(to);
        self.client.connect_id(id, param).unwrap();
        id
    }

    fn param(&self, index: u32, data: &[u8]) -> ConnParam {
        ConnParam {
            qp_num: self.qpn(index),
            private_data: data.to_vec(),
            responder_resources: 3,
            initiator_depth: 5,
            ..ConnParam::default()
        }
    }

    /// Waits for ESTABLISHED. Returns it with the stream, which arrives before it.
    fn established(&self, index: u32) -> (Event, TcpStream, StreamParams) {
        let event = self.expect(EventKind::Established);
        let (stream, params) = self.stream(index);
        (event, stream, params)
    }

    fn stream(&self, index: u32) -> (TcpStream, StreamParams) {
        match self.client.poll_event().unwrap() {
            Some(ControlEvent::Stream { qpn, number, stream, params, .. }) => {
                assert_eq!(qpn, self.qpn(index));
                self.streams.borrow_mut().insert(qpn, number);
                (tcp(stream), params)
            }
            other => panic!("no stream, but {other:?}"),
        }
    }

    /// Returns the number of the last stream of a queue pair, of any process.
    fn number(&self, qpn: Qpn) -> u64 {
        self.streams.borrow()[&qpn]
    }

    /// Reports the end of a queue pair's stream.
    fn ended(&self, index: u32) {
        let qpn = self.qpn(index);
        self.client.stream_ended(qpn, self.number(qpn));
    }
}

fn tcp(stream: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(stream);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(20 * SECOND)).unwrap();
    stream
}

fn conn(event: &Event) -> &ConnParam {
    match &event.param {
        EventParam::Conn(param) => param,
        other => panic!("{other:?}"),
    }
}

/// One end of a connection: id, stream and parameters.
type Side = (IdHandle, TcpStream, StreamParams);

fn connect(a: (&Host, &Process), b: &Process, peer_to_peer: bool) -> (Side, Side) {
    let (listener, port) = a.1.listen(a.0);
    let wish = ConnParam { peer_to_peer: Some(peer_to_peer), ..b.param(7, b"hello") };
    let id = b.connecting(a.0.at(port), &wish);
    let request = a.1.expect(EventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(listener));
    assert_eq!(request.param.private_data(), b"hello");
    assert_eq!(conn(&request).peer_to_peer, Some(peer_to_peer));
    assert_eq!(request.negotiated.unwrap().transport, TransportType::Iwarp);
    a.1.client.accept(request.id, &a.1.param(9, b"welcome")).unwrap();
    let (there, stream, params) = b.established(7);
    let active = (id, stream, params);
    assert_eq!(there.param.private_data(), b"welcome");
    assert_eq!(conn(&there).peer_to_peer, Some(peer_to_peer));
    let (here, stream, params) = a.1.established(9);
    assert_eq!(conn(&here).peer_to_peer, Some(peer_to_peer));
    ((request.id, stream, params), active)
}

fn hear(stream: &mut TcpStream, word: &[u8]) {
    let mut buf = vec![0; word.len()];
    stream.read_exact(&mut buf).unwrap();
    assert_eq!(buf, word);
}

#[test]
fn peer_to_peer_lets_either_side_send_first_without_loss() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let ((_, mut passive, p), (_, mut active, q)) = connect((&here, &a), &b, true);
    assert_eq!((p.rtr, q.rtr), (Some(Rtr::Write), Some(Rtr::Write)));
    assert_eq!((p.initiator, q.initiator), (false, true));
    assert_eq!((p.ord, p.ird, q.ord, q.ird), (3, 3, 3, 3));
    assert_eq!(passive.peer_addr().unwrap().ip(), there.ip);
    passive.write_all(b"the passive side first").unwrap();
    hear(&mut active, b"the passive side first");
    active.write_all(b"then the other").unwrap();
    hear(&mut passive, b"then the other");
    for host in [&here, &there] {
        assert_eq!(host.counter("iw_established"), 1);
        assert_eq!(host.counter("iw_rtrs"), 1);
        assert_eq!(host.counter("iw_streams_pending"), 0);
    }
}

#[test]
fn without_peer_to_peer_no_rtr_frame_is_sent() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let ((_, mut passive, p), (_, mut active, q)) = connect((&here, &a), &b, false);
    assert_eq!((p.rtr, q.rtr), (None, None));
    active.write_all(b"the first byte").unwrap();
    hear(&mut passive, b"the first byte");
    assert_eq!(here.counter("iw_rtrs") + there.counter("iw_rtrs"), 0);
}

#[test]
fn stream_end_is_reported_only_by_the_process_that_owns_it() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let ((server, ..), (client, active, _)) = connect((&here, &a), &b, true);
    b.client.disconnect(client).unwrap();
    match next_event(&b.client).unwrap() {
        ControlEvent::CloseStream { qpn, number } => {
            assert_eq!((qpn, number), (b.qpn(7), b.number(qpn)));
        }
        other => panic!("{other:?}"),
    }
    drop(active);
    b.ended(7);
    b.expect(EventKind::Disconnected);
    // The peer's device sees the end of the stream, and reports it.
    a.ended(9);
    a.expect(EventKind::Disconnected);
    b.client.disconnect(client).unwrap();
    a.client.disconnect(server).unwrap();
    // A process cannot end another process's stream.
    let _streams = connect((&here, &a), &b, true);
    b.client.stream_ended(a.qpn(9), a.number(a.qpn(9)));
    b.ended(7);
    b.expect(EventKind::Disconnected);
    assert!(a.channel.try_get_event().unwrap().is_none());
}

#[test]
fn end_of_an_earlier_stream_does_not_disconnect_the_next_one() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let ((server, ..), (client, ..)) = connect((&here, &a), &b, true);
    let earlier = b.number(b.qpn(7));
    b.ended(7);
    b.expect(EventKind::Disconnected);
    a.ended(9);
    a.expect(EventKind::Disconnected);
    let (_, (again, ..)) = connect((&here, &a), &b, true);
    assert_ne!(b.number(b.qpn(7)), earlier);
    b.client.stream_ended(b.qpn(7), earlier);
    // It is still up: when the program disconnects, its stream is closed.
    b.client.disconnect(again).unwrap();
    match next_event(&b.client).unwrap() {
        ControlEvent::CloseStream { qpn, number } => {
            assert_eq!((qpn, number), (b.qpn(7), b.number(qpn)));
        }
        other => panic!("{other:?}"),
    }
    assert!(b.channel.try_get_event().unwrap().is_none());
    for (process, id) in [(&a, server), (&b, client)] {
        process.client.destroy_id(id).unwrap();
    }
}

/// Runs in a process of its own, so that its limit of descriptors affects no other test.
#[test]
fn a_stream_for_which_no_descriptor_is_left_ends_its_connection() {
    const ALONE: &str = "RDMUX_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "a_stream_for_which_no_descriptor_is_left_ends_its_connection";
        let mut test = Command::new(std::env::current_exe().unwrap());
        let ended = test.args(["--exact", name, "--nocapture"]).env(ALONE, "").status().unwrap();
        assert!(ended.success());
        return;
    }
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (_, port) = a.listen(&here);
    b.connecting(here.at(port), &b.param(7, b""));
    let request = a.expect(EventKind::ConnectRequest);
    a.client.accept(request.id, &a.param(9, b"")).unwrap();
    b.expect(EventKind::Established);
    a.expect(EventKind::Established);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    let event = b.client.poll_event();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(matches!(event, Ok(None)), "{event:?}");
    b.expect(EventKind::Disconnected);
    let (mut stream, _) = a.stream(9);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nobody has the other end");
}

/// Makes peers that connect and send nothing.
fn silent_peers(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(to).unwrap()).collect()
}

#[test]
fn silent_peers_of_one_listener_delay_no_others() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let ((first, port), (second, other)) = (a.listen(&here), a.listen(&here));
    let silent = silent_peers(here.at(port), 320);
    for (listener, port, index) in [(second, other, 1), (first, port, 2), (first, port, 3)] {
        b.connecting(here.at(port), &b.param(index, b"honest"));
        let request = a.expect(EventKind::ConnectRequest);
        assert_eq!(request.listen_id, Some(listener));
        a.client.accept(request.id, &a.param(index, b"")).unwrap();
        b.established(index);
        a.established(index);
    }
    // The silent peers were closed before their timeout.
    assert_eq!(here.counter("iw_drop_silent"), 0);
    assert!(here.counter("iw_drop_shed") >= 320 - 256, "{}", here.counter("iw_drop_shed"));
    assert!(here.counter("iw_streams_pending") <= 256);
    drop(silent);
}

#[test]
fn mpa_reject_reaches_peer_that_sent_excess_bytes() {
    let here = Host::start();
    let a = Process::on(&here);
    let (_, port) = a.listen(&here);
    let mut peer = TcpStream::connect(here.at(port)).unwrap();
    peer.set_read_timeout(Some(20 * SECOND)).unwrap();
    let request = Startup {
        kind: Kind::Request,
        flags: Flags::default(),
        revision: 1,
        enhanced: None,
        private_data: b"",
    };
    say(&mut peer, &request);
    peer.write_all(&[0x55; 1000]).unwrap();
    let event = a.expect(EventKind::ConnectRequest);
    a.client.reject(event.id, 28, b"not today").unwrap();
    let reply = startup(&mut peer);
    let reply = Startup::parse(&reply).unwrap();
    assert_eq!((reply.flags.has(Flags::REJECT), reply.private_data), (true, &b"not today"[..]));
    // The excess bytes are read, so the stream ends without a reset.
    peer.write_all(&[0x55; 1000]).unwrap();
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn binding_port_0_never_takes_a_port_in_use_by_tcp() {
    let here = Host::start();
    let a = Process::on(&here);
    // So many are taken that some of so many random ports would be among them.
    let held: Vec<TcpListener> = (0..500).map(|_| TcpListener::bind(here.at(0)).unwrap()).collect();
    let taken: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
    for _ in 0..500 {
        let id = a.id();
        let port = a.client.bind_addr(id, here.at(0)).unwrap().port();
        assert!(!taken.contains(&port), "{port}");
        a.client.destroy_id(id).unwrap();
    }
}

#[test]
fn a_refusal_carries_private_data_and_an_empty_port_refuses() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (listener, port) = a.listen(&here);
    b.connecting(here.at(port), &b.param(1, b""));
    let request = a.expect(EventKind::ConnectRequest);
    a.client.reject(request.id, 28, b"not today").unwrap();
    let refused = b.expect(EventKind::Rejected);
    assert_eq!(
        (refused.status, refused.param.private_data()),
        (-libc::ECONNREFUSED, &b"not today"[..])
    );
    a.client.destroy_id(listener).unwrap();
    // A port without a listener.
    let (_held, silent) = silent(&here);
    b.connecting(silent, &b.param(2, b""));
    assert_eq!(b.expect(EventKind::Rejected).status, -libc::ECONNREFUSED);
}

#[test]
fn two_hundred_concurrent_iwarp_connects_are_established() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (_, port) = a.listen(&here);
    let ids: Vec<IdHandle> = (0..200).map(|_| b.resolved(here.at(port))).collect();
    for (&id, index) in ids.iter().zip(1..) {
        b.client.connect_id(id, &b.param(index, b"")).unwrap();
    }
    for index in 1..=200 {
        // The passive program is ready before it is notified of the connection.
        let event = loop {
            let event = next_cm_event(&a.channel);
            if event.kind == EventKind::ConnectRequest {
                break event;
            }
            assert_eq!(event.kind, EventKind::Established, "{event:?}");
        };
        a.client.accept(event.id, &a.param(index, b"")).unwrap();
    }
    for _ in 0..200 {
        b.expect(EventKind::Established);
    }
    let mut streams = 0;
    while let Some(event) = b.client.poll_event().unwrap() {
        assert!(matches!(event, ControlEvent::Stream { .. }), "{event:?}");
        streams += 1;
    }
    assert_eq!(streams, 200);
    assert_eq!(there.counter("iw_established"), 200);
}

/// Returns a port without a listener, for as long as its socket exists.
fn silent(host: &Host) -> (OwnedFd, SocketAddr) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &host.at(0)).unwrap();
    let at = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, at)
}

/// Returns a listener for a responder that the test plays.
fn scripted(host: &Host) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(host.at(0)).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Reads the next startup frame.
fn startup(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(need) = Startup::need(&bytes)
        && need > bytes.len()
    {
        let mut more = vec![0; need - bytes.len()];
        stream.read_exact(&mut more).unwrap();
        bytes.extend(more);
    }
    bytes
}

fn say(stream: &mut TcpStream, frame: &Startup<'_>) {
    let mut bytes = vec![0; frame.len()];
    frame.emit(&mut bytes);
    stream.write_all(&bytes).unwrap();
}

#[test]
fn a_peer_that_resets_revision_two_is_asked_with_revision_one() {
    let (here, there) = (Host::start(), Host::start());
    let b = Process::on(&there);
    let (listener, at) = scripted(&here);
    b.connecting(at, &b.param(1, b"old friend"));
    let (mut first, _) = listener.accept().unwrap();
    let request = startup(&mut first);
    let request = Startup::parse(&request).unwrap();
    assert_eq!(request.revision, 2);
    let offered = request.enhanced.unwrap();
    assert!(offered.peer_to_peer && offered.rtr_write && offered.rtr_read);
    drop(first);
    let (mut second, _) = listener.accept().unwrap();
    let request = startup(&mut second);
    let request = Startup::parse(&request).unwrap();
    assert_eq!(
        (request.revision, request.enhanced, request.private_data),
        (1, None, &b"old friend"[..])
    );
    let reply = Startup { kind: Kind::Reply, flags: Flags::CRC, private_data: b"hello", ..request };
    say(&mut second, &reply);
    let (event, mut stream, params) = b.established(1);
    assert_eq!(conn(&event).peer_to_peer, Some(false));
    assert!(params.crc && params.rtr.is_none());
    second.write_all(b"and so on").unwrap();
    hear(&mut stream, b"and so on");
    assert_eq!(there.counter("iw_fallbacks"), 1);
}

/// If the reset has arrived by the time that the reply is read, the first frame can no longer be sent.
#[test]
fn a_peer_that_resets_behind_its_reply_leaves_the_end_to_the_queue_pair() {
    let (here, there) = (Host::start(), Host::start());
    let b = Process::on(&there);
    let (listener, at) = scripted(&here);
    for index in 1..=50 {
        b.connecting(at, &ConnParam { peer_to_peer: Some(true), ..b.param(index, b"") });
        let (mut peer, _) = listener.accept().unwrap();
        let request = startup(&mut peer);
        let request = Startup::parse(&request).unwrap();
        let offered = request.enhanced.unwrap();
        let enhanced = Some(Enhanced { rtr_send: false, rtr_read: false, ..offered });
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        say(&mut peer, &Startup { kind: Kind::Reply, enhanced, ..request });
        drop(peer);
        let (_, mut stream, _) = b.established(index);
        match stream.read(&mut [0; 1]) {
            Ok(len) => assert_eq!(len, 0),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
        }
        b.ended(index);
        b.expect(EventKind::Disconnected);
    }
    assert_eq!(there.counter("iw_streams_pending"), 0);
}

#[test]
fn silent_or_malformed_mpa_requests_are_reset_and_counted() {
    let dropped = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        let ended = stream.read_exact(&mut [0; 1]);
        assert!(ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    };
    let hasty = Host::start_with(|options| options.config.iwarp.request_timeout_ms = 50);
    let a = Process::on(&hasty);
    let (_, port) = a.listen(&hasty);
    let silent = TcpStream::connect(hasty.at(port)).unwrap();
    let mut half = TcpStream::connect(hasty.at(port)).unwrap();
    // On a slow machine it is dropped before that.
    match half.write_all(b"MPA ID Req") {
        Ok(()) => dropped(half),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
    dropped(silent);
    assert_eq!((hasty.counter("iw_drop_silent"), hasty.counter("iw_drop_request")), (2, 0));
    assert_eq!(hasty.counter("iw_streams_pending"), 0);

    let waiting = Host::start();
    let a = Process::on(&waiting);
    let (_, port) = a.listen(&waiting);
    let mut nonsense = TcpStream::connect(waiting.at(port)).unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    dropped(nonsense);
    assert_eq!((waiting.counter("iw_drop_silent"), waiting.counter("iw_drop_request")), (0, 1));
    assert_eq!(waiting.counter("iw_streams_pending"), 0);
}

#[test]
fn missing_rtr_frame_is_connect_error_eproto() {
    let here = Host::start();
    let a = Process::on(&here);
    let (_, port) = a.listen(&here);
    let mut peer = TcpStream::connect(here.at(port)).unwrap();
    let enhanced = Enhanced {
        peer_to_peer: true,
        rtr_send: false,
        rtr_write: false,
        rtr_read: true,
        ird: 1,
        ord: 1,
    };
    let request = Startup {
        kind: Kind::Request,
        flags: Flags::default(),
        revision: 2,
        enhanced: Some(enhanced),
        private_data: b"",
    };
    say(&mut peer, &request);
    let event = a.expect(EventKind::ConnectRequest);
    a.client.accept(event.id, &a.param(1, b"")).unwrap();
    let reply = startup(&mut peer);
    let reply = Startup::parse(&reply).unwrap().enhanced.unwrap();
    assert!(reply.peer_to_peer && reply.rtr_read && !reply.rtr_write);
    peer.write_all(&[0x55; 60]).unwrap();
    assert_eq!(a.expect(EventKind::ConnectError).status, -libc::EPROTO);
    assert_eq!(here.counter("iw_drop_rtr"), 1);
}

#[test]
fn a_wildcard_listens_without_iwarp_where_tcp_has_the_port_in_use() {
    let here = Host::start();
    let a = Process::on(&here);
    let other = TcpListener::bind(here.at(0)).unwrap();
    let port = other.local_addr().unwrap().port();
    let any = SocketAddr::from(([0, 0, 0, 0], port));
    // An id of iWARP alone cannot listen there.
    let only = a.id();
    a.client.bind_addr(only, any).unwrap();
    let error = a.client.listen(only, 1).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRINUSE, "{error}");
    a.client.destroy_id(only).unwrap();
    // An id of all devices can, and RoCE receives its peers' requests.
    let all = a.client.create_id_on(&a.channel, PortSpace::Tcp, QpType::Rc, None, 0).unwrap();
    a.client.bind_addr(all, any).unwrap();
    a.client.listen(all, 1).unwrap();
    let roce = Some(DeviceKind::Roce);
    let id = a.client.create_id_on(&a.channel, PortSpace::Tcp, QpType::Rc, roce, 0).unwrap();
    a.client.resolve_addr(id, None, here.at(port), SECOND).unwrap();
    a.expect(EventKind::AddrResolved);
    a.client.resolve_route(id, SECOND).unwrap();
    a.expect(EventKind::RouteResolved);
    a.client.connect_id(id, &ConnParam::default()).unwrap();
    let request = a.expect(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.unwrap().transport, TransportType::Ib);
}

#[test]
fn wildcard_id_gets_iwarp_connect_requests() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let all = a.client.create_id_on(&a.channel, PortSpace::Tcp, QpType::Rc, None, 0).unwrap();
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let port = a.client.bind_addr(all, any).unwrap().port();
    a.client.listen(all, 4).unwrap();
    b.connecting(here.at(port), &b.param(1, b""));
    let request = a.expect(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.unwrap().transport, TransportType::Iwarp);
    assert_eq!(a.client.query_id(request.id).unwrap().local.unwrap(), here.at(port));
}

#[test]
fn connect_with_foreign_or_roce_qpn_is_einval() {
    let here = Host::start();
    let (a, b) = (Process::on(&here), here.client());
    let (_, port) = a.listen(&here);
    let id = a.resolved(here.at(port));
    let roce = Qpn::new(u32::from(b.info().slot.slot) << SLOT_SHIFT | 1);
    let param = ConnParam { qp_num: roce, ..a.param(1, b"") };
    let error = a.client.connect_id(id, &param).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    // When a device's connection closes, the streams of its queue pairs end.
    a.client.connect_id(id, &a.param(1, b"")).unwrap();
    let request = a.expect(EventKind::ConnectRequest);
    let own = here.connect_options().connect(&here.options.host, DeviceKind::Iwarp).unwrap();
    let qp_num = Qpn::new(u32::from(own.info().slot.slot) << SLOT_SHIFT | 1);
    a.client.accept(request.id, &ConnParam { qp_num, ..a.param(1, b"") }).unwrap();
    for _ in 0..2 {
        a.expect(EventKind::Established);
    }
    drop(own);
    assert_eq!(a.expect(EventKind::Disconnected).id, request.id);
}

#[test]
fn relisten_on_the_same_port_keeps_a_pending_connection() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (listener, port) = a.listen(&here);
    a.client.destroy_id(listener).unwrap();
    b.connecting(here.at(port), &b.param(1, b""));
    let again = a.id();
    a.client.bind_addr(again, here.at(port)).unwrap();
    a.client.listen(again, 1).unwrap();
    assert_eq!(a.expect(EventKind::ConnectRequest).listen_id, Some(again));
}

#[test]
fn peer_to_peer_option_overrides_the_configuration() {
    let (here, there) = (Host::start(), Host::start_with(|o| o.config.iwarp.peer_to_peer = false));
    let b = Process::on(&there);
    let (listener, at) = scripted(&here);
    let mut peers = Vec::new();
    for (index, option, expected) in [(1, None, false), (2, Some(true), true)] {
        let id = b.resolved(at);
        if let Some(either) = option {
            b.client.set_option(id, IdOption::PeerToPeer(either)).unwrap();
        }
        b.client.connect_id(id, &b.param(index, b"")).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let request = startup(&mut peer);
        assert_eq!(Startup::parse(&request).unwrap().enhanced.unwrap().peer_to_peer, expected);
        // If the peer closed its connection, the id would connect again.
        peers.push(peer);
    }
}

/// Makes a host on ::1. There may be several, because each has a UDP port of its own.
fn on_localhost() -> Host {
    let ip: IpAddr = Ipv6Addr::LOCALHOST.into();
    let dir = temp_dir();
    let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
    let mut options = ServiceOptions::new(HostName::new("six").unwrap(), runtime);
    options.addresses = Some(vec![ip]);
    loop {
        let free = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        options.config.service.port = free;
        match Service::spawn(options.clone()) {
            Ok(service) => return Host { service: Some(service), ip, options, dir },
            Err(HostError::PortInUse { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn iwarp_connects_over_ipv6() {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        eprintln!("this machine has no IPv6");
        return;
    }
    let (here, there) = (on_localhost(), on_localhost());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let ((_, mut passive, p), (_, mut active, _)) = connect((&here, &a), &b, true);
    assert_eq!(p.rtr, Some(Rtr::Write));
    passive.write_all(b"six").unwrap();
    hear(&mut active, b"six");
}
