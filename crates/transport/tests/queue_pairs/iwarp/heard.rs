//! Input from other implementations: Terminates, segments of any size, interleaved messages.

use rdmux_transport::iwarp::Rtr;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest};
use rdmux_wire::iwarp::terminate::{Fault, Terminate};
use rdmux_wire::{Rkey, Stag};

use super::*;

const RKEY: Rkey = Rkey(KEY);
const STAG: Stag = Stag(KEY);

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    let framing = Framing::default();
    let header = header.to_buf();
    let mut bytes = vec![0; framing.frame_len(0, header.len() + payload.len())];
    framing.emit(0, &[&header, payload], &mut bytes);
    bytes
}

fn tagged(opcode: Opcode, last: bool, to: u64, payload: &[u8]) -> Vec<u8> {
    let model = Tagged { last, stag: STAG, to };
    frame(&Header::new(opcode, Model::Tagged(model)), payload)
}

fn untagged(opcode: Opcode, last: bool, (qn, msn, mo): (u32, u32, u32), payload: &[u8]) -> Vec<u8> {
    let model = Untagged { last, invalidate: Stag(0), qn, msn, mo };
    frame(&Header::new(opcode, Model::Untagged(model)), payload)
}

fn terminate(message: &[u8]) -> Vec<u8> {
    untagged(Opcode::Terminate, true, (2, 1, 0), message)
}

/// Returns an end with two READs, which the peer has received, and a receive.
fn asking() -> End {
    let mut end = End::attached(&PLAIN);
    end.recv(9, 0, 64);
    for id in [1, 2] {
        end.send(id, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x100, 64);
    }
    end.sent();
    end
}

#[test]
fn received_terminate_without_header_fails_the_oldest_read() {
    for (fault, status, event) in [
        (Fault::RdmapStag, WcStatus::RemAccessErr, QpEvent::AccessErr),
        (Fault::DdpTaggedBounds, WcStatus::RemAccessErr, QpEvent::AccessErr),
        (Fault::RdmapOpcode, WcStatus::RemInvReqErr, QpEvent::ReqErr),
        (Fault::DdpUntaggedNoBuffer, WcStatus::RemInvReqErr, QpEvent::ReqErr),
        (Fault::RdmapStreamCatastrophic, WcStatus::RemOpErr, QpEvent::Fatal),
        (Fault::RdmapCatastrophic, WcStatus::RemOpErr, QpEvent::Fatal),
        (Fault::MpaCrc, WcStatus::WrFlushErr, QpEvent::Fatal),
    ] {
        let mut message = [0; Terminate::MAX_LEN];
        let len = Terminate::new(fault).emit(&mut message);
        let mut end = asking();
        end.feed(Time(1), &terminate(&message[..len]));
        assert_eq!(end.done(Side::Send), [(1, status), (2, WcStatus::WrFlushErr)], "{fault:?}");
        assert_eq!(end.done(Side::Recv), [(9, WcStatus::WrFlushErr)]);
        assert_eq!(end.events(), [event], "{fault:?}");
        assert!(end.sent().is_empty(), "a Terminate is not answered");
        assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Shutdown));
    }
}

#[test]
fn received_terminate_fails_the_read_whose_header_it_includes() {
    let request = |msn| {
        let model = Untagged { last: true, invalidate: Stag(0), qn: 1, msn, mo: 0 };
        Header::new(Opcode::ReadRequest, Model::Untagged(model))
    };
    let write = Header::new(Opcode::Write, Model::Tagged(Tagged { last: true, stag: STAG, to: 0 }));
    let (failed, flushed) = (WcStatus::RemAccessErr, WcStatus::WrFlushErr);
    for (shown, ends) in [
        (request(1), [failed, flushed]),
        (request(2), [flushed, failed]),
        (request(3), [flushed, flushed]),
        (request(0), [flushed, flushed]),
        (write, [flushed, flushed]),
    ] {
        let mut message = [0; Terminate::MAX_LEN];
        let header = shown.to_buf();
        let len = Terminate::new(Fault::RdmapStag).of(46, &header).emit(&mut message);
        let mut end = asking();
        end.feed(Time(1), &terminate(&message[..len]));
        assert_eq!(end.done(Side::Send), [(1, ends[0]), (2, ends[1])], "{shown:?}");
        assert_eq!(end.events(), [QpEvent::AccessErr]);
    }
}

/// The bit layout of the kernel's siw.
#[test]
fn terminate_in_the_layout_of_kernel_siw_is_understood() {
    let mut end = asking();
    end.feed(Time(1), &terminate(&[0x10, 0x01, 0x01, 0, 0, 46]));
    assert_eq!(end.done(Side::Send)[0], (1, WcStatus::RemAccessErr));
    // Terminates without a header.
    for (message, status, event) in [
        ([0x20, 0x05], WcStatus::RemInvReqErr, QpEvent::ReqErr),
        ([0x20, 0x06], WcStatus::RemInvReqErr, QpEvent::ReqErr),
        ([0x02, 0x02], WcStatus::WrFlushErr, QpEvent::Fatal),
        ([0x21, 0x06], WcStatus::RemInvReqErr, QpEvent::ReqErr),
    ] {
        let mut end = asking();
        end.feed(Time(1), &terminate(&[message[0], message[1], 0, 0]));
        assert_eq!(end.done(Side::Send)[0], (1, status), "{message:x?}");
        assert_eq!(end.events(), [event], "{message:x?}");
    }
}

/// The sender of MPA's request rejects the reply with a Terminate, as the first message.
#[test]
fn terminate_as_first_message_of_the_initiator_is_an_mpa_startup_error() {
    let insufficient_ird = terminate(&[0x20, 0x06, 0, 0]);
    let write = tagged(Opcode::Write, true, 0, &[7; 4]);
    for (params, before, event) in [
        (StreamParams { initiator: false, ..PLAIN }, &[][..], QpEvent::Fatal),
        (StreamParams { initiator: false, ..PLAIN }, &write, QpEvent::ReqErr),
        (StreamParams { initiator: false, rtr: Some(Rtr::Write), ..PLAIN }, &[], QpEvent::ReqErr),
        (PLAIN, &[], QpEvent::ReqErr),
    ] {
        let mut end = End::attached(&params);
        end.feed(Time(1), before);
        end.feed(Time(1), &insufficient_ird);
        assert_eq!(end.events(), [event], "{params:?}");
    }
}

#[test]
fn a_terminate_of_any_length_ends_the_stream() {
    for len in [0, 3, 4, 52, 53, 1000] {
        let mut end = asking();
        end.feed(Time(1), &terminate(&vec![0xff; len]));
        assert_eq!(end.qp.state(), QpState::Err, "{len} bytes");
        assert_eq!(end.done(Side::Send)[1], (2, WcStatus::WrFlushErr));
    }
}

/// A Send, a Write, a READ response and requests, each in segments of a few bytes, all interleaved.
#[test]
fn interleaved_ddp_segments_of_any_size_are_placed() {
    let mut end = End::attached(&PLAIN);
    end.w.memory.fill(0x4000, 8, 1);
    end.recv(1, 0x1000, 64);
    end.send(2, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x2000, 12);
    end.sent();
    let request = ReadRequest {
        sink_stag: Stag(5),
        sink_to: 0x99,
        len: 8,
        source_stag: STAG,
        source_to: 0x4000,
    }
    .to_bytes();
    let text = b"twelve bytes";
    let mut bytes = Vec::new();
    for i in 0..6_u32 {
        let (at, last) = (i as usize * 2, i == 5);
        let two = &text[at..at + 2];
        bytes.extend(untagged(Opcode::Send, last, (0, 1, i * 2), two));
        bytes.extend(tagged(Opcode::Write, last, 0x3000 + at as u64, two));
        bytes.extend(tagged(Opcode::ReadResponse, last, 0x2000 + at as u64, two));
        let from = at * 28 / 12;
        let to = if last { 28 } else { (at + 2) * 28 / 12 };
        bytes.extend(untagged(Opcode::ReadRequest, last, (1, 1, from as u32), &request[from..to]));
    }
    for piece in bytes.chunks(3) {
        end.feed(Time(1), piece);
    }
    assert_eq!(end.qp.state(), QpState::Rts);
    for at in [0x1000, 0x2000, 0x3000] {
        assert_eq!(&end.w.memory.bytes[at..at + 12], text, "{at:#x}");
    }
    assert_eq!(end.done(Side::Recv), good([1]));
    assert_eq!(end.done(Side::Send), good([2]));
    let there = end.w.memory.bytes[0x4000..0x4008].to_vec();
    let model = Tagged { last: true, stag: Stag(5), to: 0x99 };
    let response = frame(&Header::new(Opcode::ReadResponse, Model::Tagged(model)), &there);
    assert_eq!(end.sent(), response);
}

#[test]
fn masked_atomic_changes_only_the_masked_bits() {
    let mut end = End::attached(&PLAIN);
    end.w.memory.bytes[..8].copy_from_slice(&0x1122_u64.to_ne_bytes());
    let swap = AtomicRequest {
        op: AtomicOp::CmpSwap,
        id: 3,
        stag: STAG,
        to: 0,
        data: 0xffff,
        mask: 0x00ff,
        compare: 0x1100,
        compare_mask: 0xff00,
    };
    end.feed(Time(1), &untagged(Opcode::AtomicRequest, true, (1, 1, 0), &swap.to_bytes()));
    assert_eq!(end.w.memory.bytes[..8], 0x11ff_u64.to_ne_bytes());
    let sent = end.sent();
    assert_eq!(sent[20..24], 3_u32.to_be_bytes());
    assert_eq!(sent[24..32], 0x1122_u64.to_be_bytes());
}
