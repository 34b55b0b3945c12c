//! Clients that break the protocol: the service disconnects them, and other clients are not
//! affected.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use common::{Host, wait_closed};
use rdmux_host::proto::socket::{self, MAX_MESSAGE};
use rdmux_host::proto::{ClientKind, CmReply, CmRequest, Reply, Request, Response, VERSION};
use rdmux_verbs::control::{Control, DeviceKind};

const HELLO_TOOL: Request = Request::Hello { version: VERSION, kind: ClientKind::Tool };

fn hello_device() -> Request {
    Request::Hello { version: VERSION, kind: ClientKind::Device(DeviceKind::default()) }
}

fn send(socket: &OwnedFd, request: &Request, fds: &[BorrowedFd<'_>]) {
    socket::send(socket.as_fd(), request, fds, &mut Vec::new()).unwrap();
}

fn reply(socket: &OwnedFd) -> Reply {
    reply_with_fds(socket).0
}

fn reply_with_fds(socket: &OwnedFd) -> (Reply, Vec<OwnedFd>) {
    common::wait_readable(socket);
    let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
    let bytes = socket::recv_bytes(socket.as_fd(), &mut buf, &mut fds).unwrap();
    (socket::decode(bytes).unwrap(), fds)
}

fn greeted(host: &Host) -> OwnedFd {
    let socket = host.raw();
    send(&socket, &HELLO_TOOL, &[]);
    assert!(matches!(reply(&socket), Ok(Response::Welcome(_))));
    socket
}

/// A violation of the protocol by a client.
type Breach<'a> = &'a dyn Fn(&OwnedFd);

#[test]
fn a_client_that_breaks_the_protocol_is_dropped_and_no_other() {
    let host = Host::start();
    let bystander = host.client();
    let stray = std::fs::File::open("/dev/null").unwrap();
    let breaches: &[(&str, Breach<'_>)] = &[
        ("garbage", &|s| socket::send_bytes(s.as_fd(), &[0xff; 100], &[]).unwrap()),
        ("one byte", &|s| socket::send_bytes(s.as_fd(), &[0], &[]).unwrap()),
        ("a long message", &|s| socket::send_bytes(s.as_fd(), &[1; MAX_MESSAGE], &[]).unwrap()),
        ("no greeting", &|s| send(s, &Request::Status, &[])),
        ("a descriptor too many", &|s| send(s, &HELLO_TOOL, &[stray.as_fd()])),
        ("a board that is a file", &|s| send(s, &hello_device(), &[stray.as_fd()])),
        ("two boards", &|s| send(s, &hello_device(), &[stray.as_fd(); 2])),
    ];
    for (what, breach) in breaches {
        let socket = host.raw();
        breach(&socket);
        wait_closed(&socket);
        assert!(bystander.new_slot().is_ok(), "{what}");
    }
    for (what, request) in [
        ("a second greeting", HELLO_TOOL),
        ("a tool with a device's wish", Request::NewSlot),
        ("an id of a tool", Request::Cm(CmRequest::Query { id: rdmux_cm::IdHandle(1) })),
    ] {
        let socket = greeted(&host);
        send(&socket, &request, &[]);
        wait_closed(&socket);
        assert!(bystander.new_slot().is_ok(), "{what}");
    }
    let socket = greeted(&host);
    send(&socket, &Request::Status, &[stray.as_fd()]);
    wait_closed(&socket);
    let socket = greeted(&host);
    let one = postcard::to_stdvec(&Request::Stay).unwrap();
    socket::send_bytes(socket.as_fd(), &one.repeat(2), &[]).unwrap();
    wait_closed(&socket);
    let socket = host.raw();
    send(&socket, &hello_device(), &[]);
    // A client that closes one of these has left, which is no violation.
    let (welcome, _fds) = reply_with_fds(&socket);
    welcome.unwrap();
    let waits = CmRequest::Query { id: rdmux_cm::IdHandle(1) };
    send(&socket, &Request::CmSoon(waits), &[]);
    wait_closed(&socket);
    let dropped = breaches.len() as u64 + 6;
    assert_eq!(host.counter("service_clients_broke_protocol"), dropped);
}

#[test]
fn every_truncation_of_a_greeting_is_survived() {
    let host = Host::start();
    let whole = postcard::to_stdvec(&HELLO_TOOL).unwrap();
    for len in 1..whole.len() {
        let socket = host.raw();
        socket::send_bytes(socket.as_fd(), &whole[..len], &[]).unwrap();
        wait_closed(&socket);
    }
    drop(greeted(&host));
}

/// Marsaglia's xorshift: the same sequence each time.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Numbers of requests that have a reply: [`Request`]'s first ones.
const ASKED: [u8; 9] = [1, 3, 4, 5, 9, 10, 12, 13, CM];
const CM: u8 = 15;
/// The number of the [`CmRequest`] without a reply.
const TAKE: u8 = 28;

#[test]
fn wire_numbers_of_requests_are_stable() {
    let number = |request: &Request| postcard::to_stdvec(request).unwrap();
    let id = rdmux_cm::IdHandle(1);
    assert_eq!(number(&Request::NewSlot)[0], 3);
    assert_eq!(number(&Request::OpenChannel)[0], 12);
    assert_eq!(number(&Request::Cm(CmRequest::Take { id }))[..2], [CM, TAKE]);
}

#[test]
fn random_requests_are_survived() {
    let host = Host::start();
    let bystander = host.client();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..200 {
        let socket = host.raw();
        send(&socket, &hello_device(), &[]);
        let (welcome, _fds) = reply_with_fds(&socket);
        welcome.unwrap();
        loop {
            // The first byte selects the request; small numbers are likely to be valid fields.
            let len = next_random(&mut state) % 40 + 1;
            let small = |s: &mut u64| (next_random(s) % 24).to_le_bytes()[0];
            let mut bytes: Vec<u8> = (0..len).map(|_| small(&mut state)).collect();
            // Excludes ending the service and requests without a reply.
            if !ASKED.contains(&bytes[0]) {
                bytes[0] = CM;
            }
            if bytes[0] == CM && bytes.get(1) == Some(&TAKE) {
                bytes[1] = 0;
            }
            if socket::send_bytes(socket.as_fd(), &bytes, &[]).is_err() {
                break;
            }
            common::wait_readable(&socket);
            let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
            if socket::recv_bytes(socket.as_fd(), &mut buf, &mut fds).is_err() {
                break;
            }
        }
    }
    assert!(bystander.new_slot().is_ok());
}

#[test]
fn hello_with_another_protocol_version_gets_ours_and_is_not_accepted() {
    let host = Host::start();
    let socket = host.raw();
    send(&socket, &Request::Hello { version: VERSION + 1, kind: ClientKind::Tool }, &[]);
    match reply(&socket) {
        Ok(Response::Welcome(welcome)) => assert_eq!(welcome.version, VERSION),
        other => panic!("{other:?}"),
    }
    // The client was not accepted.
    send(&socket, &Request::Status, &[]);
    wait_closed(&socket);
}

#[test]
fn a_client_that_does_not_read_the_answers_is_dropped() {
    let host = Host::start();
    let bystander = host.client();
    let socket = greeted(&host);
    let mut scratch = Vec::new();
    while socket::send(socket.as_fd(), &Request::Stay, &[], &mut scratch).is_ok() {}
    assert!(bystander.new_slot().is_ok());
    assert_eq!(host.counter("service_clients_too_slow"), 1);
}

#[test]
fn slots_qpns_and_ids_of_other_clients_are_refused() {
    let host = Host::start();
    let (a, b) = (host.client(), host.client());
    let (of_a, of_b) = (a.info().slot.slot, b.info().slot.slot);
    assert!(a.attach_address(0, of_a).is_ok());
    assert!(a.attach_address(0, of_b).is_err());
    assert!(a.attach_address(0, 0).is_err());
    assert!(a.attach_address(200, of_a).is_err());
    assert!(a.release_slot(of_b, 0).is_err());
    let group = rdmux_wire::Gid::from(std::net::Ipv4Addr::new(239, 1, 1, 1));
    let qpn = |slot: u16| rdmux_wire::Qpn::new(u32::from(slot) << 12);
    assert!(a.attach_multicast(1, qpn(of_b), group).is_err());
    assert!(a.detach_multicast(1, qpn(of_a), group).is_err());
    let channel = rdmux_host::EventChannel::open(&a).unwrap();
    let (space, rc) = (rdmux_cm::PortSpace::Tcp, rdmux_transport::attr::QpType::Rc);
    let id = a.create_id(&channel, space, rc, 0).unwrap();
    assert!(b.create_id(&channel, space, rc, 0).is_err());
    assert!(b.query_id(id).is_err());
    assert_eq!(b.destroy_id(id).unwrap_err().errno(), libc::ENOENT);
    assert!(a.query_id(id).is_ok());
}

#[test]
fn a_held_channel_gets_nothing_until_an_id_is_migrated() {
    let host = Host::start();
    let (socket, bystander) = (host.raw(), host.client());
    let ask = |request: &Request| {
        send(&socket, request, &[]);
        reply_with_fds(&socket)
    };
    let refused = |request: &Request| ask(request).0.unwrap_err().errno;
    let (welcome, _fds) = ask(&hello_device());
    assert!(matches!(welcome, Ok(Response::Welcome(_))));
    let open = || match ask(&Request::OpenChannel) {
        (Ok(Response::Channel(id)), mut end) => (id, end.remove(0)),
        (other, _) => panic!("{other:?}"),
    };
    let ((old, end), (new, other_end)) = (open(), open());
    let create = CmRequest::CreateId {
        id: None,
        channel: old,
        space: rdmux_cm::PortSpace::Tcp,
        qp_type: rdmux_transport::attr::QpType::Rc,
        only: None,
        context: 0,
    };
    let Ok(Response::Cm(CmReply::Id(id))) = ask(&Request::Cm(create)).0 else { panic!() };
    let tell = |arg| {
        let kind = rdmux_cm::EventKind::User;
        let event = CmRequest::WriteEvent { id, kind, status: 0, arg };
        assert_eq!(ask(&Request::Cm(event)).0, Ok(Response::Done));
    };
    let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
    let mut read = |end: &OwnedFd| {
        socket::try_recv_bytes(end.as_fd(), &mut buf, &mut fds).map(<[u8]>::to_vec).ok()
    };

    assert_eq!(refused(&Request::PutBack { events: vec![1] }), libc::EINVAL);
    let stranger = bystander_channel(&bystander);
    assert_eq!(refused(&Request::HoldChannel { channel: stranger }), libc::ENOENT);
    tell(1);
    assert_eq!(ask(&Request::HoldChannel { channel: old }).0, Ok(Response::Done));
    assert_eq!(refused(&Request::HoldChannel { channel: new }), libc::EBUSY);
    tell(2);
    let first = read(&end).unwrap();
    assert_eq!(read(&end), None, "the second is held back");
    // Garbage after an event is discarded, and so is a message without an event; too much is
    // refused.
    assert_eq!(refused(&Request::Cm(CmRequest::Migrate { id, channel: stranger })), libc::ENOENT);
    let second = read(&end).unwrap();
    assert_ne!(first, second);

    assert_eq!(ask(&Request::HoldChannel { channel: old }).0, Ok(Response::Done));
    let put_back = Request::PutBack { events: [&first[..], &second, &[0xff; 100]].concat() };
    assert_eq!(ask(&put_back).0, Ok(Response::Done));
    let much = Request::PutBack { events: vec![0xff; MAX_MESSAGE / 2] };
    let mut asked = 0;
    while ask(&much).0 == Ok(Response::Done) {
        asked += 1;
    }
    assert!(asked < 100, "the bound is a mebibyte");
    tell(3);
    let migrate = Request::Cm(CmRequest::Migrate { id, channel: new });
    assert_eq!(ask(&migrate).0, Ok(Response::Cm(CmReply::Events(3))));
    assert_eq!(read(&end), None);
    let moved = read(&other_end).unwrap();
    assert!(moved.starts_with(&[first, second].concat()));
    assert!(bystander.new_slot().is_ok());
}

fn bystander_channel(client: &std::sync::Arc<rdmux_host::HostClient>) -> rdmux_cm::ChannelId {
    rdmux_host::EventChannel::open(client).unwrap().id()
}
