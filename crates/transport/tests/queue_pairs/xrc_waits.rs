//! Busy owners of memory, and atomics that they complete later.

use super::xrc::{ONE, TWO, connect, fetch_add, key, write};
use super::*;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;

impl Pair {
    /// Carries out the oldest deferred atomic in the target's environment.
    fn answer(&mut self) {
        let (psn, original) = self.b.w.do_atomic();
        self.b.qp.atomic_done(self.now, psn, original, &mut self.b.w);
    }

    fn fail_atomic(&mut self, nth: usize, fault: AccessFault) {
        let psn = self.b.w.put_off[nth].psn;
        self.b.qp.atomic_done(self.now, psn, Err(fault), &mut self.b.w);
    }

    fn original(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.a.w.memory.bytes[at..at + 8].try_into().unwrap())
    }
}

/// Any packet of a message that meets a busy owner is retried, and the result is the same as without that.
#[test]
fn xrc_message_to_busy_owner_is_rnr_nak_and_succeeds_on_retry() {
    let write_imm = SendOp::WriteImm { remote_addr: 0, rkey: key(ONE), imm: [1; 4] };
    let kinds = [
        // The operation, its length, and how often its message accesses the owner.
        (SendOp::Send, 3000, 3),
        (SendOp::SendInv(Rkey(77)), 3000, 4),
        (SendOp::SendInv(Rkey(77)), 10, 2),
        (write(ONE, 0), 3000, 3),
        (write_imm, 3000, 3),
        (write_imm, 10, 1),
        (fetch_add(ONE, 0, 1), 8, 1),
    ];
    for (op, len, meetings) in kinds {
        for until_busy in 0..meetings {
            let mut p = connect();
            p.a.w.memory.fill(0, 3000, 5);
            p.offer(ONE, 20, 0, 3000);
            p.offer(ONE, 21, 0, 3000);
            p.b.w.memory.until_busy = until_busy;
            p.send_to(ONE, 1, op, 0, len);
            p.send_to(TWO, 2, write(TWO, 9000), 0, 2000);
            p.run();
            let what = format_args!("{op:?} after {until_busy}");
            // RNR NAK with the timer of `attributes`.
            assert_eq!(p.syndromes().first(), Some(&0x2c), "{what}");
            assert!(p.a.w.completions.is_empty() && p.b.w.received.is_empty(), "{what}");
            assert!(p.tick());
            p.run();
            assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)], "{what}");
            let receives = !matches!(op, SendOp::Write { .. } | SendOp::FetchAdd { .. });
            let received: &[_] = if receives { &[(ONE, 20, OK)] } else { &[] };
            assert_eq!(p.b.w.received, received, "{what}");
            assert_eq!(p.b.w.memory.srqs[&ONE].len(), 2 - received.len(), "{what}");
            if !matches!(op, SendOp::FetchAdd { .. }) {
                assert_eq!(
                    p.b.w.memory.bytes[..len as usize],
                    p.a.w.memory.bytes[..len as usize],
                    "{what}"
                );
            }
        }
    }
}

/// RC, whose receives come from its own queue, waits in the same way.
#[test]
fn rc_message_to_busy_owner_is_rnr_nak_and_resumes_midway() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 3000, 5);
    p.b.recv(7, 0, 3000);
    p.b.w.memory.until_busy = 1;
    p.a.send(1, SendOp::Send, 0, 3000);
    p.run();
    assert_eq!(p.b.w.statuses(), []);
    p.tick();
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(1, OK)], vec![(7, OK)]));
    assert_eq!(p.opcodes(1), [0x00, 0x01, 0x02, 0x01, 0x02], "it goes on in the middle");
    assert_eq!(p.a.w.memory.bytes[..3000], p.b.w.memory.bytes[..3000]);
}

#[test]
fn owner_that_stays_busy_is_rnr_retry_exceeded() {
    let mut p = connect();
    p.a.retune(AttrMask::RNR_RETRY, |attr| attr.rnr_retry = 2);
    p.send_to(ONE, 1, write(ONE, 0), 0, 3000);
    loop {
        p.b.w.memory.until_busy = 0;
        p.run();
        if !p.tick() {
            break;
        }
    }
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RnrRetryExcErr)]);
    assert_eq!(p.syndromes(), [0x2c; 3]);
}

/// A faulty peer: the receive was taken from one queue, and the retry names the other.
#[test]
fn retry_with_another_srqn_is_nak_invalid_request() {
    let mut p = connect();
    p.offer(ONE, 20, 0, 100);
    p.offer(TWO, 21, 0, 100);
    p.b.w.memory.until_busy = 0;
    p.send_to(ONE, 1, SendOp::Send, 0, 10);
    let mut packet = p.intercept().remove(0);
    p.b.feed(p.now, &packet, 1);
    packet[12..16].copy_from_slice(&rdmux_wire::XrcEth { srqn: TWO }.to_bytes());
    p.b.feed(p.now, &packet, 1);
    p.run();
    assert_eq!(p.b.w.received, [(ONE, 20, WcStatus::RemInvReqErr)]);
    assert_eq!(p.b.w.events, [QpEvent::CommEst, QpEvent::ReqErr]);
}

#[test]
fn requests_behind_a_deferred_atomic_are_executed_but_not_acknowledged() {
    let mut p = connect();
    p.b.w.later = true;
    p.b.w.memory.fill(5000, 100, 3);
    p.offer(ONE, 20, 0, 100);
    p.offer(TWO, 21, 0, 100);
    p.send_to(ONE, 1, SendOp::Send, 0, 10);
    p.send_to(ONE, 2, fetch_add(ONE, 800, 5), 300, 8);
    p.send_to(TWO, 3, SendOp::Send, 0, 10);
    let read = SendOp::Read { remote_addr: 5000, rkey: key(TWO) };
    p.send_to(TWO, 4, read, 400, 100);
    p.send_to(ONE, 5, fetch_add(ONE, 800, 7), 308, 8);
    p.run();
    assert_eq!(p.b.w.received, [(ONE, 20, OK), (TWO, 21, OK)]);
    assert_eq!(p.a.w.statuses(), [(1, OK)], "what came before is acknowledged");
    assert!(!p.b.qp.wants_ack());
    assert_eq!(p.b.qp.poll_transmit(p.now, 64, &mut p.b.w), rdmux_transport::TxState::Idle);

    // The initiator repeats the request, by its timer and out of turn: nothing is carried out twice.
    p.tick();
    p.run();
    for bytes in
        p.log.iter().filter(|(from, _)| *from == 1).map(|(_, b)| b.clone()).collect::<Vec<_>>()
    {
        p.b.feed(p.now, &bytes, 1);
    }
    p.run();
    assert_eq!((p.b.w.put_off.len(), p.b.w.received.len()), (2, 2));
    assert_eq!(p.opcodes(2), [0xb1], "one ACK");

    p.answer();
    p.run();
    assert_eq!(p.a.w.statuses(), [(2, OK), (3, OK), (4, OK)]);
    assert_eq!(p.original(300), 0);
    assert_eq!(p.a.w.memory.bytes[400..500], p.b.w.memory.bytes[5000..5100]);
    p.answer();
    p.run();
    assert_eq!((p.a.w.statuses(), p.original(308)), (vec![(5, OK)], 5));
    assert_eq!(p.b.w.memory.bytes[800..808], 12_u64.to_ne_bytes());
    assert_eq!((p.a.qp.state(), p.a.qp.poll_timeout()), (QpState::Rts, None));
}

#[test]
fn deferred_atomics_finishing_out_of_order_are_answered_in_order() {
    let mut p = connect();
    p.b.w.later = true;
    p.send_to(ONE, 1, fetch_add(ONE, 0, 1), 100, 8);
    p.send_to(TWO, 2, fetch_add(TWO, 8, 1), 108, 8);
    p.run();
    p.b.w.put_off.rotate_left(1);
    p.answer();
    p.run();
    assert_eq!(p.a.w.statuses(), []);
    p.answer();
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
}

#[test]
fn deferred_atomic_that_fails_is_nak_and_moves_qp_to_error() {
    for (fault, nak, status, event) in [
        (AccessFault::Key, 0x62, WcStatus::RemAccessErr, QpEvent::AccessErr),
        (AccessFault::Gone, 0x63, WcStatus::RemOpErr, QpEvent::Fatal),
    ] {
        let mut p = connect();
        p.b.w.later = true;
        p.offer(ONE, 20, 0, 5000);
        p.send_to(ONE, 1, write(ONE, 0), 0, 10);
        p.send_to(ONE, 2, fetch_add(ONE, 800, 5), 300, 8);
        p.send_to(ONE, 3, SendOp::Send, 0, 3000);
        let packets = p.intercept();
        for bytes in &packets[..3] {
            p.b.feed(p.now, bytes, 1);
        }
        p.fail_atomic(0, fault);
        p.run();
        assert_eq!(p.a.w.statuses(), [(1, OK), (2, status), (3, FLUSHED)]);
        assert_eq!(p.syndromes().last(), Some(&nak));
        assert_eq!(p.b.w.events, [QpEvent::CommEst, event]);
        assert_eq!(p.b.w.received, [(ONE, 20, FLUSHED)], "that message was not to blame");
        assert_eq!(p.b.qp.state(), QpState::Err);
        p.fail_atomic(0, fault);
        assert_eq!(p.b.w.events.len(), 2, "nobody waits any more");
    }
}

/// A NAK waits for the responses of earlier requests, also for one that arrives later.
#[test]
fn nak_of_second_deferred_atomic_waits_for_response_of_the_first() {
    for first_fails in [false, true] {
        let mut p = connect();
        p.b.w.later = true;
        for (id, at) in [(1, 100), (2, 108), (3, 116)] {
            p.send_to(ONE, id, fetch_add(ONE, 800, 5), at, 8);
        }
        p.run();
        p.fail_atomic(1, AccessFault::Key);
        p.run();
        assert_eq!((p.a.w.statuses(), p.b.qp.state()), (vec![], QpState::Rtr));
        if first_fails {
            p.fail_atomic(0, AccessFault::Gone);
        } else {
            p.answer();
        }
        p.run();
        let (first, second) =
            if first_fails { (WcStatus::RemOpErr, FLUSHED) } else { (OK, WcStatus::RemAccessErr) };
        assert_eq!(p.a.w.statuses(), [(1, first), (2, second), (3, FLUSHED)]);
        assert_eq!(p.b.w.events, [QpEvent::CommEst, QpEvent::AccessErr], "told once");
        assert_eq!(p.b.qp.state(), QpState::Err);
    }
}

#[test]
fn deferred_atomic_result_for_unknown_psn_is_ignored() {
    let mut p = connect();
    p.b.w.later = true;
    p.send_to(ONE, 1, fetch_add(ONE, 0, 1), 100, 8);
    p.run();
    let psn = p.b.w.put_off[0].psn;
    for stray in [psn.sub(1), psn.add(1), psn.add(1 << 23)] {
        for result in [Ok(99), Err(AccessFault::Key)] {
            p.b.qp.atomic_done(p.now, stray, result, &mut p.b.w);
        }
    }
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.qp.state()), (vec![], QpState::Rtr));
    p.answer();
    p.b.qp.atomic_done(p.now, psn, Ok(99), &mut p.b.w);
    p.run();
    assert_eq!((p.a.w.statuses(), p.original(100)), (vec![(1, OK)], 0), "the first answer counts");
    p.b.qp.atomic_done(p.now, psn, Err(AccessFault::Key), &mut p.b.w);
    assert_eq!(p.b.qp.state(), QpState::Rtr);
    p.b.step(&attributes(2, 1), QpState::Reset);
    p.b.qp.atomic_done(p.now, psn, Ok(99), &mut p.b.w);
}

/// The agreed number of atomics may wait, and one more is an error, regardless of retransmissions.
#[test]
fn deferred_atomics_are_not_evicted_and_one_above_the_limit_is_invalid_request() {
    let mut p = connect();
    p.b.w.later = true;
    p.a.retune(AttrMask::MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 5);
    for id in 1..=4 {
        p.send_to(ONE, id, fetch_add(ONE, 0, 1), 100 + 8 * id, 8);
    }
    let packets = p.intercept();
    for bytes in packets.iter().chain(&packets) {
        p.b.feed(p.now, bytes, 1);
    }
    p.send_to(ONE, 5, fetch_add(ONE, 0, 1), 200, 8);
    p.run();
    assert_eq!(p.b.w.put_off.len(), 4);
    for _ in 0..4 {
        p.answer();
    }
    p.run();
    let mut expected = (1..=4).map(|id| (id, OK)).collect::<Vec<_>>();
    expected.push((5, WcStatus::RemInvReqErr));
    assert_eq!(p.a.w.statuses(), expected);
}

/// A NAK that waited for an atomic's response is obsolete if its packet has arrived since. The packets
/// that it would have acknowledged are still acknowledged.
#[test]
fn nak_held_behind_deferred_atomic_becomes_ack_if_its_packet_arrives() {
    let mut p = connect();
    p.b.w.later = true;
    p.send_to(ONE, 1, fetch_add(ONE, 0, 1), 100, 8);
    p.send_to(TWO, 2, write(TWO, 0), 0, 10);
    p.send_to(TWO, 3, SendOp::Send, 0, 3000);
    p.run();
    p.offer(TWO, 21, 0, 3000);
    // The first packet of the message, which does not request an ACK, is duplicated.
    let again = p.log[2].1.clone();
    p.b.feed(p.now, &again, 1);
    assert!(p.b.w.memory.srqs[&TWO].is_empty());
    p.answer();
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.opcodes(2), [0xb2, 0xb1]);
    assert!(p.syndromes().iter().all(|s| s >> 5 == 0), "{:x?}", p.syndromes());
    while p.a.w.completions.is_empty() && p.tick() {
        p.run();
    }
    assert_eq!((p.a.w.statuses(), p.b.w.received), (vec![(3, OK)], vec![(TWO, 21, OK)]));
}
