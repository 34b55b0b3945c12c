//! The matrix of MPA's start-up: revisions, peer-to-peer (A), the kinds of first frame that are offered or
//! chosen (B, C, D), each with and without CRCs and markers on either side.
//!
//! A row is a combination of the former. Its cells are those of the latter, each a connection with messages in both
//! directions.

use std::fmt;

use anyhow::{Context as _, Result, ensure};
use rdmux::cm::EventKind;
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind};
use rdmux_wire::iwarp::terminate::Fault;

use super::Row;
use super::ours::{DEPTH, End, Hosts, OURS, Settings, THEIRS};
use super::wire::{Rtr, Said, Wire, listen};

/// The flags that RFC 6581 adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) a: bool,
    pub(super) b: bool,
    pub(super) c: bool,
    pub(super) d: bool,
}

impl Bits {
    /// Returns all sixteen combinations.
    fn all() -> impl Iterator<Item = Self> {
        let bit = |n: u8, at: u8| n >> at & 1 == 1;
        (0..16).map(move |n| Self { a: bit(n, 3), b: bit(n, 2), c: bit(n, 1), d: bit(n, 0) })
    }

    pub(super) fn of(rtr: Option<Rtr>) -> Self {
        let is = |kind| rtr == Some(kind);
        Self { a: rtr.is_some(), b: is(Rtr::Send), c: is(Rtr::Write), d: is(Rtr::Read) }
    }

    pub(super) fn enhanced(self) -> Enhanced {
        let depth = DEPTH.into();
        let Self { a, b, c, d } = self;
        Enhanced { peer_to_peer: a, rtr_send: b, rtr_write: c, rtr_read: d, ird: depth, ord: depth }
    }
}

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |on: bool, letter: char| if on { letter } else { '-' };
        let Self { a, b, c, d } = *self;
        write!(f, "{}{}{}{}", letter(a, 'A'), letter(b, 'B'), letter(c, 'C'), letter(d, 'D'))
    }
}

/// The contents of the peer's start-up frame, apart from those that the cells vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// Revision 1.
    V1,
    /// Revision 2 without S, and so without the other flags.
    V2Plain,
    /// Revision 2.
    V2(Bits),
}

impl Speaks {
    /// Returns the start-up frame of the scripted peer.
    pub(super) fn said(self, kind: Kind, flags: Flags) -> Said {
        let (revision, enhanced) = match self {
            Self::V1 => (1, None),
            Self::V2Plain => (2, None),
            Self::V2(bits) => (2, Some(bits.enhanced())),
        };
        Said { kind, flags, revision, enhanced, private_data: THEIRS.to_vec() }
    }
}

impl fmt::Display for Speaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V1 => f.write_str("revision 1"),
            Self::V2Plain => f.write_str("revision 2 without S"),
            Self::V2(bits) => write!(f, "revision 2 {bits}"),
        }
    }
}

/// The expected outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A connection with this first frame, or none in particular.
    Up(Option<Rtr>),
    /// A Terminate with this error.
    Terminated(Fault),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up(None) => f.write_str("connected, the active side first"),
            Self::Up(Some(rtr)) => write!(f, "connected, {rtr:?} first").map(|()| ()),
            Self::Terminated(fault) => write!(f, "terminated, {fault}"),
        }
    }
}

/// The CRC and marker flags of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) settings: Settings,
    pub(super) their_crc: bool,
    pub(super) their_markers: bool,
}

impl Cell {
    fn all(revision: u8) -> impl Iterator<Item = Self> {
        let bit = |n: u8, at: u8| n >> at & 1 == 1;
        (0..16).map(move |n| {
            let markers = if bit(n, 1) { "ask" } else { "give" };
            let settings = Settings { crc: bit(n, 0), markers, revision, ..Settings::default() };
            Self { settings, their_crc: bit(n, 2), their_markers: bit(n, 3) }
        })
    }

    /// Returns the default settings of both ends.
    pub(super) fn plain() -> Self {
        Self { settings: Settings::default(), their_crc: false, their_markers: false }
    }

    fn their_flags(&self) -> Flags {
        let flags = Flags::default().with(Flags::CRC, self.their_crc);
        flags.with(Flags::MARKERS, self.their_markers)
    }

    fn we_ask_for_markers(&self) -> bool {
        self.settings.markers == "ask"
    }

    /// Returns the framing of frames to and from the peer. There are CRCs if either side wants them (RFC 5044, section 7.1.1).
    fn framings(&self) -> (Framing, Framing) {
        let crc = self.settings.crc || self.their_crc;
        let to_peer = Framing { crc, markers: self.their_markers };
        (to_peer, Framing { crc, markers: self.we_ask_for_markers() })
    }
}

/// Returns the expected outcome of a responder's reply to rdmux. A responder that sets A waits for the first frame even if rdmux
/// has not set it.
fn when_we_ask(answer: Speaks) -> Outcome {
    let Speaks::V2(bits) = answer else { return Outcome::Up(None) };
    match bits {
        Bits { a: false, .. } => Outcome::Up(None),
        // rdmux sends a Write or a Read.
        Bits { c: true, .. } => Outcome::Up(Some(Rtr::Write)),
        Bits { d: true, .. } => Outcome::Up(Some(Rtr::Read)),
        _ => Outcome::Terminated(Fault::MpaNoMatchingRtr),
    }
}

/// Returns the first frame that rdmux must choose as the responder. If the peer offers none, a Write, as siw does.
fn when_they_ask(request: Speaks) -> Option<Rtr> {
    match request {
        Speaks::V2(Bits { a: true, c: true, .. }) => Some(Rtr::Write),
        Speaks::V2(Bits { a: true, d: true, .. }) => Some(Rtr::Read),
        Speaks::V2(Bits { a: true, b: true, .. }) => Some(Rtr::Send),
        Speaks::V2(Bits { a: true, .. }) => Some(Rtr::Write),
        _ => None,
    }
}

/// Returns the rows.
pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let v2 = || Bits::all().map(Speaks::V2);
    for peer_to_peer in [true, false] {
        let mode = if peer_to_peer { "peer-to-peer" } else { "client-server" };
        let of_v2 = [Speaks::V1, Speaks::V2Plain].into_iter().chain(v2());
        let of_v1 = [Speaks::V1].into_iter();
        for (revision, answer) in of_v2.map(|a| (2, a)).chain(of_v1.map(|a| (1, a))) {
            let outcome = if revision == 1 { Outcome::Up(None) } else { when_we_ask(answer) };
            let name =
                format!("rdmux asks {mode}, revision {revision} | answer {answer} | {outcome}");
            rows.push(Row::new(name, move |hosts| {
                each(Cell::all(revision), |cell| {
                    we_ask(hosts, cell, peer_to_peer, answer, outcome).map(drop)
                })
            }));
        }
    }
    for request in [Speaks::V1, Speaks::V2Plain].into_iter().chain(v2()) {
        let rtr = when_they_ask(request);
        let name = format!("peer asks | request {request} | {}", Outcome::Up(rtr));
        rows.push(Row::new(name, move |hosts| {
            each(Cell::all(2), |cell| they_ask(hosts, cell, request, rtr).map(drop))
        }));
    }
    rows
}

fn each(cells: impl Iterator<Item = Cell>, run: impl Fn(&Cell) -> Result<()>) -> Result<()> {
    for cell in cells {
        run(&cell).with_context(|| {
            let Cell { settings, their_crc, their_markers } = cell;
            let Settings { crc, markers, .. } = settings;
            format!(
                "we: crc {crc} markers {markers}, they: crc {their_crc} markers {their_markers}"
            )
        })?;
    }
    Ok(())
}

/// rdmux connects, and the peer replies.
pub(super) fn we_ask(
    hosts: &Hosts,
    cell: &Cell,
    peer_to_peer: bool,
    answer: Speaks,
    outcome: Outcome,
) -> Result<()> {
    let ours = hosts.with(cell.settings)?;
    let (listener, at) = listen()?;
    let end = ours.connect(at, peer_to_peer)?;
    let mut wire = Wire::accept(&listener)?;
    let request = wire.startup()?;
    let offers = Bits { a: peer_to_peer, b: false, c: peer_to_peer, d: peer_to_peer };
    let wanted = Said {
        kind: Kind::Request,
        flags: Flags::default()
            .with(Flags::CRC, cell.settings.crc)
            .with(Flags::MARKERS, cell.we_ask_for_markers()),
        revision: cell.settings.revision,
        enhanced: (cell.settings.revision == 2).then(|| offers.enhanced()),
        private_data: OURS.to_vec(),
    };
    ensure!(request == wanted, "the request is {request:?}, not {wanted:?}");
    end.no_event()?;
    wire.send(&answer.said(Kind::Reply, cell.their_flags()).bytes())?;
    let (to_peer, to_us) = cell.framings();
    wire.agree(to_peer, to_us);
    match outcome {
        Outcome::Terminated(fault) => {
            let told = wire.fault()?;
            ensure!(told == fault, "the Terminate has the error {told}");
            wire.ended()?;
            let event = end.any_event()?;
            ensure!(event.kind() == EventKind::ConnectError, "the event is {:?}", event.kind());
            Ok(())
        }
        Outcome::Up(rtr) => {
            if let Some(kind) = rtr {
                wire.take_rtr(kind)?;
            }
            let event = end.event(EventKind::Established)?;
            ensure!(
                event.private_data() == THEIRS,
                "the event has private data {:?}",
                event.private_data()
            );
            ensure!(event.peer_to_peer() == Some(rtr.is_some()), "{:?}", event.peer_to_peer());
            if rtr.is_some() {
                wire.send_message()?;
                end.receive()?;
            }
            end.send()?;
            wire.receive_message(1)?;
            if rtr.is_none() {
                wire.send_message()?;
                end.receive()?;
            }
            over(&end, wire)
        }
    }
}

/// The peer connects, and rdmux replies.
pub(super) fn they_ask(
    hosts: &Hosts,
    cell: &Cell,
    request: Speaks,
    rtr: Option<Rtr>,
) -> Result<()> {
    let ours = hosts.with(cell.settings)?;
    let listener = ours.listen()?;
    let mut wire = Wire::connect(listener.at)?;
    wire.send(&request.said(Kind::Request, cell.their_flags()).bytes())?;
    let (end, either) = listener.accept(&ours.context)?;
    ensure!(either == Some(rtr.is_some()), "the request's event says {either:?}");
    let reply = wire.startup()?;
    let asked = request.said(Kind::Request, Flags::default());
    let wanted = Said {
        kind: Kind::Reply,
        flags: Flags::default()
            .with(Flags::CRC, cell.settings.crc || cell.their_crc)
            .with(Flags::MARKERS, cell.we_ask_for_markers()),
        revision: asked.revision,
        enhanced: asked.enhanced.map(|_| Bits::of(rtr).enhanced()),
        private_data: OURS.to_vec(),
    };
    ensure!(reply == wanted, "the reply is {reply:?}, not {wanted:?}");
    let (to_peer, to_us) = cell.framings();
    wire.agree(to_peer, to_us);
    if let Some(kind) = rtr {
        end.no_event()?;
        wire.send_rtr(kind)?;
    }
    let event = end.event(EventKind::Established)?;
    ensure!(event.peer_to_peer() == Some(rtr.is_some()), "{:?}", event.peer_to_peer());
    if rtr.is_none() {
        wire.send_message()?;
        end.receive()?;
    }
    end.send()?;
    wire.receive_message(1)?;
    if rtr.is_some() {
        wire.send_message()?;
        end.receive()?;
    }
    over(&end, wire)
}

/// rdmux disconnects, and the peer sees the end of the stream and nothing else.
fn over(end: &End, mut wire: Wire) -> Result<()> {
    end.no_event()?;
    end.id.disconnect()?;
    wire.ended()?;
    drop(wire);
    end.event(EventKind::Disconnected)?;
    Ok(())
}
