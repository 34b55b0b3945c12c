//! TCP segments, and their connections.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;

use rdmux_wire::tcp::{Flags, Tcp};

use super::frame::{Addresses, Dissection, What};
use super::iwarp::{Iwarp, Mpa};
use reassembly::{Arrival, Piece, Reassembly};

pub(super) mod reassembly;
#[cfg(test)]
mod tests;

/// The maximum number of tracked connections that are not iWARP, or not known to be.
const MAX_OTHERS: usize = 65_536;
/// The maximum number of tracked iWARP connections. Beyond it, those idle longest are dropped.
const MAX_IWARP: usize = 131_072;

/// A captured segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    pub(super) tcp: Tcp,
    /// The captured part of its payload.
    pub(super) payload: &'a [u8],
    /// The length of its payload.
    pub(super) len: usize,
    /// Whether the segment is carried by IPv6.
    pub(super) ipv6: bool,
    /// Whether the segment belongs to a stream that looks like iWARP, but whose start was not captured.
    pub(super) midstream: bool,
}

impl<'a> Segment<'a> {
    /// Parses a segment. `packet`: from the TCP header on, `len` bytes if all were captured.
    pub(super) fn parse(packet: &'a [u8], len: usize, addresses: Addresses) -> Option<Self> {
        let tcp = Tcp::parse(packet).ok()?;
        let header_len = usize::from(tcp.header_len);
        let payload = packet.get(header_len..).unwrap_or_default();
        let len = len.saturating_sub(header_len).max(payload.len());
        Some(Self { tcp, payload, len, ipv6: addresses.src.is_ipv6(), midstream: false })
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tcp { src_port, dst_port, flags, .. } = self.tcp;
        let family = if self.ipv6 { "6" } else { "" };
        write!(f, "TCP{family} {src_port} > {dst_port} [{flags}] length {}", self.len)?;
        if self.midstream {
            f.write_str(", looks like iWARP, not followed: the stream's start was not captured")?;
        }
        Ok(())
    }
}

/// The connections of a capture.
#[derive(Default)]
pub(super) struct Streams {
    connections: HashMap<(SocketAddr, SocketAddr), Connection>,
    /// The number of iWARP connections when room was last made.
    iwarp: usize,
    /// The number of segments.
    segments: u64,
    /// The bytes that iWARP connections held when they ended or were dropped.
    left_over: u64,
}

/// Both directions of a connection: from the end with the lower address, and to it.
#[derive(Default)]
struct Connection {
    halves: [Reassembly; 2],
    content: Content,
    /// Whether each direction has ended.
    ended: [bool; 2],
    /// The number of its last segment.
    last: u64,
}

/// The contents of a connection.
#[derive(Default)]
enum Content {
    /// Unknown so far.
    #[default]
    Unknown,
    Iwarp(Box<Mpa>),
    /// The stream looks like iWARP, but the start of frames is unknown.
    Midstream,
    Other,
}

impl Streams {
    /// Follows a segment, if the frame is one: together with the preceding ones, it may be iWARP.
    pub(super) fn follow<'a>(&mut self, dissection: Dissection<'a>) -> Dissection<'a> {
        let Dissection { addresses: Some(addresses), what: What::Tcp(segment), .. } = &dissection
        else {
            return dissection;
        };
        let src = SocketAddr::new(addresses.src, segment.tcp.src_port);
        let dst = SocketAddr::new(addresses.dst, segment.tcp.dst_port);
        let from = usize::from(src > dst);
        let key = (src.min(dst), src.max(dst));
        if !self.connections.contains_key(&key) {
            if segment.len == 0 && !segment.tcp.flags.has(Flags::SYN) {
                return dissection;
            }
            self.make_room();
        }
        self.segments += 1;
        let connection = self.connections.entry(key).or_default();
        connection.last = self.segments;
        let what = connection.take(from, *segment);
        if connection.ended == [true; 2] {
            if connection.is_iwarp() {
                self.left_over += connection.end();
            } else {
                self.connections.remove(&key);
            }
        }
        Dissection { what, ..dissection }
    }

    /// Drops the half of the connections of a kind, iWARP or not, that were idle longest, if there are too many.
    fn make_room(&mut self) {
        if self.connections.len() < self.iwarp + MAX_OTHERS {
            return;
        }
        for (iwarp, max) in [(false, MAX_OTHERS), (true, MAX_IWARP)] {
            let of_kind = self.connections.values().filter(|c| c.is_iwarp() == iwarp);
            let mut last: Vec<u64> = of_kind.map(|connection| connection.last).collect();
            if last.len() >= max {
                let (_, &mut middle, _) = last.select_nth_unstable(max / 2);
                let forgotten = self.connections.extract_if(|_, connection| {
                    connection.is_iwarp() == iwarp && connection.last <= middle
                });
                let held: u64 = forgotten.map(|(_, connection)| connection.left_over()).sum();
                self.left_over += held;
            }
        }
        self.iwarp = self.connections.values().filter(|c| c.is_iwarp()).count();
    }

    /// Returns the bytes of iWARP that were not decoded at the end, because preceding ones were not captured.
    pub(super) fn left_over(&self) -> u64 {
        let held: u64 = self.connections.values().map(Connection::left_over).sum();
        self.left_over + held
    }
}

impl Connection {
    fn is_iwarp(&self) -> bool {
        matches!(self.content, Content::Iwarp(_))
    }

    /// Returns the bytes of iWARP that wait for missing ones.
    fn left_over(&self) -> u64 {
        if self.is_iwarp() { self.halves.iter().map(Reassembly::held).sum() } else { 0 }
    }

    /// Ends a connection after both directions of iWARP have ended: keeps only what distinguishes late segments from new ones.
    /// Returns the bytes that were waiting.
    fn end(&mut self) -> u64 {
        let left_over = self.left_over();
        self.halves.iter_mut().for_each(Reassembly::discard);
        if let Content::Iwarp(mpa) = &mut self.content {
            mpa.end();
        }
        left_over
    }

    /// Stops following a connection, because it is not iWARP or cannot be followed.
    fn give_up(&mut self, content: Content) {
        self.content = content;
        self.halves.iter_mut().for_each(Reassembly::give_up);
    }

    fn take<'a>(&mut self, from: usize, segment: Segment<'a>) -> What<'a> {
        let tcp = &segment.tcp;
        if tcp.flags.has(Flags::SYN) {
            self.begin(from, tcp);
        }
        self.ended[from] |= tcp.flags.has(Flags::FIN);
        if tcp.flags.has(Flags::RST) {
            self.ended = [true; 2];
        }
        if matches!(self.content, Content::Other) {
            return What::Tcp(segment);
        }
        if matches!(self.content, Content::Midstream) {
            let midstream = segment.len > 0;
            return What::Tcp(Segment { midstream, ..segment });
        }
        if tcp.flags.has(Flags::ACK) {
            self.halves[1 - from].acknowledge(tcp.ack);
        }
        let mut pieces = Vec::new();
        let half = &mut self.halves[from];
        if half.first().is_none() && segment.len > 0 && !Mpa::begins(segment.payload) {
            let midstream = Mpa::looks_like_frame(segment.payload);
            self.give_up(if midstream { Content::Midstream } else { Content::Other });
            return What::Tcp(Segment { midstream, ..segment });
        }
        let first = tcp.seq.wrapping_add(tcp.flags.has(Flags::SYN).into());
        let mut arrival = Arrival::Old;
        if segment.len > 0 {
            let missing = segment.len - segment.payload.len();
            arrival = half.take(first, segment.payload, missing, &mut pieces);
        }
        if tcp.flags.has(Flags::FIN) || tcp.flags.has(Flags::RST) {
            half.close(&mut pieces);
        }
        self.content(from, &pieces, segment, arrival)
    }

    /// Takes the next parts of a direction.
    fn content<'a>(
        &mut self,
        from: usize,
        pieces: &[Piece],
        segment: Segment<'a>,
        arrival: Arrival,
    ) -> What<'a> {
        if let (Content::Unknown, Some(Piece::Bytes(bytes))) = (&self.content, pieces.first())
            && Mpa::begins(bytes)
        {
            self.content = Content::Iwarp(Box::default());
        }
        let Content::Iwarp(mpa) = &mut self.content else {
            if !pieces.is_empty() {
                self.give_up(Content::Other);
            }
            return What::Tcp(segment);
        };
        let mut units = Vec::new();
        pieces.iter().for_each(|piece| mpa.take(from, piece, &mut units));
        if mpa.is_none() {
            self.give_up(Content::Other);
            return What::Tcp(segment);
        }
        if segment.len == 0 && units.is_empty() {
            return What::Tcp(segment);
        }
        let lost = mpa.is_lost(from);
        What::Iwarp(Box::new(Iwarp { segment, arrival, lost, units }))
    }

    /// Handles a SYN of this connection, or of another with the same addresses.
    fn begin(&mut self, from: usize, tcp: &Tcp) {
        let first = tcp.seq.wrapping_add(1);
        let again = self.halves[from].first() == Some(first);
        if !again && (!tcp.flags.has(Flags::ACK) || self.ended == [true; 2]) {
            *self = Self::default();
        }
        if !again {
            self.halves[from] = Reassembly::starting_at(first);
        }
    }
}
