//! Out-of-order packets: buffered, and carried out in their turn.

use rdmux_wire::{NakCode, Syndrome};

use super::*;

const OK: WcStatus = WcStatus::Success;

fn write(at: u64) -> SendOp {
    SendOp::Write { remote_addr: at, rkey: Rkey(KEY) }
}

/// Returns all packets that a sender has to send, in order.
fn packets(side: &mut Side2, now: Time) -> Vec<Vec<u8>> {
    side.poll(now);
    side.w.packets.drain(..).collect()
}

/// Returns the PSN, relative to the first of `b`'s peer, the syndrome and the MSN of the only response of `b`.
fn answer(p: &mut Pair) -> (i32, Syndrome, u32) {
    let answers = packets(&mut p.b, p.now);
    assert_eq!(answers.len(), 1, "{answers:?}");
    let packet = Packet::parse(&answers[0]).unwrap();
    let aeth = packet.aeth.unwrap();
    (packet.bth.psn.diff(attributes(1, 2).sq_psn), aeth.syndrome, aeth.msn)
}

/// Delivers packets to `b`, by their indices.
fn feed(p: &mut Pair, packets: &[Vec<u8>], which: impl IntoIterator<Item = usize>) {
    which.into_iter().for_each(|i| p.b.feed(p.now, &packets[i], 1));
}

/// Posts four WRITEs of a packet each, with different bytes.
fn four_writes() -> (Pair, Vec<Vec<u8>>) {
    four_writes_to(LOSSY)
}

/// The same, to a receiver with this link.
fn four_writes_to(link: LinkCaps) -> (Pair, Vec<Vec<u8>>) {
    let mut p = Pair::down(QpType::Rc, false);
    p.b.w.link = link;
    p.a.up(&attributes(1, 2));
    p.b.up(&attributes(2, 1));
    p.a.w.memory.fill(0, 4096, 1);
    (0..4).for_each(|i| p.a.send(i, write(i * 1024), i * 1024, 1024));
    let sent = packets(&mut p.a, p.now);
    (p, sent)
}

const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

#[test]
fn out_of_order_packets_are_kept_then_executed_in_order_with_one_ack() {
    let (mut p, mut sent) = four_writes();
    sent.iter_mut().for_each(|bytes| bytes[8] &= 0x7f);
    feed(&mut p, &sent, [1, 3, 2]);
    assert_eq!(answer(&mut p), (0, SEQUENCE, 0));
    assert_eq!(p.b.w.memory.bytes[..4096], [0; 4096]);
    feed(&mut p, &sent, [0]);
    assert_eq!(
        answer(&mut p),
        (3, Syndrome::ACK, 4),
        "one ACK for all, though none of them asks for it"
    );
    assert_eq!(p.b.w.memory.bytes[..4096], p.a.w.memory.bytes[..4096]);
    assert_eq!(p.b.w.dropped, [Drop::Early, Drop::Early, Drop::Early, Drop::Filled]);
}

#[test]
fn next_gap_is_nak_sequence_only_once_a_later_packet_arrives() {
    let (mut p, sent) = four_writes();
    feed(&mut p, &sent, [1, 3]);
    assert_eq!(answer(&mut p), (0, SEQUENCE, 0));
    // A peer that retransmits everything is not sent another NAK.
    feed(&mut p, &sent, [0, 1]);
    assert_eq!(answer(&mut p), (1, Syndrome::ACK, 2));
    feed(&mut p, &sent, [3]);
    assert_eq!(answer(&mut p), (2, SEQUENCE, 2));
    assert_eq!(p.b.w.memory.bytes[3072..4096], [0; 1024]);
    feed(&mut p, &sent, [2]);
    assert_eq!(answer(&mut p), (3, Syndrome::ACK, 4));
    assert_eq!(p.b.w.memory.bytes[..4096], p.a.w.memory.bytes[..4096]);
}

#[test]
fn duplicate_of_buffered_packet_is_acknowledged_and_not_executed_again() {
    let (mut p, sent) = four_writes();
    feed(&mut p, &sent, [1, 1, 2]);
    assert_eq!(answer(&mut p), (0, SEQUENCE, 0));
    feed(&mut p, &sent, [0]);
    assert_eq!(answer(&mut p), (2, Syndrome::ACK, 3));
    p.b.w.memory.bytes[..4096].fill(7);
    feed(&mut p, &sent, [1, 2]);
    assert_eq!(p.b.w.memory.bytes[..4096], [7; 4096]);
    assert_eq!(answer(&mut p), (2, Syndrome::ACK, 3));
    let Some([.., Drop::Duplicate, Drop::Duplicate]) = p.b.w.dropped.get(..) else {
        panic!("{:?}", p.b.w.dropped)
    };
}

/// Messages of every kind, with each packet lost once, and each pair of packets.
#[test]
fn multi_packet_messages_survive_loss_of_any_two_packets() {
    let losses = (1..12).flat_map(|a| (a..12).map(move |b| [a, b]));
    for lost in losses {
        let mut p = Pair::new(QpType::Rc);
        p.a.w.memory.fill(0, 20_000, 1);
        p.b.w.memory.fill(30_000, 3000, 5);
        p.b.recv(10, 40_000, 3000);
        p.b.recv(11, 50_000, 0);
        p.b.recv(12, 60_000, 100);
        p.a.send(1, SendOp::Send, 0, 2500);
        let with_imm = SendOp::WriteImm { remote_addr: 3000, rkey: Rkey(KEY), imm: [1; 4] };
        p.a.send(2, with_imm, 3000, 2500);
        p.a.send(3, SendOp::Read { remote_addr: 30_000, rkey: Rkey(KEY) }, 30_000, 3000);
        p.a.send(4, write(6000), 6000, 2500);
        p.a.send(5, SendOp::SendInv(Rkey(9)), 9000, 100);
        p.run_with(|from, n, _| !(from == 1 && lost.contains(&n)));
        while p.a.w.completions.len() < 5 {
            assert!(p.tick(), "{lost:?}");
            p.run();
        }
        assert_eq!(p.a.w.statuses(), [1, 2, 3, 4, 5].map(|i| (i, OK)), "{lost:?}");
        assert_eq!(p.b.w.statuses(), [10, 11, 12].map(|i| (i, OK)), "{lost:?}");
        assert_eq!(p.b.w.memory.bytes[40_000..42_500], p.a.w.memory.bytes[..2500], "{lost:?}");
        assert_eq!(p.b.w.memory.bytes[3000..5500], p.a.w.memory.bytes[3000..5500], "{lost:?}");
        assert_eq!(p.b.w.memory.bytes[6000..8500], p.a.w.memory.bytes[6000..8500], "{lost:?}");
        assert_eq!(
            p.a.w.memory.bytes[30_000..33_000],
            p.b.w.memory.bytes[30_000..33_000],
            "{lost:?}"
        );
        assert_eq!(p.b.w.invalidated, [Rkey(9)], "{lost:?}");
    }
}

#[test]
fn out_of_order_reads_and_atomics_are_not_buffered() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, write(0), 0, 10);
    p.a.send(2, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 10);
    p.a.send(3, SendOp::FetchAdd { remote_addr: 0, rkey: Rkey(KEY), add: 1 }, 0, 8);
    let sent = packets(&mut p.a, p.now);
    feed(&mut p, &sent, [1, 2]);
    assert_eq!(p.b.w.dropped, [Drop::Gap, Drop::Gap]);
}

/// A buffered packet that is refused in its turn is refused as usual, and those after it are not carried out.
#[test]
fn fault_in_buffered_packet_is_nak_and_later_packets_are_discarded() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 4096, 1);
    p.a.send(1, write(0), 0, 10);
    p.a.send(2, write(100), 100, 10);
    p.a.send(3, SendOp::Write { remote_addr: 200, rkey: Rkey(5) }, 200, 10);
    p.a.send(4, write(300), 300, 10);
    let sent = packets(&mut p.a, p.now);
    let empty = p.b.qp.footprint();
    feed(&mut p, &sent, [1, 2, 3]);
    assert_eq!(answer(&mut p), (0, SEQUENCE, 0));
    assert_eq!(p.b.qp.state(), QpState::Rts);
    feed(&mut p, &sent, [0]);
    assert_eq!(answer(&mut p), (2, Syndrome::Nak(NakCode::RemoteAccess), 2));
    assert_eq!(p.b.qp.state(), QpState::Err);
    assert_eq!(p.b.w.memory.bytes[100..110], p.a.w.memory.bytes[100..110]);
    assert_eq!(p.b.w.memory.bytes[300..310], [0; 10]);
    assert_eq!(p.b.qp.footprint(), empty);
}

#[test]
fn buffered_send_without_receive_is_rnr_nak_and_later_packets_are_discarded() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 4096, 1);
    p.a.send(1, write(0), 0, 10);
    p.a.send(2, SendOp::Send, 100, 10);
    p.a.send(3, write(200), 200, 10);
    let sent = packets(&mut p.a, p.now);
    feed(&mut p, &sent, [1, 2]);
    assert_eq!(answer(&mut p), (0, SEQUENCE, 0));
    feed(&mut p, &sent, [0]);
    assert_eq!(answer(&mut p), (1, Syndrome::Rnr(RnrTimer::new(12)), 1));
    feed(&mut p, &sent, [2]);
    let Some([.., Drop::NoReceive, Drop::Gap]) = p.b.w.dropped.get(..) else {
        panic!("{:?}", p.b.w.dropped)
    };
    p.b.recv(9, 500, 10);
    feed(&mut p, &sent, [1]);
    assert_eq!((p.b.w.statuses(), answer(&mut p).0), (vec![(9, OK)], 1));
    feed(&mut p, &sent, [2]);
    assert_eq!(p.b.w.memory.bytes[200..210], p.a.w.memory.bytes[200..210]);
}

#[test]
fn err_and_reset_discard_buffered_out_of_order_packets() {
    let (mut p, sent) = four_writes();
    let empty = p.b.qp.footprint();
    feed(&mut p, &sent, [1, 2]);
    assert!(p.b.qp.footprint() > empty + 2048, "what is kept counts");
    p.b.step(&attributes(2, 1), QpState::Err);
    assert_eq!(p.b.qp.footprint(), empty);
    p.b.step(&attributes(2, 1), QpState::Reset);
    p.b.up(&attributes(2, 1));
    feed(&mut p, &sent, [1, 2]);
    p.b.step(&attributes(2, 1), QpState::Reset);
    assert!(p.b.qp.footprint() <= empty);
    p.b.up(&attributes(2, 1));
    feed(&mut p, &sent, [0]);
    assert_eq!(p.b.w.memory.bytes[1024..2048], [0; 1024]);
}

#[test]
fn out_of_order_buffer_is_limited_in_psn_distance_and_packet_size() {
    let (mut p, mut sent) = four_writes();
    let first = Packet::parse(&sent[0]).unwrap().bth.psn;
    let mut far = |ahead: u32| {
        let psn = first.add(ahead).get().to_be_bytes();
        sent[1][9..12].copy_from_slice(&psn[1..]);
        p.b.feed(p.now, &sent[1], 1);
        p.b.w.dropped.pop().unwrap()
    };
    assert_eq!(
        [far(2048), far(2047), far(1), far(1)],
        [Drop::Gap, Drop::Early, Drop::Early, Drop::Gap]
    );
    let mut long = sent[2].clone();
    long.extend_from_slice(&[0; 4]);
    p.b.feed(p.now, &long, 1);
    assert_eq!(p.b.w.dropped, [Drop::Gap]);
}

#[test]
fn out_of_order_buffering_is_off_if_forbidden_or_link_is_lossless() {
    let (mut p, sent) = four_writes();
    p.b.w.buffers_out_of_order = false;
    feed(&mut p, &sent, [1]);
    p.b.w.buffers_out_of_order = true;
    assert_eq!(p.b.w.dropped, [Drop::Gap]);
    let (mut p, sent) = four_writes_to(link(4096, true));
    feed(&mut p, &sent, [2]);
    assert_eq!(p.b.w.dropped, [Drop::Gap]);
}

/// A READ consumes the PSNs of its response. A peer that sends other packets with these PSNs is faulty.
#[test]
fn buffered_packet_inside_psn_range_of_a_read_is_discarded() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 5000);
    let read = packets(&mut p.a, p.now).remove(0);
    let (mut other, sent) = four_writes();
    let empty = other.b.qp.footprint();
    feed(&mut other, &sent, [1]);
    assert_eq!(answer(&mut other), (0, SEQUENCE, 0));
    other.b.feed(other.now, &read, 1);
    other.b.poll(other.now);
    assert_eq!(other.b.qp.footprint(), empty);
    assert_eq!(other.b.w.memory.bytes[..4096], [0; 4096]);
    assert!(other.b.w.packets.iter().all(|bytes| bytes[12] != 0x60), "no other gap is told");
}
