//! Connections over iWARP, through the public API: device, connection manager and queue pair together.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use rdmux::cm::{ConnParam, Event, EventChannel, EventKind, Id, IdOption, PortSpace};
use rdmux::{Access, Cause, Context, DeviceKind, Qp, QpState, QpType, SendWr};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

fn host() -> Context {
    Context::builder().embedded().device(DeviceKind::Iwarp).open().unwrap()
}

fn listener(context: &Context) -> (EventChannel, Id, SocketAddr) {
    let channel = EventChannel::new(context).unwrap();
    let id = Id::new(&channel, PortSpace::Tcp).unwrap();
    let any = SocketAddr::new(context.address().unwrap(), 0);
    let at = id.bind(any).unwrap().socket().unwrap();
    id.listen(0).unwrap();
    (channel, id, at)
}

fn qp(context: &Context) -> Qp {
    let cq = context.cq(16).unwrap();
    context.pd().qp(QpType::Rc).cq(&cq).max_inline(64).build().unwrap()
}

fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    channel.next(TIMEOUT).unwrap().expect("an event").expect(kind, "do the next step").unwrap()
}

fn resolved(channel: &EventChannel, to: SocketAddr) -> Id {
    let id = Id::new(channel, PortSpace::Tcp).unwrap();
    id.resolve_addr(None, to, TIMEOUT.unwrap()).unwrap();
    expect(channel, EventKind::AddrResolved);
    id.resolve_route(TIMEOUT.unwrap()).unwrap();
    expect(channel, EventKind::RouteResolved);
    id
}

fn param() -> ConnParam {
    ConnParam { responder_resources: 2, initiator_depth: 2, ..ConnParam::default() }
}

/// Both ends of a connection.
struct Pair {
    active: (EventChannel, Id, Qp),
    passive: (EventChannel, Id, Qp),
}

fn pair(a: &Context, b: &Context, wish: &ConnParam) -> (Pair, Option<bool>) {
    let (passive, _listener, at) = listener(b);
    let active = EventChannel::new(a).unwrap();
    let id = resolved(&active, at);
    let ours = qp(a);
    id.attach_qp(&ours).unwrap();
    id.connect(wish).unwrap();
    let mut request = expect(&passive, EventKind::ConnectRequest);
    let theirs = qp(b);
    let child = request.take_id().unwrap();
    child.attach_qp(&theirs).unwrap();
    child.accept(&param()).unwrap();
    let either = expect(&passive, EventKind::Established).peer_to_peer();
    assert_eq!(request.peer_to_peer(), either);
    assert_eq!(expect(&active, EventKind::Established).peer_to_peer(), either);
    for qp in [&ours, &theirs] {
        assert_eq!(qp.state(), QpState::Rts);
    }
    let pair = Pair { active: (active, id, ours), passive: (passive, child, theirs) };
    (pair, either)
}

/// Sends a message from `from` to `to`.
fn message(from: &Qp, to: &Qp, word: &[u8]) {
    let buffer = to.pd().alloc(64, Access::LOCAL_WRITE).unwrap();
    to.post_recv(1, &[buffer.slice(..)]).unwrap();
    from.post_send(&SendWr::send(2).inline(&[word]).signaled()).unwrap();
    let done = to.recv_cq().wait_one(TIMEOUT).unwrap();
    assert_eq!(buffer.to_vec(..done.byte_len as usize), word);
    from.send_cq().wait_one(TIMEOUT).unwrap();
}

#[test]
fn the_passive_side_sends_first() {
    let (a, b) = (host(), host());
    let wish = ConnParam { peer_to_peer: Some(true), ..param() };
    let (Pair { active, passive }, either) = pair(&a, &b, &wish);
    assert_eq!(either, Some(true));
    message(&passive.2, &active.2, b"from the passive side");
    message(&active.2, &passive.2, b"and back");
    active.1.disconnect().unwrap();
    expect(&active.0, EventKind::Disconnected);
    expect(&passive.0, EventKind::Disconnected);
}

#[test]
fn without_peer_to_peer_the_active_side_sends_first() {
    let (a, b) = (host(), host());
    let wish = ConnParam { peer_to_peer: Some(false), ..param() };
    let (Pair { active, passive }, either) = pair(&a, &b, &wish);
    assert_eq!(either, Some(false));
    message(&active.2, &passive.2, b"from the active side");
    message(&passive.2, &active.2, b"and back");
}

#[test]
fn peer_to_peer_conn_param_overrides_the_id_option() {
    let a = host();
    let (passive, _listener, at) = listener(&a);
    let channel = EventChannel::new(&a).unwrap();
    for (option, wish, holds) in
        [(Some(false), None, false), (Some(false), Some(true), true), (None, None, true)]
    {
        let id = resolved(&channel, at);
        if let Some(option) = option {
            id.set_option(IdOption::PeerToPeer(option)).unwrap();
        }
        id.attach_qp(&qp(&a)).unwrap();
        id.connect(&ConnParam { peer_to_peer: wish, ..param() }).unwrap();
        let request = expect(&passive, EventKind::ConnectRequest);
        assert_eq!(request.peer_to_peer(), Some(holds), "{option:?} {wish:?}");
        drop(request);
        expect_kind(&channel, EventKind::Rejected);
    }
}

fn expect_kind(channel: &EventChannel, kind: EventKind) {
    assert_eq!(channel.next(TIMEOUT).unwrap().unwrap().kind(), kind);
}

#[test]
fn sends_posted_before_disconnect_arrive_over_iwarp() {
    let (a, b) = (host(), host());
    let (Pair { active, passive }, _) = pair(&a, &b, &param());
    let buffer = passive.2.pd().alloc(1 << 20, Access::LOCAL_WRITE).unwrap();
    let source = active.2.pd().alloc(1 << 20, Access::LOCAL_WRITE).unwrap();
    for n in 0..4 {
        passive.2.post_recv(n, &[buffer.slice(..)]).unwrap();
    }
    for n in 0..4 {
        active.2.post_send(&SendWr::send(n).sges(&[source.slice(..)]).signaled()).unwrap();
    }
    active.1.disconnect().unwrap();
    for n in 0..4 {
        let done = passive.2.recv_cq().wait_one(TIMEOUT).unwrap();
        assert_eq!((done.wr_id, done.byte_len), (n, 1 << 20));
    }
    expect(&passive.0, EventKind::Disconnected);
    expect(&active.0, EventKind::Disconnected);
}

#[test]
fn a_refusal_carries_the_programs_words() {
    let (a, b) = (host(), host());
    let (passive, _listener, at) = listener(&b);
    let channel = EventChannel::new(&a).unwrap();
    let id = resolved(&channel, at);
    id.attach_qp(&qp(&a)).unwrap();
    id.connect(&param()).unwrap();
    expect(&passive, EventKind::ConnectRequest).take_id().unwrap().reject(b"no").unwrap();
    let event = channel.next(TIMEOUT).unwrap().unwrap();
    let error = event.expect(EventKind::Established, "connect").unwrap_err();
    assert!(
        matches!(error.cause(), Cause::Rejected { private_data, .. } if private_data == b"no"),
        "{error}"
    );
}

#[test]
fn passive_side_sends_first_on_two_hundred_connections() {
    let (a, b) = (host(), host());
    let (passive, _listener, at) = listener(&b);
    let active = EventChannel::new(&a).unwrap();
    let mut ends = Vec::new();
    for _ in 0..200 {
        let id = resolved(&active, at);
        let ours = qp(&a);
        id.attach_qp(&ours).unwrap();
        id.connect(&param()).unwrap();
        let child = expect(&passive, EventKind::ConnectRequest).take_id().unwrap();
        let theirs = qp(&b);
        child.attach_qp(&theirs).unwrap();
        child.accept(&param()).unwrap();
        expect(&passive, EventKind::Established);
        message(&theirs, &ours, b"first");
        expect(&active, EventKind::Established);
        ends.push((id, ours, child, theirs));
    }
    assert!(active.try_next().unwrap().is_none() && passive.try_next().unwrap().is_none());
}
