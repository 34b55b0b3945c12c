//! Devices without a thread, which the program's event loop drives.

mod lab;

use std::time::{Duration, Instant};

use lab::{Lab, Node, pattern};
use rdmux_testing::qp::{connected_to, steps};
use rdmux_verbs::Pd;
use rdmux_verbs::transport::attr::{QpAttr, QpState, QpType};
use rdmux_verbs::transport::wr::{Completion, SendOp, WcStatus};
use rdmux_verbs::wire::{AckTimeout, Mtu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LONG: Duration = Duration::from_secs(20);

/// A node on a device that is driven, and until when it needs not be.
struct Loop {
    node: Node,
    next: Option<Instant>,
}

impl Loop {
    fn new(lab: &std::sync::Arc<Lab>, ip: &str) -> Self {
        let (device, control) = lab.driven_process(ip);
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

/// Waits as an event loop does, and drives the devices for which it is time. None of them was left without a reason.
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
fn driven_device_moves_when_it_is_driven_and_a_poll_moves_nothing() {
    let lab = Lab::new(false);
    let mut a = Loop::new(&lab, "127.77.206.1");
    let b = Node::new(&lab, "127.77.206.2", QpType::Rc, 1 << 16);
    a.node.connect(&b);
    b.connect(&a.node);
    a.node.recv(1, 0, 100);
    b.send(2, SendOp::Send, 0, 100);
    // The message is there, and only that.
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
fn two_driven_devices_talk_over_a_network_and_by_a_ring() {
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

/// A timer runs although nothing comes: nobody answers, and the send gives up.
#[test]
fn timers_run_when_they_are_due() {
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
