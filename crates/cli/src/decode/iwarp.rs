//! iWARP in a TCP connection: MPA's start-up frames, then FPDUs in both directions.

use std::fmt;

use rdmux_wire::WireError;
use rdmux_wire::iwarp::ddp::Header;
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind, Startup};

use super::tcp::Segment;
use super::tcp::reassembly::{Arrival, Piece};
use frames::Frames;
pub(super) use unit::{Check, JsonUnit, Unit};

mod frames;
#[cfg(test)]
mod tests;
mod unit;

/// The contents of a segment of a followed stream.
#[derive(Debug)]
pub(super) struct Iwarp<'a> {
    pub(super) segment: Segment<'a>,
    pub(super) arrival: Arrival,
    /// Whether the stream can no longer be followed.
    pub(super) lost: bool,
    /// The start-up frames and FPDUs that it completed.
    pub(super) units: Vec<Unit>,
}

/// The error of a start-up frame without a valid key.
macro_rules! no_key {
    () => {
        WireError::Value { what: "MPA key", .. }
    };
}

/// The state of an iWARP connection.
#[derive(Debug, Default)]
pub(super) struct Mpa {
    directions: [Direction; 2],
}

/// The state of one direction.
#[derive(Debug, Default)]
struct Direction {
    /// The contents of the direction's start-up frame.
    startup: Option<Said>,
    /// Whether the start-up frame was invalid, or too truncated to read.
    broken: bool,
    state: State,
}

/// The relevant contents of a start-up frame.
#[derive(Debug, Clone, Copy)]
struct Said {
    kind: Kind,
    flags: Flags,
    peer_to_peer: bool,
}

#[derive(Debug)]
enum State {
    /// The first bytes of the start-up frame.
    Startup(Vec<u8>),
    Frames(Frames),
    /// The start of the next frame is unknown, or none will follow.
    Lost,
}

impl Default for State {
    fn default() -> Self {
        Self::Startup(Vec::new())
    }
}

impl Mpa {
    /// Returns whether a stream that begins with these bytes may be iWARP.
    pub(super) fn begins(bytes: &[u8]) -> bool {
        !bytes.is_empty() && !matches!(Startup::need(bytes), Err(no_key!()))
    }

    /// Returns whether the connection has turned out to be something else.
    pub(super) fn is_none(&self) -> bool {
        let none = |direction: &Direction| direction.startup.is_none() && !direction.broken;
        self.directions.iter().all(none) && (self.is_lost(0) || self.is_lost(1))
    }

    /// Returns whether these bytes could begin with an FPDU, or with an invalid start-up frame.
    pub(super) fn looks_like_frame(bytes: &[u8]) -> bool {
        const RESERVED: [u8; 2] = [0x3c, 0x30];
        let Some([length @ .., ddp, rdmap]) = bytes.first_chunk::<4>() else { return false };
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let header = Header::parse(&bytes[2..]);
        header.is_ok_and(|header| ulpdu_len >= header.len())
            && [ddp & RESERVED[0], rdmap & RESERVED[1]] == [0, 0]
    }

    /// Returns whether a direction can no longer be followed.
    pub(super) fn is_lost(&self, from: usize) -> bool {
        matches!(self.directions[from].state, State::Lost)
    }

    /// Ends both directions. Incomplete frames stay incomplete.
    pub(super) fn end(&mut self) {
        for direction in &mut self.directions {
            direction.broken |= direction.startup.is_none();
            direction.state = State::Lost;
        }
    }

    /// Takes the next part of a direction, and appends completed frames to `units`.
    pub(super) fn take(&mut self, from: usize, piece: &Piece, units: &mut Vec<Unit>) {
        let rest = match (&mut self.directions[from].state, piece) {
            (State::Lost, _) => return,
            (State::Startup(start), Piece::Missing(missing)) => {
                let Some(need) = needs_private_data(start) else {
                    let broken = start.len() >= KEY_LEN;
                    self.directions[from] = Direction { startup: None, broken, state: State::Lost };
                    units.push(Unit::Lost);
                    return;
                };
                let missing = usize::try_from(*missing).unwrap_or(usize::MAX);
                let filled = missing.min(need - start.len());
                start.resize(start.len() + filled, 0);
                self.startup(from, units);
                if missing == filled {
                    return;
                }
                Piece::Missing((missing - filled) as u64)
            }
            (State::Startup(start), Piece::Bytes(bytes)) => {
                start.extend_from_slice(bytes);
                match self.startup(from, units) {
                    Some(rest) => Piece::Bytes(rest),
                    None => return,
                }
            }
            (State::Frames(frames), piece) => {
                if !frames.take(piece, units) {
                    self.directions[from].state = State::Lost;
                }
                return;
            }
        };
        self.take(from, &rest, units);
    }

    /// Parses the start-up frame, if it is complete, and returns the bytes after it.
    fn startup(&mut self, from: usize, units: &mut Vec<Unit>) -> Option<Vec<u8>> {
        let answers = self.directions[1 - from].startup.is_some();
        let direction = &mut self.directions[from];
        let State::Startup(start) = &mut direction.state else { return None };
        let startup = match Startup::need(start) {
            Ok(need) if start.len() < need => return None,
            Ok(_) => Startup::parse(start),
            Err(error) => Err(error),
        };
        let startup = match startup {
            Ok(startup) => startup,
            Err(no_key!()) if !answers => {
                direction.state = State::Lost;
                return None;
            }
            Err(error) => {
                units.push(Unit::Broken(error));
                direction.state = State::Lost;
                direction.broken = true;
                return None;
            }
        };
        let (kind, flags) = (startup.kind, startup.flags);
        let peer_to_peer = startup.enhanced.is_some_and(|enhanced| enhanced.peer_to_peer);
        units.push(Unit::Startup { kind, text: startup.to_string() });
        let rest = start[startup.len()..].to_vec();
        direction.startup = Some(Said { kind, flags, peer_to_peer });
        direction.state = State::Lost;
        if !(kind == Kind::Reply && flags.has(Flags::REJECT)) {
            direction.state = State::Frames(Frames::default());
        }
        self.agree();
        (!rest.is_empty()).then_some(rest)
    }

    /// Tells both directions what their start-up frames have agreed on.
    fn agree(&mut self) {
        let said = [0, 1].map(|from| self.directions[from].startup);
        let both = said[0].is_some() && said[1].is_some();
        let any = |flag: Flags| said.iter().flatten().any(|said| said.flags.has(flag));
        // The responder decides.
        let reply = said.iter().flatten().find(|said| said.kind == Kind::Reply);
        let peer_to_peer = reply.or(said.iter().flatten().next()).is_some_and(|s| s.peer_to_peer);
        for from in [0, 1] {
            let markers = said[1 - from].is_some_and(|said| said.flags.has(Flags::MARKERS));
            let framing = Framing { crc: any(Flags::CRC), markers };
            let initiator = said[from].is_some_and(|said| said.kind == Kind::Request);
            if let State::Frames(frames) = &mut self.directions[from].state {
                frames.agreed(framing, both || framing.crc, initiator, peer_to_peer);
            }
        }
    }
}

/// The length of a start-up frame's key, in bytes.
const KEY_LEN: usize = 16;

/// Returns the length of the start-up frame with this beginning, if only the program's private data are missing.
fn needs_private_data(start: &[u8]) -> Option<usize> {
    let need = Startup::need(start).ok().filter(|need| start.len() <= *need)?;
    let mut frame = start.to_vec();
    frame.resize(need, 0);
    let enhanced = Startup::parse(&frame).ok()?.enhanced.map_or(0, |_| Enhanced::LEN);
    (start.len() >= Startup::HEADER_LEN + enhanced).then_some(need)
}

/// The maximum number of FPDUs of a segment that are shown in a line.
const SHOWN: usize = 4;

impl fmt::Display for Iwarp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Segment { tcp, len, ipv6, .. } = self.segment;
        let family = if ipv6 { "6" } else { "" };
        write!(f, "iWARP{family} {} > {}", tcp.src_port, tcp.dst_port)?;
        for (i, unit) in self.units.iter().take(SHOWN).enumerate() {
            write!(f, "{} {unit}", if i == 0 { " " } else { ";" })?;
        }
        if let more @ 1.. = self.units.len().saturating_sub(SHOWN) {
            write!(f, "; {more} more")?;
        }
        if !self.units.is_empty() {
            return Ok(());
        }
        let how = match self.arrival {
            Arrival::Old => "retransmitted",
            _ if self.lost => "not followed, earlier bytes were not captured",
            Arrival::Early => "out of order",
            Arrival::New => "part of a frame",
        };
        write!(f, "  {how}, length {len}")
    }
}
