//! The frames of one direction.

use rdmux_wire::WireError;
use rdmux_wire::iwarp::fpdu::{self, Framing};
use rdmux_wire::iwarp::markers;

use super::super::tcp::reassembly::Piece;
use super::unit::{Check, FrameUnit, Unit};

/// A direction behind its start-up frame.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The bytes of a frame that is not complete.
    buffer: Vec<u8>,
    /// How many of them are before the first that was not captured.
    captured: Option<usize>,
    /// Where it begins, behind the start-up frame.
    position: u64,
    framing: Framing,
    /// Whether it is known that there are CRCs, or that there are none.
    known: bool,
    /// Whether they are the initiator's.
    initiator: bool,
    /// Whether the initiator's first frame makes the peer ready to send.
    peer_to_peer: bool,
}

impl Frames {
    /// What the start-up frames say; once before, and once with both. `known`: whether there are CRCs is known.
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

    /// Takes the next part, and adds the frames that are complete with it. Returns whether it is known
    /// where the next one begins.
    pub(super) fn take(&mut self, piece: &Piece, units: &mut Vec<Unit>) -> bool {
        match piece {
            Piece::Bytes(bytes) => self.buffer.extend_from_slice(bytes),
            Piece::Missing(missing) => {
                let need = self.framing.need(self.position, &self.buffer);
                let end = (self.buffer.len() as u64).saturating_add(*missing);
                // Behind the frame's end, or in its length, it takes the next frame's place with it.
                if self.captured.is_none() {
                    self.captured = Some(self.buffer.len());
                }
                if end > need as u64 || need < fpdu::frame_len(0) {
                    units.push(Unit::Lost);
                    return false;
                }
                self.buffer.resize(usize::try_from(end).unwrap_or(need), 0);
            }
        }
        loop {
            let need = self.framing.need(self.position, &self.buffer);
            if self.buffer.len() < need {
                return true;
            }
            let unit = self.frame(need);
            let broken = matches!(&unit, Unit::Broken(_))
                || matches!(&unit, Unit::Frame(unit) if unit.header.is_err());
            units.push(unit);
            if broken {
                return false;
            }
            self.buffer.drain(..need);
            self.captured = None;
            self.position += need as u64;
        }
    }

    /// The frame that the buffer begins with.
    fn frame(&self, len: usize) -> Unit {
        let frame = &self.buffer[..len];
        let check = match self.framing.parse(self.position, frame) {
            _ if self.captured.is_some() || !self.known => Check::Unchecked,
            Ok(_) if !self.framing.crc => Check::None,
            Ok(_) => Check::Right,
            Err(WireError::Crc { found, right }) => Check::Wrong { found, right },
            Err(error) => return Unit::Broken(error),
        };
        let unchecked = Framing { crc: false, ..self.framing };
        let fpdu = match unchecked.parse(self.position, frame) {
            Ok(Some(fpdu)) => fpdu,
            Ok(None) => return Unit::Lost,
            Err(_) if self.captured.is_some() => return Unit::Cut(len),
            Err(error) => return Unit::Broken(error),
        };
        // What was captured of the ULPDU; a marker may be among its headers.
        let before = fpdu::LENGTH_LEN + if self.framing.markers { markers::LEN } else { 0 };
        let captured = self.captured.map_or(len, |captured| captured.saturating_sub(before));
        let starting = self.initiator && self.position == 0;
        let rtr = starting && self.peer_to_peer;
        match FrameUnit::parse(&fpdu, captured, check, rtr, starting) {
            Ok(unit) => Unit::Frame(Box::new(unit)),
            Err(_) if self.captured.is_some() => Unit::Cut(len),
            Err(error) => Unit::Broken(error),
        }
    }
}
