//! The FPDUs of one direction.

use std::mem;

use rdmux_wire::WireError;
use rdmux_wire::iwarp::fpdu::{self, Framing};
use rdmux_wire::iwarp::markers;

use super::super::tcp::reassembly::Piece;
use super::unit::{Check, FrameUnit, Unit};

/// Bytes that were not captured. They use no memory, because a length field may contain anything.
#[derive(Debug)]
struct Gap {
    /// The number of captured bytes of the frame before it.
    at: usize,
    len: usize,
}

/// A direction after its start-up frame.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The captured bytes of an incomplete FPDU.
    buffer: Vec<u8>,
    /// The gaps in it.
    gaps: Vec<Gap>,
    /// The total length of the gaps.
    missing: usize,
    /// Its position in the stream, after the start-up frame.
    position: u64,
    framing: Framing,
    /// Whether the use of CRCs is known.
    known: bool,
    /// Whether this is the initiator's direction.
    initiator: bool,
    /// Whether the initiator's first FPDU makes the peer ready to send.
    peer_to_peer: bool,
}

impl Frames {
    /// Sets the parameters on which the start-up frames have agreed: once after the first of them, and again
    /// after both. `known`: whether the use of CRCs is known.
    pub(super) fn agreed(
        &mut self,
        framing: Framing,
        known: bool,
        initiator: bool,
        peer_to_peer: bool,
    ) {
        (self.framing, self.known) = (framing, known);
        (self.initiator, self.peer_to_peer) = (initiator, peer_to_peer);
    }

    /// Takes the next part, and appends completed FPDUs. Returns whether the start of the next one is known.
    pub(super) fn take(&mut self, piece: &Piece, units: &mut Vec<Unit>) -> bool {
        match piece {
            Piece::Bytes(bytes) => self.buffer.extend_from_slice(bytes),
            Piece::Missing(missing) => {
                let need = self.framing.need(self.position, &self.buffer);
                let len = usize::try_from(*missing).unwrap_or(usize::MAX);
                let end = (self.buffer.len() + self.missing).saturating_add(len);
                // A gap that reaches beyond the frame, or that covers its length, also hides the start of the next
                // frame.
                if end > need || need < fpdu::frame_len(0) {
                    units.push(Unit::Lost);
                    return false;
                }
                let at = self.buffer.len();
                match self.gaps.last_mut() {
                    Some(gap) if gap.at == at => gap.len += len,
                    _ => self.gaps.push(Gap { at, len }),
                }
                self.missing += len;
            }
        }
        let mut buffer = mem::take(&mut self.buffer);
        let mut at = 0;
        loop {
            let rest = &buffer[at..];
            let need = self.framing.need(self.position, rest);
            let in_frame = |len: &usize| self.gaps.last().is_none_or(|gap| gap.at <= *len);
            let Some(len) = need.checked_sub(self.missing).filter(in_frame) else {
                // The frame became shorter, because the peer's start-up frame arrived only now.
                units.push(Unit::Lost);
                return false;
            };
            let Some(captured) = rest.get(..len) else {
                buffer.drain(..at);
                self.buffer = buffer;
                return true;
            };
            let unit = self.frame(captured, need);
            let broken = matches!(&unit, Unit::Broken(_))
                || matches!(&unit, Unit::Frame(unit) if unit.header.is_err());
            units.push(unit);
            if broken {
                return false;
            }
            at += len;
            self.gaps.clear();
            self.missing = 0;
            self.position += need as u64;
        }
    }

    /// Returns the memory of an incomplete FPDU, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.buffer.capacity() + self.gaps.capacity() * size_of::<Gap>()
    }

    /// Parses an FPDU of this many bytes, from the captured part of them.
    fn frame(&self, captured: &[u8], len: usize) -> Unit {
        let mut filled = Vec::new();
        let frame = if self.gaps.is_empty() {
            captured
        } else {
            let mut from = 0;
            for Gap { at, len } in &self.gaps {
                filled.extend_from_slice(&captured[from..*at]);
                filled.resize(filled.len() + len, 0);
                from = *at;
            }
            filled.extend_from_slice(&captured[from..]);
            &filled
        };
        let first_gap = self.gaps.first().map(|gap| gap.at);
        let check = match self.framing.parse(self.position, frame) {
            _ if first_gap.is_some() || !self.known => Check::Unchecked,
            Ok(_) if !self.framing.crc => Check::None,
            Ok(_) => Check::Right,
            Err(WireError::Crc { found, right }) => Check::Wrong { found, right },
            Err(error) => return Unit::Broken(error),
        };
        let unchecked = Framing { crc: false, ..self.framing };
        let fpdu = match unchecked.parse(self.position, frame) {
            Ok(Some(fpdu)) => fpdu,
            Ok(None) => return Unit::Lost,
            Err(_) if first_gap.is_some() => return Unit::Cut(len),
            Err(error) => return Unit::Broken(error),
        };
        // The captured part of the ULPDU; a marker may be among its headers.
        let before = fpdu::LENGTH_LEN + if self.framing.markers { markers::LEN } else { 0 };
        let captured = first_gap.map_or(len, |at| at.saturating_sub(before));
        let starting = self.initiator && self.position == 0;
        let rtr = starting && self.peer_to_peer;
        match FrameUnit::parse(&fpdu, captured, check, rtr, starting) {
            Ok(unit) => Unit::Frame(Box::new(unit)),
            Err(_) if first_gap.is_some() => Unit::Cut(len),
            Err(error) => Unit::Broken(error),
        }
    }
}
