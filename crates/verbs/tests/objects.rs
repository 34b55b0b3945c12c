//! Completion queues, channels, shared receive queues, events, and the effects of a peer's or the service's death.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use std::sync::Arc;

use lab::{ALL, Lab, Node, PLAIN, caps, pair, stream_pair_with};
use rdmux_verbs::control::ControlEvent;
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{AttrMask, QpAttr, QpState, QpType};
use rdmux_verbs::transport::env::QpEvent;
use rdmux_verbs::transport::wr::{
    Completion, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use rdmux_verbs::{
    AsyncEventKind, CompChannel, Cq, CqInit, Device, Mr, MrInit, Pd, Qp, QpInit, Space, Srq,
    SrqAttr,
};

#[test]
fn completion_channel_raises_one_event_per_req_notify() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.202.1", QpType::Rc, 4096);
    let (device, control) = lab.process("127.77.202.2");
    let pd = Pd::new(&device);
    let channel = CompChannel::new().unwrap();
    let mut b = Node::on(device.clone(), control, pd.clone(), QpType::Rc, 4096, None);
    let cq = Cq::new(&device, 16, Some(&channel), 99).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..b.qp.init().clone() };
    b.qp = Qp::new(&pd, init).unwrap();
    a.connect(&b);
    b.connect(&a);
    (0..3).for_each(|i| b.recv(i, 0, 64));

    // No event was requested: none is raised.
    a.send(1, SendOp::Send, 0, 8);
    let mut out = [Completion::EMPTY; 4];
    while cq.poll(&mut out) == 0 {}
    assert!(channel.try_get_event().is_none());

    // Only solicited ones were requested. The background thread receives both messages.
    cq.req_notify(true).unwrap();
    a.send(2, SendOp::Send, 0, 8);
    let data = SendData::Inline(&[b"now"]);
    let flags = SendFlags::SOLICITED;
    a.qp.post_send(&SendWr { flags, ..SendWr::new(3, SendOp::Send, data) }).unwrap();
    let event = channel.get_event().unwrap();
    assert!(event == cq && event.context() == 99);
    assert!(channel.try_get_event().is_none());
    assert_eq!(cq.poll(&mut out), 2);
    event.ack_events(1);
    cq.quiesce();
    assert!(Cq::new(&device, 16, None, 0).unwrap().req_notify(false).is_err());
}

#[test]
fn req_notify_after_an_empty_poll_reports_completions_since_then() {
    let lab = Lab::new(false);
    let node = Node::new(&lab, "127.77.202.20", QpType::Rc, 64);
    let channel = CompChannel::new().unwrap();
    let cq = Cq::new(&node.device, 16, Some(&channel), 0).unwrap();
    let init = QpInit { recv_cq: cq.clone(), ..node.qp.init().clone() };
    let qp = Qp::new(&node.pd, init).unwrap();
    let failed = QpAttr { state: QpState::Err, ..qp.query() };
    qp.modify(&failed, AttrMask::STATE).unwrap();
    // A receive posted to a queue pair in error completes at once.
    let complete = || qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    let told = || channel.try_get_event().inspect(|event| event.ack_events(1)).is_some();
    let mut out = [Completion::EMPTY; 4];

    // The queue has not been polled: its completion raises no event, the next one does.
    complete();
    cq.req_notify(false).unwrap();
    assert!(!told());
    complete();
    assert!(told());

    // The first poll took all, and then found nothing.
    assert_eq!(cq.poll(&mut out), 2);
    complete();
    cq.req_notify(true).unwrap();
    assert!(told());
    assert_eq!(cq.poll(&mut out[..1]), 1);
    assert_eq!(cq.poll(&mut out), 0);
    complete();
    cq.req_notify(false).unwrap();
    assert!(told() && !told());

    // Requested again before the queue is polled: an event has covered its completion.
    cq.req_notify(false).unwrap();
    assert!(!told());
    complete();
    assert!(told());
    assert_eq!(cq.poll(&mut out[..1]), 1);

    // There may have been more than this one.
    assert_eq!(cq.poll(&mut out[..1]), 1);
    complete();
    cq.req_notify(false).unwrap();
    assert!(!told());

    // A thread that leaves the rest to others raises the event, once for each request.
    cq.announce_rest();
    assert!(told());
    cq.announce_rest();
    assert!(!told());
    cq.req_notify(false).unwrap();
    assert_eq!(cq.poll(&mut out), 1);
    cq.announce_rest();
    assert!(!told());
}

#[test]
fn completions_carry_timestamps_only_if_the_cq_asks() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.202.8", QpType::Rc, 4096);
    let mut b = Node::new(&lab, "127.77.202.9", QpType::Rc, 4096);
    let init = CqInit { entries: 8, timestamps: true, ..CqInit::default() };
    let cq = Cq::with(&b.device, &init).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..b.qp.init().clone() };
    b.qp = Qp::new(&b.pd, init).unwrap();
    a.connect(&b);
    b.connect(&a);
    let now = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
    };
    let before = now();
    b.recv(1, 0, 64);
    a.send(1, SendOp::Send, 0, 8);
    let mut out = [Completion::EMPTY; 1];
    while cq.poll(&mut out) == 0 {}
    assert!((before..=now()).contains(&out[0].timestamp), "{} in {before}..", out[0].timestamp);
    assert_eq!(a.wait().timestamp, 0);
}

#[test]
fn cq_overflow_raises_cq_error_and_moves_qp_to_error() {
    let (a, mut b) = pair(QpType::Rc, false, 4096);
    let cq = Cq::new(&b.device, 2, None, 0).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..b.qp.init().clone() };
    b.qp = Qp::new(&b.pd, init).unwrap();
    let a2 = Node::on(a.device.clone(), a.control.clone(), a.pd.clone(), QpType::Rc, 64, None);
    a2.connect(&b);
    b.connect(&a2);
    (0..3).for_each(|i| b.recv(i, 0, 8));
    (0..3).for_each(|i| a2.send(i, SendOp::Send, 0, 8));
    let event = b.device.get_async_event().unwrap();
    assert!(matches!(event.kind(), AsyncEventKind::CqError(which) if *which == cq));
    drop(event);
    cq.quiesce();
    while b.qp.state() != QpState::Err {
        b.device.progress();
    }
    assert_eq!(b.control.count(Counter::CqOverflows), 1);
}

#[test]
fn cq_with_ignore_overrun_keeps_the_latest_completions() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.202.14", QpType::Rc, 4096);
    let mut b = Node::new(&lab, "127.77.202.15", QpType::Rc, 4096);
    let init = CqInit { entries: 2, ignore_overrun: true, ..CqInit::default() };
    let cq = Cq::with(&b.device, &init).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..b.qp.init().clone() };
    b.qp = Qp::new(&b.pd, init).unwrap();
    a.connect(&b);
    b.connect(&a);
    (0..3).for_each(|i| b.recv(i, 0, 8));
    (0..3).for_each(|i| a.send(i, SendOp::Send, 0, 8));
    (0..3).for_each(|_| assert_eq!(a.wait().status, WcStatus::Success));
    let mut out = [Completion::EMPTY; 4];
    assert_eq!(cq.poll(&mut out), 2);
    assert_eq!([out[0].wr_id, out[1].wr_id], [1, 2]);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn cq_resize_below_its_pending_completions_fails() {
    let (a, b) = pair(QpType::Rc, false, 4096);
    (0..3).for_each(|i| b.recv(i, 0, 8));
    (0..3).for_each(|i| a.send(i, SendOp::Send, 0, 8));
    (0..3).for_each(|_| assert_eq!(a.wait().status, WcStatus::Success));
    assert!(b.cq.resize(2).is_err());
    b.cq.resize(3).unwrap();
    assert_eq!(b.cq.capacity(), 3);
    assert!(b.cq.resize(0).is_err());
}

#[test]
fn srq_serves_qps_in_order_and_raises_srq_limit_reached() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.202.3", QpType::Rc, 4096);
    let a2 = Node::on(a.device.clone(), a.control.clone(), a.pd.clone(), QpType::Rc, 64, None);
    let (device, control) = lab.process("127.77.202.4");
    let pd = Pd::new(&device);
    let srq = Srq::new(&pd, SrqAttr { max_wr: 8, max_sge: 2, limit: 0 }, 5).unwrap();
    let make = || {
        let (device, control, pd) = (device.clone(), control.clone(), pd.clone());
        Node::on(device, control, pd, QpType::Rc, 4096, Some(srq.clone()))
    };
    let (b, b2) = (make(), make());
    for (x, y) in [(&a, &b), (&a2, &b2)] {
        x.connect(y);
        y.connect(x);
    }
    for i in 0..4 {
        srq.post_recv(&RecvWr { wr_id: i, sges: &[b.sge(i as usize * 64, 64)] }).unwrap();
    }
    srq.modify(None, Some(3)).unwrap();
    assert!(srq.modify(None, Some(9)).is_err());
    assert!(b.qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).is_err());
    a.send(1, SendOp::Send, 0, 8);
    assert_eq!(b.wait().wr_id, 0);
    assert!(device.try_get_async_event().is_none());
    a2.send(1, SendOp::Send, 0, 8);
    assert_eq!(b2.wait().wr_id, 1);
    let event = device.get_async_event().unwrap();
    assert!(matches!(event.kind(), AsyncEventKind::SrqLimit(s) if *s == srq && s.context() == 5));
    assert_eq!(srq.attr().limit, 0);
}

#[test]
fn dead_peer_process_flushes_the_connected_qp() {
    let (a, b) = pair(QpType::Rc, true, 4096);
    a.recv(1, 0, 8);
    let slot = b.control_slot();
    drop(b);
    a.control.tell(ControlEvent::PeerGone { slot });
    let got = a.wait();
    assert_eq!((got.wr_id, got.status), (1, WcStatus::WrFlushErr));
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn dead_service_raises_device_fatal_and_flushes() {
    let (a, _b) = pair(QpType::Rc, false, 4096);
    a.recv(1, 0, 8);
    a.control.die();
    let event = a.device.get_async_event().unwrap();
    assert!(matches!(event.kind(), AsyncEventKind::DeviceFatal));
    assert_eq!(a.wait().status, WcStatus::WrFlushErr);
    assert!(Qp::new(&a.pd, a.qp.init().clone()).is_err());
    assert!(a.device.has_failed());
}

#[test]
fn first_packet_in_rtr_raises_comm_est() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.202.5", QpType::Rc, 64);
    let b = Node::new(&lab, "127.77.202.6", QpType::Rc, 64);
    a.connect(&b);
    b.connect_rtr(&a);
    b.recv(1, 0, 8);
    a.send(1, SendOp::Send, 0, 8);
    let event = b.device.get_async_event().unwrap();
    let AsyncEventKind::Qp(qp, QpEvent::CommEst) = event.kind() else { panic!("{event:?}") };
    assert_eq!(qp.qpn(), b.qp.qpn());
}

/// A queue pair whose memory is in another process, as a service uses for queue pairs that belong to no process.
#[test]
fn region_in_another_process_is_accessed_until_that_process_exits() {
    let (a, b) = pair(QpType::Rc, false, 8192);
    let mut child = lab::child_with_memory();
    let space = Space::Process(std::sync::Arc::new(
        rdmux_link::ProcessMemory::new(child.pid, None).unwrap(),
    ));
    let init = MrInit { addr: child.addr, length: 4096, iova: 0x5000, access: lab::ALL, space };
    // SAFETY: the memory is the child's, and every access to it is checked by the kernel.
    let mr = unsafe { Mr::register(&b.pd, init).unwrap() };
    a.write(0, b"into another process");
    let (remote_addr, rkey) = (0x5000, mr.rkey());
    a.send(1, SendOp::Write { remote_addr, rkey }, 0, 20);
    assert_eq!(a.wait().status, WcStatus::Success);
    a.send(2, SendOp::FetchAdd { remote_addr: 0x5000 + 64, rkey, add: 5 }, 1024, 8);
    assert_eq!(a.wait().status, WcStatus::Success);
    a.send(3, SendOp::Read { remote_addr, rkey }, 2048, 128);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(a.read(2048, 20), b"into another process");
    assert_eq!(a.read(2048 + 64, 8), 5_u64.to_ne_bytes());
    child.end();
    a.send(4, SendOp::Read { remote_addr, rkey }, 0, 8);
    assert_eq!(a.wait().status, WcStatus::RemOpErr);
}

#[test]
fn qp_with_too_many_sges_and_query_of_unknown_port_fail() {
    let lab = Lab::new(false);
    let a = Node::new(&lab, "127.77.202.7", QpType::Rc, 64);
    let too_long = QpInit {
        caps: rdmux_verbs::transport::attr::QpCaps { max_send_sge: 33, ..caps() },
        ..a.qp.init().clone()
    };
    let error = Qp::new(&a.pd, too_long).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot create a queue pair: 33 gather entries exceed the device's limit of 32"
    );
    assert!(a.device.query_port(2).is_err());
    assert_eq!(a.device.query_port(1).unwrap().gid_tbl_len, 1);
}

#[test]
fn reset_and_destroy_remove_unpolled_completions_of_that_qp_only() {
    for is_destroyed in [false, true] {
        let (a, b) = pair(QpType::Rc, false, 4096);
        (0..2).for_each(|i| b.recv(i, 0, 8));
        let state = |state| {
            let attr = QpAttr { state, ..b.qp.query() };
            b.qp.modify(&attr, AttrMask::STATE).unwrap();
        };
        state(QpState::Err);
        let (device, control, pd) = (b.device.clone(), b.control.clone(), b.pd.clone());
        let other = Node::on(device, control, pd, QpType::Rc, 64, None);
        let (send_cq, recv_cq) = (b.cq.clone(), b.cq.clone());
        let init = QpInit { send_cq, recv_cq, ..other.qp.init().clone() };
        let other = Qp::new(&b.pd, init).unwrap();
        let attr = QpAttr { state: QpState::Err, ..other.query() };
        other.modify(&attr, AttrMask::STATE).unwrap();
        other.post_recv(&RecvWr { wr_id: 7, sges: &[] }).unwrap();
        if is_destroyed {
            b.qp.quiesce();
        } else {
            state(QpState::Reset);
        }
        let mut out = [Completion::EMPTY; 4];
        assert_eq!(b.cq.poll(&mut out), 1, "{is_destroyed}");
        assert_eq!((out[0].wr_id, out[0].qpn), (7, other.qpn()));
        drop(a);
    }
}

/// A receive uses memory of the shared receive queue's protection domain (IBTA 10.2.9), whatever the queue pair's is. WRITEs and
/// READs of the peer use the queue pair's.
fn receives_are_of_the_queues_domain(a: &Node, b: &Node, srq: &Srq, len: usize) {
    let mut bytes = vec![0_u64; len.div_ceil(8)];
    // SAFETY: it is dropped before the bytes are.
    let own = unsafe {
        Mr::register(srq.pd(), MrInit::own(bytes.as_mut_ptr().cast(), len, ALL)).unwrap()
    };
    let post_to = |wr_id, mr: &Mr| {
        let length = u32::try_from(len).unwrap();
        let sge = Sge { addr: mr.range().start, length, lkey: mr.lkey() };
        srq.post_recv(&RecvWr { wr_id, sges: &[sge] }).unwrap();
    };
    assert!(b.pd != *srq.pd());
    a.write(0, &vec![7; len]);
    post_to(1, &own);
    a.send(2, SendOp::Send, 0, len);
    let received = b.wait();
    assert_eq!((received.wr_id, received.status), (1, WcStatus::Success), "{len} bytes");
    assert_eq!(a.wait().status, WcStatus::Success);
    let (remote_addr, rkey) = (b.base(), b.mr.rkey());
    a.send(3, SendOp::Write { remote_addr, rkey }, 0, len);
    assert_eq!(a.wait().status, WcStatus::Success);

    post_to(4, &b.mr);
    a.send(5, SendOp::Send, 0, len);
    let received = b.wait();
    assert_eq!((received.wr_id, received.status), (4, WcStatus::LocProtErr), "{len} bytes");
    assert_eq!(b.qp.state(), QpState::Err);
    drop(own);
    assert!(bytes.iter().all(|word| *word == u64::from_ne_bytes([7; 8])), "{len} bytes");
}

/// A short message, and one of many packets.
const LENGTHS: [usize; 2] = [8, 32 << 10];

/// A shared receive queue in a domain of its own.
fn queue_in_another_domain(device: &Arc<Device>) -> Srq {
    let attr = SrqAttr { max_wr: 4, max_sge: 1, limit: 0 };
    Srq::new(&Pd::new(device), attr, 0).unwrap()
}

#[test]
fn srq_receives_use_the_pd_of_the_srq() {
    for (same_host, addresses) in
        [(false, ["127.77.202.30", "127.77.202.31"]), (true, ["127.77.202.32", "127.77.202.32"])]
    {
        for len in LENGTHS {
            let lab = Lab::new(same_host);
            let a = Node::new(&lab, addresses[0], QpType::Rc, len);
            let (device, control) = lab.process(addresses[1]);
            let (pd, srq) = (Pd::new(&device), queue_in_another_domain(&device));
            let b = Node::on(device, control, pd, QpType::Rc, len, Some(srq.clone()));
            a.connect(&b);
            b.connect(&a);
            assert_eq!(b.qp.is_same_host(), same_host);
            receives_are_of_the_queues_domain(&a, &b, &srq, len);
        }
    }
}

#[test]
fn srq_receives_of_iwarp_use_the_pd_of_the_srq() {
    for len in LENGTHS {
        let (a, b) = stream_pair_with(&PLAIN, len, |device| Some(queue_in_another_domain(device)));
        let srq = b.qp.init().srq.clone().unwrap();
        receives_are_of_the_queues_domain(&a, &b, &srq, len);
    }
}
