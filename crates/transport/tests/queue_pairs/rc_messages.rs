//! RC without faults: every operation, sizes, packet counts.

use rdmux_wire::Opcode;

use super::*;
use rdmux_transport::env::Side;
use rdmux_transport::wr::{WcFlags, WcOpcode};

const OK: WcStatus = WcStatus::Success;

#[test]
fn send_of_any_length_is_segmented_at_the_path_mtu() {
    for len in [0, 1, 3, 64, 1023, 1024, 1025, 2048, 5000, 100_000_u32] {
        let mut p = Pair::new(QpType::Rc);
        p.a.w.memory.fill(0, len as usize, 7);
        p.b.recv(9, 4096, len + 10);
        p.a.send(1, SendOp::Send, 0, len);
        p.run();
        let wc = p.b.w.take_completion();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (9, OK, len));
        assert_eq!(p.a.w.statuses(), [(1, OK)]);
        let n = len as usize;
        assert_eq!(p.a.w.memory.bytes[..n], p.b.w.memory.bytes[4096..4096 + n]);
        assert_eq!(p.opcodes(1).len(), n.div_ceil(1024).max(1));
        assert!(p.a.qp.is_idle());
        assert_eq!(p.a.qp.poll_timeout(), None);
    }
}

#[test]
fn gather_list_is_one_message_and_is_scattered_at_the_receiver() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 5000, 1);
    let list = [sge(0, 10), sge(100, 0), sge(200, 3000), sge(4000, 1000)];
    p.b.qp.post_recv(&RecvWr { wr_id: 2, sges: &[sge(0, 1), sge(50_000, 6000)] }).unwrap();
    p.a.post(1, SendOp::Send, &list, SendFlags::empty());
    p.run();
    let flat: Vec<u8> = [
        &p.a.w.memory.bytes[..10],
        &p.a.w.memory.bytes[200..3200],
        &p.a.w.memory.bytes[4000..5000],
    ]
    .concat();
    assert_eq!(p.b.w.memory.bytes[0], flat[0]);
    assert_eq!(p.b.w.memory.bytes[50_000..50_000 + 4009], flat[1..]);
}

#[test]
fn completions_carry_immediate_invalidated_rkey_and_solicited_for_inline_data() {
    let mut p = Pair::new(QpType::Rc);
    for i in 0..3 {
        p.b.recv(i, 1000 * i, 100);
    }
    let send = |p: &mut Pair, op, flags| {
        let data = SendData::Inline(&[b"hel", b"lo"]);
        let wr = SendWr { flags, ..SendWr::new(0, op, data) };
        p.a.qp.post_send(Time::ZERO, &wr).unwrap();
    };
    send(&mut p, SendOp::SendImm([1, 2, 3, 4]), SendFlags::SOLICITED);
    send(&mut p, SendOp::SendInv(Rkey(77)), SendFlags::empty());
    let write = SendOp::WriteImm { remote_addr: 9000, rkey: Rkey(KEY), imm: [9; 4] };
    send(&mut p, write, SendFlags::empty());
    p.run();
    let wc = p.b.w.take_completion();
    assert_eq!((wc.imm, wc.flags, wc.solicited), ([1, 2, 3, 4], WcFlags::WITH_IMM, true));
    assert_eq!(&p.b.w.memory.bytes[..5], b"hello");
    let wc = p.b.w.take_completion();
    assert_eq!((wc.invalidated, wc.flags, wc.solicited), (Rkey(77), WcFlags::WITH_INV, false));
    assert_eq!(p.b.w.invalidated, [Rkey(77)]);
    let wc = p.b.w.take_completion();
    assert_eq!((wc.opcode, wc.imm, wc.byte_len), (WcOpcode::RecvRdmaWithImm, [9; 4], 5));
    assert_eq!(&p.b.w.memory.bytes[9000..9005], b"hello");
    assert_eq!(p.b.w.memory.bytes[2000], 0, "a WRITE leaves the receive's own buffer alone");
}

#[test]
fn withdrawn_send_is_neither_sent_nor_completed() {
    let mut p = Pair::new(QpType::Rc);
    p.b.recv(0, 1000, 100);
    let post = |p: &mut Pair, wr_id, bytes: &[u8]| {
        let (op, data) = (SendOp::Send, SendData::Inline(&[bytes]));
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, op, data) };
        p.a.qp.post_send(Time::ZERO, &wr).unwrap();
    };
    let mark = p.a.qp.sends_posted();
    post(&mut p, 1, b"one");
    post(&mut p, 2, b"two");
    p.a.qp.withdraw_sends(mark);
    post(&mut p, 3, b"three");
    p.run();
    assert_eq!(p.a.w.statuses(), [(3, OK)]);
    assert_eq!(&p.b.w.memory.bytes[1000..1005], b"three");
}

#[test]
fn read_consumes_a_psn_per_response_packet() {
    for len in [0, 5, 1024, 1025, 200_000_u32] {
        let mut p = Pair::new(QpType::Rc);
        p.b.w.memory.fill(3, len as usize, 5);
        let before = p.a.qp.attr().sq_psn;
        p.a.send(1, SendOp::Read { remote_addr: 3, rkey: Rkey(KEY) }, 500, len);
        p.run();
        let wc = p.a.w.take_completion();
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (OK, WcOpcode::RdmaRead, len));
        let n = len as usize;
        assert_eq!(p.a.w.memory.bytes[500..500 + n], p.b.w.memory.bytes[3..3 + n]);
        let used = p.a.qp.attr().sq_psn.diff(before);
        assert_eq!(used as u32, len.div_ceil(1024).max(1));
        let chunks = len.div_ceil(64 << 10).max(1) as usize;
        assert_eq!(p.opcodes(1).len(), chunks, "a request per 64 KiB on a lossy link");
    }
}

/// Packets of one size share a system call. A packet with an address for all the others would be longer.
#[test]
fn long_write_without_immediate_is_split_into_write_only_packets_of_one_mtu() {
    let mut p = Pair::new(QpType::Rc);
    p.a.w.memory.fill(0, 5000, 3);
    let rkey = Rkey(KEY);
    p.a.send(1, SendOp::Write { remote_addr: 70_001, rkey }, 0, 5000);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
    assert_eq!(p.a.w.memory.bytes[..5000], p.b.w.memory.bytes[70_001..75_001]);
    let packets =
        p.log.iter().filter(|(from, _)| *from == 1).map(|(_, b)| Packet::parse(b).unwrap());
    let named: Vec<_> = packets
        .map(|p| (p.bth.opcode, p.reth.map(|r| (r.va, r.dma_len)), p.payload.len()))
        .collect();
    let only = |at, len: u32| (Opcode::RC_WRITE_ONLY, Some((at, len)), len as usize);
    let full = (0..4).map(|i| only(70_001 + 1024 * i, 1024));
    assert_eq!(named, full.chain([only(70_001 + 4096, 904)]).collect::<Vec<_>>());
}

/// Cases where the length of a WRITE is visible, or where a part of it must not take effect.
#[test]
fn write_with_immediate_and_uc_write_are_one_first_middle_last_message() {
    let codes = |qp_type, imm| {
        let mut p = Pair::new(qp_type);
        p.b.recv(1, 0, 0);
        let (remote_addr, rkey) = (0, Rkey(KEY));
        let op = match imm {
            Some(imm) => SendOp::WriteImm { remote_addr, rkey, imm },
            None => SendOp::Write { remote_addr, rkey },
        };
        p.a.send(1, op, 0, 2500);
        p.run();
        if imm.is_some() {
            assert_eq!(p.b.w.take_completion().byte_len, 2500);
        }
        p.opcodes(1)
    };
    assert_eq!(codes(QpType::Rc, Some([1; 4])), [0x06, 0x07, 0x09]);
    assert_eq!(codes(QpType::Uc, None), [0x26, 0x27, 0x28]);
}

#[test]
fn burst_of_messages_requests_one_ack() {
    let mut p = Pair::new(QpType::Rc);
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
    p.a.send(0, write, 0, 10);
    p.run();
    (1..=6).for_each(|i| p.a.send(i, write, 0, 10));
    p.run();
    assert_eq!(p.a.w.statuses().len(), 7);
    let asks = p.log.iter().filter(|(from, b)| *from == 1 && b[8] & 0x80 != 0).count();
    assert_eq!(asks, 2, "the first, when no round trip was known yet, and the last");
    (1..=16).for_each(|i| p.a.send(i, write, 0, 5 * 1024));
    p.a.poll(p.now);
    let asks: Vec<_> = p.a.w.packets.iter().map(|b| b[8] & 0x80 != 0).collect();
    assert!(asks.len() < 5 * 16, "a window was full");
    let longest = asks.split(|asks| *asks).map(<[_]>::len).max();
    assert!(longest <= Some(asks.len() / 4), "some in a window do: {longest:?}");
}

#[test]
fn local_protection_error_does_not_prevent_ack_of_earlier_request() {
    let mut p = Pair::new(QpType::Rc);
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
    p.a.send(0, write, 0, 10);
    p.run();
    p.a.send(1, write, 0, 10);
    p.a.post(2, write, &[Sge { lkey: Lkey(KEY + 1), ..sge(0, 10) }], SendFlags::SIGNALED);
    p.run();
    assert_eq!(p.a.w.statuses(), [(0, OK)]);
    assert!(p.tick());
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, WcStatus::LocProtErr)]);
}

#[test]
fn fetch_add_and_cmp_swap_return_the_original_value() {
    let mut p = Pair::new(QpType::Rc);
    p.b.w.memory.bytes[8..16].copy_from_slice(&40_u64.to_ne_bytes());
    let (remote_addr, rkey) = (8, Rkey(KEY));
    p.a.send(1, SendOp::FetchAdd { remote_addr, rkey, add: 2 }, 0, 8);
    p.a.send(2, SendOp::CmpSwap { remote_addr, rkey, compare: 42, swap: 7 }, 8, 8);
    p.a.send(3, SendOp::CmpSwap { remote_addr, rkey, compare: 42, swap: 9 }, 16, 8);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK), (3, OK)]);
    let got: Vec<u64> = p.a.w.memory.bytes[..24]
        .chunks(8)
        .map(|c| u64::from_ne_bytes(c.try_into().unwrap()))
        .collect();
    assert_eq!(got, [40, 42, 7]);
    assert_eq!(p.b.w.memory.bytes[8..16], 7_u64.to_ne_bytes());
}

#[test]
fn atomic_with_longer_sge_list_completes_with_byte_len_8() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::FetchAdd { remote_addr: 8, rkey: Rkey(KEY), add: 2 }, 0, 16);
    p.run();
    let completion = p.a.w.take_completion();
    assert_eq!((completion.status, completion.byte_len), (OK, 8));
}

#[test]
fn outstanding_reads_are_limited_by_max_rd_atomic() {
    let mut p = Pair::with(QpType::Rc, |a| (a.max_rd_atomic, a.max_dest_rd_atomic) = (2, 2));
    for i in 0..5 {
        p.a.send(i, SendOp::Read { remote_addr: i, rkey: Rkey(KEY) }, i * 10, 1);
    }
    p.a.poll(p.now);
    assert_eq!(p.a.w.packets.len(), 2);
    p.run();
    assert_eq!(p.a.w.statuses().len(), 5);
}

#[test]
fn fenced_send_waits_for_outstanding_reads() {
    let mut p = Pair::new(QpType::Rc);
    p.b.recv(0, 0, 100);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 4);
    p.a.post(2, SendOp::Send, &[sge(0, 4)], SendFlags::FENCE);
    p.a.poll(p.now);
    assert_eq!(p.a.w.packets.len(), 1);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
}

#[test]
fn unsignaled_requests_generate_no_completion() {
    let init = QpInit {
        qpn: Qpn::new(1),
        qp_type: QpType::Rc,
        caps: CAPS,
        sq_sig_all: false,
        has_srq: false,
    };
    let mut p = Pair::new(QpType::Rc);
    p.a.qp = Qp::new(&init);
    p.a.up(&attributes(1, 2));
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
    for i in 0..40 {
        let flags = if i % 8 == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        p.a.post(i, write, &[sge(0, 8)], flags);
        if i % 8 == 7 {
            p.run();
        }
    }
    assert_eq!(p.a.w.statuses(), [(7, OK), (15, OK), (23, OK), (31, OK), (39, OK)]);
}

#[test]
fn one_ack_for_a_burst_after_the_reply() {
    let mut p = Pair::new(QpType::Rc);
    for i in 0..4 {
        p.b.recv(i, 0, 10);
        p.a.send(i, SendOp::Send, 0, 10);
    }
    p.a.recv(0, 0, 10);
    p.a.poll(p.now);
    while let Some(bytes) = p.a.w.packets.pop_front() {
        p.b.feed(p.now, &bytes, 1);
    }
    assert!(p.b.qp.wants_ack() && p.b.w.packets.is_empty());
    p.b.send(9, SendOp::Send, 0, 10);
    p.b.poll(p.now);
    let ops: Vec<u8> = p.b.w.packets.iter().map(|b| b[0]).collect();
    assert_eq!(ops, [0x04, 0x11], "the reply, then one ACK for four messages");
    assert!(!p.b.qp.wants_ack());
    p.run();
    assert_eq!(p.a.w.statuses().len(), 5);
}

#[test]
fn read_responses_and_own_requests_alternate_on_the_link() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 60_000);
    p.b.send(2, SendOp::Write { remote_addr: 100_000, rkey: Rkey(KEY) }, 0, 30_000);
    p.a.poll(p.now);
    while let Some(bytes) = p.a.w.packets.pop_front() {
        p.b.feed(p.now, &bytes, 1);
    }
    let state = p.b.qp.poll_transmit(p.now, 40, &mut p.b.w);
    assert_eq!((state, p.b.w.packets.len()), (rdmux_transport::TxState::More, 40));
    let writes = p.b.w.packets.iter().filter(|b| (0x06..0x0b).contains(&b[0])).count();
    assert_eq!(writes, 16, "a quantum of requests between two of responses");
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(1, OK)], vec![(2, OK)]));
}

#[test]
fn lossless_link_uses_its_own_max_payload_instead_of_the_path_mtu() {
    let mut p = Pair::down(QpType::Rc, false);
    for side in [&mut p.a, &mut p.b] {
        side.w.link = LinkCaps {
            max_payload: 32 << 10,
            lossless: true,
            by_reference: false,
            piggybacks_acks: false,
        };
    }
    p.a.up(&attributes(1, 2));
    p.b.up(&attributes(2, 1));
    p.a.w.memory.fill(0, 300_000, 3);
    p.a.send(1, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 300_000);
    p.a.send(2, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 400_000, 300_000);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
    assert_eq!(p.a.w.memory.bytes[..300_000], p.a.w.memory.bytes[400_000..700_000]);
    assert_eq!(p.opcodes(1).len(), 10 + 1, "ten packets and one request for the whole READ");
}

#[test]
fn blocked_link_delays_request_and_ack_without_loss() {
    let mut p = Pair::new(QpType::Rc);
    p.b.recv(0, 0, 100);
    p.a.send(1, SendOp::Send, 0, 100);
    p.a.w.room = 0;
    assert_eq!(p.a.qp.poll_transmit(p.now, 8, &mut p.a.w), rdmux_transport::TxState::Blocked);
    p.a.w.room = usize::MAX;
    p.a.poll(p.now);
    let bytes = p.a.w.packets.pop_front().unwrap();
    p.b.feed(p.now, &bytes, 1);
    p.b.w.room = 0;
    p.b.poll(p.now);
    assert!(p.b.qp.wants_ack(), "an ACK that could not leave is still owed");
    p.b.w.room = usize::MAX;
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK)]);
}

#[test]
fn ack_precedes_the_reply_on_a_lossless_link_and_follows_it_on_a_lossy_one() {
    for (lossless, order) in [(true, [0x11, 0x04]), (false, [0x04, 0x11])] {
        let mut p = Pair::down(QpType::Rc, false);
        for side in [&mut p.a, &mut p.b] {
            side.w.link.lossless = lossless;
        }
        p.a.up(&attributes(1, 2));
        p.b.up(&attributes(2, 1));
        p.b.recv(0, 0, 100);
        p.a.send(1, SendOp::Send, 0, 100);
        p.a.poll(p.now);
        let bytes = p.a.w.packets.pop_front().unwrap();
        p.b.feed(p.now, &bytes, 1);
        p.b.send(2, SendOp::Send, 0, 100);
        p.b.poll(p.now);
        let opcodes: Vec<u8> = p.b.w.packets.iter().map(|bytes| bytes[0]).collect();
        assert_eq!(opcodes, order);
    }
}

#[test]
fn pending_ack_is_sent_before_transition_to_err_or_reset() {
    for end in [QpState::Err, QpState::Reset] {
        let mut p = Pair::new(QpType::Rc);
        p.b.recv(0, 0, 100);
        p.a.send(1, SendOp::Send, 0, 100);
        p.a.poll(p.now);
        let bytes = p.a.w.packets.pop_front().unwrap();
        p.b.feed(p.now, &bytes, 1);
        assert_eq!(p.b.w.statuses(), [(0, OK)]);
        assert!(p.b.qp.wants_ack());
        p.b.step(&attributes(2, 1), end);
        p.run();
        assert_eq!(p.a.w.statuses(), [(1, OK)], "{end:?}");
    }
}

#[test]
fn first_packet_in_rtr_raises_comm_est() {
    let mut p = Pair::down(QpType::Rc, false);
    p.a.up(&attributes(1, 2));
    p.b.step(&attributes(2, 1), QpState::Init);
    p.b.step(&attributes(2, 1), QpState::Rtr);
    p.b.recv(0, 0, 10);
    p.b.recv(1, 0, 10);
    p.a.send(1, SendOp::Send, 0, 10);
    p.a.send(2, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.b.w.events, [QpEvent::CommEst]);
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK)]);
}

#[test]
fn local_invalidate_waits_for_earlier_requests() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }, 0, 10);
    p.a.send(2, SendOp::LocalInv(Rkey(55)), 0, 0);
    p.a.send(3, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 10);
    p.a.poll(p.now);
    assert!(p.a.w.invalidated.is_empty());
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(p.a.w.invalidated, [Rkey(55)]);
}

/// With the smallest MTU such a message takes half of all PSNs.
#[test]
fn message_of_two_gib_arrives_at_mtu_256_and_4096_with_loss() {
    for (mtu, loss) in [(Mtu::M256, 0), (Mtu::M4096, 100_001)] {
        let mut p = Pair::with(QpType::Rc, |a| a.path_mtu = mtu);
        (p.a.w.memory.endless, p.b.w.memory.endless) = (true, true);
        let write = SendOp::WriteImm { remote_addr: 0, rkey: Rkey(KEY), imm: [0; 4] };
        p.b.recv(0, 0, 0);
        p.a.send(1, write, 0, 1 << 31);
        let mut seen = 0;
        while p.a.w.completions.is_empty() {
            p.a.poll(p.now);
            for bytes in std::mem::take(&mut p.a.w.packets) {
                seen += 1;
                if seen != loss {
                    p.b.feed(p.now, &bytes, 1);
                }
            }
            p.b.poll(p.now);
            for bytes in std::mem::take(&mut p.b.w.packets) {
                p.a.feed(p.now, &bytes, 2);
            }
        }
        assert_eq!(p.a.w.statuses(), [(1, OK)]);
        assert_eq!(p.b.w.take_completion().byte_len, 1 << 31);
        assert!(seen >= (1 << 31) / mtu.bytes() as usize);
    }
}

/// Over a link that piggybacks acknowledgements, a reply is one packet, and no other packet is sent.
#[test]
fn ack_is_piggybacked_on_a_reply() {
    let mut p = Pair::down(QpType::Rc, false);
    for (side, from, to) in [(&mut p.a, 1, 2), (&mut p.b, 2, 1)] {
        side.w.link = LinkCaps {
            max_payload: 4096,
            lossless: true,
            by_reference: false,
            piggybacks_acks: true,
        };
        side.up(&attributes(from, to));
        (0..4).for_each(|i| side.recv(i, 0, 100));
    }
    let one = |to: &mut Side2, from: &mut Side2, number| {
        assert_eq!((from.w.packets.len(), from.w.acks.len()), (1, 1));
        let (bytes, ack) = (from.w.packets.pop_front().unwrap(), from.w.acks.pop_front().unwrap());
        if let Some(psn) = ack {
            to.qp.handle_piggybacked_ack(Time(1), psn, &mut to.w);
        }
        to.feed(Time(1), &bytes, number);
        ack
    };
    let post = |side: &mut Side2, id| {
        side.post(id, SendOp::Send, &[sge(0, 8)], SendFlags::SIGNALED);
        assert_eq!(side.qp.poll_transmit(Time(1), 64, &mut side.w), rdmux_transport::TxState::Idle);
    };
    for round in 0..3 {
        post(&mut p.a, round);
        assert_eq!(one(&mut p.b, &mut p.a, 1).is_some(), round != 0);
        assert!(p.b.qp.wants_ack());
        post(&mut p.b, round);
        assert!(!p.b.qp.wants_ack(), "it was piggybacked on the answer");
        assert!(one(&mut p.a, &mut p.b, 2).is_some());
        let sent = p.a.w.completions.iter().filter(|(side, _)| *side == Side::Send).count();
        assert_eq!(sent as u64, round + 1);
    }
    // By itself the acknowledgement is a packet of its own.
    p.a.qp.flush_ack(Time(1), &mut p.a.w);
    assert_eq!(p.a.w.packets.front().unwrap()[0], 0x11);
    assert_eq!(p.a.w.acks, [None]);
}

/// An invalid acknowledgement is dropped, and so is one for a queue pair that cannot have sent anything.
#[test]
fn invalid_piggybacked_ack_is_dropped() {
    let mut p = Pair::new(QpType::Rc);
    p.a.qp.handle_piggybacked_ack(Time(1), Psn::new(12345), &mut p.a.w);
    assert_eq!(p.a.w.dropped, [Drop::Stale]);
    let mut idle = Side2::new(1, QpType::Rc, false);
    idle.qp.handle_piggybacked_ack(Time(1), Psn::new(0), &mut idle.w);
    assert_eq!(idle.w.dropped, [Drop::State]);
}
