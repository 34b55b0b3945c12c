//! Selective retransmission, to peers that buffer out-of-order packets and to peers that do not.

use super::*;

const OK: WcStatus = WcStatus::Success;

fn write(at: u64) -> SendOp {
    SendOp::Write { remote_addr: at, rkey: Rkey(KEY) }
}

/// Returns a pair with a wide open window, whose peer buffers out-of-order packets or not.
fn wide(keeps: bool) -> Pair {
    let mut p = Pair::with(QpType::Rc, |a| a.timeout = AckTimeout::new(19));
    p.b.w.buffers_out_of_order = keeps;
    p.a.w.memory.fill(0, 1 << 19, 1);
    p.a.send(0, write(0), 0, 1 << 19);
    p.run();
    assert_eq!(p.a.w.statuses(), [(0, OK)]);
    p
}

/// Opens the window fully again.
fn reopen(p: &mut Pair) {
    (0..8).for_each(|_| assert_eq!(sends(p, 512, &[], &[]), (512, 0)));
}

/// Sends `packets` packets, and loses those at the positions in `lost` (1 is the first), and likewise responses
/// by `lost_back`. Returns how many packets were sent, and how often a timer was needed.
fn sends(p: &mut Pair, packets: u32, lost: &[usize], lost_back: &[usize]) -> (usize, usize) {
    let (before, mut timers) = (p.opcodes(1).len(), 0);
    p.b.w.memory.bytes.fill(0);
    p.a.send(1, write(0), 0, packets * 1024);
    p.run_with(|from, n, _| !if from == 1 { lost } else { lost_back }.contains(&n));
    while p.a.w.completions.is_empty() {
        assert!(p.tick());
        timers += 1;
        p.run();
    }
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    let len = packets as usize * 1024;
    assert_eq!(p.a.w.memory.bytes[..len], p.b.w.memory.bytes[..len]);
    assert!(p.a.qp.is_idle() && p.a.qp.poll_timeout().is_none());
    (p.opcodes(1).len() - before, timers)
}

#[test]
fn selective_retransmission_resends_only_the_lost_packet() {
    let mut p = wide(true);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    assert_eq!(sends(&mut p, 100, &[1], &[]), (101, 0));
    // The second loss is detected when the first is recovered, and causes a few more retransmissions.
    assert_eq!(sends(&mut p, 100, &[5, 50], &[]), (100 + 1 + 4, 0));
}

#[test]
fn gap_of_60_packets_is_recovered_with_a_nak_and_four_acks() {
    let mut p = wide(true);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    let gap: Vec<usize> = (10..70).collect();
    let answers = p.opcodes(2).len();
    assert_eq!(sends(&mut p, 100, &gap, &[]), (100 + 1 + 4 + 16 + 64, 0));
    assert_eq!(p.opcodes(2).len() - answers, 5, "a NAK, and four ACKs");
}

/// Selective retransmission is tried a few times with a peer that drops out-of-order packets, and
/// then everything is retransmitted at once.
#[test]
fn selective_retransmission_stops_with_peer_that_drops_out_of_order_packets() {
    let mut p = wide(false);
    let mut alone = [false; 8];
    for alone in &mut alone {
        reopen(&mut p);
        let start = p.log.len();
        assert_eq!(sends(&mut p, 20, &[5], &[]), (20 + 16, 0));
        let fifth = p.log[start + 4].1[9..12].to_vec();
        let again = p.log.iter().rposition(|(from, b)| *from == 1 && b[9..12] == fifth).unwrap();
        *alone = p.log[again + 1].0 == 2;
    }
    assert_eq!(alone, [true, true, true, true, false, false, false, false]);
    // Since the losses may have been random, it is tried again.
    p.b.w.buffers_out_of_order = true;
    let best = (0..70).map(|_| sends(&mut p, 100, &[5], &[])).min();
    assert_eq!(best, Some((101, 0)));
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0), "and then believed");
}

#[test]
fn new_packets_are_sent_while_a_retransmission_is_in_flight() {
    let mut p = wide(true);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    p.a.send(1, write(0), 0, 600 * 1024);
    p.a.poll(p.now);
    let mut sent: Vec<_> = p.a.w.packets.drain(..).collect();
    sent.drain(..20).for_each(|bytes| p.b.feed(p.now, &bytes, 1));
    sent[1..].iter().for_each(|bytes| p.b.feed(p.now, bytes, 1));
    p.b.poll(p.now);
    let nak = p.b.w.packets.pop_front().unwrap();
    p.a.feed(p.now, &nak, 2);
    p.a.poll(p.now);
    let psn = |bytes: &[u8]| Packet::parse(bytes).unwrap().bth.psn;
    assert_eq!(psn(&p.a.w.packets[0]), psn(&sent[0]));
    assert!(p.a.w.packets[0][8] & 0x80 != 0, "it asks for an ACK");
    assert!(p.a.w.packets.len() > 10);
    let next = psn(sent.last().unwrap());
    p.a.w.packets.iter().skip(1).zip(1..).for_each(|(b, i)| assert_eq!(psn(b), next.add(i)));
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}

/// A retransmission lost again, or a lost response, is recovered by a timer and one packet.
#[test]
fn undetected_loss_is_recovered_by_one_timeout_and_one_probe_packet() {
    let mut p = wide(true);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    assert_eq!(sends(&mut p, 100, &[100], &[]), (101, 1), "the last");
    assert_eq!(sends(&mut p, 100, &[5, 101], &[]), (100 + 1 + 4, 1), "again");
    assert_eq!(sends(&mut p, 100, &[5], &[1]), (102, 1), "what the peer asked");
    let all: Vec<usize> = (1..100).collect();
    assert_eq!(sends(&mut p, 100, &[], &all), (101, 1), "every answer");
    let tail: Vec<usize> = (91..=100).collect();
    assert_eq!(sends(&mut p, 100, &tail, &[]), (100 + 1 + 4 + 5, 1), "the last ten");
}

#[test]
fn window_shrinks_little_for_one_gap_and_much_for_many() {
    let mut p = wide(true);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    let size = |p: &Pair| p.a.qp.window();
    let open = size(&p);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    assert!(size(&p) >= open - open / 32, "{} of {open}", size(&p));
    let every_fourth: Vec<usize> = (1..100).step_by(4).collect();
    sends(&mut p, 100, &every_fourth, &[]);
    assert!(size(&p) < open * 3 / 4, "{} of {open}", size(&p));
}

/// The packet cannot be sent at once, or its memory is gone: handled as for any other packet.
#[test]
fn retransmission_waits_for_full_link_and_lost_memory_is_local_protection_error() {
    for gone in [false, true] {
        let mut p = wide(true);
        p.a.send(1, write(0), 0, 100 * 1024);
        p.a.send(2, write(0), 0, 1024);
        p.a.poll(p.now);
        let sent: Vec<_> = p.a.w.packets.drain(..).collect();
        sent[1..].iter().for_each(|bytes| p.b.feed(p.now, bytes, 1));
        p.b.poll(p.now);
        let nak = p.b.w.packets.pop_front().unwrap();
        p.a.feed(p.now, &nak, 2);
        p.a.w.room = 0;
        p.a.poll(p.now);
        assert!(p.a.w.packets.is_empty() && !p.a.qp.is_idle());
        p.a.w.room = usize::MAX;
        p.a.w.memory.refuses = gone.then_some(AccessFault::Unmapped);
        p.run();
        let first = if gone { WcStatus::LocProtErr } else { OK };
        let second = if gone { WcStatus::WrFlushErr } else { OK };
        assert_eq!(p.a.w.statuses(), [(1, first), (2, second)]);
    }
}

/// READs are requested again together with everything after them.
#[test]
fn lost_read_or_atomic_falls_back_to_go_back_n_retransmission() {
    for lost in 1..8 {
        let mut p = wide(true);
        assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
        p.b.w.memory.fill(1000, 5000, 9);
        p.a.send(1, write(200_000), 0, 2000);
        p.a.send(2, SendOp::Read { remote_addr: 1000, rkey: Rkey(KEY) }, 300_000, 5000);
        p.a.send(3, write(210_000), 5000, 2000);
        p.a.send(4, SendOp::FetchAdd { remote_addr: 0, rkey: Rkey(KEY), add: 1 }, 400_000, 8);
        let count = u64::from_ne_bytes(p.b.w.memory.bytes[..8].try_into().unwrap());
        p.run_with(|from, n, _| !(from == 1 && (n == lost || n == lost + 2)));
        while p.a.w.completions.len() < 4 {
            assert!(p.tick());
            p.run();
        }
        assert_eq!(p.a.w.statuses(), [1, 2, 3, 4].map(|i| (i, OK)), "{lost}");
        assert_eq!(p.a.w.memory.bytes[300_000..305_000], p.b.w.memory.bytes[1000..6000], "{lost}");
        assert_eq!(p.b.w.memory.bytes[210_000..212_000], p.a.w.memory.bytes[5000..7000], "{lost}");
        assert_eq!(p.b.w.memory.bytes[..8], (count + 1).to_ne_bytes(), "{lost}");
    }
}

/// With `retry_cnt` 0 a sequence error exceeds the retries, but a loss that a timer detects first does not count.
#[test]
fn early_retransmission_timer_does_not_count_as_retry() {
    let mut p = wide(true);
    p.a.retune(AttrMask::RETRY_CNT, |attr| attr.retry_cnt = 0);
    let tail: Vec<usize> = (91..=100).collect();
    assert_eq!(sends(&mut p, 100, &tail, &[]).1, 1);
}

/// READs are not retransmitted selectively: the maximum number is outstanding already.
#[test]
fn selective_retransmission_stops_before_a_read() {
    let mut p = wide(true);
    assert_eq!(sends(&mut p, 100, &[5], &[]), (101, 0));
    p.a.send(1, write(0), 0, 2 * 1024);
    (2..6).for_each(|i| {
        p.a.send(i, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, i * 1000, 10);
    });
    p.run_with(|from, n, _| !(from == 1 && n <= 2));
    assert_eq!(p.a.w.statuses(), [1, 2, 3, 4, 5].map(|i| (i, OK)), "without a timer");
}
