//! Packets that no correct peer sends.

use rdmux_wire::{Bth, Opcode};

use super::*;

/// A small pseudorandom generator, without dependencies and reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// Random opcodes, headers, PSNs near those in use, and payload lengths, in the middle of real
/// work: nothing panics, and every dropped packet is counted.
#[test]
fn random_packets_do_not_panic() {
    let mut rnd = Random(7);
    for round in 0..600 {
        let qp_type = [QpType::Rc, QpType::Uc, QpType::Ud][round % 3];
        let mut p = Pair::new(qp_type);
        if qp_type == QpType::Rc {
            let rkey = Rkey(KEY);
            p.a.send(1, SendOp::Read { remote_addr: 0, rkey }, 0, 5000);
            p.a.send(2, SendOp::FetchAdd { remote_addr: 0, rkey, add: 1 }, 0, 8);
            p.a.send(3, SendOp::Write { remote_addr: 0, rkey }, 0, 5000);
        }
        p.a.recv(4, 0, 3000);
        p.a.poll(p.now);
        for _ in 0..60 {
            let service = [0x00, 0x20, 0x60][round % 3];
            let opcode = Opcode(service | (rnd.next() & 0x1f) as u8);
            let base = if opcode.is_response() {
                attributes(1, 2).sq_psn
            } else {
                attributes(1, 2).rq_psn
            };
            let mut bth = Bth::new(opcode, Qpn::new(1), base.add(rnd.next() % 12).sub(2));
            bth.pad = (rnd.next() % 2) as u8;
            let mut bytes = bth.to_bytes().to_vec();
            let len = [0, 4, 28, 100, 1024, 1028, 1052][rnd.next() as usize % 7];
            bytes.extend((0..len).map(|_| rnd.next() as u8));
            p.a.feed(p.now, &bytes, 2);
            p.a.poll(p.now);
        }
        p.tick();
        p.a.poll(p.now);
    }
}

#[test]
fn wrong_source_pkey_opcode_or_state_is_dropped_and_counted() {
    let mut p = Pair::new(QpType::Rc);
    let mut bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), attributes(1, 2).rq_psn);
    p.a.feed(p.now, &bth.to_bytes(), 9);
    bth.pkey = Pkey(0x1234);
    p.a.feed(p.now, &bth.to_bytes(), 2);
    bth.opcode = Opcode::UC_SEND_ONLY;
    bth.pkey = Pkey::DEFAULT;
    p.a.feed(p.now, &bth.to_bytes(), 2);
    p.a.step(&attributes(1, 2), QpState::Err);
    bth.opcode = Opcode::RC_SEND_ONLY;
    p.a.feed(p.now, &bth.to_bytes(), 2);
    assert_eq!(p.a.w.dropped, [Drop::Source, Drop::Pkey, Drop::Opcode, Drop::State]);
}

/// A packet in sequence whose length contradicts its opcode is an invalid request.
#[test]
fn packet_length_contradicting_opcode_is_nak_invalid_request() {
    for (first, payload, pad) in [
        (Opcode::RC_SEND_FIRST, 1000, 0),
        (Opcode::RC_SEND_ONLY, 1028, 0),
        (Opcode::RC_SEND_LAST, 4, 0),
        (Opcode::RC_SEND_MIDDLE, 1024, 0),
        (Opcode::RC_WRITE_MIDDLE, 1024, 0),
        (Opcode::RC_SEND_ONLY, 5, 1),
    ] {
        let mut p = Pair::new(QpType::Rc);
        p.a.recv(1, 0, 5000);
        let mut bth = Bth::new(first, Qpn::new(1), attributes(1, 2).rq_psn);
        bth.pad = pad;
        let mut bytes = bth.to_bytes().to_vec();
        bytes.resize(12 + payload, 0);
        p.a.feed(p.now, &bytes, 2);
        assert_eq!(p.a.qp.state(), QpState::Err, "{first}");
        assert_eq!(p.a.w.packets.pop_front().unwrap()[12], 0x61, "{first}");
        assert_eq!(p.a.w.statuses(), [(1, WcStatus::WrFlushErr)]);
    }
}

#[test]
fn ack_or_nak_for_unsent_psn_is_dropped() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 10);
    p.a.poll(p.now);
    for (psn, syndrome) in [(1_u32, 0x1f), (2, 0x60), (500, 0x62), (0xff_ffff, 0x1f), (0, 0x9f)] {
        let base = attributes(1, 2).sq_psn;
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(1), base.add(psn));
        let mut bytes = bth.to_bytes().to_vec();
        bytes.extend([syndrome, 0, 0, 0]);
        p.a.feed(p.now, &bytes, 2);
    }
    assert!(p.a.w.completions.is_empty());
    assert_eq!(p.a.w.dropped.len(), 5);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn response_of_wrong_opcode_or_length_is_bad_response_error() {
    for (opcode, len) in [(Opcode::RC_READ_RESPONSE_ONLY, 8), (Opcode::RC_ATOMIC_ACKNOWLEDGE, 8)] {
        for op in [
            SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) },
            SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) },
        ] {
            let mut p = Pair::new(QpType::Rc);
            p.a.send(1, op, 0, 12);
            p.a.poll(p.now);
            let bth = Bth::new(opcode, Qpn::new(1), attributes(1, 2).sq_psn);
            let mut bytes = bth.to_bytes().to_vec();
            bytes.resize(12 + 4 + len, 0);
            p.a.feed(p.now, &bytes, 2);
            assert_eq!(p.a.w.statuses(), [(1, WcStatus::BadRespErr)], "{opcode}");
        }
    }
}

/// The response acknowledges the requests before the one that fails here because of its memory. Nothing
/// waits for a response then, and the oldest entry's slot holds a request that completed long ago.
#[test]
fn response_to_a_locally_failed_request_writes_no_memory() {
    for (opcode, done) in [
        (
            Opcode::RC_ATOMIC_ACKNOWLEDGE,
            SendOp::FetchAdd { remote_addr: 0, rkey: Rkey(KEY), add: 1 },
        ),
        (Opcode::RC_READ_RESPONSE_ONLY, SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) }),
    ] {
        let mut p = Pair::new(QpType::Rc);
        let write = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
        p.a.send(0, done, 64, 8);
        for wr_id in 1..14 {
            p.a.send(wr_id, write, 0, 8);
        }
        p.run();
        assert_eq!(p.a.w.completions.len(), 14);
        p.a.w.completions.clear();
        p.a.w.memory.bytes[64..72].fill(7);
        p.a.send(14, write, 0, 8);
        let half_wrong = [sge(0, 1024), Sge { addr: 0, length: 8, lkey: Lkey(1) }];
        p.a.post(15, write, &half_wrong, SendFlags::SIGNALED);
        p.a.poll(p.now);
        assert!(p.a.w.completions.is_empty(), "the one before is on its way");
        let mut bytes =
            Bth::new(opcode, Qpn::new(1), attributes(1, 2).sq_psn.add(15)).to_bytes().to_vec();
        bytes.resize(12 + 4 + 8, 0);
        p.a.feed(p.now, &bytes, 2);
        p.a.poll(p.now);
        let expected = [(14, WcStatus::Success), (15, WcStatus::LocProtErr)];
        assert_eq!(p.a.w.statuses(), expected, "{opcode}");
        assert_eq!(p.a.w.memory.bytes[64..72], [7; 8], "{opcode}");
        assert_eq!(p.a.qp.state(), QpState::Err);
    }
}
