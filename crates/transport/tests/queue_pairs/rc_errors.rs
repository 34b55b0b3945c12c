//! RC errors: statuses on both sides, NAKs, flushing.

use super::*;

const FLUSHED: WcStatus = WcStatus::WrFlushErr;

/// Posts one request and a second after it. Both sides have one receive more than they need.
fn fails(change: impl Fn(&mut Pair), op: SendOp, len: u32) -> (WcStatus, Vec<WcStatus>, u8) {
    let mut p = Pair::new(QpType::Rc);
    p.b.recv(10, 0, 100);
    p.b.recv(11, 0, 100);
    p.a.recv(12, 0, 100);
    change(&mut p);
    p.a.send(1, op, 0, len);
    p.a.send(2, op, 0, len);
    p.run();
    let a = p.a.w.statuses();
    assert_eq!((a[0].0, a[1..].to_vec()), (1, vec![(2, FLUSHED), (12, FLUSHED)]));
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Err, QpState::Err));
    let b = p.b.w.statuses();
    assert_eq!(b.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [10, 11]);
    let nak = p.log.iter().rfind(|(from, _)| *from == 2).unwrap().1[12];
    (a[0].1, b.into_iter().map(|(_, s)| s).collect(), nak)
}

fn write(rkey: u32) -> SendOp {
    SendOp::Write { remote_addr: 0, rkey: Rkey(rkey) }
}

#[test]
fn each_responder_fault_has_its_nak_code_and_completion_status() {
    let nothing = |_: &mut Pair| {};
    let both = vec![FLUSHED, FLUSHED];
    let access = (WcStatus::RemAccessErr, both.clone(), 0x62);
    let invalid = (WcStatus::RemInvReqErr, both, 0x61);
    assert_eq!(fails(nothing, write(99), 10), access, "wrong key");
    let far = SendOp::Write { remote_addr: MEMORY as u64 - 5, rkey: Rkey(KEY) };
    assert_eq!(fails(nothing, far, 10), access, "outside");
    let wrap = SendOp::Read { remote_addr: u64::MAX - 5, rkey: Rkey(KEY) };
    assert_eq!(fails(nothing, wrap, 10), access, "wraps");
    let no_right = |p: &mut Pair| p.b.w.memory.rights = Access::LOCAL_WRITE;
    assert_eq!(fails(no_right, write(KEY), 10), access, "region without right");
    let no_flag =
        |p: &mut Pair| p.b.retune(AttrMask::ACCESS_FLAGS, |attr| attr.access = Access::empty());
    assert_eq!(fails(no_flag, write(KEY), 10), invalid, "queue pair without right");
    let odd = SendOp::FetchAdd { remote_addr: 4, rkey: Rkey(KEY), add: 1 };
    assert_eq!(fails(nothing, odd, 8), invalid, "misaligned");
    let none =
        |p: &mut Pair| p.b.retune(AttrMask::MAX_DEST_RD_ATOMIC, |attr| attr.max_dest_rd_atomic = 0);
    let read = SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) };
    assert_eq!(fails(none, read, 8), invalid, "no resources");
    assert_eq!(
        fails(nothing, SendOp::Send, 101),
        (WcStatus::RemInvReqErr, vec![WcStatus::LocLenErr, FLUSHED], 0x61),
        "receive too short"
    );
    let read_only = |p: &mut Pair| p.b.w.memory.rights = Access::empty();
    assert_eq!(
        fails(read_only, SendOp::Send, 10),
        (WcStatus::RemOpErr, vec![WcStatus::LocProtErr, FLUSHED], 0x63),
        "receive not writable"
    );
}

/// IBTA 11.6.2: the receive that an RDMA WRITE with immediate data consumes completes with a local
/// access error when the memory cannot be written.
#[test]
fn write_with_immediate_and_wrong_key_ends_its_receive_with_local_access_error() {
    let access = (WcStatus::RemAccessErr, vec![WcStatus::LocAccessErr, FLUSHED], 0x62);
    let write = |rkey| SendOp::WriteImm { remote_addr: 0, rkey: Rkey(rkey), imm: [1; 4] };
    assert_eq!(fails(|_| {}, write(99), 10), access, "wrong key");
    let no_right = |p: &mut Pair| p.b.w.memory.rights = Access::LOCAL_WRITE;
    assert_eq!(fails(no_right, write(KEY), 10), access, "region without right");
    // Only the last packet of a long message consumes a receive, and the key is checked earlier.
    let flushed = (WcStatus::RemAccessErr, vec![FLUSHED, FLUSHED], 0x62);
    assert_eq!(fails(|_| {}, write(99), 5000), flushed);
    // The queue pair's access rights are checked before the receive is taken.
    let no_flag =
        |p: &mut Pair| p.b.retune(AttrMask::ACCESS_FLAGS, |attr| attr.access = Access::empty());
    let invalid = (WcStatus::RemInvReqErr, vec![FLUSHED, FLUSHED], 0x61);
    assert_eq!(fails(no_flag, write(KEY), 10), invalid);
}

#[test]
fn write_with_immediate_and_wrong_key_without_receive_is_rnr_nak_first() {
    let mut p = Pair::new(QpType::Rc);
    let write = SendOp::WriteImm { remote_addr: 0, rkey: Rkey(99), imm: [1; 4] };
    p.a.send(1, write, 0, 10);
    p.run();
    assert_eq!((p.log.last().unwrap().1[12] >> 5, p.b.qp.state()), (1, QpState::Rts), "RNR NAK");
    p.b.recv(10, 0, 100);
    while p.a.w.completions.is_empty() && p.tick() {
        p.run();
    }
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.w.statuses(), [(10, WcStatus::LocAccessErr)]);
}

/// IBTA 9.9.3, class J: only the responder fails.
#[test]
fn send_with_invalidate_of_a_wrong_key_is_acknowledged_and_fails_the_responder() {
    for len in [10, 5000] {
        let mut p = Pair::new(QpType::Rc);
        p.b.recv(10, 0, 5000);
        p.b.recv(11, 0, 5000);
        p.a.send(1, SendOp::SendInv(Rkey(KEY)), 0, len);
        p.run();
        assert_eq!(p.a.w.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(p.a.qp.state(), QpState::Rts);
        let (last, count) = (p.log.last().unwrap(), p.opcodes(2).len());
        assert_eq!((last.0, last.1[12] >> 5, last.1[15], count), (2, 0, 1, 1), "an ACK, MSN 1");
        assert_eq!(p.b.w.statuses(), [(10, WcStatus::MwBindErr), (11, FLUSHED)]);
        assert_eq!((p.b.qp.state(), p.b.w.events.len()), (QpState::Err, 0));
    }
}

#[test]
fn zero_length_write_and_read_need_no_valid_rkey() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, write(99), 0, 0);
    p.a.send(2, SendOp::Read { remote_addr: 5, rkey: Rkey(0) }, 0, 0);
    p.run();
    assert!(p.a.w.statuses().iter().all(|(_, s)| *s == WcStatus::Success));
}

#[test]
fn local_protection_error_completes_after_earlier_requests() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, write(KEY), 0, 10);
    p.a.post(2, write(KEY), &[Sge { addr: 0, length: 8, lkey: Lkey(1) }], SendFlags::empty());
    p.a.send(3, write(KEY), 0, 10);
    p.a.poll(p.now);
    assert!(p.a.w.completions.is_empty());
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, FLUSHED)]);
}

#[test]
fn read_into_read_only_memory_is_local_protection_error_and_not_sent() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.rights = Access::empty();
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 10);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::LocProtErr)]);
    assert!(p.log.is_empty());
}

/// A NAK must not overtake the response of an earlier READ, or the READ would be lost with it.
#[test]
fn nak_does_not_overtake_earlier_read_response() {
    let mut p = Pair::new(QpType::Rc);
    p.b.w.memory.fill(0, 5000, 8);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 5000);
    p.a.send(2, write(99), 0, 10);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::Success), (2, WcStatus::RemAccessErr)]);
    assert_eq!(p.a.w.memory.bytes[..5000], p.b.w.memory.bytes[..5000]);
    assert_eq!(p.b.w.events, [QpEvent::AccessErr]);
}

/// The NAK shows that the response is lost, and it is requested again (IBTA 9.7.5.1.2). But the
/// responder is in ERR by then.
#[test]
fn nak_does_not_complete_an_earlier_read_or_atomic_whose_response_was_lost() {
    let read = SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) };
    let add = SendOp::FetchAdd { remote_addr: 0, rkey: Rkey(KEY), add: 1 };
    for op in [read, add] {
        let mut p = Pair::new(QpType::Rc);
        p.a.send(1, op, 0, 8);
        p.a.send(2, write(99), 0, 10);
        p.run_with(|from, n, _| !(from == 2 && n == 1));
        assert_eq!(p.log.last().unwrap().0, 1, "asked for again");
        assert_eq!(p.opcodes(2).len(), 2, "the response and the NAK");
        assert_eq!(p.a.w.statuses(), []);
        while p.tick() {
            p.run();
        }
        assert_eq!(p.a.w.statuses(), [(1, WcStatus::RetryExcErr), (2, FLUSHED)]);
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Err, QpState::Err));
    }
}

#[test]
fn rnr_nak_of_later_request_makes_lost_read_response_be_requested_again() {
    let mut p = Pair::with(QpType::Rc, |a| a.rnr_retry = 0);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 8);
    p.a.send(2, SendOp::Send, 0, 10);
    p.run_with(|from, n, _| !(from == 2 && n == 1));
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::Success), (2, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn memory_lost_during_read_response_is_remote_access_error() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 5000);
    p.a.poll(p.now);
    let request = p.a.w.packets.pop_front().unwrap();
    p.b.feed(p.now, &request, 1);
    p.b.qp.poll_transmit(p.now, 2, &mut p.b.w);
    p.b.w.memory.rights = Access::empty();
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
}

#[test]
fn srq_receive_of_partial_message_is_flushed_and_last_wqe_reached() {
    let mut p = Pair::down(QpType::Rc, true);
    p.a.up(&attributes(1, 2));
    p.b.up(&attributes(2, 1));
    p.b.w.memory.srq.push_back((70, vec![sge(0, 10), sge(100, 2000)]));
    p.b.w.memory.srq.push_back((71, vec![sge(0, 5000)]));
    p.a.w.memory.fill(0, 2000, 4);
    p.a.send(1, SendOp::Send, 0, 2000);
    p.run();
    assert_eq!(p.b.w.statuses(), [(70, WcStatus::Success)]);
    assert_eq!(p.b.w.memory.bytes[100..2090], p.a.w.memory.bytes[10..2000]);
    // An unfinished message holds a receive, which is flushed.
    p.a.send(2, SendOp::Send, 0, 5000);
    p.a.qp.poll_transmit(p.now, 2, &mut p.a.w);
    for bytes in p.a.w.packets.drain(..) {
        p.b.feed(p.now, &bytes, 1);
    }
    p.b.step(&attributes(2, 1), QpState::Err);
    assert_eq!(p.b.w.statuses(), [(71, FLUSHED)]);
    assert_eq!(p.b.w.events, [QpEvent::LastWqeReached]);
}

#[test]
fn peer_gone_is_retry_exceeded_after_a_delay() {
    let mut p = Pair::new(QpType::Rc);
    p.a.recv(9, 0, 1);
    p.a.send(1, write(KEY), 0, 10);
    p.a.poll(p.now);
    p.a.send(2, write(KEY), 0, 10);
    p.a.qp.peer_gone(p.now);
    assert_eq!(p.a.w.statuses(), [], "a program that ends with its peer sees nothing of this");
    p.now = p.now.after(rdmux_transport::qp::PEER_GONE);
    p.a.qp.handle_timeout(p.now, &mut p.a.w);
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RetryExcErr), (2, FLUSHED), (9, FLUSHED)]);
    assert_eq!(p.a.qp.poll_timeout(), None);
}
