//! Long messages whose payload the peer's driver fetches.

use super::direct::BY_REFERENCE;
use super::*;

const OK: WcStatus = WcStatus::Success;
/// The length of several full packets and a partial one.
const LONG: u32 = (256 << 10) + 12;

fn pair() -> Pair {
    with(|_| {})
}

fn with(change: impl Fn(&mut QpAttr)) -> Pair {
    let mut pair = Pair::down(QpType::Rc, false);
    for (side, from, to) in [(&mut pair.a, 1, 2), (&mut pair.b, 2, 1)] {
        side.w.link = BY_REFERENCE;
        let mut attr = attributes(from, to);
        change(&mut attr);
        side.up(&attr);
    }
    pair.a.w.by_reference.names = true;
    pair.a.w.memory.fill(0, MEMORY, 1);
    pair
}

#[test]
fn long_send_by_reference_is_one_packet_and_consumes_all_its_psns() {
    let mut p = pair();
    let psn = p.a.qp.attr().sq_psn;
    p.b.recv(7, 100, LONG);
    p.a.send(1, SendOp::Send, 0, LONG);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    let got = p.b.w.take_completion();
    assert_eq!((got.wr_id, got.status, got.byte_len), (7, OK, LONG));
    assert_eq!(p.b.w.memory.bytes[100..][..LONG as usize], p.a.w.memory.bytes[..LONG as usize]);
    assert_eq!(p.opcodes(1).len(), 1);
    assert_eq!(p.a.qp.attr().sq_psn, psn.add(9));
    assert_eq!(p.b.qp.attr().rq_psn, psn.add(9));
    // A short message carries its payload, with the PSN that the peer expects.
    p.b.recv(8, 0, 64);
    p.a.send(2, SendOp::Send, 0, 64);
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(2, OK)], vec![(8, OK)]));
    assert_eq!(p.a.w.by_reference.named.len(), 1);
}

#[test]
fn payload_by_reference_over_one_mib_is_split() {
    let mut p = pair();
    for side in [&mut p.a, &mut p.b] {
        side.w.memory.bytes.resize(3 << 20, 9);
    }
    p.a.w.memory.fill(0, 3 << 20, 5);
    let op = SendOp::WriteImm { remote_addr: 8, rkey: Rkey(KEY), imm: [1, 2, 3, 4] };
    p.b.recv(7, 0, 0);
    p.a.send(1, op, 0, (2 << 20) + 5);
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(1, OK)], vec![(7, OK)]));
    let lens: Vec<_> =
        p.a.w.by_reference.named.iter().map(|b| Packet::parse(b).unwrap().payload.len()).collect();
    assert_eq!(lens, [1 << 20, 1 << 20, 5]);
    assert_eq!(p.b.w.memory.bytes[8..][..(2 << 20) + 5], p.a.w.memory.bytes[..(2 << 20) + 5]);
}

#[test]
fn payload_that_cannot_be_fetched_by_reference_is_resent_inline() {
    let mut p = pair();
    p.b.w.by_reference.fetches = false;
    for round in 1..=3 {
        for wr_id in [1, 2] {
            p.b.recv(7, 0, LONG);
            p.a.send(wr_id, SendOp::Send, 0, LONG);
        }
        p.run();
        assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)], "{round}");
        assert_eq!(p.b.w.statuses(), [(7, OK), (7, OK)]);
        assert_eq!(p.b.w.memory.bytes[..LONG as usize], p.a.w.memory.bytes[..LONG as usize]);
    }
    assert!(p.b.w.dropped.contains(&Drop::OutOfReach));
    // Naming is tried less and less often.
    let tried = |p: &mut Pair, messages: usize| {
        p.a.w.by_reference.named.clear();
        for _ in 0..messages {
            p.b.recv(7, 0, LONG);
            p.a.send(1, SendOp::Send, 0, LONG);
            p.run();
        }
        p.a.w.by_reference.named.len()
    };
    let (first, then) = (tried(&mut p, 100), tried(&mut p, 400));
    assert!((1..=7).contains(&first) && (1..=2).contains(&then), "{first} {then}");
    // And always again once a fetch succeeds.
    p.b.w.by_reference.fetches = true;
    assert!(tried(&mut p, 3000) > 1000);
}

#[test]
fn retry_count_zero_disables_payload_by_reference() {
    let mut p = with(|attr| attr.retry_cnt = 0);
    p.b.w.by_reference.fetches = false;
    p.b.recv(7, 0, LONG);
    p.a.send(1, SendOp::Send, 0, LONG);
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(1, OK)], vec![(7, OK)]));
    assert!(p.a.w.by_reference.named.is_empty());
}

#[test]
fn send_by_reference_is_resent_inline_after_rnr_nak() {
    let mut p = pair();
    p.a.send(1, SendOp::Send, 0, LONG);
    p.run();
    assert!(p.a.w.completions.is_empty() && p.b.w.dropped == [Drop::NoReceive]);
    p.b.recv(7, 0, LONG);
    p.tick();
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(1, OK)], vec![(7, OK)]));
    assert_eq!((p.a.w.by_reference.named.len(), p.opcodes(1).len()), (1, 10));
    assert_eq!(p.b.w.memory.bytes[..LONG as usize], p.a.w.memory.bytes[..LONG as usize]);
}

#[test]
fn payload_that_cannot_be_referenced_is_sent_inline() {
    let mut p = pair();
    p.a.w.by_reference.names = false;
    p.b.recv(7, 0, LONG);
    p.a.send(1, SendOp::Send, 0, LONG);
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(1, OK)], vec![(7, OK)]));
    assert_eq!(p.opcodes(1).len(), 9);
}

#[test]
fn errors_of_payload_by_reference_equal_those_of_inline_payload() {
    let mut p = pair();
    p.b.recv(7, 0, LONG - 1);
    p.a.send(1, SendOp::Send, 0, LONG);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(p.b.w.statuses(), [(7, WcStatus::LocLenErr)]);
    let mut p = pair();
    let op = SendOp::WriteImm { remote_addr: 1, rkey: Rkey(KEY + 1), imm: [0; 4] };
    p.b.recv(7, 0, 0);
    p.a.send(1, op, 0, LONG);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::RemAccessErr)]);
}

/// Packets that only a malicious peer sends.
#[test]
fn invalid_length_of_payload_by_reference_moves_qp_to_error() {
    let header = |op: rdmux_wire::Operation, psn: Psn| {
        let opcode = rdmux_wire::Opcode::of(rdmux_wire::Service::Rc, op);
        rdmux_wire::HeaderBuf::new(&rdmux_wire::Bth::new(opcode, Qpn::new(2), psn))
    };
    use rdmux_wire::Operation as Op;
    for (op, len) in [
        (Op::SendOnly, 0),
        (Op::SendFirst, 1000),
        (Op::SendOnly, (1 << 20) + 1),
        (Op::SendMiddle, 32 << 10),
        (Op::SendLast, 1),
    ] {
        let mut p = pair();
        p.b.w.memory.bytes.resize(4 << 20, 0);
        p.b.recv(7, 0, 3 << 20);
        let mut bytes = header(op, p.b.qp.attr().rq_psn).as_slice().to_vec();
        bytes.resize(bytes.len() + len, 0);
        p.b.feed_named(p.now, &bytes, 1);
        p.b.poll(p.now);
        assert_eq!(p.b.qp.state(), QpState::Err, "{op:?} {len}");
    }
    // Only SENDs and WRITEs name their payload.
    let mut p = pair();
    let bytes = header(Op::ReadRequest, p.b.qp.attr().rq_psn).as_slice().to_vec();
    p.b.feed_named(p.now, &bytes, 1);
    let bytes = header(Op::Acknowledge, p.b.qp.attr().rq_psn).as_slice().to_vec();
    p.b.feed_named(p.now, &bytes, 1);
    assert_eq!(p.b.qp.state(), QpState::Rts);
}
