//! iWARP frames survive a round trip, wherever markers are, and no bytes make a parser panic.

use proptest::prelude::*;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::{self, Framing, Tail};
use rdmux_wire::iwarp::markers;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind, Startup};
use rdmux_wire::iwarp::rdmap::{AtomicRequest, AtomicResponse, Immediate, Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;
use rdmux_wire::iwarp::terminate::{Fault, Layout, Terminate};
use rdmux_wire::{Stag, WireError};

const PLAIN: Framing = Framing { crc: false, markers: false };
const CRC: Framing = Framing { crc: true, markers: false };
const ALL: Framing = Framing { crc: true, markers: true };

fn framing() -> impl Strategy<Value = Framing> {
    any::<(bool, bool)>().prop_map(|(crc, markers)| Framing { crc, markers })
}

macro_rules! round_trips {
    ($($test:ident: $type:ident;)*) => {
        proptest! {
            $(#[test]
            fn $test(bytes: [u8; $type::LEN]) {
                if let Ok(value) = $type::parse(&bytes) {
                    let mut out = [0xee; $type::LEN + 1];
                    value.emit(&mut out);
                    prop_assert_eq!($type::parse(&out), Ok(value));
                    prop_assert_eq!(out[$type::LEN], 0xee);
                    prop_assert!(!value.to_string().is_empty());
                }
                for len in 0..$type::LEN {
                    let short = matches!($type::parse(&bytes[..len]), Err(WireError::Short { .. }));
                    prop_assert!(short);
                }
            })*
        }
    };
}

round_trips! {
    read_request: ReadRequest;
    atomic_request: AtomicRequest;
    atomic_response: AtomicResponse;
    immediate: Immediate;
}

fn enhanced() -> impl Strategy<Value = Enhanced> {
    any::<(bool, bool, bool, bool, u16, u16)>().prop_map(|(a, b, c, d, ird, ord)| Enhanced {
        peer_to_peer: a,
        rtr_send: b,
        rtr_write: c,
        rtr_read: d,
        ird: ird & 0x3fff,
        ord: ord & 0x3fff,
    })
}

// ---- MPA

proptest! {
    /// Given byte by byte, `need` never returns more than the frame's length, and returns its length once the header is complete.
    #[test]
    fn startup(
        reply: bool,
        flags: u8,
        revision: u8,
        enhanced in prop::option::of(enhanced()),
        private_data in prop::collection::vec(any::<u8>(), 0..=508),
    ) {
        let kind = if reply { Kind::Reply } else { Kind::Request };
        let enhanced = enhanced.filter(|_| revision >= 2);
        let flags = Flags(flags & !Flags::ENHANCED.0).with(Flags::ENHANCED, enhanced.is_some());
        let startup = Startup { kind, flags, revision, enhanced, private_data: &private_data };
        let mut out = [0xee; Startup::MAX_LEN + 1];
        let len = startup.emit(&mut out);
        prop_assert_eq!(Startup::parse(&out), Ok(startup));
        prop_assert_eq!(out[len], 0xee);
        prop_assert!(!startup.to_string().is_empty());
        for have in 0..len {
            let need = Startup::need(&out[..have]).unwrap();
            prop_assert_eq!(need, if have < Startup::HEADER_LEN { Startup::HEADER_LEN } else { len });
            let parsed = Startup::parse(&out[..have]);
            let right = Err(WireError::Short { what: "MPA start-up frame", need, have });
            prop_assert_eq!(parsed, right);
        }
    }

    #[test]
    fn random_mpa_startup_bytes_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600), keyed: bool) {
        if keyed && bytes.len() >= 16 {
            bytes[..16].copy_from_slice(Kind::Request.key());
        }
        if let Ok(startup) = Startup::parse(&bytes) {
            let mut out = [0; Startup::MAX_LEN];
            let len = startup.emit(&mut out);
            prop_assert_eq!(len, Startup::need(&bytes).unwrap());
        }
    }
}

#[test]
fn wrong_mpa_key_or_private_data_length_is_refused_at_once() {
    assert!(Startup::need(b"MPA ID Re").is_ok());
    for wrong in [&b"G"[..], b"MPA ID Rex", b"MPA ID Req Framf"] {
        let error = Startup::need(wrong);
        assert!(matches!(error, Err(WireError::Value { what: "MPA key", .. })), "{error:?}");
    }
    let mut header = *b"MPA ID Req Frame\0\x02\x02\x01";
    let error = Startup::need(&header);
    let right = WireError::Value { what: "MPA private data length", value: 513 };
    assert_eq!(error, Err(right));
    header[18..].copy_from_slice(&512_u16.to_be_bytes());
    assert_eq!(Startup::need(&header), Ok(532));
    // S announces four bytes that are missing.
    let short = *b"MPA ID Rep Frame\x10\x02\0\x03abc";
    let error = Startup::parse(&short);
    assert!(matches!(error, Err(WireError::Short { need: 4, have: 3, .. })), "{error:?}");
    // Revision 1 has no S.
    let old = *b"MPA ID Rep Frame\x10\x01\0\x03abc";
    assert_eq!(Startup::parse(&old).unwrap().private_data, b"abc");
}

// ---- DDP

fn header() -> impl Strategy<Value = Header> {
    let fields = any::<(bool, u32, u64, u32, u32, u32)>();
    (prop::sample::select(&Opcode::ALL[..]), fields).prop_map(|(opcode, fields)| {
        let (last, stag, to, qn, msn, mo) = fields;
        let stag = Stag(stag);
        let model = if opcode.is_tagged() {
            Model::Tagged(Tagged { last, stag, to })
        } else {
            Model::Untagged(Untagged { last, invalidate: stag, qn, msn, mo })
        };
        Header::new(opcode, model)
    })
}

proptest! {
    #[test]
    fn ddp_header(header in header()) {
        let buf = header.to_buf();
        prop_assert_eq!(buf.len(), header.len());
        prop_assert_eq!(Header::len_of(buf[0]), header.len());
        prop_assert_eq!(Header::parse(&buf), Ok(header));
        prop_assert!(!header.to_string().is_empty());
        for len in 0..buf.len() {
            let short = matches!(Header::parse(&buf[..len]), Err(WireError::Short { .. }));
            prop_assert!(short);
        }
    }

    #[test]
    fn random_ddp_header_round_trips_or_is_refused(bytes: [u8; 18]) {
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert_eq!(Header::parse(&header.to_buf()), Ok(header));
        }
    }
}

#[test]
fn ddp_header_with_wrong_version_opcode_or_model_is_refused() {
    let header = Header::parse(&[0xc1, 0x40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0]).unwrap();
    let tagged = Tagged { last: true, stag: Stag(7), to: 0x1000 };
    assert_eq!(header, Header::new(Opcode::Write, Model::Tagged(tagged)));
    for (control, rdmap, error) in [
        (0xc0, 0x40, WireError::DdpVersion { tagged: true, version: 0 }),
        (0x42, 0x43, WireError::DdpVersion { tagged: false, version: 2 }),
        (0xc1, 0x00, WireError::RdmapVersion(0)),
        (0xc1, 0x4c, WireError::Value { what: "RDMAP opcode", value: 12 }),
        (0xc1, 0x43, WireError::Value { what: "opcode of a tagged segment", value: 3 }),
        (0x41, 0x40, WireError::Value { what: "opcode of an untagged segment", value: 0 }),
    ] {
        let mut bytes = [0; 18];
        bytes[..2].copy_from_slice(&[control, rdmap]);
        assert_eq!(Header::parse(&bytes), Err(error));
    }
}

// ---- frames and markers

/// Inserts markers according to the definition, byte by byte.
fn with_markers(position: u64, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut start = None;
    for &byte in plain {
        let at = position + out.len() as u64;
        if at.is_multiple_of(512) {
            let back = start.map_or(0, |start| out.len() - start);
            out.extend([0, 0]);
            out.extend(u16::try_from(back).unwrap().to_be_bytes());
        }
        start.get_or_insert(out.len());
        out.push(byte);
    }
    out
}

proptest! {
    #[test]
    fn frames(
        framing in framing(),
        position in (0_u64..2048).prop_map(|words| words * 4),
        ulpdu in prop::collection::vec(any::<u8>(), 0..3000),
        cut in 0_usize..3000,
        skip in 0_usize..3100,
    ) {
        let mut out = vec![0xee; 4000];
        let (first, second) = ulpdu.split_at(cut.min(ulpdu.len()));
        let len = framing.emit(position, &[first, second], &mut out);
        prop_assert_eq!(len, framing.frame_len(position, ulpdu.len()));
        prop_assert_eq!(out[len], 0xee);
        // The bytes of the frame, except the CRC, according to the definition.
        let length = u16::try_from(ulpdu.len()).unwrap().to_be_bytes();
        let plain = [&length[..], &ulpdu, &[0; 3][..fpdu::pad(ulpdu.len())], &[0; 4]].concat();
        prop_assert_eq!(plain.len(), fpdu::frame_len(ulpdu.len()));
        let right = if framing.markers { with_markers(position, &plain) } else { plain };
        prop_assert_eq!(&out[..len - 4], &right[..len - 4]);
        prop_assert!(framing.crc || out[..len] == right[..]);
        // Then parse it.
        let parsed = framing.parse(position, &out).unwrap().unwrap();
        prop_assert_eq!((parsed.frame_len, parsed.ulpdu_len), (len, ulpdu.len()));
        prop_assert_eq!(parsed.pieces().collect::<Vec<_>>().concat(), &ulpdu[..]);
        let mut copy = vec![0; ulpdu.len().saturating_sub(skip)];
        prop_assert_eq!(parsed.copy_to(skip, &mut copy), copy.len());
        prop_assert_eq!(&copy[..], ulpdu.get(skip..).unwrap_or_default());
        if let Some(contiguous) = parsed.contiguous() {
            prop_assert_eq!(contiguous, &ulpdu[..]);
        }
        for have in 0..len {
            prop_assert_eq!(framing.parse(position, &out[..have]), Ok(None));
            prop_assert!(framing.need(position, &out[..have]) > have);
        }
    }

    /// Head, payload and tail as sent without copying form the same frame.
    #[test]
    fn fpdu_head_payload_and_tail_form_the_emitted_frame(crc: bool, ulpdu in prop::collection::vec(any::<u8>(), 0..100)) {
        let length = u16::try_from(ulpdu.len()).unwrap().to_be_bytes();
        let mut covered = rdmux_wire::crc::Crc32c::new();
        covered.update(&length);
        covered.update(&ulpdu);
        let tail = Tail::new(ulpdu.len(), crc.then_some(covered));
        let mut out = [0; 128];
        let len = Framing { crc, markers: false }.emit(0, &[&ulpdu], &mut out);
        prop_assert_eq!([&length[..], &ulpdu, &tail].concat(), &out[..len]);
    }

    #[test]
    fn random_fpdu_bytes_are_parsed_within_bounds(
        framing in framing(),
        position: u64,
        mut bytes in prop::collection::vec(any::<u8>(), 0..1200),
        short: bool,
    ) {
        if let (true, Some(high)) = (short, bytes.first_mut()) {
            *high = 0;
        }
        if let Ok(Some(parsed)) = framing.parse(position, &bytes) {
            let len = parsed.pieces().map(<[u8]>::len).sum::<usize>();
            prop_assert!(len <= parsed.ulpdu_len);
        }
    }

    #[test]
    fn fpdu_crc_detects_every_flipped_bit(at in 16_usize..1200 * 8) {
        let mut out = vec![0; 1400];
        let len = ALL.emit(256, &[&[0x5a; 1200]], &mut out);
        out[at / 8] ^= 1 << (at % 8);
        let found = matches!(ALL.parse(256, &out[..len]), Err(WireError::Crc { .. }));
        prop_assert!(found);
    }
}

#[test]
fn wrong_mpa_marker_is_refused() {
    let framing = Framing { crc: false, markers: true };
    let mut out = [0; 700];
    let len = framing.emit(0, &[&[1; 600]], &mut out);
    assert_eq!(len, 2 + 600 + 2 + 4 + 2 * 4);
    assert_eq!(out[512..516], [0, 0, 508_u16.to_be_bytes()[0], 508_u16.to_be_bytes()[1]]);
    out[515] ^= 4;
    let error = WireError::Marker { found: 508 ^ 4, right: 508 };
    assert_eq!(framing.parse(0, &out), Err(error));
    assert_eq!(PLAIN.parse(0, &out[4..]).unwrap().unwrap().ulpdu_len, 600);
}

#[test]
fn mulpdu_fits_the_emss_with_and_without_markers() {
    for emss in [88_usize, 536, 1448, 1460, 4096, 8948, 65483] {
        for markers in [false, true] {
            let framing = Framing { crc: true, markers };
            let ulpdu = fpdu::mulpdu(emss, markers);
            assert!((0..512).step_by(4).all(|at| framing.frame_len(at, ulpdu) <= emss), "{emss}");
        }
    }
    assert_eq!(fpdu::mulpdu(1448, false), 1442); // as siw's
    assert_eq!(fpdu::mulpdu(0, true), 0);
    assert_eq!(fpdu::mulpdu(usize::MAX, false), fpdu::MAX_ULPDU);
    assert_eq!(markers::count(0, 0), 0);
}

// ---- Terminate, RTR

#[test]
fn terminate_error_codes_map_to_faults_and_back() {
    for fault in Fault::ALL {
        let (layer, etype, code) = fault.numbers();
        assert_eq!(Fault::new(layer, etype, code), *fault);
        assert_ne!(fault.to_string(), "");
    }
    assert_eq!(Fault::new(3, 1, 2), Fault::Other { layer: 3, etype: 1, code: 2 });
    assert_eq!(Fault::ALL.len(), 33);
}

proptest! {
    #[test]
    fn terminate(
        fault in prop::sample::select(Fault::ALL),
        segment_len in prop::option::of(any::<u16>()),
        header in prop::option::of(header()),
        request in prop::option::of(any::<[u8; 28]>()),
    ) {
        let header = header.map(|header| header.to_buf());
        let ddp_header = header.as_deref().unwrap_or_default();
        let rdmap_header = request.as_ref().map_or(&[][..], |request| request);
        let terminate =
            Terminate { fault, layout: Layout::Rfc, segment_len, ddp_header, rdmap_header };
        let mut out = [0xee; Terminate::MAX_LEN];
        let len = terminate.emit(&mut out);
        prop_assert_eq!(len, terminate.len());
        prop_assert_eq!(Terminate::parse(&out[..len]), Ok(terminate));
        prop_assert!(!terminate.to_string().is_empty());
    }

    #[test]
    fn random_terminate_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(terminate) = Terminate::parse(&bytes) {
            prop_assert!(!terminate.to_string().is_empty());
        }
    }
}

/// siw has layer and type, and M, D and R, in swapped halves of their bytes.
#[test]
fn terminate_layout_of_siw_or_rfc_is_detected() {
    let rfc = [0x12, 0x02, 0xc0, 0, 0, 34, 0x41, 0x43];
    let siw = [0x21, 0x02, 0x03, 0, 0, 34, 0x41, 0x43];
    for (bytes, layout) in [(rfc, Layout::Rfc), (siw, Layout::Siw)] {
        let terminate = Terminate::parse(&bytes).unwrap();
        assert_eq!(terminate.fault, Fault::DdpUntaggedNoBuffer);
        assert_eq!((terminate.layout, terminate.segment_len), (layout, Some(34)));
        assert_eq!(terminate.ddp_header, [0x41, 0x43]);
    }
    // Without M, D and R, the layout is the one in which the fault is defined.
    for (bytes, layout, fault) in [
        ([0x20, 2], Layout::Rfc, Fault::MpaCrc),
        ([0x02, 2], Layout::Siw, Fault::MpaCrc),
        ([0x21, 6], Layout::Siw, Fault::DdpUntaggedVersion),
        ([0x12, 6], Layout::Rfc, Fault::DdpUntaggedVersion),
        ([0x02, 6], Layout::Rfc, Fault::RdmapOpcode),
        ([0x40, 1], Layout::Rfc, Fault::Other { layer: 4, etype: 0, code: 1 }),
    ] {
        let bytes = [bytes[0], bytes[1], 0, 0];
        let terminate = Terminate::parse(&bytes).unwrap();
        assert_eq!((terminate.layout, terminate.fault), (layout, fault), "{bytes:x?}");
    }
}

/// siw's RDMAP faults without a header are MPA's start-up faults according to the RFC.
#[test]
fn siw_terminate_without_header_on_open_stream_is_an_rdmap_error() {
    for (bytes, starting, open) in [
        ([0x20, 5], Fault::MpaCatastrophic, Fault::RdmapVersion),
        ([0x20, 6], Fault::MpaInsufficientIrd, Fault::RdmapOpcode),
        ([0x20, 7], Fault::MpaNoMatchingRtr, Fault::MpaNoMatchingRtr),
        ([0x02, 5], Fault::RdmapVersion, Fault::RdmapVersion),
        ([0x02, 6], Fault::RdmapOpcode, Fault::RdmapOpcode),
    ] {
        let bytes = [bytes[0], bytes[1], 0, 0];
        let terminate = Terminate::parse(&bytes).unwrap();
        assert_eq!((terminate.fault, terminate.on_open_stream().fault), (starting, open));
    }
    // siw includes no header with these.
    let told = Terminate::parse(&[0x20, 6, 0x80, 0, 0, 9]).unwrap();
    assert_eq!(told.on_open_stream(), told);
}

#[test]
fn rtr_frames_have_their_rdmap_opcodes() {
    // The frame as siw sends it, without CRC.
    let write = [0, 14, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(rtr::write(PLAIN)[..], write);
    for framing in [PLAIN, CRC, ALL] {
        let opcode_of = |frame: &[u8]| {
            let parsed = framing.parse(0, frame).unwrap().unwrap();
            assert_eq!(parsed.frame_len, frame.len());
            let (head, len) = parsed.head::<46>();
            let header = Header::parse(&head[..len]).unwrap();
            assert!(header.last());
            if header.opcode == Opcode::ReadRequest {
                assert_eq!(ReadRequest::parse(&head[18..len]), Ok(rtr::READ_REQUEST));
            } else {
                assert_eq!(len, header.len());
            }
            header.opcode
        };
        assert_eq!(opcode_of(&rtr::send(framing)), Opcode::Send);
        assert_eq!(opcode_of(&rtr::write(framing)), Opcode::Write);
        assert_eq!(opcode_of(&rtr::read(framing)), Opcode::ReadRequest);
        let response = rtr::read_response(framing, &rtr::READ_REQUEST);
        assert_eq!(opcode_of(&response), Opcode::ReadResponse);
    }
}
