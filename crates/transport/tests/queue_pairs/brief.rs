//! The fast path for short messages has the same effect as the general path.

use super::*;
use rdmux_transport::env::Side;

const LINK: LinkCaps =
    LinkCaps { max_payload: 4096, lossless: true, by_reference: false, piggybacks_acks: true };

fn pair(change: impl Fn(&mut QpAttr)) -> Pair {
    let mut pair = Pair::down(QpType::Rc, false);
    for (side, from, to) in [(&mut pair.a, 1, 2), (&mut pair.b, 2, 1)] {
        side.w.link = LINK;
        let mut attr = attributes(from, to);
        change(&mut attr);
        side.up(&attr);
    }
    pair.a.w.memory.fill(0, MEMORY, 3);
    pair
}

/// Delivers all packets from one side to the other, by the fast path where possible. Returns how
/// often each end used it.
fn cross(from: &mut Side2, to: &mut Side2, short: bool) -> [usize; 2] {
    let (now, number) = (Time(5), from.qp.qpn().get());
    let mut served = [0; 2];
    while short && let Some(request) = from.qp.brief_request(100, |_| Some(Pkey::DEFAULT)) {
        let mut bytes = request.header.to_vec();
        from.w.append(&request.payload, &mut bytes).unwrap();
        bytes.resize(bytes.len() + usize::from(request.pad), 0);
        from.w.acks.push_back(request.ack);
        from.w.packets.push_back(bytes);
        from.qp.brief_left(now);
        served[0] += 1;
    }
    if !(short && from.qp.is_idle()) {
        let _ = from.qp.poll_transmit(now, 64, &mut from.w);
    }
    from.qp.flush_ack(now, &mut from.w);
    while let Some(bytes) = from.w.packets.pop_front() {
        if let Some(psn) = from.w.acks.pop_front().unwrap() {
            to.qp.handle_piggybacked_ack(now, psn, &mut to.w);
        }
        let packet = Packet::parse(&bytes).unwrap();
        let plain = short && bytes.len() == packet.payload.len() + 12 + usize::from(packet.bth.pad);
        if plain && to.qp.handle_brief(&packet.bth, packet.payload, &mut to.w) {
            served[1] += 1;
        } else {
            to.feed(now, &bytes, number);
        }
    }
    served
}

/// The same random work by either path gives the same completions, memory and PSNs.
#[test]
fn brief_and_full_path_give_same_completions_memory_and_psns() {
    let mut served = [0; 2];
    for seed in 1..60_u64 {
        let mut random = seed;
        let mut twins = [pair(|_| {}), pair(|_| {})];
        for step in 0..60 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = random >> 33;
            let (len, at) = ((dice >> 8) as u32 % 130, (dice >> 16) % 4096);
            for p in &mut twins {
                let (side, other) =
                    if dice & 1 == 0 { (&mut p.a, &mut p.b) } else { (&mut p.b, &mut p.a) };
                let op = match dice >> 1 & 7 {
                    0 => SendOp::SendImm([1, 2, 3, 4]),
                    1 => SendOp::Write { remote_addr: at, rkey: Rkey(KEY) },
                    2 => SendOp::Read { remote_addr: at, rkey: Rkey(KEY) },
                    _ => SendOp::Send,
                };
                let room = if dice & 0x7f000 == 0 { len.saturating_sub(1) } else { 200 };
                let flags = match dice >> 4 & 7 {
                    0 => SendFlags::FENCE | SendFlags::SIGNALED,
                    1 => SendFlags::SOLICITED,
                    _ => SendFlags::SIGNALED,
                };
                let list = [sge(at + 8192, len)];
                let wr = SendWr { flags, ..SendWr::new(step, op, SendData::Sges(&list)) };
                // A queue pair that has failed or is full returns the same error by both paths.
                let _ = side.qp.post_send(Time(5), &wr);
                if dice & 0x700 != 0 {
                    let _ = other.qp.post_recv(&RecvWr { wr_id: step, sges: &[sge(at, room)] });
                }
            }
            let [long, short] = &mut twins;
            if dice & 0x30_0000 != 0 {
                cross(&mut long.a, &mut long.b, false);
                cross(&mut long.b, &mut long.a, false);
                for (sum, n) in served.iter_mut().zip(cross(&mut short.a, &mut short.b, true)) {
                    *sum += n;
                }
                cross(&mut short.b, &mut short.a, true);
            }
            if dice & 0xc0_0000 == 0 {
                twins.iter_mut().for_each(|p| _ = p.tick());
            }
            let [long, short] = &twins;
            for (long, short) in [(&long.a, &short.a), (&long.b, &short.b)] {
                let of = |side: &Side2, end| -> Vec<_> {
                    side.w
                        .completions
                        .iter()
                        .filter(|(at, _)| *at == end)
                        .map(|(_, c)| *c)
                        .collect()
                };
                for end in [Side::Send, Side::Recv] {
                    assert_eq!(of(long, end), of(short, end), "{seed} {step}");
                }
                assert_eq!(long.qp.attr(), short.qp.attr(), "{seed} {step}");
                assert_eq!(long.qp.poll_timeout(), short.qp.poll_timeout(), "{seed} {step}");
                assert!(
                    long.w.memory.bytes[..16384] == short.w.memory.bytes[..16384],
                    "{seed} {step}"
                );
            }
        }
    }
    assert!(served.iter().all(|n| *n > 300), "{served:?}");
}

#[test]
fn brief_path_refuses_long_immediate_fenced_draining_and_rnr_sends() {
    let request = |p: &Pair| p.a.qp.brief_request(64, |_| Some(Pkey::DEFAULT)).is_some();
    let with = |op, len, flags| {
        let mut p = pair(|_| {});
        p.a.post(1, op, &[sge(0, len)], flags);
        p
    };
    let plain = SendFlags::SIGNALED;
    assert!(request(&with(SendOp::Send, 64, plain)));
    assert!(!request(&with(SendOp::Send, 65, plain)));
    assert!(!request(&with(SendOp::SendImm([0; 4]), 8, plain)));
    assert!(!request(&with(SendOp::Send, 8, plain | SendFlags::FENCE)));
    let mut p = with(SendOp::Send, 8, plain);
    let sqd = QpAttr { state: QpState::Sqd, ..attributes(1, 2) };
    p.a.qp.modify(Time(1), &sqd, AttrMask::STATE, &mut p.a.w).unwrap();
    assert!(!request(&p));
    // Nothing is sent after a lost packet, or while a receiver is not ready.
    let mut p = with(SendOp::Send, 8, plain);
    cross(&mut p.a, &mut p.b, true);
    cross(&mut p.b, &mut p.a, true);
    p.a.post(2, SendOp::Send, &[sge(0, 8)], plain);
    assert!(!request(&p), "the receiver was not ready");
}

#[test]
fn brief_path_refuses_unexpected_psn_pkey_pad_version_or_missing_receive() {
    let bth = |p: &Pair| {
        let opcode = rdmux_wire::Opcode::RC_SEND_ONLY;
        rdmux_wire::Bth::new(opcode, Qpn::new(2), p.b.qp.attr().rq_psn)
    };
    type Change = fn(&mut rdmux_wire::Bth);
    let changes: [Change; 6] = [
        |b| b.psn = b.psn.add(1),
        |b| b.psn = b.psn.sub(1),
        |b| b.pkey = Pkey(0x1234),
        |b| b.pad = 1,
        |b| b.tver = 1,
        |b| b.opcode.0 |= 0x20,
    ];
    for change in changes {
        let mut p = pair(|_| {});
        p.b.recv(1, 0, 64);
        let mut bth = bth(&p);
        change(&mut bth);
        assert!(!p.b.qp.handle_brief(&bth, &[7; 8], &mut p.b.w), "{bth}");
        assert!(p.b.w.completions.is_empty() && p.b.w.memory.bytes[..8] == [0; 8]);
    }
    let mut p = pair(|_| {});
    let bth = bth(&p);
    assert!(!p.b.qp.handle_brief(&bth, &[7; 8], &mut p.b.w), "there is no receive");
    p.b.recv(1, 0, 4);
    assert!(!p.b.qp.handle_brief(&bth, &[7; 8], &mut p.b.w), "it is too short");
    assert!(p.b.qp.handle_brief(&bth, &[7; 4], &mut p.b.w));
    assert!(!p.b.qp.handle_brief(&bth, &[7; 4], &mut p.b.w), "once");
}
