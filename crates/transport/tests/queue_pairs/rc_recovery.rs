//! RC on a wire that loses, duplicates and delays packets.

use core::time::Duration;

use rdmux_wire::{Opcode, Syndrome};

use super::*;

const OK: WcStatus = WcStatus::Success;

fn write(at: u64) -> SendOp {
    SendOp::Write { remote_addr: at, rkey: Rkey(KEY) }
}
fn read(at: u64) -> SendOp {
    SendOp::Read { remote_addr: at, rkey: Rkey(KEY) }
}

#[test]
fn psn_gap_is_nak_sequence_once_and_only_the_lost_packet_is_resent() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 20_000, 1);
    p.a.send(1, write(0), 0, 20_000);
    p.run_with(|from, n, _| !(from == 1 && n == 5));
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert_eq!(p.a.w.memory.bytes[..20_000], p.b.w.memory.bytes[..20_000]);
    let naks = p.log.iter().filter(|(from, b)| *from == 2 && b[12] == 0x60).count();
    assert_eq!(naks, 1);
    assert_eq!(p.opcodes(1).len(), 20 + 1, "the fifth of twenty once more, and no other");
    let (kept, filled) = ([Drop::Early; 15], [Drop::Filled]);
    assert_eq!(p.b.w.dropped, [&kept[..], &filled].concat());
    assert_eq!(p.a.qp.poll_timeout(), None);
}

#[test]
fn lost_ack_costs_one_retransmission_and_no_second_delivery() {
    let mut p = Pair::new(QpType::Rc);
    p.b.recv(5, 0, 100);
    p.a.send(1, SendOp::Send, 0, 100);
    p.run_with(|from, _, _| from == 1);
    assert!(p.a.w.statuses().is_empty());
    assert!(p.tick());
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert_eq!(p.b.w.statuses(), [(5, OK)]);
    assert_eq!(p.b.w.dropped, [Drop::Duplicate]);
}

#[test]
fn retry_exceeded_follows_four_timeouts_for_each_of_retry_cnt_plus_one() {
    for retry_cnt in [0, 1, 7] {
        let mut p = Pair::with(QpType::Rc, |a| a.retry_cnt = retry_cnt);
        p.a.send(1, write(0), 0, 10);
        p.a.send(2, write(0), 0, 10);
        p.run_with(|_, _, _| false);
        while p.tick() {
            p.run_with(|_, _, _| false);
        }
        let firsts = p.log.iter().filter(|(_, b)| b[9..12] == p.log[0].1[9..12]).count();
        assert_eq!(firsts, 4 * (1 + usize::from(retry_cnt)), "four times for each that counts");
        assert_eq!(p.a.w.statuses(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(p.a.qp.state(), QpState::Err);
        // Four times 4.096 us * 2^14 for each retry.
        assert_eq!(p.now.0, 1 + (u64::from(retry_cnt) + 1) * 4 * (4096 << 14));
    }
}

/// The nominal interval of the transport timer: 4.096 us * 2^14.
const NOMINAL: Duration = Duration::from_nanos(4096 << 14);

/// Fails a request that is not answered, with every timer handled late by `lateness`. Returns how long this took.
fn unanswered(retry_cnt: u8, lateness: Duration) -> Duration {
    let mut p = Pair::with(QpType::Rc, |a| a.retry_cnt = retry_cnt);
    p.a.send(1, write(0), 0, 10);
    p.run_with(|_, _, _| false);
    let began = p.now;
    while let Some(at) = p.a.qp.poll_timeout() {
        p.now = at.after(lateness);
        p.a.qp.handle_timeout(p.now, &mut p.a.w);
        p.run_with(|_, _, _| false);
    }
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RetryExcErr)]);
    p.now.since(began)
}

#[test]
fn silent_peer_is_retry_exceeded_after_four_timeouts_per_retry() {
    assert_eq!(unanswered(7, Duration::ZERO), NOMINAL * 4 * 8);
}

#[test]
fn late_timer_expiry_does_not_count_as_retry_twice_in_a_row() {
    // The process does not run for a second each time: eight of sixteen expiries count.
    let second = Duration::from_secs(1);
    let took = unanswered(7, second);
    assert!(took > (NOMINAL + second) * 15, "{took:?}");
    assert!(took <= (NOMINAL * 4 + second) * 16, "{took:?}");
}

#[test]
fn ack_within_four_timeouts_costs_no_retry() {
    let mut p = Pair::with(QpType::Rc, |a| a.retry_cnt = 0);
    p.a.send(1, write(0), 0, 10);
    p.run_with(|_, _, _| false);
    for sent_again in 1..=3 {
        assert!(p.a.w.statuses().is_empty() && p.tick());
        p.run_with(|_, _, _| sent_again == 3);
    }
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}

#[test]
fn timeout_zero_starts_no_retransmission_timer() {
    let mut p = Pair::with(QpType::Rc, |a| a.timeout = AckTimeout::new(0));
    p.a.send(1, write(0), 0, 10);
    p.run_with(|_, _, _| false);
    assert!(!p.tick());
}

#[test]
fn lost_read_response_is_requested_again_from_its_offset() {
    let mut p = Pair::new(QpType::Rc);
    p.b.w.memory.fill(0, 50_000, 3);
    p.a.send(1, read(0), 0, 50_000);
    p.a.send(2, write(60_000), 0, 10);
    p.run_with(|from, n, _| !(from == 2 && n == 7));
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.a.w.memory.bytes[..50_000], p.b.w.memory.bytes[..50_000]);
    let again = p
        .log
        .iter()
        .filter_map(|(from, b)| Some((*from, Packet::parse(b).ok()?)))
        .filter(|(from, pkt)| *from == 1 && pkt.bth.opcode == Opcode::RC_READ_REQUEST)
        .nth(1)
        .unwrap()
        .1;
    let reth = again.reth.unwrap();
    assert_eq!((reth.va, reth.dma_len), (6 * 1024, 50_000 - 6 * 1024));
}

#[test]
fn read_response_acknowledges_earlier_requests() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, write(0), 0, 10);
    p.a.send(2, read(0), 0, 10);
    p.run();
    assert_eq!(p.opcodes(2), [0x10], "no ACK of its own");
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
}

#[test]
fn ack_beyond_an_outstanding_read_is_implied_nak_and_read_is_retried() {
    let mut p = Pair::new(QpType::Rc);
    p.b.w.memory.fill(0, 10, 3);
    p.a.send(1, read(0), 100, 10);
    p.a.send(2, write(500), 0, 10);
    p.run_with(|from, n, _| !(from == 2 && n == 1));
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)], "without a timeout");
    assert_eq!(p.a.w.memory.bytes[100..110], p.b.w.memory.bytes[..10]);
}

#[test]
fn lost_atomic_response_is_replayed_and_atomic_not_executed_again() {
    let mut p = Pair::new(QpType::Rc);
    let add = SendOp::FetchAdd { remote_addr: 0, rkey: Rkey(KEY), add: 5 };
    p.a.send(1, add, 100, 8);
    p.run_with(|from, n, _| !(from == 2 && n == 1));
    p.tick();
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert_eq!(p.b.w.memory.bytes[..8], 5_u64.to_ne_bytes());
    assert_eq!(p.a.w.memory.bytes[100..108], [0; 8]);
}

#[test]
fn rnr_nak_retransmits_after_its_timer_and_rnr_retry_7_is_infinite() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::Send, 0, 3000);
    p.a.send(2, write(0), 0, 10);
    p.run();
    let rnr = p.log.iter().find(|(from, _)| *from == 2).unwrap();
    let aeth = Packet::parse(&rnr.1).unwrap().aeth.unwrap();
    assert_eq!(aeth.syndrome, Syndrome::Rnr(RnrTimer::new(12)));
    assert_eq!(p.a.qp.poll_timeout(), Some(Time(1 + 640_000)));
    for _ in 0..20 {
        p.tick();
        p.run();
    }
    assert!(p.a.w.statuses().is_empty(), "rnr_retry 7 is for ever");
    p.b.recv(0, 0, 3000);
    p.tick();
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
}

/// The kernel's rxe sends a sequence NAK after each RNR NAK, for the packets after it.
#[test]
fn sequence_nak_during_rnr_wait_is_ignored() {
    let mut p = Pair::with(QpType::Rc, |a| {
        // The peer requests 655 ms, and the timer at this end would expire after 8 times 16 ms.
        (a.min_rnr_timer, a.timeout, a.retry_cnt) = (RnrTimer::new(0), AckTimeout::new(12), 7);
    });
    p.a.send(1, SendOp::Send, 0, 10);
    p.a.send(2, write(0), 0, 10);
    p.run();
    let mut nak = p.log.iter().find(|(from, _)| *from == 2).unwrap().1.clone();
    nak[12] = 0x60;
    p.a.feed(p.now, &nak, 2);
    assert_eq!(p.a.qp.poll_timeout(), Some(Time(1 + 655_360_000)));
    p.b.recv(0, 0, 10);
    p.tick();
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.opcodes(1).len(), 4, "each was sent twice");
}

#[test]
fn rnr_retry_2_is_rnr_retry_exceeded_after_three_sends() {
    let mut p = Pair::with(QpType::Rc, |a| a.rnr_retry = 2);
    p.a.send(1, SendOp::Send, 0, 10);
    p.run();
    while p.tick() {
        p.run();
    }
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RnrRetryExcErr)]);
    assert_eq!(p.opcodes(1).len(), 3);
}

#[test]
fn write_with_immediate_without_receive_is_rnr_nak_only_at_its_last_packet() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 3000, 9);
    let op = SendOp::WriteImm { remote_addr: 0, rkey: Rkey(KEY), imm: [1; 4] };
    p.a.send(1, op, 0, 3000);
    p.run();
    p.b.recv(4, 0, 0);
    p.tick();
    p.run();
    assert_eq!(p.b.w.statuses(), [(4, OK)]);
    assert_eq!(p.a.w.memory.bytes[..3000], p.b.w.memory.bytes[..3000]);
    assert_eq!(p.opcodes(1), [0x06, 0x07, 0x09, 0x09]);
}

#[test]
fn duplicate_requests_and_responses_are_not_executed_again() {
    let mut p = Pair::new(QpType::Rc);
    p.b.w.memory.fill(0, 5000, 3);
    p.b.recv(0, 90_000, 5000);
    p.a.send(1, SendOp::Send, 0, 3000);
    p.a.send(2, read(0), 20_000, 5000);
    p.a.send(3, SendOp::FetchAdd { remote_addr: 8, rkey: Rkey(KEY), add: 1 }, 40_000, 8);
    p.run();
    let was = u64::from_ne_bytes(p.b.w.memory.bytes[8..16].try_into().unwrap());
    for (from, bytes) in p.log.clone() {
        let to = if from == 1 { &mut p.b } else { &mut p.a };
        to.feed(p.now, &bytes, from);
    }
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(p.b.w.statuses().len(), 1);
    assert_eq!(p.b.w.memory.bytes[8..16], was.to_ne_bytes());
    assert_eq!(p.a.qp.state(), QpState::Rts);
}

#[test]
fn duplicate_read_of_deregistered_memory_is_dropped_and_qp_stays_in_rts() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, read(0), 0, 5000);
    p.run();
    p.b.w.memory.rights = Access::LOCAL_WRITE;
    let request = p.log[0].1.clone();
    p.b.feed(p.now, &request, 1);
    p.run();
    assert_eq!(p.b.w.dropped, [Drop::Duplicate, Drop::Memory]);
    assert_eq!((p.b.qp.state(), p.b.qp.wants_ack()), (QpState::Rts, false));
}

/// The requester has lost the beginning of the response, and the responder has not sent the rest.
#[test]
fn memory_lost_before_a_response_was_sent_whole_is_remote_access_error_after_a_retry() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, read(0), 0, 5000);
    p.a.poll(p.now);
    let request = p.a.w.packets.pop_front().unwrap();
    p.b.feed(p.now, &request, 1);
    p.b.qp.poll_transmit(p.now, 2, &mut p.b.w);
    p.b.w.packets.clear();
    assert!(p.tick());
    p.a.poll(p.now);
    let retry = p.a.w.packets.pop_front().unwrap();
    p.b.feed(p.now, &retry, 1);
    p.b.w.memory.rights = Access::LOCAL_WRITE;
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
}

#[test]
fn window_bounds_packets_in_flight_and_grows_with_acks() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, write(0), 0, 1 << 20);
    p.a.poll(p.now);
    assert_eq!(p.a.w.packets.len(), 32);
    let asks = p.a.w.packets.iter().filter(|b| b[8] & 0x80 != 0).count();
    assert!((2..=8).contains(&asks), "{asks} packets ask for an ACK");
    while let Some(bytes) = p.a.w.packets.pop_front() {
        p.b.feed(p.now, &bytes, 1);
    }
    p.b.poll(p.now);
    let ack = p.b.w.packets.pop_front().unwrap();
    p.a.feed(p.now, &ack, 2);
    p.a.poll(p.now);
    assert_eq!(p.a.w.packets.len(), 64);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}

/// Transport timers of seconds are usual. The recovery of a lost last packet does not wait that long.
#[test]
fn measured_round_trip_shortens_the_first_retransmission_timer() {
    let mut p = Pair::with(QpType::Rc, |a| a.timeout = AckTimeout::new(19));
    p.a.send(1, write(0), 0, 10);
    p.run();
    p.a.send(2, write(0), 0, 10);
    p.run_with(|_, _, _| false);
    let start = p.now;
    assert!(p.tick());
    assert_eq!(p.now.since(start), core::time::Duration::from_micros(250));
    p.run_with(|_, _, _| false);
    p.tick();
    assert_eq!(p.now.since(start), core::time::Duration::from_micros(750), "and doubles");
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
}

/// A peer that is often late without any loss gets more time before a loss is assumed.
#[test]
fn spurious_timeout_lengthens_the_retransmission_timer() {
    let mut p = Pair::with(QpType::Rc, |a| a.timeout = AckTimeout::new(19));
    p.a.send(1, write(0), 0, 10);
    p.run();
    let early = |p: &mut Pair, wr_id| {
        p.a.send(wr_id, write(0), 0, 8192);
        p.a.poll(p.now);
        let late: Vec<_> = p.a.w.packets.drain(..).collect();
        let start = p.now;
        assert!(p.tick());
        let waited = p.now.since(start);
        // One packet as a probe, which is lost, too.
        p.a.poll(p.now);
        assert!(p.tick());
        p.a.w.packets.clear();
        // The packets arrive after all, and are acknowledged beyond the retransmitted one.
        late.iter().for_each(|bytes| p.b.feed(p.now, bytes, 1));
        p.b.poll(p.now);
        p.run();
        waited.as_micros()
    };
    assert_eq!([early(&mut p, 2), early(&mut p, 3), early(&mut p, 4)], [250, 500, 1000]);
    // Round trips in time shorten the timer again.
    for wr_id in 5..50 {
        p.a.send(wr_id, write(0), 0, 10);
        p.run();
    }
    assert_eq!(early(&mut p, 50), 250);
}

/// Other senders start to use the same socket: this sender's limit falls below its packets in flight.
#[test]
fn smaller_socket_share_limits_packets_in_flight_without_stalling() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(0, write(0), 0, 10);
    p.run();
    assert_eq!(p.a.w.statuses(), [(0, OK)]);
    (1..=9).for_each(|i| p.a.send(i, write(0), 0, 20 * 1024));
    p.a.poll(p.now);
    let flight = |p: &mut Pair| {
        let out: Vec<_> = p.a.w.packets.drain(..).collect();
        out.iter().for_each(|bytes| p.b.feed(p.now, bytes, 1));
        p.b.poll(p.now);
        p.b.w.packets.drain(..).for_each(|bytes| p.a.feed(p.now, &bytes, 2));
        out.len()
    };
    let mut flights = |share| {
        p.a.w.share = share;
        core::array::from_fn(|_| {
            p.a.poll(p.now);
            flight(&mut p)
        })
    };
    assert_eq!(flights(3000), [33, 2, 2, 2]);
    assert_eq!(flights(0), [1, 1, 1, 1]);
    assert_eq!(flights(2048), [2, 2, 2, 2]);
}
