//! WRITEs and READs that the driver carries out itself.

use super::*;

pub(super) const BY_REFERENCE: LinkCaps =
    LinkCaps { max_payload: 32 << 10, lossless: true, by_reference: true, piggybacks_acks: false };
const FAR: u64 = 4096;

/// Two connected queue pairs. The first can access a copy of the second's memory: a separate copy,
/// so that tests see which path the bytes took.
fn pair() -> Pair {
    let mut pair = Pair::down(QpType::Rc, false);
    for (side, from, to) in [(&mut pair.a, 1, 2), (&mut pair.b, 2, 1)] {
        side.w.link = BY_REFERENCE;
        side.up(&attributes(from, to));
    }
    pair.a.w.by_reference.peer = Some(vec![0; MEMORY]);
    pair
}

fn write(at: u64) -> SendOp {
    SendOp::Write { remote_addr: at, rkey: Rkey(KEY) }
}

fn read(at: u64) -> SendOp {
    SendOp::Read { remote_addr: at, rkey: Rkey(KEY) }
}

const OK: WcStatus = WcStatus::Success;

#[test]
fn direct_copy_of_write_and_read_uses_no_packet_and_no_psn() {
    let mut p = pair();
    let psn = p.a.qp.attr().sq_psn;
    p.a.w.memory.fill(0, 100, 1);
    p.a.send(1, write(FAR), 0, 100);
    p.a.poll(p.now);
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert_eq!(p.a.w.by_reference.peer.as_ref().unwrap()[4096..4196], p.a.w.memory.bytes[..100]);
    p.a.send(2, read(FAR), 500, 100);
    p.a.poll(p.now);
    let completion = p.a.w.take_completion();
    assert_eq!((completion.wr_id, completion.byte_len), (2, 100));
    assert_eq!(p.a.w.memory.bytes[500..600], p.a.w.memory.bytes[..100]);
    assert!(
        p.a.w.packets.is_empty() && p.a.qp.attr().sq_psn == psn && p.a.qp.poll_timeout().is_none()
    );
    // The packets that follow have the PSNs that the peer expects.
    p.b.recv(7, 0, 64);
    p.a.send(3, SendOp::Send, 0, 64);
    p.run();
    assert_eq!(p.a.w.statuses(), [(3, OK)]);
    assert_eq!(p.b.w.statuses(), [(7, OK)]);
}

#[test]
fn direct_read_with_max_rd_atomic_zero_is_local_qp_operation_error() {
    let mut p = Pair::down(QpType::Rc, false);
    p.a.w.link = BY_REFERENCE;
    p.a.up(&QpAttr { max_rd_atomic: 0, ..attributes(1, 2) });
    p.a.w.by_reference.peer = Some(vec![0; MEMORY]);
    p.a.send(1, read(FAR), 0, 100);
    p.a.poll(p.now);
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::LocQpOpErr)]);
    assert!(p.a.w.by_reference.copies.is_empty());
}

#[test]
fn direct_copy_does_not_overtake_earlier_requests() {
    let mut p = pair();
    p.b.recv(7, 0, 64);
    p.a.send(1, SendOp::Send, 0, 64);
    p.a.send(2, write(FAR), 0, 100);
    p.run();
    assert!(p.a.w.by_reference.copies.is_empty(), "the SEND was not known to be carried out");
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
    // A WRITE with immediate data needs the peer, and so does the request after it.
    p.b.recv(8, 0, 64);
    p.a.send(3, SendOp::WriteImm { remote_addr: FAR, rkey: Rkey(KEY), imm: [0; 4] }, 0, 64);
    p.a.send(4, read(FAR), 0, 100);
    p.run();
    assert!(p.a.w.by_reference.copies.is_empty());
    assert_eq!(p.a.w.statuses(), [(3, OK), (4, OK)]);
    // Earlier requests are copied first.
    p.b.recv(9, 0, 64);
    p.a.send(5, write(FAR), 0, 100);
    p.a.send(6, SendOp::Send, 0, 64);
    p.a.poll(p.now);
    assert_eq!((&p.a.w.by_reference.copies[..], p.a.w.packets.len()), (&[100][..], 1));
    p.run();
    assert_eq!(p.a.w.statuses(), [(5, OK), (6, OK)]);
}

#[test]
fn long_direct_copy_waits_for_earlier_requests_to_complete() {
    let mut p = pair();
    p.b.recv(7, 0, 64);
    p.a.send(1, SendOp::Send, 0, 64);
    p.a.send(2, read(FAR), 0, 64 << 10);
    p.a.send(3, write(FAR), 0, 64 << 10);
    p.a.poll(p.now);
    assert_eq!((p.a.w.by_reference.copies.len(), p.a.w.packets.len()), (0, 1));
    p.run();
    assert_eq!(p.a.w.by_reference.copies, [64 << 10; 2]);
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK), (3, OK)]);
    // After a refused copy, the next requests do not wait for a while.
    let far = p.a.w.by_reference.peer.take();
    p.b.recv(8, 0, 64);
    for wr_id in 4..10 {
        p.a.send(wr_id, write(FAR), 0, 64 << 10);
    }
    p.a.poll(p.now);
    assert_eq!(p.a.w.packets.len(), 12);
    p.run();
    p.a.w.by_reference.peer = far;
    p.a.w.statuses();
    p.b.recv(9, 0, 64);
    let mut sent = 0;
    while p.a.w.by_reference.copies.len() == 2 {
        p.a.send(100, SendOp::Send, 0, 0);
        p.a.send(101, write(FAR), 0, 64 << 10);
        p.b.recv(10, 0, 64);
        p.a.poll(p.now);
        sent += 1;
        p.run();
    }
    assert!(sent > 10, "{sent}");
}

#[test]
fn zero_length_write_or_read_does_not_keep_later_requests_from_waiting_for_direct_copies() {
    for op in [write(FAR), read(FAR)] {
        let mut p = pair();
        p.a.send(1, op, 0, 0);
        p.run();
        p.b.recv(7, 0, 64);
        p.a.send(2, SendOp::Send, 0, 64);
        p.a.send(3, write(FAR), 0, 64 << 10);
        p.run();
        assert_eq!(p.a.w.by_reference.copies, [64 << 10]);
        assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK), (3, OK)]);
    }
}

#[test]
fn failed_direct_copy_falls_back_to_packets_and_reports_their_errors() {
    let mut p = pair();
    p.a.w.by_reference.peer = None;
    p.a.send(1, write(FAR), 0, 100);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    p.a.w.by_reference.peer = Some(vec![0; MEMORY]);
    p.a.send(2, write(MEMORY as u64), 0, 100);
    p.run();
    assert_eq!(p.a.w.statuses(), [(2, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
    let mut p = pair();
    p.a.post(3, write(FAR), &[Sge { addr: 0, length: 8, lkey: Lkey(1) }], SendFlags::SIGNALED);
    p.run();
    assert_eq!(p.a.w.statuses(), [(3, WcStatus::LocProtErr)]);
}

#[test]
fn long_direct_copy_is_split_and_yields_after_its_budget() {
    let mut p = pair();
    p.a.w.memory.endless = true;
    p.a.w.memory.bytes.resize(1 << 21, 7);
    p.a.w.by_reference.peer = Some(vec![0; 3 << 20]);
    p.a.send(1, write(0), 0, (2 << 20) + 5);
    // A copy of one MiB counts as 32 packets.
    assert_eq!(p.a.qp.poll_transmit(p.now, 32, &mut p.a.w), rdmux_transport::TxState::More);
    assert_eq!((&p.a.w.by_reference.copies[..], p.a.w.completions.len()), (&[1 << 20][..], 0));
    p.a.poll(p.now);
    assert_eq!(p.a.w.by_reference.copies, [1 << 20, 1 << 20, 5]);
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}

#[test]
fn direct_copy_failing_midway_is_resent_by_packets_from_the_start() {
    let mut p = pair();
    p.a.w.memory.bytes = vec![7; 4 << 20];
    p.b.w.memory.bytes.resize(4 << 20, 0);
    p.a.w.by_reference.peer = Some(vec![0; 4 << 20]);
    p.a.w.by_reference.left = 1 << 20;
    p.a.send(1, write(0), 0, 3 << 20);
    p.run();
    assert_eq!(p.a.w.by_reference.copies, [1 << 20]);
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert!(p.b.w.memory.bytes[..3 << 20].iter().all(|b| *b == 7));
    // The next request does not inherit the progress of this one.
    p.a.w.by_reference.left = u32::MAX;
    p.a.send(2, write(0), 0, 10);
    p.a.poll(p.now);
    assert_eq!(p.a.w.by_reference.copies, [1 << 20, 10]);
}

#[test]
fn flush_of_a_partial_direct_copy_clears_its_progress() {
    let mut p = pair();
    p.a.w.memory.endless = true;
    p.a.w.memory.bytes.resize(1 << 21, 7);
    p.a.w.by_reference.peer = Some(vec![0; 3 << 20]);
    p.a.send(1, write(0), 0, 2 << 20);
    let _ = p.a.qp.poll_transmit(p.now, 1, &mut p.a.w);
    let attr = QpAttr { state: QpState::Err, ..attributes(1, 2) };
    p.a.qp.modify(p.now, &attr, AttrMask::STATE, &mut p.a.w).unwrap();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(p.a.w.closed_at, Some(0), "closed before anything is flushed");
    let attr = QpAttr { state: QpState::Reset, ..attr };
    p.a.qp.modify(p.now, &attr, AttrMask::STATE, &mut p.a.w).unwrap();
    p.a.up(&attributes(1, 2));
    p.a.w.by_reference.copies.clear();
    p.a.send(2, write(0), 0, 10);
    p.a.poll(p.now);
    assert_eq!(p.a.w.by_reference.copies, [10]);
}

#[test]
fn direct_copy_is_held_in_sqd_until_rts() {
    let mut p = pair();
    let attr = QpAttr { state: QpState::Sqd, ..attributes(1, 2) };
    p.a.qp.modify(p.now, &attr, AttrMask::STATE, &mut p.a.w).unwrap();
    p.a.send(1, write(FAR), 0, 10);
    p.a.poll(p.now);
    assert!(p.a.w.by_reference.copies.is_empty() && p.a.w.completions.is_empty());
    let attr = QpAttr { state: QpState::Rts, ..attr };
    p.a.qp.modify(p.now, &attr, AttrMask::STATE, &mut p.a.w).unwrap();
    p.a.poll(p.now);
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}

/// Returns a pair whose first side has copied one MiB of two, and has a WRITE of 10 bytes queued after it.
fn half_copied(op: SendOp) -> Pair {
    let mut p = pair();
    for side in [&mut p.a, &mut p.b] {
        side.w.memory.endless = true;
        side.w.memory.bytes.resize(2 << 20, 7);
    }
    p.a.w.by_reference.peer = Some(vec![0; 2 << 20]);
    p.a.send(1, op, 0, 2 << 20);
    p.a.send(2, write(0), 0, 10);
    let _ = p.a.qp.poll_transmit(p.now, 1, &mut p.a.w);
    assert_eq!(p.a.w.by_reference.copies, [1 << 20]);
    p
}

/// Moves to SQD, and requests the event.
fn drain(p: &mut Pair) {
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..attributes(1, 2) };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    p.a.qp.modify(p.now, &attr, mask, &mut p.a.w).unwrap();
    assert!(p.a.w.events.is_empty() && p.a.qp.attr().sq_draining);
}

#[test]
fn sqd_finishes_partial_direct_copy_and_holds_later_requests() {
    for op in [write(0), read(0)] {
        let mut p = half_copied(op);
        drain(&mut p);
        p.run();
        assert_eq!(p.a.w.by_reference.copies, [1 << 20; 2]);
        assert_eq!(p.a.w.statuses(), [(1, OK)]);
        assert_eq!((&p.a.w.events[..], p.log.len()), (&[QpEvent::SqDrained][..], 0));
        assert!(!p.a.qp.attr().sq_draining);
        p.a.step(&attributes(1, 2), QpState::Rts);
        p.run();
        assert_eq!(p.a.w.statuses(), [(2, OK)]);
    }
}

#[test]
fn partial_direct_copy_failing_in_sqd_falls_back_to_packets() {
    let mut p = half_copied(write(0));
    drain(&mut p);
    p.a.w.by_reference.peer = None;
    p.run();
    assert_eq!(p.a.w.by_reference.copies, [1 << 20]);
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert_eq!(p.a.w.events, [QpEvent::SqDrained]);
}

#[test]
fn peer_in_rtr_sees_first_request_as_packet_and_gets_comm_est() {
    let mut p = Pair::down(QpType::Rc, false);
    p.a.up(&attributes(1, 2));
    for to in [QpState::Init, QpState::Rtr] {
        p.b.step(&attributes(2, 1), to);
        assert!(!p.b.qp.is_open());
    }
    p.a.send(1, write(FAR), 0, 10);
    p.run();
    assert!(p.b.qp.is_open() && p.b.w.events == [QpEvent::CommEst]);
}

#[test]
fn uc_and_links_without_direct_access_use_no_direct_copy() {
    for (qp_type, link) in
        [(QpType::Rc, LinkCaps { by_reference: false, ..BY_REFERENCE }), (QpType::Uc, LOSSY)]
    {
        let mut p = Pair::down(qp_type, false);
        for (side, from, to) in [(&mut p.a, 1, 2), (&mut p.b, 2, 1)] {
            side.w.link = link;
            side.up(&attributes(from, to));
        }
        p.a.w.by_reference.peer = Some(vec![0; MEMORY]);
        p.a.send(1, write(FAR), 0, 10);
        p.run();
        assert!(p.a.w.by_reference.copies.is_empty());
        assert_eq!(p.a.w.statuses(), [(1, OK)]);
    }
}

#[test]
fn partial_direct_read_finishes_with_max_rd_atomic_zero_in_sqd() {
    for is_cut in [false, true] {
        let mut p = pair();
        p.a.w.memory.bytes = vec![0; 2 << 20];
        p.b.w.memory.bytes = vec![7; 2 << 20];
        p.a.w.by_reference.peer = Some(vec![7; 2 << 20]);
        p.a.send(1, read(0), 0, 2 << 20);
        let _ = p.a.qp.poll_transmit(p.now, 1, &mut p.a.w);
        assert_eq!(p.a.w.by_reference.copies, [1 << 20]);
        let sqd = QpAttr { state: QpState::Sqd, max_rd_atomic: 0, ..attributes(1, 2) };
        p.a.qp.modify(p.now, &sqd, AttrMask::STATE, &mut p.a.w).unwrap();
        let mask = AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC;
        p.a.qp.modify(p.now, &sqd, mask, &mut p.a.w).unwrap();
        if is_cut {
            p.a.w.by_reference.left = 0;
        }
        p.run();
        assert_eq!(p.a.w.statuses(), [(1, OK)]);
        assert!(p.a.w.memory.bytes.iter().all(|byte| *byte == 7));
    }
}
