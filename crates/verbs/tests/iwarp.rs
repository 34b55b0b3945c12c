//! Reliable connections over a stream.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use lab::{Node, PLAIN, pattern, stream_pair};
use rdmux_verbs::control::ControlEvent;
use rdmux_verbs::transport::attr::QpState;
use rdmux_verbs::transport::iwarp::StreamParams;
use rdmux_verbs::transport::wr::{Completion, SendData, SendOp, WcFlags, WcOpcode, WcStatus};

const BIG: usize = 3 << 20;

/// With payload by reference, with a CRC, and with markers in either direction.
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
        // A WRITE is complete when the stream has it; the READ behind it sees it done.
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
fn both_ways_at_once() {
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
fn gather_inline_and_immediate() {
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
fn a_key_that_is_not_the_peers_ends_the_connection() {
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
fn what_was_posted_arrives_before_the_end() {
    all(|a, b| {
        let data = pattern(BIG, 3);
        a.write(0, &data);
        b.recv(1, 0, BIG);
        b.recv(2, 0, 8);
        a.send(3, SendOp::Send, 0, BIG);
        a.control.tell(ControlEvent::CloseStream { qpn: a.qp.qpn() });
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
fn the_end_of_a_peer_is_told() {
    all(|a, b| {
        b.recv(2, 0, 8);
        drop(a);
        assert_eq!(b.wait().status, WcStatus::WrFlushErr);
        while b.control.ended().is_empty() {
            b.device.progress();
        }
    });
}
