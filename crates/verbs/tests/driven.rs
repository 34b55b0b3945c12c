//! Devices without a thread, driven by the program's event loop.

mod lab;

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::{Lab, LabControl, Node, PLAIN, give, pattern};
use rdmux_testing::qp::{connected_to, steps};
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{QpAttr, QpState, QpType};
use rdmux_verbs::transport::wr::{Completion, SendOp, WcStatus};
use rdmux_verbs::wire::iwarp::fpdu::Framing;
use rdmux_verbs::wire::iwarp::rtr;
use rdmux_verbs::wire::{AckTimeout, Mtu};
use rdmux_verbs::{Device, Pd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

const LONG: Duration = Duration::from_secs(20);

/// A node on a driven device, and the time until which it need not be driven.
struct Loop {
    node: Node,
    next: Option<Instant>,
}

impl Loop {
    fn new(lab: &Arc<Lab>, ip: &str) -> Self {
        Self::on(lab.driven_process(ip))
    }

    fn on((device, control): (Arc<Device>, Arc<LabControl>)) -> Self {
        let pd = Pd::new(&device);
        let node = Node::on(device, control, pd, QpType::Rc, 1 << 16, None);
        let mut this = Self { node, next: None };
        this.drive();
        this
    }

    fn drive(&mut self) {
        self.next = self.node.device.drive().map(|pause| Instant::now() + pause);
    }

    fn take(&self) -> Option<Completion> {
        let mut one = [Completion::EMPTY];
        (self.node.cq.poll(&mut one) == 1).then_some(one[0])
    }
}

/// Waits as an event loop does, and drives the devices that are due. Checks that no wait without a due device times out.
fn turn(loops: &mut [&mut Loop]) {
    let now = Instant::now();
    let due = loops.iter().filter_map(|it| it.next).min();
    let pause = due.map_or(LONG, |at| at.saturating_duration_since(now));
    let mut fds: Vec<_> = loops
        .iter()
        .map(|it| PollFd::from_borrowed_fd(it.node.device.drive_fd(), PollFlags::IN))
        .collect();
    let ready = poll(&mut fds, Some(&Timespec::try_from(pause).unwrap())).unwrap();
    assert!(ready > 0 || due.is_some(), "nothing has come for {LONG:?}");
    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    for (it, ready) in loops.iter_mut().zip(ready) {
        if ready || it.next.is_some_and(|at| at <= Instant::now()) {
            it.drive();
        }
    }
}

#[test]
fn driven_device_progresses_only_in_drive_and_not_in_poll_cq() {
    let lab = Lab::new(false);
    let mut a = Loop::new(&lab, "127.77.206.1");
    let b = Node::new(&lab, "127.77.206.2", QpType::Rc, 1 << 16);
    a.node.connect(&b);
    b.connect(&a.node);
    a.node.recv(1, 0, 100);
    b.send(2, SendOp::Send, 0, 100);
    // The message has arrived, and no other work is pending.
    let fds = &mut [PollFd::from_borrowed_fd(a.node.device.drive_fd(), PollFlags::IN)];
    assert_eq!(poll(fds, Some(&Timespec::try_from(LONG).unwrap())).unwrap(), 1);
    for _ in 0..1000 {
        assert!(a.take().is_none());
    }
    a.drive();
    assert_eq!(a.take().unwrap().status, WcStatus::Success);
    assert_eq!(b.wait().status, WcStatus::Success);
}

#[test]
fn two_driven_devices_exchange_messages_over_network_and_ring() {
    for (same_host, to) in [(false, "127.77.206.4"), (true, "127.77.206.3")] {
        let lab = Lab::new(same_host);
        let mut a = Loop::new(&lab, "127.77.206.3");
        let mut b = Loop::new(&lab, to);
        a.node.connect(&b.node);
        b.node.connect(&a.node);
        assert_eq!(a.node.qp.is_same_host(), same_host);
        for n in 0..50_u8 {
            let data = pattern(9000, n);
            a.node.write(0, &data);
            b.node.recv(u64::from(n), 20_000, 9000);
            a.node.send(100, SendOp::Send, 0, 9000);
            let mut came = [None, None];
            while came.iter().any(Option::is_none) {
                turn(&mut [&mut a, &mut b]);
                came = [came[0].or_else(|| a.take()), came[1].or_else(|| b.take())];
            }
            assert_eq!(came.map(|done| done.unwrap().status), [WcStatus::Success; 2], "{n}");
            assert!(b.node.read(20_000, 9000) == data, "{n}");
        }
    }
}

/// A timer runs although nothing arrives: the peer never answers, and the send fails.
#[test]
fn driven_device_times_out_without_incoming_packets() {
    let lab = Lab::new(false);
    let mut a = Loop::new(&lab, "127.77.206.5");
    let silent = Node::new(&lab, "127.77.206.6", QpType::Rc, 4096);
    let attr = connected_to(silent.gid(), silent.qp.qpn(), &a.node.qp.query());
    let attr = QpAttr { timeout: AckTimeout::new(8), retry_cnt: 2, path_mtu: Mtu::M4096, ..attr };
    for (state, mask) in steps(QpType::Rc, QpState::Rts) {
        a.node.qp.modify(&QpAttr { state, ..attr }, mask).unwrap();
    }
    a.node.send(1, SendOp::Send, 0, 8);
    a.drive();
    let failed = loop {
        if let Some(done) = a.take() {
            break done;
        }
        turn(&mut [&mut a]);
    };
    assert_eq!(failed.status, WcStatus::RetryExcErr);
}

/// Answers to other queue pairs precede its own in the socket, to which nothing had arrived for some time.
#[test]
fn retransmission_timer_does_not_fire_before_received_acks_are_processed() {
    let lab = Lab::new(false);
    let [senders, receivers] = ["127.77.206.9", "127.77.206.10"].map(|ip| {
        let (device, control) = lab.driven_process(ip);
        let node = || {
            let pd = Pd::new(&device);
            Node::on(device.clone(), control.clone(), pd, QpType::Rc, 64, None)
        };
        [(); 4].map(|()| node())
    });
    for (from, to) in senders.iter().zip(&receivers) {
        let attr = connected_to(to.gid(), to.qp.qpn(), &from.qp.query());
        // Eight microseconds.
        let attr = QpAttr { timeout: AckTimeout::new(1), ..attr };
        for (state, mask) in steps(QpType::Rc, QpState::Rts) {
            from.qp.modify(&QpAttr { state, ..attr }, mask).unwrap();
        }
        to.connect(from);
        to.recv(1, 0, 8);
    }
    let device = &senders[0].device;
    let sent = || senders[0].control.count(Counter::TxPackets);
    // If the kernel is late, an answer may not be in the socket yet: so one success suffices.
    let in_time = (0..50).any(|_| {
        device.drive();
        let before = sent();
        for (from, to) in senders.iter().zip(&receivers) {
            from.send(2, SendOp::Send, 0, 8);
            while to.cq.poll(&mut [Completion::EMPTY]) == 0 {
                to.device.drive();
            }
            to.recv(1, 0, 8);
        }
        for from in &senders {
            let mut done = [Completion::EMPTY];
            while from.cq.poll(&mut done) == 0 {
                device.drive();
            }
            assert_eq!(done[0].status, WcStatus::Success);
        }
        sent() == before + 4
    });
    assert!(in_time, "something was sent again each time");
}

/// A queue pair with a stream, a second handle of that stream, and its other end, whose buffer is small.
fn with_raw_peer(ip: &str) -> (Loop, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 8192).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let again = near.try_clone().unwrap();
    let this = Loop::on(Lab::new(false).driven_stream_process(ip));
    give(&this.node, near, &PLAIN, Duration::ZERO);
    (this, again, peer)
}

/// Waits until a stream has these events.
fn await_stream(stream: &TcpStream, what: PollFlags) {
    let fds = &mut [PollFd::new(stream, what)];
    assert_eq!(poll(fds, Some(&Timespec::try_from(LONG).unwrap())).unwrap(), 1);
    assert!(fds[0].revents().contains(what));
}

#[test]
fn message_before_tcp_reset_is_received_even_if_a_send_meets_the_reset() {
    let (mut a, stream, mut peer) = with_raw_peer("127.77.206.7");
    a.node.recv(1, 0, 8);
    a.node.recv(2, 0, 8);
    peer.write_all(&rtr::send(Framing::default())).unwrap();
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    await_stream(&stream, PollFlags::HUP);
    a.node.send(3, SendOp::Send, 0, 8);
    let mut done = Vec::new();
    while done.len() < 3 || a.node.control.ended().is_empty() {
        match a.take() {
            Some(completion) => done.push((completion.wr_id, completion.status)),
            None => turn(&mut [&mut a]),
        }
    }
    done.sort_by_key(|&(wr_id, _)| wr_id);
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(done, [(1, WcStatus::Success), (2, flushed), (3, flushed)]);
}

/// The Terminate finds no room, while the end of the peer's stream has been read.
#[test]
fn half_closed_stream_without_send_space_does_not_keep_device_busy() {
    let (mut a, stream, mut peer) = with_raw_peer("127.77.206.8");
    // The buffer holds far more than its later size permits, and the peer reads nothing.
    while (&stream).write(&[0; 4096]).is_ok() {}
    sockopt::set_socket_send_buffer_size(&stream, 1).unwrap();
    // Not a valid frame.
    peer.write_all(&[0xff; 64]).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    await_stream(&stream, PollFlags::RDHUP);
    let mut brings_nothing = || {
        let before = a.node.control.count(Counter::RxCalls);
        a.drive();
        a.node.control.count(Counter::RxCalls) == before
    };
    assert!((0..100).any(|_| brings_nothing()));
    assert_eq!(a.node.qp.state(), QpState::Err);
}

#[test]
fn full_stream_is_not_retried_until_there_is_room() {
    let (mut a, stream, mut peer) = with_raw_peer("127.77.206.9");
    // The buffer holds far more than its later size permits, and the peer reads nothing.
    while (&stream).write(&[0; 4096]).is_ok() {}
    sockopt::set_socket_send_buffer_size(&stream, 1).unwrap();
    a.node.send(1, SendOp::Send, 0, 8);
    a.drive();
    assert_eq!(a.next, None, "it would be retried without effect");
    assert!(a.take().is_none());
    let reader = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
    let completion = loop {
        match a.take() {
            Some(completion) => break completion,
            None => turn(&mut [&mut a]),
        }
    };
    assert_eq!((completion.wr_id, completion.status), (1, WcStatus::Success));
    drop((a, stream));
    // A reset ends it, too.
    let _ = reader.join().unwrap();
}
