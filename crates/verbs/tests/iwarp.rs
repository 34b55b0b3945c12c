//! Reliable connections over a stream.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use std::time::Duration;

use lab::{Lab, NUMBER, Node, PLAIN, join, pattern, stream_pair, waiting_stream_pair};
use rdmux_verbs::control::ControlEvent;
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{AttrMask, QpAttr, QpState, QpType};
use rdmux_verbs::transport::iwarp::StreamParams;
use rdmux_verbs::transport::wr::{
    Completion, RecvWr, SendData, SendOp, WcFlags, WcOpcode, WcStatus,
};
use rdmux_verbs::{Pd, Srq, SrqAttr};

const BIG: usize = 3 << 20;

/// Runs a test with payload by reference, with a CRC, and with markers in either direction.
fn all(test: impl Fn(Node, Node)) {
    let crc = StreamParams { crc: true, ..PLAIN };
    let markers = StreamParams { tx_markers: true, ..crc };
    let other = StreamParams { rx_markers: true, ..PLAIN };
    for params in [PLAIN, crc, markers, other] {
        let (a, b) = stream_pair(&params, BIG);
        test(a, b);
    }
}

#[track_caller]
fn ok(completion: &Completion, wr_id: u64, opcode: WcOpcode) {
    assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
    assert_eq!((completion.wr_id, completion.opcode), (wr_id, opcode));
}

#[test]
fn send_of_every_size() {
    all(|a, b| {
        for (i, len) in [0, 1, 3, 255, 4096, 65_535, 100_001, BIG].into_iter().enumerate() {
            let data = pattern(len, i as u8);
            a.write(0, &data);
            b.recv(i as u64, 0, len);
            a.send(100 + i as u64, SendOp::Send, 0, len);
            let received = b.wait();
            ok(&received, i as u64, WcOpcode::Recv);
            assert_eq!(received.byte_len as usize, len);
            assert!(b.read(0, len) == data, "bytes differ at length {len}");
            ok(&a.wait(), 100 + i as u64, WcOpcode::Send);
        }
    });
}

#[test]
fn write_read_and_atomics_while_the_target_does_nothing() {
    all(|a, b| {
        let data = pattern(BIG / 2, 5);
        a.write(0, &data);
        let (remote_addr, rkey) = (b.base() + 8, b.mr.rkey());
        a.send(1, SendOp::Write { remote_addr, rkey }, 0, data.len());
        ok(&a.wait(), 1, WcOpcode::RdmaWrite);
        // A WRITE completes when the stream has accepted it; the READ after it sees its data.
        a.send(2, SendOp::Read { remote_addr, rkey }, BIG / 2, data.len());
        ok(&a.wait(), 2, WcOpcode::RdmaRead);
        assert!(a.read(BIG / 2, data.len()) == data);
        assert!(b.read(8, data.len()) == data);

        b.write(0, &40_u64.to_ne_bytes());
        let remote_addr = b.base();
        a.send(3, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, 0, 8);
        ok(&a.wait(), 3, WcOpcode::FetchAdd);
        assert_eq!(a.read(0, 8), 40_u64.to_ne_bytes());
        a.send(4, SendOp::CmpSwap { remote_addr, rkey, compare: 42, swap: 7 }, 0, 8);
        ok(&a.wait(), 4, WcOpcode::CompSwap);
        assert_eq!(a.read(0, 8), 42_u64.to_ne_bytes());
        assert_eq!(b.read(0, 8), 7_u64.to_ne_bytes());
    });
}

#[test]
fn simultaneous_sends_in_both_directions_arrive() {
    all(|a, b| {
        let (data, other) = (pattern(BIG / 2, 1), pattern(BIG / 2, 2));
        a.write(0, &data);
        b.write(0, &other);
        for node in [&a, &b] {
            node.recv(1, BIG / 2, BIG / 2);
        }
        a.send(2, SendOp::Send, 0, data.len());
        b.send(2, SendOp::Send, 0, other.len());
        for node in [&a, &b] {
            let (first, second) = (node.wait(), node.wait());
            let mut ids = [first.wr_id, second.wr_id];
            ids.sort_unstable();
            assert_eq!(ids, [1, 2], "{first:?} {second:?}");
            assert!(first.status == WcStatus::Success && second.status == WcStatus::Success);
        }
        assert!(b.read(BIG / 2, data.len()) == data);
        assert!(a.read(BIG / 2, other.len()) == other);
    });
}

#[test]
fn gather_list_inline_data_and_write_with_immediate_arrive() {
    all(|a, b| {
        a.write(0, &pattern(32 * 100, 1));
        let sges: Vec<_> = (0..32).map(|i| a.sge((31 - i) * 100, 99)).collect();
        b.recv(1, 0, 32 * 99);
        a.post(2, SendOp::Send, SendData::Sges(&sges));
        ok(&b.wait(), 1, WcOpcode::Recv);
        let want: Vec<u8> = (0..32).flat_map(|i| a.read((31 - i) * 100, 99)).collect();
        assert!(b.read(0, 32 * 99) == want);
        ok(&a.wait(), 2, WcOpcode::Send);

        b.recv(3, 0, 64);
        a.post(4, SendOp::Send, SendData::Inline(&[b"hello ", b"there"]));
        ok(&b.wait(), 3, WcOpcode::Recv);
        assert_eq!(b.read(0, 11), b"hello there");
        ok(&a.wait(), 4, WcOpcode::Send);

        b.recv(9, 0, 0);
        a.write(0, &[7; 100]);
        let (remote_addr, rkey) = (b.base() + 1000, b.mr.rkey());
        a.send(5, SendOp::WriteImm { remote_addr, rkey, imm: [9; 4] }, 0, 100);
        let got = b.wait();
        ok(&got, 9, WcOpcode::RecvRdmaWithImm);
        assert_eq!((got.imm, got.flags), ([9; 4], WcFlags::WITH_IMM));
        assert_eq!(b.read(1000, 100), [7; 100]);
        ok(&a.wait(), 5, WcOpcode::RdmaWrite);
    });
}

#[test]
fn read_with_wrong_rkey_moves_both_ends_to_error() {
    all(|a, b| {
        let (remote_addr, rkey) = (b.base(), rdmux_verbs::wire::Rkey(b.mr.rkey().0 ^ 0x55));
        b.recv(7, 0, 16);
        a.send(1, SendOp::Read { remote_addr, rkey }, 0, 16);
        assert_ne!(a.wait().status, WcStatus::Success);
        assert_eq!(b.wait().status, WcStatus::WrFlushErr);
        for node in [&a, &b] {
            assert_eq!(node.qp.state(), QpState::Err);
            while node.control.ended().is_empty() {
                node.device.progress();
            }
            assert_eq!(node.control.ended(), [node.qp.qpn()]);
        }
    });
}

#[test]
fn posted_sends_arrive_before_the_stream_closes() {
    all(|a, b| {
        let data = pattern(BIG, 3);
        a.write(0, &data);
        b.recv(1, 0, BIG);
        b.recv(2, 0, 8);
        a.send(3, SendOp::Send, 0, BIG);
        a.control.tell(ControlEvent::CloseStream { qpn: a.qp.qpn(), number: NUMBER });
        a.device.sync_control();
        ok(&b.wait(), 1, WcOpcode::Recv);
        assert!(b.read(0, BIG) == data);
        assert_eq!(b.wait().status, WcStatus::WrFlushErr);
        ok(&a.wait(), 3, WcOpcode::Send);
        for node in [&a, &b] {
            while node.control.ended().is_empty() {
                node.device.progress();
            }
        }
    });
}

#[test]
fn peer_exit_flushes_receives_and_reports_the_ended_stream() {
    all(|a, b| {
        b.recv(2, 0, 8);
        drop(a);
        assert_eq!(b.wait().status, WcStatus::WrFlushErr);
        while b.control.ended().is_empty() {
            b.device.progress();
        }
    });
}

/// Drives a device until a condition holds.
fn until(node: &Node, holds: impl Fn(&Node) -> bool) {
    while !holds(node) {
        node.device.progress();
    }
}

/// Longer than any test takes: a message that waits so long has been lost.
const LONG: Duration = Duration::from_secs(1000);

#[test]
fn message_waits_for_a_receive_that_is_posted_late() {
    let crc = StreamParams { crc: true, ..PLAIN };
    for params in [PLAIN, crc] {
        let (a, b) = waiting_stream_pair(&params, BIG, LONG);
        let data = pattern(BIG / 2, 5);
        a.write(0, &data);
        for id in 0..4 {
            a.send(id, SendOp::Send, 0, data.len());
        }
        let (remote_addr, rkey) = (b.base(), b.mr.rkey());
        a.send(4, SendOp::WriteImm { remote_addr, rkey, imm: [9; 4] }, 0, 100);
        for id in 0..5 {
            until(&b, |b| b.control.count(Counter::RxWaits) == id + 1);
            assert_eq!(b.cq.poll(&mut [Completion::EMPTY]), 0);
            b.recv(id, BIG / 2, data.len());
            let opcode = if id < 4 { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
            ok(&b.wait(), id, opcode);
        }
        assert!(b.read(BIG / 2, data.len()) == data);
        for id in 0..4 {
            ok(&a.wait(), id, WcOpcode::Send);
        }
        ok(&a.wait(), 4, WcOpcode::RdmaWrite);
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    }
}

#[test]
fn waiting_qps_take_srq_receives_in_waiting_order() {
    let lab = Lab::new(false);
    let (device, control) = lab.stream_process("127.0.0.2");
    let pd = Pd::new(&device);
    let srq = Srq::new(&pd, SrqAttr { max_wr: 16, max_sge: 1, limit: 0 }, 0).unwrap();
    let pairs: Vec<(Node, Node)> = (1..=2)
        .map(|_| {
            let (far, control_of_far) = lab.stream_process("127.0.0.1");
            let far_pd = Pd::new(&far);
            let a = Node::on(far, control_of_far, far_pd, QpType::Rc, 64, None);
            let (device, control, srq) = (device.clone(), control.clone(), Some(srq.clone()));
            let b = Node::on(device, control, pd.clone(), QpType::Rc, 64, srq);
            join(&a, &b, &PLAIN, LONG);
            (a, b)
        })
        .collect();
    for (n, (a, b)) in (1..).zip(&pairs) {
        for id in 0..3 {
            a.send(id, SendOp::Send, 0, 8);
        }
        until(b, |b| b.control.count(Counter::RxWaits) == n);
    }
    let post = |wr_id| {
        let sges = [pairs[0].1.sge(0, 8)];
        srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    };
    // The queue pair that has waited longest gets the next receive, and then waits behind the other.
    for wr_id in 0..4 {
        post(wr_id);
        ok(&pairs[wr_id as usize % 2].1.wait(), wr_id, WcOpcode::Recv);
    }
    // A queue pair that no longer waits passes its turn to the others.
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    pairs[0].1.qp.modify(&error, AttrMask::STATE).unwrap();
    post(9);
    ok(&pairs[1].1.wait(), 9, WcOpcode::Recv);
}

#[test]
fn message_without_receive_moves_qp_to_error_after_receive_wait() {
    let (a, b) = waiting_stream_pair(&PLAIN, 64, Duration::from_millis(1));
    a.send(1, SendOp::Send, 0, 8);
    until(&b, |b| b.qp.state() == QpState::Err);
    until(&a, |a| a.qp.state() == QpState::Err);
    for node in [&a, &b] {
        until(node, |node| !node.control.ended().is_empty());
    }
}

#[test]
fn stream_waiting_for_a_receive_is_closed_with_its_qp() {
    for state in [Some(QpState::Err), Some(QpState::Reset), None] {
        let (a, b) = waiting_stream_pair(&PLAIN, 64, LONG);
        a.send(1, SendOp::Send, 0, 8);
        until(&b, |b| b.control.count(Counter::RxWaits) == 1);
        if let Some(state) = state {
            b.qp.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
            drop(a);
            until(&b, |b| !b.control.ended().is_empty());
        } else {
            let (device, control) = (b.device.clone(), b.control.clone());
            drop(b);
            while control.ended().is_empty() {
                device.progress();
            }
        }
    }
}

#[test]
fn program_that_disconnects_does_not_wait_for_a_message_without_receive() {
    let (a, b) = waiting_stream_pair(&PLAIN, 64, LONG);
    a.send(1, SendOp::Send, 0, 8);
    until(&b, |b| b.control.count(Counter::RxWaits) == 1);
    b.control.tell(ControlEvent::CloseStream { qpn: b.qp.qpn(), number: NUMBER + 1 });
    b.device.sync_control();
    assert_eq!(b.qp.state(), QpState::Rts, "that is another stream");
    assert_eq!(b.control.ended_streams(), [(b.qp.qpn(), NUMBER + 1)], "which it does not have");
    b.control.tell(ControlEvent::CloseStream { qpn: b.qp.qpn(), number: NUMBER });
    b.device.sync_control();
    for node in [&b, &a] {
        until(node, |node| node.qp.state() == QpState::Err);
        until(node, |node| !node.control.ended().is_empty());
    }
}

#[test]
fn receive_posted_to_a_sleeping_device_resumes_the_stream() {
    let (a, b) = waiting_stream_pair(&PLAIN, 64, LONG);
    a.send(1, SendOp::Send, 0, 8);
    a.send(2, SendOp::Send, 0, 8);
    // From here on only the background thread drives the device.
    while b.control.count(Counter::RxWaits) == 0 {
        std::thread::yield_now();
    }
    b.recv(1, 0, 8);
    while b.control.count(Counter::RxWaits) == 1 {
        std::thread::yield_now();
    }
    b.recv(2, 0, 8);
    ok(&b.wait(), 1, WcOpcode::Recv);
    ok(&b.wait(), 2, WcOpcode::Recv);
}
