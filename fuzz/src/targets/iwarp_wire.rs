//! iWARP's codecs: no input makes them panic, and parsed data is encoded identically.

use std::fmt::Display;

use rdmux_wire::iwarp::ddp::Header;
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Flags, Startup};
use rdmux_wire::iwarp::rdmap::{AtomicRequest, AtomicResponse, Immediate, ReadRequest};
use rdmux_wire::iwarp::terminate::{Layout, Terminate};

/// Parses a start-up frame that arrives byte by byte.
pub fn iwarp_wire_mpa(data: &[u8]) {
    let mut have = 0;
    let need = loop {
        match Startup::need(&data[..have]) {
            Ok(need) if need <= have => break need,
            Ok(need) if need <= data.len() => have = need,
            _ => return,
        }
    };
    let Ok(startup) = Startup::parse(data) else { return };
    shows(&startup);
    assert_eq!((startup.len(), startup.enhanced.is_some()), (need, wants_enhanced(&startup)));
    let mut out = [0; Startup::MAX_LEN];
    let len = startup.emit(&mut out);
    assert_eq!(Startup::parse(&out[..len]), Ok(startup));
}

fn wants_enhanced(startup: &Startup<'_>) -> bool {
    startup.revision >= 2 && startup.flags.has(Flags::ENHANCED)
}

/// Parses a stream of frames. The first bytes of the input define the negotiated options and the stream position.
pub fn iwarp_wire_fpdu(data: &[u8]) {
    let Some((&[flags, words], mut rest)) = data.split_first_chunk() else { return };
    let framing = Framing { crc: flags & 1 != 0, markers: flags & 2 != 0 };
    let mut position = u64::from(words) * 4;
    loop {
        let fpdu = match framing.parse(position, rest) {
            Ok(Some(fpdu)) => fpdu,
            Ok(None) => {
                assert!(framing.need(position, rest) > rest.len());
                return;
            }
            Err(_) => return,
        };
        shows(&fpdu);
        let ulpdu: Vec<u8> = fpdu.pieces().flatten().copied().collect();
        assert_eq!(ulpdu.len(), fpdu.ulpdu_len);
        let mut out = vec![0; fpdu.frame_len];
        assert_eq!(framing.emit(position, &[&ulpdu], &mut out), fpdu.frame_len);
        let again = framing.parse(position, &out).expect("what was written can be read");
        let again = again.expect("a whole frame");
        assert!(again.pieces().flatten().eq(&ulpdu), "{again} carries other bytes");
        segment(&ulpdu);
        rest = &rest[fpdu.frame_len..];
        position += fpdu.frame_len as u64;
    }
}

/// Parses a segment: its header, and its payload as every RDMAP message.
pub fn iwarp_wire_segment(data: &[u8]) {
    segment(data);
    macro_rules! each {
        ($($payload:ident)*) => {$(
            if let Ok(value) = $payload::parse(data) {
                shows(&value);
                assert_eq!($payload::parse(&value.to_bytes()), Ok(value));
            }
        )*};
    }
    each!(ReadRequest AtomicRequest AtomicResponse Immediate);
    if let Ok(terminate) = Terminate::parse(data) {
        shows(&terminate);
        let mut out = vec![0; terminate.len()];
        terminate.emit(&mut out);
        let again = Terminate::parse(&out).expect("what was written can be read");
        // A nonexistent layer is parsed in siw's order, unless M, D or R decide.
        assert!(
            again == terminate || again.layout == Layout::Siw || terminate.layout == Layout::Siw
        );
    }
}

fn segment(ulpdu: &[u8]) {
    if let Ok(header) = Header::parse(ulpdu) {
        shows(&header);
        assert_eq!(Header::parse(&header.to_buf()), Ok(header));
        assert_eq!(Header::len_of(ulpdu[0]), header.len());
    }
}

fn shows(value: &impl Display) {
    assert!(!value.to_string().is_empty());
}
