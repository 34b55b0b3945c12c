//! UC and UD.

use super::*;
use rdmux_transport::wr::{UdDest, WcFlags, WcOpcode};

const OK: WcStatus = WcStatus::Success;

fn datagram(p: &mut Pair, wr_id: u64, len: u32, change: impl Fn(&mut UdDest)) {
    let mut dest = UdDest { av: attributes(1, 2).av, qpn: Qpn::new(2), qkey: QKEY };
    change(&mut dest);
    let sges = [sge(0, len)];
    let wr = SendWr {
        flags: SendFlags::SOLICITED,
        dest: Some(dest),
        ..SendWr::new(wr_id, SendOp::SendImm([4, 3, 2, 1]), SendData::Sges(&sges))
    };
    p.a.qp.post_send(Time::ZERO, &wr).unwrap();
}

#[test]
fn ud_payload_is_placed_after_the_40_byte_grh_area() {
    let mut p = Pair::new(QpType::Ud);
    p.a.w.memory.fill(0, 4096, 3);
    for len in [0, 1, 4096] {
        p.b.recv(5, 1000, 40 + len);
        datagram(&mut p, 1, len, |_| {});
        p.run();
        assert_eq!(p.a.w.statuses(), [(1, OK)]);
        let wc = p.b.w.take_completion();
        assert_eq!((wc.opcode, wc.byte_len, wc.src_qp), (WcOpcode::Recv, 40 + len, Qpn::new(1)));
        assert_eq!((wc.imm, wc.flags), ([4, 3, 2, 1], WcFlags::GRH | WcFlags::WITH_IMM));
        assert!(wc.solicited);
        assert_eq!(p.b.w.memory.bytes[1000..1040], [0x45; 40]);
        assert_eq!(
            p.b.w.memory.bytes[1040..1040 + len as usize],
            p.a.w.memory.bytes[..len as usize]
        );
    }
}

#[test]
fn ud_datagram_with_wrong_qkey_is_dropped() {
    let mut p = Pair::new(QpType::Ud);
    p.b.recv(5, 0, 100);
    datagram(&mut p, 1, 8, |d| d.qkey = Qkey(5));
    p.run();
    assert_eq!((p.b.w.dropped.clone(), p.b.w.completions.len()), (vec![Drop::Qkey], 0));
    datagram(&mut p, 2, 8, |d| d.qkey = Qkey(0x8000_0005));
    p.run();
    assert_eq!(p.b.w.statuses(), [(5, OK)], "the high bit stands for the queue pair's own");
}

#[test]
fn ud_datagram_too_long_for_receive_is_dropped_and_above_mtu_is_sqe() {
    let mut p = Pair::new(QpType::Ud);
    datagram(&mut p, 1, 8, |_| {});
    p.run();
    p.b.recv(5, 0, 47);
    datagram(&mut p, 2, 8, |_| {});
    p.run();
    assert_eq!(p.b.w.dropped, [Drop::NoReceive, Drop::Length]);
    datagram(&mut p, 3, 7, |_| {});
    p.run();
    assert_eq!(p.b.w.statuses(), [(5, OK)], "the receive was kept");
    datagram(&mut p, 4, 4097, |_| {});
    datagram(&mut p, 5, 1, |_| {});
    p.run();
    let want = [(1, OK), (2, OK), (3, OK), (4, WcStatus::LocLenErr), (5, WcStatus::WrFlushErr)];
    assert_eq!(p.a.w.statuses(), want);
    assert_eq!(p.a.qp.state(), QpState::Sqe);
    p.a.step(&attributes(1, 2), QpState::Rts);
    p.b.recv(6, 0, 100);
    datagram(&mut p, 6, 1, |_| {});
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(6, OK)], vec![(6, OK)]));
}

#[test]
fn uc_send_and_write_complete_without_acks() {
    let mut p = Pair::new(QpType::Uc);
    p.a.w.memory.fill(0, 9000, 2);
    p.b.recv(1, 10_000, 9000);
    p.b.recv(2, 0, 0);
    p.a.send(1, SendOp::Send, 0, 9000);
    p.a.send(2, SendOp::WriteImm { remote_addr: 30_000, rkey: Rkey(KEY), imm: [1; 4] }, 0, 9000);
    p.a.send(3, SendOp::Write { remote_addr: 50_000, rkey: Rkey(KEY) }, 0, 9000);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(p.b.w.statuses(), [(1, OK), (2, OK)]);
    assert!(p.opcodes(2).is_empty());
    for at in [10_000, 30_000, 50_000] {
        assert_eq!(p.b.w.memory.bytes[at..at + 9000], p.a.w.memory.bytes[..9000]);
    }
}

#[test]
fn uc_message_with_lost_packet_is_dropped_and_its_receive_is_reused() {
    for lost in 1..=3 {
        let mut p = Pair::new(QpType::Uc);
        p.a.w.memory.fill(0, 3000, 2);
        p.b.recv(1, 0, 3000);
        p.a.send(1, SendOp::Send, 100, 2500);
        p.a.send(2, SendOp::Send, 0, 2100);
        p.run_with(|_, n, _| n != lost);
        let wc = p.b.w.take_completion();
        assert_eq!((wc.wr_id, wc.byte_len), (1, 2100), "packet {lost} lost");
        assert_eq!(p.b.w.memory.bytes[..2100], p.a.w.memory.bytes[..2100]);
        assert!(p.b.w.completions.is_empty());
    }
}

#[test]
fn uc_drops_faulty_messages_without_nak() {
    let mut p = Pair::new(QpType::Uc);
    p.a.send(1, SendOp::Send, 0, 10);
    p.a.send(2, SendOp::Write { remote_addr: 0, rkey: Rkey(1) }, 0, 10);
    p.run();
    p.b.recv(1, 0, 5);
    p.a.send(3, SendOp::Send, 0, 10);
    p.a.send(4, SendOp::Send, 0, 5);
    p.run();
    assert_eq!(p.b.w.dropped, [Drop::NoReceive, Drop::Memory, Drop::Length]);
    assert_eq!(p.b.w.statuses(), [(1, OK)]);
    assert_eq!((p.b.qp.state(), p.a.w.statuses().len()), (QpState::Rts, 4));
}

#[test]
fn first_packet_of_uc_in_rtr_raises_comm_est() {
    let mut p = Pair::down(QpType::Uc, false);
    p.a.up(&attributes(1, 2));
    p.b.step(&attributes(2, 1), QpState::Init);
    p.b.step(&attributes(2, 1), QpState::Rtr);
    for wr_id in 0..2 {
        p.a.send(wr_id, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 8);
    }
    p.run();
    assert_eq!(p.b.w.events, [QpEvent::CommEst]);
}

/// An unreliable connection learns nothing about its peer (IBTA 9.8.2): its sends complete when they have left.
#[test]
fn uc_stays_in_rts_after_its_peer_is_gone() {
    let mut p = Pair::new(QpType::Uc);
    p.a.recv(9, 0, 1);
    p.a.qp.peer_gone(p.now);
    assert_eq!(p.a.qp.poll_timeout(), None);
    p.now = p.now.after(rdmux_transport::qp::PEER_GONE);
    p.a.qp.handle_timeout(p.now, &mut p.a.w);
    assert_eq!((p.a.w.statuses(), p.a.qp.state()), (vec![], QpState::Rts));
    p.a.send(1, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 10);
    p.a.poll(p.now);
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}
