//! Every row of the fault table, by frames that this stack would not send.

use rdmux_wire::iwarp::ddp::{self, Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest};
use rdmux_wire::iwarp::terminate::{Fault, Terminate};
use rdmux_wire::{Rkey, Stag};

use super::*;
use crate::MEMORY;
use rdmux_transport::env::AccessFault;

const RKEY: Rkey = Rkey(KEY);
const STAG: Stag = Stag(KEY);
const HERE: ReadRequest =
    ReadRequest { sink_stag: Stag(9), sink_to: 0, len: 8, source_stag: STAG, source_to: 0 };
const ADD: AtomicRequest = AtomicRequest {
    op: AtomicOp::FetchAdd,
    id: 0,
    stag: STAG,
    to: 0,
    data: 1,
    mask: 0,
    compare: 0,
    compare_mask: 0,
};

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    raw(&header.to_buf(), payload)
}

fn raw(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let framing = Framing::default();
    let mut bytes = vec![0; framing.frame_len(0, header.len() + payload.len())];
    framing.emit(0, &[header, payload], &mut bytes);
    bytes
}

fn tagged(opcode: Opcode, last: bool, stag: Stag, to: u64) -> Header {
    Header::new(opcode, Model::Tagged(Tagged { last, stag, to }))
}

fn untagged(opcode: Opcode, last: bool, (qn, msn, mo): (u32, u32, u32)) -> Header {
    let untagged = Untagged { last, invalidate: Stag(KEY), qn, msn, mo };
    Header::new(opcode, Model::Untagged(untagged))
}

fn send(payload: &[u8]) -> Vec<u8> {
    frame(&untagged(Opcode::Send, true, (0, 1, 0)), payload)
}

fn write(stag: Stag, to: u64, payload: &[u8]) -> Vec<u8> {
    frame(&tagged(Opcode::Write, true, stag, to), payload)
}

fn read(msn: u32, request: &ReadRequest) -> Vec<u8> {
    frame(&untagged(Opcode::ReadRequest, true, (1, msn, 0)), &request.to_bytes())
}

fn atomic(request: &AtomicRequest) -> Vec<u8> {
    frame(&untagged(Opcode::AtomicRequest, true, (1, 1, 0)), &request.to_bytes())
}

/// The expected behavior of a queue pair with one receive of 64 bytes, number 1, and no READ.
struct Expected {
    fault: Fault,
    receive: WcStatus,
    event: Option<QpEvent>,
}

const fn expect(fault: Fault, event: QpEvent) -> Expected {
    Expected { fault, receive: WcStatus::WrFlushErr, event: Some(event) }
}

/// Returns the Terminate that an end sends, which must be followed by the end of its half.
#[track_caller]
fn terminate_of(end: &mut End) -> Vec<u8> {
    let bytes = end.sent();
    let parsed = Framing::default().parse(0, &bytes).unwrap().expect("a frame");
    assert_eq!(parsed.frame_len, bytes.len(), "one frame");
    let (header, message) = parsed.contiguous().unwrap().split_at(Header::UNTAGGED_LEN);
    let header = Header::parse(header).unwrap();
    assert_eq!(header, {
        let model = Untagged { last: true, invalidate: Stag(0), qn: 2, msn: 1, mo: 0 };
        Header::new(Opcode::Terminate, Model::Untagged(model))
    });
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Shutdown));
    message.to_vec()
}

#[track_caller]
fn check(end: &mut End, bytes: &[u8], expected: &Expected) {
    end.recv(1, 0x1000, 64);
    let before = end.w.memory.bytes.clone();
    end.feed(Time(1), bytes);
    assert_eq!(end.done(Side::Recv), [(1, expected.receive)], "{:?}", expected.fault);
    assert_eq!(end.events(), Vec::from_iter(expected.event), "{:?}", expected.fault);
    assert!(end.w.memory.bytes == before, "nothing was written: {:?}", expected.fault);
    assert!(!end.w.dropped.is_empty());
    let message = terminate_of(end);
    assert_eq!(Terminate::parse(&message).unwrap().fault, expected.fault);
    end.feed(Time(1), &send(b"what comes now"));
    assert!(end.inbox.is_empty() && end.w.completions.is_empty(), "is dropped");
    end.qp.handle_end(Time(1), true, &mut end.w);
    assert_eq!(end.qp.wish(), Wish::Close);
}

#[track_caller]
fn is(bytes: &[u8], fault: Fault, event: QpEvent) {
    check(&mut End::attached(&PLAIN), bytes, &expect(fault, event));
}

/// Returns the frame with one byte changed.
fn with_byte(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

use QpEvent::{AccessErr, Fatal, ReqErr};

#[test]
fn invalid_ddp_and_rdmap_headers_are_terminated_with_their_error() {
    is(&with_byte(write(STAG, 0, &[1]), 2, 0xc2), Fault::DdpTaggedVersion, Fatal);
    is(&with_byte(send(&[1]), 2, 0x40), Fault::DdpUntaggedVersion, Fatal);
    is(&with_byte(send(&[1]), 3, 0x83), Fault::RdmapVersion, Fatal);
    for opcode in [0x4c, 0x4f, 0x40, 0x42] {
        is(&with_byte(send(&[1]), 3, opcode), Fault::RdmapOpcode, ReqErr);
    }
    is(&with_byte(write(STAG, 0, &[1]), 3, 0x43), Fault::RdmapOpcode, ReqErr);
    is(&frame(&untagged(Opcode::Send, true, (4, 1, 0)), &[1]), Fault::DdpUntaggedQueue, Fatal);
    is(&frame(&untagged(Opcode::Send, true, (1, 1, 0)), &[1]), Fault::RdmapOpcode, ReqErr);
    is(&frame(&untagged(Opcode::Send, true, (0, 2, 0)), &[1]), Fault::DdpUntaggedMsn, Fatal);
    is(&frame(&untagged(Opcode::Send, true, (0, 1, 1)), &[1]), Fault::DdpUntaggedOffset, Fatal);
    is(&[0, 13, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Fault::MpaMarker, Fatal);
    is(&[0, 17, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Fault::MpaMarker, Fatal);
    is(&[0, 0], Fault::MpaMarker, Fatal);
}

#[test]
fn out_of_sequence_and_unsolicited_messages_are_terminated() {
    let mut bytes = frame(&untagged(Opcode::Send, false, (0, 1, 0)), &[]);
    bytes.extend(frame(&untagged(Opcode::SendSolicited, true, (0, 1, 0)), &[1]));
    is(&bytes, Fault::RdmapOpcode, ReqErr);
    let mut bytes = read(1, &HERE);
    bytes.extend(read(1, &HERE));
    is(&bytes, Fault::DdpUntaggedMsn, Fatal);
    let response = AtomicResponse { id: 0, original: 0 }.to_bytes();
    let bytes = frame(&untagged(Opcode::AtomicResponse, true, (3, 1, 0)), &response);
    is(&bytes, Fault::RdmapOpcode, ReqErr);
    let bytes = frame(&tagged(Opcode::ReadResponse, true, STAG, 0), &[1]);
    is(&bytes, Fault::RdmapOpcode, ReqErr);
    let immediate = untagged(Opcode::Immediate, true, (0, 1, 0));
    is(&frame(&immediate, &[0; 9]), Fault::DdpUntaggedTooLong, ReqErr);
    is(&frame(&immediate, &[0; 7]), Fault::RdmapOperation, ReqErr);
}

#[test]
fn missing_short_or_unmapped_receive_buffer_is_terminated() {
    let mut end = End::attached(&PLAIN);
    end.feed(Time(1), &send(&[1]));
    assert_eq!(end.events(), [Fatal]);
    let message = terminate_of(&mut end);
    assert_eq!(Terminate::parse(&message).unwrap().fault, Fault::DdpUntaggedNoBuffer);

    let expected =
        Expected { fault: Fault::DdpUntaggedTooLong, receive: WcStatus::LocLenErr, event: None };
    check(&mut End::attached(&PLAIN), &send(&[1; 65]), &expected);
    let mut end = End::attached(&PLAIN);
    end.w.memory.refuses = Some(AccessFault::Unmapped);
    let expected =
        Expected { fault: Fault::RdmapCatastrophic, receive: WcStatus::LocProtErr, event: None };
    check(&mut end, &send(&[1]), &expected);
}

#[test]
fn write_with_invalid_stag_bounds_or_rights_is_terminated() {
    let end = MEMORY as u64;
    is(&write(Stag(1), 0, &[1]), Fault::DdpTaggedStag, AccessErr);
    is(&write(STAG, end, &[1]), Fault::DdpTaggedBounds, AccessErr);
    is(&write(STAG, end - 1, &[1, 2]), Fault::DdpTaggedBounds, AccessErr);
    is(&write(STAG, u64::MAX, &[1]), Fault::DdpTaggedWrap, AccessErr);
    for (refuses, fault, event) in [
        (AccessFault::Rights, Fault::RdmapAccess, AccessErr),
        (AccessFault::Domain, Fault::DdpTaggedNotAssociated, AccessErr),
        (AccessFault::Unmapped, Fault::DdpTaggedBounds, AccessErr),
        (AccessFault::Gone, Fault::RdmapStreamCatastrophic, Fatal),
        (AccessFault::Busy, Fault::RdmapStreamCatastrophic, Fatal),
    ] {
        let mut end = End::attached(&PLAIN);
        end.w.memory.refuses = Some(refuses);
        check(&mut end, &write(STAG, 0, &[1]), &expect(fault, event));
    }
}

/// A segment is checked in full before any byte of it is placed.
#[test]
fn write_segment_beyond_bounds_places_no_byte() {
    let mut end = End::attached(&PLAIN);
    let bytes = write(STAG, MEMORY as u64 - 8, &[1; 9]);
    check(&mut end, &bytes[..16 + 4], &expect(Fault::DdpTaggedBounds, AccessErr));
}

#[test]
fn read_or_atomic_with_invalid_stag_bounds_or_rights_is_terminated() {
    let all = |end: &mut End, bytes: &[u8], fault, event| check(end, bytes, &expect(fault, event));
    is(&read(1, &ReadRequest { source_stag: Stag(1), ..HERE }), Fault::RdmapStag, AccessErr);
    let beyond = ReadRequest { source_to: MEMORY as u64 - 7, ..HERE };
    is(&read(1, &beyond), Fault::RdmapBounds, AccessErr);
    is(&read(1, &ReadRequest { source_to: u64::MAX, ..HERE }), Fault::RdmapWrap, AccessErr);
    for (refuses, fault, event) in [
        (AccessFault::Rights, Fault::RdmapAccess, AccessErr),
        (AccessFault::Domain, Fault::RdmapNotAssociated, AccessErr),
        (AccessFault::Gone, Fault::RdmapStreamCatastrophic, Fatal),
    ] {
        for bytes in [read(1, &HERE), atomic(&ADD)] {
            let mut end = End::attached(&PLAIN);
            end.w.memory.refuses = Some(refuses);
            all(&mut end, &bytes, fault, event);
        }
    }
    is(&atomic(&AtomicRequest { to: 4, ..ADD }), Fault::RdmapOperation, ReqErr);
    is(&atomic(&AtomicRequest { stag: Stag(1), ..ADD }), Fault::RdmapStag, AccessErr);
    let mut later = End::attached(&PLAIN);
    later.w.later = true;
    all(&mut later, &atomic(&ADD), Fault::RdmapStreamCatastrophic, Fatal);
    let request = untagged(Opcode::ReadRequest, true, (1, 1, 0));
    is(&frame(&request, &[0; 29]), Fault::DdpUntaggedTooLong, ReqErr);
    is(&frame(&request, &[0; 27]), Fault::RdmapOperation, ReqErr);
    let swap = with_byte(atomic(&ADD), 2 + 18 + 3, 9);
    is(&swap, Fault::RdmapOperation, ReqErr);
}

#[test]
fn qp_without_remote_access_flags_terminates_write_read_and_atomic() {
    for bytes in [write(STAG, 0, &[1]), read(1, &HERE), atomic(&ADD)] {
        let mut end = End::attached(&PLAIN);
        let attr = QpAttr { access: Access::empty(), ..QpAttr::default() };
        end.qp.modify(Time(1), &attr, AttrMask::ACCESS_FLAGS, &mut end.w).unwrap();
        check(&mut end, &bytes, &expect(Fault::RdmapAccess, AccessErr));
    }
}

#[test]
fn read_requests_above_ird_are_terminated() {
    let params = StreamParams { ird: 2, ..PLAIN };
    let bytes: Vec<u8> = (1..=3).flat_map(|msn| read(msn, &HERE)).collect();
    let expected = expect(Fault::DdpUntaggedNoBuffer, ReqErr);
    check(&mut End::attached(&params), &bytes, &expected);
    let mut none = End::attached(&StreamParams { ird: 0, ..PLAIN });
    check(&mut none, &atomic(&ADD), &expected);
}

#[test]
fn send_with_invalidate_of_wrong_stag_is_terminated() {
    let header = untagged(Opcode::SendInvalidate, true, (0, 1, 0));
    let expected = Expected {
        fault: Fault::RdmapInvalidate,
        receive: WcStatus::MwBindErr,
        event: Some(AccessErr),
    };
    check(&mut End::attached(&PLAIN), &frame(&header, &[]), &expected);
}

#[test]
fn fpdu_with_wrong_crc_or_marker_is_terminated() {
    let framing = Framing { crc: true, markers: true };
    let header = untagged(Opcode::Send, true, (0, 1, 0)).to_buf();
    let mut bytes = vec![0; framing.frame_len(0, header.len() + 60)];
    framing.emit(0, &[&header, &[1; 60]], &mut bytes);
    for at in 0..bytes.len() {
        let params = StreamParams { crc: true, rx_markers: true, ..PLAIN };
        let mut end = End::attached(&params);
        end.recv(1, 0x1000, 64);
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        // A wrong length changes the frame's end, so more bytes must follow.
        bad.resize(bad.len() + 0x2000, 0);
        end.feed(Time(1), &bad);
        assert_eq!(end.done(Side::Recv), [(1, WcStatus::WrFlushErr)], "byte {at}");
        assert_eq!(end.events(), [Fatal]);
        let message = terminate_of_crc(&mut end);
        assert_eq!(Terminate::parse(&message).unwrap(), Terminate::new(Fault::MpaCrc));
    }
    let params = StreamParams { rx_markers: true, ..PLAIN };
    let mut bytes = vec![0; 4];
    bytes[3] = 4;
    bytes.extend(send(&[1]));
    check(&mut End::attached(&params), &bytes, &expect(Fault::MpaMarker, Fatal));
}

fn terminate_of_crc(end: &mut End) -> Vec<u8> {
    let bytes = end.sent();
    let framing = Framing { crc: true, markers: false };
    let parsed = framing.parse(0, &bytes).unwrap().expect("a frame");
    parsed.contiguous().unwrap()[Header::UNTAGGED_LEN..].to_vec()
}

/// A faulty response fails the READ, and so does a missing sink.
#[test]
fn read_or_atomic_response_not_matching_request_is_terminated() {
    let start = || {
        let mut end = End::attached(&PLAIN);
        end.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x100, 64);
        end.send(2, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x200, 64);
        end.sent();
        end
    };
    let response =
        |last, stag, to, len| frame(&tagged(Opcode::ReadResponse, last, stag, to), &vec![7; len]);
    for (bytes, fault) in [
        (response(true, Stag(1), 0x100, 64), Fault::DdpTaggedStag),
        (response(true, STAG, 0x101, 64), Fault::DdpTaggedBounds),
        (response(true, STAG, 0x200, 64), Fault::DdpTaggedBounds),
        (response(true, STAG, 0x100, 65), Fault::DdpTaggedBounds),
        (response(true, STAG, 0x100, 63), Fault::RdmapStreamCatastrophic),
    ] {
        let mut end = start();
        let before = end.w.memory.bytes.clone();
        end.feed(Time(1), &bytes);
        let expected = [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(end.done(Side::Send), expected, "{fault:?}");
        assert!(end.w.memory.bytes == before);
        let message = terminate_of(&mut end);
        assert_eq!(Terminate::parse(&message).unwrap().fault, fault);
    }
    let mut end = start();
    end.w.memory.refuses = Some(AccessFault::Rights);
    end.feed(Time(1), &response(true, STAG, 0x100, 64));
    let expected = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(end.done(Side::Send), expected);
    let message = terminate_of(&mut end);
    assert_eq!(Terminate::parse(&message).unwrap().fault, Fault::RdmapCatastrophic);

    let mut end = End::attached(&PLAIN);
    end.send(1, SendOp::FetchAdd { remote_addr: 0, rkey: RKEY, add: 1 }, 0, 8);
    end.sent();
    let wrong = AtomicResponse { id: 77, original: 0 }.to_bytes();
    end.feed(Time(1), &frame(&untagged(Opcode::AtomicResponse, true, (3, 1, 0)), &wrong));
    assert_eq!(end.done(Side::Send), [(1, WcStatus::BadRespErr)]);
}

/// The memory that a READ was granted is gone when its response is to be sent.
#[test]
fn read_of_memory_lost_before_response_is_remote_access_error() {
    for crc in [false, true] {
        let mut pair = Pair::with(&StreamParams { crc, ..PLAIN }, 1460, super::pipe::AT_ONCE);
        pair.a.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x100, 64);
        pair.a.poll(pair.now);
        let bytes: Vec<u8> = pair.a.w.stream.bytes.drain(..).collect();
        pair.b.feed(pair.now, &bytes);
        pair.b.w.memory.refuses = Some(AccessFault::Unmapped);
        pair.run();
        assert_eq!(pair.a.done(Side::Send), [(1, WcStatus::RemAccessErr)], "crc {crc}");
        assert_eq!((pair.a.events(), pair.b.events()), (vec![AccessErr], vec![AccessErr]));
        assert_eq!((pair.a.qp.wish(), pair.b.qp.wish()), (Wish::Close, Wish::Close));
    }
}

/// A Terminate includes the faulty segment, and for a READ the request.
#[test]
fn terminate_includes_ddp_and_rdmap_headers_of_the_faulty_segment() {
    let request = ReadRequest { source_stag: Stag(1), ..HERE };
    let header = untagged(Opcode::ReadRequest, true, (1, 1, 0)).to_buf();
    let mut end = End::attached(&PLAIN);
    end.feed(Time(1), &read(1, &request));
    let message = terminate_of(&mut end);
    let expected = Terminate {
        rdmap_header: &request.to_bytes(),
        ..Terminate::new(Fault::RdmapStag).of(18 + 28, &header)
    };
    assert_eq!(Terminate::parse(&message).unwrap(), expected);

    let header = tagged(Opcode::Write, true, Stag(1), 0).to_buf();
    let mut end = End::attached(&PLAIN);
    end.feed(Time(1), &write(Stag(1), 0, &[1; 5]));
    let message = terminate_of(&mut end);
    let expected = Terminate::new(Fault::DdpTaggedStag).of(14 + 5, &header);
    assert_eq!(Terminate::parse(&message).unwrap(), expected);
    assert_eq!(header[0] & 0x80, 0x80);
    assert_eq!(ddp::VERSION, 1);
}
