//! Reliable connections between devices, over the network and over a ring.

#![allow(clippy::cast_possible_truncation, reason = "numbers of a test are small")]

mod lab;

use lab::{Node, pair, pattern};
use rdmux_verbs::counters::Counter;
use rdmux_verbs::transport::attr::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rdmux_verbs::transport::wr::{SendData, SendOp, WcFlags, WcOpcode, WcStatus};
use rdmux_verbs::wire::Qpn;

const BIG: usize = 3 << 20;

fn both(test: impl Fn(Node, Node)) {
    for same_host in [false, true] {
        let (a, b) = pair(QpType::Rc, same_host, BIG);
        test(a, b);
    }
}

fn ok(completion: &rdmux_verbs::transport::wr::Completion, wr_id: u64, opcode: WcOpcode) {
    assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
    assert_eq!((completion.wr_id, completion.opcode), (wr_id, opcode));
}

#[test]
fn send_of_every_size() {
    both(|a, b| {
        for (i, len) in [0, 1, 3, 255, 4096, 4097, 32768, 100_001, BIG].into_iter().enumerate() {
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
fn av_changed_in_sqd_must_lead_to_the_same_peer() {
    both(|a, b| {
        let to_state = |state| a.qp.modify(&QpAttr { state, ..a.qp.query() }, AttrMask::STATE);
        to_state(QpState::Sqd).unwrap();
        let now = a.qp.query();
        let av = AddressVector { traffic_class: 8, hop_limit: 7, ..now.av };
        // Attributes that the mask does not name are ignored.
        let attr = QpAttr { av, dest_qpn: Qpn::new(0), ..now };
        a.qp.modify(&attr, AttrMask::STATE | AttrMask::AV).unwrap();
        to_state(QpState::Rts).unwrap();
        assert_eq!(a.qp.query().av, av);
        assert_eq!(a.qp.is_same_host(), b.qp.is_same_host());
        for (from, to) in [(&a, &b), (&b, &a)] {
            to.recv(1, 0, 8);
            from.send(2, SendOp::Send, 0, 8);
            ok(&to.wait(), 1, WcOpcode::Recv);
            ok(&from.wait(), 2, WcOpcode::Send);
        }
        if a.qp.is_same_host() {
            to_state(QpState::Sqd).unwrap();
            let dgid = std::net::Ipv4Addr::new(127, 77, 250, 250).into();
            let elsewhere = AddressVector { dgid, ..av };
            let attr = QpAttr { av: elsewhere, ..attr };
            let error = a.qp.modify(&attr, AttrMask::STATE | AttrMask::AV).unwrap_err();
            assert!(error.to_string().contains("does not lead to it"), "{error}");
        }
    });
}

#[test]
fn inline_send_with_immediate_arrives() {
    both(|a, b| {
        b.recv(1, 64, 32);
        a.post(2, SendOp::SendImm([1, 2, 3, 4]), SendData::Inline(&[b"hello ", b"there"]));
        let got = b.wait();
        ok(&got, 1, WcOpcode::Recv);
        assert_eq!((got.imm, got.flags), ([1, 2, 3, 4], WcFlags::WITH_IMM));
        assert_eq!(b.read(64, 11), b"hello there");
        ok(&a.wait(), 2, WcOpcode::Send);
    });
}

#[test]
fn write_read_and_atomics_while_the_target_does_nothing() {
    both(|a, b| {
        let data = pattern(BIG / 2, 5);
        a.write(0, &data);
        let (remote_addr, rkey) = (b.base() + 8, b.mr.rkey());
        a.send(1, SendOp::Write { remote_addr, rkey }, 0, data.len());
        ok(&a.wait(), 1, WcOpcode::RdmaWrite);
        assert!(b.read(8, data.len()) == data);

        a.send(2, SendOp::Read { remote_addr, rkey }, BIG / 2, data.len());
        ok(&a.wait(), 2, WcOpcode::RdmaRead);
        assert!(a.read(BIG / 2, data.len()) == data);

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
fn write_with_immediate_consumes_a_receive() {
    both(|a, b| {
        b.recv(9, 0, 0);
        a.write(0, &[7; 100]);
        let (remote_addr, rkey) = (b.base() + 1000, b.mr.rkey());
        a.send(1, SendOp::WriteImm { remote_addr, rkey, imm: [9; 4] }, 0, 100);
        let got = b.wait();
        ok(&got, 9, WcOpcode::RecvRdmaWithImm);
        assert_eq!((got.byte_len, got.imm), (100, [9; 4]));
        assert_eq!(b.read(1000, 100), [7; 100]);
        ok(&a.wait(), 1, WcOpcode::RdmaWrite);
    });
}

#[test]
fn send_gathers_32_sges() {
    both(|a, b| {
        a.write(0, &pattern(32 * 100, 1));
        let sges: Vec<_> = (0..32).map(|i| a.sge((31 - i) * 100, 99)).collect();
        b.recv(1, 0, 32 * 99);
        a.post(2, SendOp::Send, SendData::Sges(&sges));
        ok(&b.wait(), 1, WcOpcode::Recv);
        let want: Vec<u8> = (0..32).flat_map(|i| a.read((31 - i) * 100, 99)).collect();
        assert!(b.read(0, 32 * 99) == want);
        ok(&a.wait(), 2, WcOpcode::Send);
    });
}

#[test]
fn write_with_wrong_rkey_is_remote_access_error() {
    both(|a, b| {
        let (remote_addr, rkey) = (b.base(), rdmux_verbs::wire::Rkey(b.mr.rkey().0 ^ 0x55));
        a.send(1, SendOp::Write { remote_addr, rkey }, 0, 16);
        assert_eq!(a.wait().status, WcStatus::RemAccessErr);
        assert_eq!(a.qp.state(), QpState::Err);
        a.send(2, SendOp::Send, 0, 1);
        assert_eq!(a.wait().status, WcStatus::WrFlushErr);
    });
}

#[test]
fn send_from_deregistered_region_is_local_protection_error() {
    both(|a, b| {
        let Node { mr, qp, cq, device: _device, pd: _pd, .. } = &a;
        let _ = (mr, qp, cq);
        let sges = [a.sge(0, 64)];
        b.recv(1, 0, 64);
        let lkey = sges[0].lkey;
        // A region of the same bytes, gone before the send is posted.
        // SAFETY: the memory is the node's.
        let gone = unsafe {
            rdmux_verbs::Mr::register(&a.pd, rdmux_verbs::MrInit::own(a.memory, 64, lab::ALL))
                .unwrap()
        };
        let mut sge = sges[0];
        sge.lkey = gone.lkey();
        assert_ne!(sge.lkey, lkey);
        drop(gone);
        a.post(2, SendOp::Send, SendData::Sges(&[sge]));
        assert_eq!(a.wait().status, WcStatus::LocProtErr);
    });
}

#[test]
fn send_longer_than_receive_is_local_length_and_remote_invalid_request_error() {
    both(|a, b| {
        b.recv(1, 0, 10);
        a.send(2, SendOp::Send, 0, 11);
        assert_eq!(b.wait().status, WcStatus::LocLenErr);
        assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
    });
}

#[test]
fn send_waits_for_a_receive_posted_late() {
    both(|a, b| {
        a.write(0, b"late");
        a.send(2, SendOp::Send, 0, 4);
        b.device.progress();
        b.recv(1, 0, 4);
        ok(&b.wait(), 1, WcOpcode::Recv);
        ok(&a.wait(), 2, WcOpcode::Send);
        assert_eq!(b.read(0, 4), b"late");
    });
}

#[test]
fn packets_use_the_network_between_hosts_and_the_ring_within_a_host() {
    both(|a, b| {
        b.recv(1, 0, 4);
        a.send(2, SendOp::Send, 0, 4);
        b.wait();
        a.wait();
        let ring = a.qp.is_same_host();
        // The counters of a ring may lag some packets behind until then.
        b.device.drain();
        assert_eq!(a.control.count(Counter::TxPackets) == 0, ring);
        assert_eq!(b.control.count(Counter::RingRxPackets) != 0, ring);
        assert_eq!(b.control.count(Counter::RxIcrc), 0);
    });
}

#[test]
fn two_rc_qps_of_one_process_exchange_a_message() {
    let lab = lab::Lab::new(true);
    let a = Node::new(&lab, "127.77.200.3", QpType::Rc, 4096);
    let b = Node::on(a.device.clone(), a.control.clone(), a.pd.clone(), QpType::Rc, 4096, None);
    a.connect(&b);
    b.connect(&a);
    b.recv(1, 0, 100);
    a.write(0, &[3; 100]);
    a.send(2, SendOp::Send, 0, 100);
    ok(&b.wait(), 1, WcOpcode::Recv);
    ok(&a.wait(), 2, WcOpcode::Send);
    assert_eq!(b.read(0, 100), [3; 100]);
}
