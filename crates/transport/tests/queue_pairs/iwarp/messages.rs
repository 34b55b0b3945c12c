//! All operations between two ends, over streams of every kind.

use rdmux_wire::Rkey;

use super::pipe::{AT_ONCE, Carriage};
use super::*;
use rdmux_transport::iwarp::Rtr;
use rdmux_transport::wr::{MwBind, WcFlags, WcOpcode};

/// Sizes around padding, markers and the maximum of a frame.
const SIZES: [u32; 9] = [0, 1, 3, 4, 110, 111, 509, 1442, 5000];
const RKEY: Rkey = Rkey(KEY);

fn write(remote_addr: u64) -> SendOp {
    SendOp::Write { remote_addr, rkey: RKEY }
}

fn read(remote_addr: u64) -> SendOp {
    SendOp::Read { remote_addr, rkey: RKEY }
}

fn run_all(params: &StreamParams, mulpdu: u32, carriage: Carriage) {
    let mut pair = Pair::with(params, mulpdu, carriage);
    exchange(&mut pair);
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Rts, QpState::Rts));
    assert_eq!((pair.a.qp.wish(), pair.b.qp.wish()), (Wish::Keep, Wish::Keep));
}

/// Sends SENDs, WRITEs and READs of every size both ways at once, then atomics.
fn exchange(pair: &mut Pair) {
    for (end, seed) in [(&mut pair.a, 1), (&mut pair.b, 2)] {
        end.w.memory.fill(0, 0x10000, seed);
    }
    for (i, &size) in SIZES.iter().enumerate() {
        let (id, at) = (i as u64, i as u64 * 0x1_0000 + 0x10_000);
        for end in [&mut pair.a, &mut pair.b] {
            end.recv(id, at, size);
            end.send(id * 10, SendOp::Send, 7, size);
            end.send(id * 10 + 1, write(at + 0x4000), 0x1000, size);
            end.send(id * 10 + 2, read(0x2000), at + 0x8000, size);
        }
        pair.run();
        for end in [&mut pair.a, &mut pair.b] {
            assert_eq!(end.done(Side::Send), good([id * 10, id * 10 + 1, id * 10 + 2]));
            let received = end.completion();
            assert_eq!((received.wr_id, received.byte_len), (id, size));
            assert!(end.w.completions.is_empty());
        }
        for (to, from) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
            for (offset, source) in [(0, 7), (0x4000, 0x1000), (0x8000, 0x2000)] {
                let (at, len) = (at as usize + offset, size as usize);
                let there = &from.w.memory.bytes[source..source + len];
                assert!(to.w.memory.bytes[at..at + len] == *there, "{size} bytes at {at:#x}");
                assert_eq!(
                    to.w.memory.bytes[at + len],
                    0,
                    "nothing behind {size} bytes at {at:#x}"
                );
            }
        }
    }
    atomics(pair);
}

fn atomics(pair: &mut Pair) {
    pair.b.w.memory.bytes[0xf000..0xf008].copy_from_slice(&7_u64.to_ne_bytes());
    let (remote_addr, rkey) = (0xf000, RKEY);
    pair.a.send(1, SendOp::FetchAdd { remote_addr, rkey, add: 5 }, 0xf100, 8);
    pair.a.send(2, SendOp::CmpSwap { remote_addr, rkey, compare: 12, swap: 100 }, 0xf108, 8);
    pair.a.send(3, SendOp::CmpSwap { remote_addr, rkey, compare: 12, swap: 200 }, 0xf110, 8);
    pair.a.send(4, read(0xf000), 0xf118, 8);
    pair.run();
    let before = pair.a.w.completions.len();
    assert_eq!((before, pair.a.done(Side::Send)), (4, good([1, 2, 3, 4])));
    let value =
        |at: usize| u64::from_ne_bytes(pair.a.w.memory.bytes[at..at + 8].try_into().unwrap());
    assert_eq!([value(0xf100), value(0xf108), value(0xf110), value(0xf118)], [7, 12, 100, 100]);
}

const CHUNKS: [usize; 3] = [1, 0, usize::MAX];
const ROOMS: [usize; 3] = [1, 333, usize::MAX];

#[test]
fn every_message_arrives_for_any_tcp_chunking_and_mulpdu() {
    for chunk in CHUNKS {
        for room in ROOMS {
            for mulpdu in [128, 1460, 65_535] {
                for direct in [false, true] {
                    run_all(&PLAIN, mulpdu, Carriage { chunk, room, direct });
                }
            }
        }
    }
}

#[test]
fn every_message_arrives_with_any_combination_of_crc_and_markers() {
    for (crc, tx_markers, rx_markers) in
        [(true, false, false), (false, true, false), (true, true, true), (true, false, true)]
    {
        let params = StreamParams { crc, tx_markers, rx_markers, ..PLAIN };
        for chunk in CHUNKS {
            for (room, mulpdu) in [(1, 1460), (333, 128), (usize::MAX, 65_535)] {
                run_all(&params, mulpdu, Carriage { chunk, room, direct: false });
            }
        }
    }
}

/// The ready-to-receive frame counts in sequence numbers and marker positions, and if it is a Read,
/// the initiator has yet to receive its response.
#[test]
fn messages_continue_after_each_kind_of_rtr_frame() {
    use rdmux_wire::iwarp::fpdu::Framing;
    use rdmux_wire::iwarp::rtr;
    for kind in [Rtr::Send, Rtr::Write, Rtr::Read] {
        for markers in [false, true] {
            let params = StreamParams {
                rtr: Some(kind),
                crc: true,
                tx_markers: markers,
                rx_markers: markers,
                ..PLAIN
            };
            let mut pair = Pair::with(&params, 1460, AT_ONCE);
            if kind == Rtr::Read {
                let framing = Framing { crc: true, markers };
                pair.a.feed(Time(1), &rtr::read_response(framing, &rtr::READ_REQUEST));
            }
            exchange(&mut pair);
        }
    }
}

#[test]
fn rtr_read_counts_against_ord_until_its_response() {
    let params = StreamParams { rtr: Some(Rtr::Read), ord: 1, ..PLAIN };
    let mut end = End::attached(&params);
    end.send(1, read(0), 0, 8);
    assert!(end.sent().is_empty(), "one is outstanding");
    let framing = rdmux_wire::iwarp::fpdu::Framing::default();
    let request = rdmux_wire::iwarp::rtr::READ_REQUEST;
    end.feed(Time(1), &rdmux_wire::iwarp::rtr::read_response(framing, &request));
    assert_eq!(end.sent().len(), 2 + 18 + 28 + 4);
}

#[test]
fn completions_carry_solicited_invalidated_stag_and_immediate() {
    let mut pair = Pair::new();
    pair.b.recv(1, 0, 64);
    pair.b.recv(2, 0, 64);
    pair.b.recv(3, 0, 64);
    pair.a.post(1, SendOp::Send, &[sge(0, 4)], SendFlags::SOLICITED);
    pair.a.post(2, SendOp::SendInv(Rkey(77)), &[sge(0, 4)], SendFlags::SOLICITED);
    let write = SendOp::WriteImm { remote_addr: 0x100, rkey: RKEY, imm: *b"four" };
    pair.a.post(3, write, &[sge(0, 3000)], SendFlags::SOLICITED);
    pair.run();
    let [first, second, third] = core::array::from_fn(|_| pair.b.completion());
    assert!(first.solicited && second.solicited && third.solicited);
    assert_eq!((second.flags, second.invalidated), (WcFlags::WITH_INV, Rkey(77)));
    assert_eq!(pair.b.w.invalidated, [Rkey(77)]);
    assert_eq!((third.opcode, third.imm), (WcOpcode::RecvRdmaWithImm, *b"four"));
    assert_eq!((third.flags, third.byte_len), (WcFlags::WITH_IMM, 3000));
    assert_eq!(pair.a.done(Side::Send), good([1, 2, 3]));
}

#[test]
fn inline_data_and_sge_lists_are_each_one_message() {
    let mut pair = Pair::new();
    pair.a.w.memory.fill(0, 0x1000, 3);
    pair.b.w.memory.fill(0x3000, 0x1000, 4);
    let lists = [sge(0x4000, 100), sge(0x5000, 0), sge(0x6000, 2900)];
    pair.b.qp.post_recv(&rdmux_transport::wr::RecvWr { wr_id: 1, sges: &lists }).unwrap();
    pair.b.recv(2, 0x7000, 10);
    pair.a.post(1, SendOp::Send, &[sge(0, 1000), sge(5, 2000)], SendFlags::empty());
    let parts: [&[u8]; 2] = [b"hello ", b"you"];
    let wr = SendWr::new(2, SendOp::Send, SendData::Inline(&parts));
    pair.a.qp.post_send(Time::ZERO, &wr).unwrap();
    pair.a.post(3, read(0x3000), &[sge(0x8000, 10), sge(0x9000, 1990)], SendFlags::empty());
    pair.run();
    assert_eq!(pair.b.done(Side::Recv), good([1, 2]));
    assert_eq!(pair.a.done(Side::Send), good([1, 2, 3]));
    let (a, b) = (&pair.a.w.memory.bytes, &pair.b.w.memory.bytes);
    assert_eq!(b[0x4000..0x4064], a[..100]);
    assert_eq!(b[0x6000..0x6000 + 900], a[100..1000]);
    assert_eq!(b[0x6000 + 900..0x6000 + 2900], a[5..2005]);
    assert_eq!(&b[0x7000..0x7009], b"hello you");
    assert_eq!((&a[0x8000..0x800a], &a[0x9000..0x97c6]), (&b[0x3000..0x300a], &b[0x300a..0x37d0]));
}

#[test]
fn local_invalidate_and_bind_mw_are_executed_in_order() {
    let mut pair = Pair::new();
    pair.a.send(1, read(0), 0x100, 64);
    pair.a.send(2, SendOp::LocalInv(Rkey(9)), 0, 0);
    let access = Access::REMOTE_READ;
    let bind = MwBind { rkey: Rkey(5), lkey: rdmux_wire::Lkey(KEY), addr: 0, length: 8, access };
    pair.a.send(3, SendOp::BindMw(bind), 0, 0);
    pair.a.poll(Time(1));
    assert!(pair.a.w.invalidated.is_empty(), "the READ is not answered");
    pair.run();
    assert_eq!(pair.a.done(Side::Send), good([1, 2, 3]));
    assert_eq!((pair.a.w.invalidated.len(), pair.a.w.bound.len()), (1, 1));
}

#[test]
fn fenced_write_waits_for_reads_and_ord_limits_outstanding_reads() {
    let mut pair = Pair::with(&StreamParams { ord: 2, ..PLAIN }, 1460, AT_ONCE);
    let request = 2 + 18 + 28 + 4;
    for id in 1..=3 {
        pair.a.send(id, read(0), 0x100, 64);
    }
    assert_eq!(pair.a.sent().len(), 2 * request, "as many as the peer serves");
    let mut pair = Pair::with(&StreamParams { ord: 2, ..PLAIN }, 1460, AT_ONCE);
    pair.a.send(1, read(0), 0x100, 64);
    pair.a.post(2, write(0), &[sge(0, 8)], SendFlags::FENCE);
    pair.a.poll(Time(1));
    assert_eq!(pair.a.w.stream.bytes.len(), request);
    pair.run();
    assert_eq!(pair.a.done(Side::Send), good([1, 2]));
}

#[test]
fn message_consumes_srq_receive_and_err_raises_last_wqe_reached() {
    let mut end = End::new(1, true);
    end.qp.attach(Time::ZERO, &PLAIN, 1460, &mut end.w).unwrap();
    end.w.memory.srq.push_back((42, vec![sge(0x100, 64)]));
    let mut other = End::attached(&StreamParams { initiator: false, ..PLAIN });
    other.send(1, SendOp::Send, 0, 64);
    let bytes = other.sent();
    end.feed(Time(1), &bytes);
    assert_eq!(end.done(Side::Recv), good([42]));
    end.go_to(QpState::Err).unwrap();
    assert_eq!(end.events(), [QpEvent::LastWqeReached]);
}

#[test]
fn one_mib_write_is_sent_in_17_fpdus_without_padding() {
    let mut pair = Pair::with(&PLAIN, 65_535, AT_ONCE);
    pair.a.w.memory.fill(0, 1 << 20, 9);
    pair.a.send(1, write(0), 0, 1 << 20);
    pair.a.poll(Time(1));
    let overhead = pair.a.w.stream.bytes.len() - (1 << 20);
    assert_eq!(overhead, 17 * (2 + 14 + 4), "seventeen frames without padding");
    pair.run();
    assert!(pair.a.w.memory.bytes == pair.b.w.memory.bytes);
}

/// The program's requests and the responses to the peer alternate: neither wait for all of the
/// other.
#[test]
fn read_responses_and_own_requests_alternate() {
    let mut pair = Pair::new();
    for id in 0..3 {
        pair.a.send(id, read(0), 0x100, 8);
    }
    let requests = pair.a.sent();
    pair.b.feed(Time(1), &requests);
    for id in 0..3 {
        pair.b.send(id, write(0), 0x200, 8);
    }
    let sent = pair.b.sent();
    let frames: Vec<u8> = sent.chunks(2 + 14 + 8 + 4).map(|frame| frame[3] & 0x0f).collect();
    let (write, response) = (0, 2);
    assert_eq!(frames, [write, response, write, response, write, response]);
}

#[test]
fn unsignaled_requests_generate_no_completion() {
    let init = QpInit { sq_sig_all: false, ..*End::new(1, false).qp.init() };
    let mut pair = Pair::new();
    pair.a.qp = Qp::new(&init);
    pair.a.qp.attach(Time::ZERO, &PLAIN, 1460, &mut pair.a.w).unwrap();
    for round in 0..50 {
        pair.a.post(round, write(0), &[sge(0, 8)], SendFlags::empty());
        pair.a.post(round, read(0), &[sge(0, 8)], SendFlags::SIGNALED);
        pair.run();
        assert_eq!(pair.a.done(Side::Send), good([round]));
    }
}
