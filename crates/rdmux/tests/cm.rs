//! The connection manager, through the public API.

mod common;

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{host, over_every_link, over_roce};
use rdmux::cm::{ConnParam, EventChannel, EventKind, Id, JoinFlags, PortSpace};
use rdmux::{Access, Cause, Context, Gid, Qp, QpState, QpType, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

fn listener(context: &Context) -> (EventChannel, Id, std::net::SocketAddr) {
    listener_of(context, PortSpace::Tcp)
}

fn listener_of(context: &Context, space: PortSpace) -> (EventChannel, Id, std::net::SocketAddr) {
    let channel = EventChannel::new(context).unwrap();
    let id = Id::new(&channel, space).unwrap();
    let any = std::net::SocketAddr::new(context.address().unwrap(), 0);
    let at = id.bind(any).unwrap().socket().unwrap();
    id.listen(8).unwrap();
    (channel, id, at)
}

fn qp(context: &Context) -> Qp {
    let cq = context.cq(16).unwrap();
    context.pd().qp(QpType::Rc).cq(&cq).build().unwrap()
}

/// Returns an id with resolved address and route.
fn resolved(context: &Context, to: std::net::SocketAddr) -> (EventChannel, Id) {
    resolved_of(context, to, PortSpace::Tcp)
}

fn resolved_of(
    context: &Context,
    to: std::net::SocketAddr,
    space: PortSpace,
) -> (EventChannel, Id) {
    let channel = EventChannel::new(context).unwrap();
    let id = Id::new(&channel, space).unwrap();
    id.resolve_addr(None, to, TIMEOUT.unwrap()).unwrap();
    expect(&channel, EventKind::AddrResolved);
    id.resolve_route(TIMEOUT.unwrap()).unwrap();
    expect(&channel, EventKind::RouteResolved);
    (channel, id)
}

fn expect(channel: &EventChannel, kind: EventKind) -> rdmux::cm::Event {
    channel.next(TIMEOUT).unwrap().expect("an event").expect(kind, "do the next step").unwrap()
}

fn param() -> ConnParam {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

#[test]
fn attached_queue_pairs_follow_the_connection_to_its_end() {
    over_every_link(|a, b| {
        let (passive, _listener, at) = listener(b);
        let (active, id) = resolved(a, at);
        let ours = qp(a);
        id.attach_qp(&ours).unwrap();
        assert_eq!(ours.state(), QpState::Init);
        id.connect(&param()).unwrap();

        let new = expect(&passive, EventKind::ConnectRequest).take_id().unwrap();
        let theirs = qp(b);
        new.attach_qp(&theirs).unwrap();
        new.accept(&param()).unwrap();
        assert_eq!(theirs.state(), QpState::Rts);
        expect(&active, EventKind::Established);
        assert_eq!(ours.state(), QpState::Rts);
        assert_eq!(ours.attr().dest_qpn, theirs.qpn());
        expect(&passive, EventKind::Established);

        id.disconnect().unwrap();
        assert_eq!(ours.state(), QpState::Err);
        expect(&passive, EventKind::Disconnected);
        new.disconnect().unwrap();
        expect(&active, EventKind::Disconnected);
    });
}

#[test]
fn queue_pair_of_another_connection_is_not_attached_and_survives_a_rejection() {
    over_roce(|a, b| {
        let (passive, _listener, at) = listener(b);
        let (active, id) = resolved(a, at);
        let (ours, theirs) = (qp(a), qp(b));
        id.attach_qp(&ours).unwrap();
        id.connect(&param()).unwrap();
        let new = expect(&passive, EventKind::ConnectRequest).take_id().unwrap();
        new.attach_qp(&theirs).unwrap();
        new.accept(&param()).unwrap();
        expect(&active, EventKind::Established);
        expect(&passive, EventKind::Established);

        let (channel, other) = resolved(a, at);
        other.attach_qp(&ours).unwrap_err();
        assert!(other.qp().is_none());
        other.connect(&ConnParam { qp_num: qp(a).qpn(), ..param() }).unwrap();
        expect(&passive, EventKind::ConnectRequest).take_id().unwrap().reject(b"").unwrap();
        expect(&channel, EventKind::Rejected);
        assert_eq!(ours.state(), QpState::Rts);
        // A queue pair that cannot be attached does not replace the one that is.
        let first = qp(a);
        other.attach_qp(&first).unwrap();
        other.attach_qp(&ours).unwrap_err();
        assert_eq!(other.qp().unwrap().qpn(), first.qpn());
    });
}

#[test]
fn a_program_may_bring_its_queue_pair_up_itself() {
    over_every_link(|a, b| {
        let (passive, _listener, at) = listener(b);
        let (active, id) = resolved(a, at);
        let (ours, theirs) = (qp(a), qp(b));
        id.connect(&ConnParam { qp_num: ours.qpn(), ..param() }).unwrap();

        let mut request = expect(&passive, EventKind::ConnectRequest);
        let new = request.take_id().unwrap();
        let mut agreed = *request.negotiated().unwrap();
        agreed.accept(&param());
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = agreed.qp_attr(state);
            theirs.modify(&attr, mask).unwrap();
        }
        new.accept(&ConnParam { qp_num: theirs.qpn(), ..param() }).unwrap();

        let response = expect(&active, EventKind::ConnectResponse);
        let agreed = *response.negotiated().unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = agreed.qp_attr(state);
            ours.modify(&attr, mask).unwrap();
        }
        id.establish().unwrap();
        expect(&passive, EventKind::Established);
    });
}

#[test]
fn a_refusal_carries_the_programs_words() {
    over_every_link(|a, b| {
        let (passive, _listener, at) = listener(b);
        let (active, id) = resolved(a, at);
        id.attach_qp(&qp(a)).unwrap();
        id.connect(&param()).unwrap();
        expect(&passive, EventKind::ConnectRequest).take_id().unwrap().reject(b"no").unwrap();
        let event = active.next(TIMEOUT).unwrap().unwrap();
        let error = event.expect(EventKind::Established, "connect").unwrap_err();
        match error.cause() {
            Cause::Rejected { reason: 28, private_data, .. } => {
                assert!(private_data.starts_with(b"no"))
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn receives_of_a_rejected_connection_are_flushed() {
    over_every_link(|a, b| {
        let (passive, _listener, at) = listener(b);
        let (active, id) = resolved(a, at);
        let ours = qp(a);
        id.attach_qp(&ours).unwrap();
        let buffer = ours.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
        ours.post_recv(7, &[buffer.slice(..)]).unwrap();
        id.connect(&param()).unwrap();
        drop(expect(&passive, EventKind::ConnectRequest));
        expect(&active, EventKind::Rejected);
        assert_eq!(ours.state(), QpState::Err);
        let done = ours.recv_cq().poll_one().expect("a completion");
        assert_eq!((done.wr_id, done.status), (7, WcStatus::WrFlushErr));
    });
}

#[test]
fn a_datagram_peers_refusal_carries_its_words() {
    over_every_link(|a, b| {
        let (passive, _listener, at) = listener_of(b, PortSpace::Udp);
        let (active, id) = resolved_of(a, at, PortSpace::Udp);
        id.connect(&ConnParam::default()).unwrap();
        expect(&passive, EventKind::ConnectRequest).take_id().unwrap().reject(b"no").unwrap();
        let event = active.next(TIMEOUT).unwrap().unwrap();
        let error = event.expect(EventKind::Established, "find the peer").unwrap_err();
        match error.cause() {
            Cause::Rejected { reason: 2, private_data, .. } => {
                assert!(private_data.starts_with(b"no"))
            }
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains("the program refused (SIDR status 2)"), "{error}");
    });
}

#[test]
fn dropped_connect_request_is_rejected() {
    over_every_link(|a, b| {
        let (passive, _listener, at) = listener(b);
        let (active, id) = resolved(a, at);
        id.attach_qp(&qp(a)).unwrap();
        id.connect(&param()).unwrap();
        drop(expect(&passive, EventKind::ConnectRequest));
        assert_eq!(active.next(TIMEOUT).unwrap().unwrap().kind(), EventKind::Rejected);
    });
}

#[test]
fn destroying_waits_until_the_last_event_is_dropped() {
    let a = host();
    let (_passive, _listener, at) = listener(&a);
    let channel = EventChannel::new(&a).unwrap();
    let id = Id::new(&channel, PortSpace::Tcp).unwrap();
    id.resolve_addr(None, at, TIMEOUT.unwrap()).unwrap();
    let event = expect(&channel, EventKind::AddrResolved);
    let dropped = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            // Whether `destroy` already waits or is called later, it must not return before.
            thread::yield_now();
            dropped.store(true, Ordering::SeqCst);
            drop(event);
        });
        id.destroy().unwrap();
        assert!(dropped.load(Ordering::SeqCst));
    });
}

#[test]
fn events_of_a_migrated_id_arrive_on_its_new_channel() {
    let a = host();
    let (old, id) = {
        let (_c, _l, at) = listener(&a);
        resolved(&a, at)
    };
    let new = EventChannel::new(&a).unwrap();
    id.migrate(&new).unwrap();
    // The listener was destroyed with its channel.
    id.attach_qp(&qp(&a)).unwrap();
    id.connect(&param()).unwrap();
    assert_eq!(new.next(TIMEOUT).unwrap().unwrap().kind(), EventKind::Rejected);
    assert!(old.try_next().unwrap().is_none());
}

/// Returns a datagram id on its host's address, and a group that only this test uses.
fn datagrams(context: &Context, group: u8) -> (EventChannel, Id, std::net::Ipv4Addr) {
    let [high, low, ..] = std::process::id().to_be_bytes()[2..] else { unreachable!() };
    let channel = EventChannel::new(context).unwrap();
    let id = Id::new(&channel, PortSpace::Udp).unwrap();
    id.bind(std::net::SocketAddr::new(context.address().unwrap(), 0)).unwrap();
    (channel, id, std::net::Ipv4Addr::new(239, group, high, low))
}

#[test]
fn a_group_that_was_left_gives_no_event() {
    over_every_link(|a, _| {
        let (channel, id, group) = datagrams(a, 80);
        id.join_multicast(group, JoinFlags::FullMember).unwrap();
        poll(&mut [PollFd::new(&channel, PollFlags::IN)], None).unwrap();
        id.leave_multicast(group).unwrap();
        assert!(channel.try_next().unwrap().is_none());
        id.join_multicast(group, JoinFlags::FullMember).unwrap();
        expect(&channel, EventKind::MulticastJoin);
        assert!(channel.try_next().unwrap().is_none());
    });
}

#[test]
fn join_fails_if_qp_is_already_attached_to_the_group() {
    over_roce(|a, _| {
        let (channel, id, group) = datagrams(a, 81);
        let ours = a.pd().qp(QpType::Ud).cq(&a.cq(1).unwrap()).build().unwrap();
        id.attach_qp(&ours).unwrap();
        ours.attach_multicast(group.into()).unwrap();
        id.join_multicast(group, JoinFlags::FullMember).unwrap();
        let error = channel.next(TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("already attached"), "{error}");
        id.group(group).unwrap_err();
        // The program's own attachment is unaffected.
        ours.detach_multicast(group.into()).unwrap();
        id.join_multicast(group, JoinFlags::FullMember).unwrap();
        expect(&channel, EventKind::MulticastJoin);
        id.leave_multicast(group).unwrap();
        ours.detach_multicast(group.into()).unwrap_err();
    });
}

#[test]
fn binding_a_used_or_foreign_address_fails() {
    let a = host();
    let (channel, _listener, at) = listener(&a);
    let second = Id::new(&channel, PortSpace::Tcp).unwrap();
    let error = second.bind(at).and_then(|_| second.listen(1)).unwrap_err();
    assert_eq!(error.cause().kind(), io::ErrorKind::AddrInUse, "{error}");
    let foreign: std::net::SocketAddr = "192.0.2.1:7471".parse().unwrap();
    let error = second.bind(foreign).unwrap_err();
    assert_eq!(error.cause().kind(), io::ErrorKind::AddrNotAvailable, "{error}");
    assert!(error.to_string().contains("rdmux devices"), "{error}");
}

#[test]
fn queue_pairs_connect_without_the_connection_manager() {
    over_every_link(|a, b| {
        let (x, y) = (qp(a), qp(b));
        let (ours, theirs) = (x.endpoint(0).unwrap(), y.endpoint(0).unwrap());
        x.connect(theirs, 0, Access::empty()).unwrap();
        y.connect(ours, 0, Access::empty()).unwrap();
        let buffer = y.pd().alloc(8, Access::LOCAL_WRITE).unwrap();
        y.post_recv(7, &[buffer.slice(..)]).unwrap();
        x.post_send(&rdmux::SendWr::send(1).inline(&[b"inline"]).imm(*b"four").signaled()).unwrap();
        let done = y.recv_cq().wait_one(TIMEOUT).unwrap();
        assert_eq!((done.wr_id, done.byte_len, done.imm), (7, 6, *b"four"));
        assert_eq!(buffer.to_vec(..6), b"inline");
        assert_eq!(x.send_cq().wait_one(TIMEOUT).unwrap().wr_id, 1);
    });
}

#[test]
fn a_group_that_is_left_while_its_event_is_taken_is_not_heard() {
    const ROUNDS: usize = 2000;
    let context = host();
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = Ipv4Addr::new(239, 79, high, low);
    let channel = EventChannel::new(&context).unwrap();
    let id = Id::new(&channel, PortSpace::Udp).unwrap();
    id.bind(std::net::SocketAddr::new(context.address().unwrap(), 0)).unwrap();
    let cq = context.cq(16).unwrap();
    let qp = context.pd().qp(QpType::Ud).cq(&cq).build().unwrap();
    id.attach_qp(&qp).unwrap();
    let is_ready = || {
        let mut ready = [PollFd::new(&channel, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).unwrap() == 1
    };
    let (is_over, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                if let Some(event) = channel.try_next().unwrap() {
                    assert_eq!(event.kind(), EventKind::MulticastJoin);
                    taken.fetch_add(1, Ordering::Release);
                }
            }
        });
        for n in 0..ROUNDS {
            let before = taken.load(Ordering::Acquire);
            id.join_multicast(group, JoinFlags::FullMember).unwrap();
            while !is_ready() && taken.load(Ordering::Acquire) == before {}
            // The other thread is about to take the event, or slightly further in each round.
            (0..n).for_each(|_| std::hint::spin_loop());
            id.leave_multicast(group).unwrap();
            qp.detach_multicast(Gid::from(group)).expect_err("left, and still attached");
        }
        is_over.store(true, Ordering::Release);
    });
    qp.detach_multicast(Gid::from(group)).expect_err("left, and still attached");
}
