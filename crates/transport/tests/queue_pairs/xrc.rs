//! XRC: one connection, several shared receive queues at its target.

use rdmux_wire::{Opcode, Service, XrcEth};

use super::*;
use rdmux_transport::PostError;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
/// The numbers of the target's shared receive queues.
pub(super) const ONE: u32 = 0x05_0000;
pub(super) const TWO: u32 = 0xff_0007;

/// Returns an initiator in RTS, and a target in RTR, which suffices for a target.
pub(super) fn connect() -> Pair {
    connect_with(LOSSY)
}

fn connect_with(link: LinkCaps) -> Pair {
    let mut p = Pair::down(QpType::Rc, false);
    p.a = Side2::new(1, QpType::XrcSend, false);
    p.b = Side2::new(2, QpType::XrcRecv, false);
    (p.a.w.link, p.b.w.link) = (link, link);
    p.b.w.memory.srqs = [(ONE, VecDeque::new()), (TWO, VecDeque::new())].into();
    p.a.up(&attributes(1, 2));
    p.b.step(&attributes(2, 1), QpState::Init);
    p.b.step(&attributes(2, 1), QpState::Rtr);
    p
}

/// Returns the key of memory in the process of a shared receive queue.
pub(super) fn key(srqn: u32) -> Rkey {
    Rkey(KEY + srqn)
}

pub(super) fn write(srqn: u32, remote_addr: u64) -> SendOp {
    SendOp::Write { remote_addr, rkey: key(srqn) }
}

pub(super) fn fetch_add(srqn: u32, remote_addr: u64, add: u64) -> SendOp {
    SendOp::FetchAdd { remote_addr, rkey: key(srqn), add }
}

impl Pair {
    /// Posts a send of the bytes at `at`, or a request that reads into them.
    pub(super) fn send_to(&mut self, srqn: u32, wr_id: u64, op: SendOp, at: u64, len: u32) {
        let sges = [sge(at, len)];
        let wr = SendWr { srqn, ..SendWr::new(wr_id, op, SendData::Sges(&sges)) };
        self.a.qp.post_send(self.now, &wr).unwrap();
    }

    /// Posts a receive to a shared receive queue of the target.
    pub(super) fn offer(&mut self, srqn: u32, wr_id: u64, addr: u64, length: u32) {
        let list = vec![Sge { addr, length, lkey: Lkey(key(srqn).0) }];
        self.b.w.memory.srqs.get_mut(&srqn).unwrap().push_back((wr_id, list));
    }

    /// Takes the initiator's pending packets, which are not delivered.
    pub(super) fn intercept(&mut self) -> Vec<Vec<u8>> {
        self.a.poll(self.now);
        self.a.w.packets.drain(..).collect()
    }

    /// Returns the syndromes of the target's responses.
    pub(super) fn syndromes(&self) -> Vec<u8> {
        let answers = self.log.iter().filter(|(from, _)| *from == 2);
        answers.map(|(_, b)| b[12]).collect()
    }
}

#[test]
fn xrc_operations_of_all_kinds_reach_two_srqs_over_one_connection() {
    let lossless =
        LinkCaps { max_payload: 8192, lossless: true, by_reference: false, piggybacks_acks: false };
    for link in [LOSSY, lossless] {
        let mut p = connect_with(link);
        p.a.w.memory.fill(0, 100_000, 3);
        p.b.w.memory.fill(500_000, 5000, 9);
        for (i, srqn) in [ONE, TWO, ONE, TWO].into_iter().enumerate() {
            p.offer(srqn, 20 + i as u64, i as u64 * 10_000, 6000);
        }
        p.send_to(ONE, 1, SendOp::Send, 0, 5000);
        p.send_to(TWO, 2, SendOp::SendImm([1, 2, 3, 4]), 5000, 3000);
        let read = SendOp::Read { remote_addr: 500_000, rkey: key(TWO) };
        p.send_to(TWO, 3, read, 200_000, 5000);
        p.send_to(ONE, 4, SendOp::SendInv(Rkey(77)), 8000, 10);
        p.send_to(ONE, 5, write(ONE, 600_000), 10_000, 4000);
        let write_imm = SendOp::WriteImm { remote_addr: 700_000, rkey: key(TWO), imm: [9; 4] };
        p.send_to(TWO, 6, write_imm, 20_000, 2000);
        p.send_to(TWO, 7, fetch_add(TWO, 800_000, 5), 300_000, 8);
        let rkey = key(ONE);
        let swap = SendOp::CmpSwap { remote_addr: 800_000, rkey, compare: 5, swap: 6 };
        p.send_to(ONE, 8, swap, 300_008, 8);
        p.send_to(ONE, 9, SendOp::LocalInv(Rkey(88)), 0, 0);
        p.run();
        assert_eq!(p.a.w.statuses(), (1..=9).map(|id| (id, OK)).collect::<Vec<_>>());
        let expected = [(ONE, 20, OK), (TWO, 21, OK), (ONE, 22, OK), (TWO, 23, OK)];
        assert_eq!(p.b.w.received, expected);
        let (a, b) = (&p.a.w.memory.bytes, &p.b.w.memory.bytes);
        assert_eq!(b[..5000], a[..5000]);
        assert_eq!(b[10_000..13_000], a[5000..8000]);
        assert_eq!(b[20_000..20_010], a[8000..8010]);
        assert_eq!(a[200_000..205_000], b[500_000..505_000]);
        assert_eq!(b[600_000..604_000], a[10_000..14_000]);
        assert_eq!(b[700_000..702_000], a[20_000..22_000]);
        assert_eq!(b[800_000..800_008], 6_u64.to_ne_bytes());
        assert_eq!(a[300_008..300_016], 5_u64.to_ne_bytes());
        assert_eq!(
            (&p.b.w.invalidated[..], &p.a.w.invalidated[..]),
            (&[Rkey(77)][..], &[Rkey(88)][..])
        );
        assert_eq!(p.b.w.events, [QpEvent::CommEst]);
        assert_eq!(p.b.qp.state(), QpState::Rtr);
        headers_are_right(&p);
    }
}

/// Every packet of a request names its queue, middle and last ones included. No response does.
fn headers_are_right(p: &Pair) {
    let mut named = Vec::new();
    for (from, bytes) in &p.log {
        let packet = Packet::parse(bytes).unwrap();
        assert_eq!(packet.bth.opcode.service(), Service::Xrc);
        assert_eq!(
            (packet.bth.opcode.is_response(), packet.xrceth.is_none()),
            (*from == 2, *from == 2)
        );
        named.extend(packet.xrceth.map(|h| h.srqn));
    }
    named.dedup();
    assert_eq!(named, [ONE, TWO, ONE, TWO, ONE]);
    if !p.a.w.link.lossless {
        let sends = [0xa0, 0xa1, 0xa1, 0xa1, 0xa2, 0xa0, 0xa1, 0xa3, 0xac, 0xb7];
        assert_eq!(p.opcodes(1)[..10], sends);
    }
}

#[test]
fn unknown_srqn_is_nak_invalid_request() {
    let mut p = connect();
    p.offer(ONE, 20, 0, 100);
    p.send_to(ONE, 1, write(ONE, 0), 0, 10);
    p.send_to(ONE + 1, 2, SendOp::Send, 0, 10);
    p.send_to(ONE, 3, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, WcStatus::RemInvReqErr), (3, FLUSHED)]);
    assert_eq!(p.syndromes(), [0x61]);
    assert_eq!(p.b.w.events, [QpEvent::CommEst, QpEvent::AccessErr]);
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Err, QpState::Err));
    assert_eq!(p.b.w.received, [], "the receive is another's");
}

/// All packets of a message name one queue. The receive in use fails in the queue that it was taken from.
#[test]
fn srqn_changing_within_a_message_is_nak_invalid_request() {
    for second in [1, 2] {
        let mut p = connect();
        p.offer(ONE, 20, 0, 5000);
        p.offer(TWO, 21, 0, 5000);
        p.send_to(ONE, 1, SendOp::Send, 0, 3000);
        let mut packets = p.intercept();
        packets[second][12..16].copy_from_slice(&XrcEth { srqn: TWO }.to_bytes());
        for bytes in &packets {
            p.b.feed(p.now, bytes, 1);
        }
        p.run();
        assert_eq!(p.b.w.received, [(ONE, 20, WcStatus::RemInvReqErr)]);
        assert_eq!(p.b.w.events, [QpEvent::CommEst, QpEvent::ReqErr]);
        assert_eq!(p.a.w.statuses(), [(1, WcStatus::RemInvReqErr)]);
        assert_eq!(p.b.w.memory.srqs[&TWO].len(), 1);
    }
}

#[test]
fn rkey_is_checked_against_the_process_that_owns_the_srq() {
    let mut p = connect();
    p.send_to(ONE, 1, write(ONE, 0), 0, 10);
    p.send_to(ONE, 2, write(TWO, 0), 0, 10);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, OK), (2, WcStatus::RemAccessErr)]);
    assert_eq!(p.b.w.events, [QpEvent::CommEst, QpEvent::AccessErr]);
}

#[test]
fn empty_srq_is_rnr_nak_although_another_srq_has_receives() {
    let mut p = connect();
    p.offer(TWO, 21, 0, 100);
    p.send_to(ONE, 1, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.b.w.received, []);
    p.offer(ONE, 20, 0, 100);
    p.tick();
    p.run();
    assert_eq!((p.b.w.received, p.a.w.statuses()), (vec![(ONE, 20, OK)], vec![(1, OK)]));
}

#[test]
fn xrc_ini_drops_requests_xrc_tgt_drops_responses_and_both_drop_rc_opcodes() {
    let mut p = connect();
    let op = |code: u8| vec![code, 0, 0xff, 0xff, 0, 0, 0, 1, 0x80];
    for code in 0xa0..=0xb7_u8 {
        let response = Opcode(code).is_response();
        let mut bytes = op(code);
        bytes.resize(80, 0);
        let (end, from) = if response { (&mut p.b, 1) } else { (&mut p.a, 2) };
        end.feed(p.now, &bytes, from);
        let refused: &[_] = if code == 0xb5 { &[] } else { &[Drop::Opcode] };
        assert_eq!(end.w.dropped.drain(..).collect::<Vec<_>>(), refused, "{code:#x}");
    }
    for code in 0..=0x17_u8 {
        let mut bytes = op(code);
        bytes.resize(80, 0);
        for (end, from) in [(&mut p.a, 2), (&mut p.b, 1)] {
            end.feed(p.now, &bytes, from);
            let dropped = std::mem::take(&mut end.w.dropped);
            assert!(code == 0x15 || dropped == [Drop::Opcode], "RC's {code:#x}");
        }
    }
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Rts, QpState::Rtr));
    assert!(p.b.w.events.is_empty() && p.b.w.packets.is_empty());
}

#[test]
fn post_recv_on_xrc_qps_and_post_send_on_xrc_tgt_are_refused() {
    let mut p = connect();
    let recv = RecvWr { wr_id: 2, sges: &[] };
    for (end, name) in [(&mut p.a, QpType::XrcSend), (&mut p.b, QpType::XrcRecv)] {
        assert_eq!(end.qp.post_recv(&recv), Err(PostError::NoReceiveQueue(name)));
    }
    p.b.step(&attributes(2, 1), QpState::Rts);
    let send = SendWr::new(1, SendOp::Send, SendData::Sges(&[]));
    assert_eq!(p.b.qp.post_send(p.now, &send), Err(PostError::NoSendQueue(QpType::XrcRecv)));
    p.b.step(&attributes(2, 1), QpState::Err);
    assert!(p.b.qp.post_send(p.now, &send).is_err());
    p.b.poll(p.now);
    assert!(p.b.w.completions.is_empty());
}

#[test]
fn xrc_ini_and_tgt_allocate_only_the_queues_they_use() {
    let caps = QpCaps { max_send_wr: 1000, max_recv_wr: 1000, ..CAPS };
    let size = |qp_type| {
        let qpn = Qpn::new(1);
        let init = QpInit { qpn, qp_type, caps, sq_sig_all: true, has_srq: false };
        let queues = Qp::queues_size(&init);
        assert!(Qp::new(&init).footprint() <= size_of::<Qp>() + queues);
        queues
    };
    assert!(size(QpType::XrcRecv) < 200, "{}", size(QpType::XrcRecv));
    assert!(size(QpType::XrcSend) < size(QpType::Rc));
}

/// The process that posted the receive gets its completion, also when another process resets the queue pair.
#[test]
fn consumed_xrc_receive_is_flushed_once_in_the_srq_it_came_from() {
    for state in [QpState::Err, QpState::Reset] {
        for there in [true, false] {
            let mut p = connect();
            p.offer(ONE, 20, 0, 5000);
            p.send_to(ONE, 1, SendOp::Send, 0, 3000);
            let packets = p.intercept();
            p.b.feed(p.now, &packets[0], 1);
            p.b.w.selected = Some(TWO);
            if !there {
                p.b.w.memory.srqs.remove(&ONE);
            }
            p.b.step(&attributes(2, 1), state);
            p.b.step(&attributes(2, 1), QpState::Reset);
            p.b.poll(p.now);
            let flushed: &[_] = if there { &[(ONE, 20, FLUSHED)] } else { &[] };
            assert_eq!(p.b.w.received, flushed);
            assert_eq!(p.b.w.events, [QpEvent::CommEst], "and no LAST_WQE_REACHED");
        }
    }
}

/// A repeated READ request names the queue of the first, or is not answered.
#[test]
fn duplicate_read_with_another_srqn_is_not_answered() {
    let mut p = connect();
    let read = SendOp::Read { remote_addr: 0, rkey: key(ONE) };
    p.send_to(ONE, 1, read, 0, 10);
    p.send_to(TWO, 2, write(TWO, 0), 0, 10);
    p.run();
    let mut request = p.log[0].1.clone();
    p.b.feed(p.now, &request, 1);
    p.b.poll(p.now);
    assert_eq!(p.b.w.packets.drain(..).map(|b| b[0]).collect::<Vec<_>>(), [0xb0]);
    request[12..16].copy_from_slice(&XrcEth { srqn: TWO }.to_bytes());
    p.b.feed(p.now, &request, 1);
    p.b.poll(p.now);
    assert!(p.b.w.packets.is_empty());
}

#[test]
fn lost_packets_are_retransmitted_with_their_srqn() {
    let mut p = connect();
    p.a.w.memory.fill(0, 20_000, 1);
    p.offer(TWO, 21, 0, 20_000);
    p.send_to(TWO, 1, SendOp::Send, 0, 20_000);
    p.run_with(|from, n, _| !(from == 1 && n == 5));
    assert_eq!((p.b.w.received, p.a.w.statuses()), (vec![(TWO, 21, OK)], vec![(1, OK)]));
    assert_eq!(p.a.w.memory.bytes[..20_000], p.b.w.memory.bytes[..20_000]);
}

#[test]
fn xrc_ini_and_tgt_accept_the_modify_masks_of_rc() {
    use QpState::{Init, Reset, Rtr, Rts};
    for qp_type in [QpType::XrcSend, QpType::XrcRecv] {
        let mut end = Side2::new(1, qp_type, qp_type == QpType::XrcRecv);
        for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
            let attr = QpAttr { state: to, ..attributes(1, 2) };
            let mask = required(from, to, QpType::Rc);
            end.qp.modify(Time::ZERO, &attr, mask, &mut end.w).unwrap();
        }
        assert_eq!(end.qp.state(), Rts);
    }
}
