//! Packets out: several to one destination in one system call.
//!
//! The kernel cuts one message into segments of equal size, of which only the last may be shorter
//! (`UDP_SEGMENT`, `udp(7)`). So a packet joins the batch if it is not larger than the first, and
//! closes it if it is smaller. The FIRST packet of a WRITE is larger than a MIDDLE one by its RETH:
//! such a message of n packets takes a call for two of them and then one for each 64 KiB.
//!
//! On loopback a message is not cut at all before it is steered to a socket, by its first packet's
//! QPN. So the packets of a batch go to queue pairs of one process, as their numbers tell.

use std::fmt;
use std::io;

use rdmux_wire::icrc::Icrc;
use socket2::SockAddr;

use super::checksum;
use super::control::ControlBuf;
use super::port::{Destination, UdpPort};
use super::steer::SLOT_SHIFT;
use crate::link::{Frame, Payload};
use crate::sys::{self, Gather, MAX_PIECES, Part};

/// The most segments of one message (`UDP_MAX_SEGMENTS` of kernels before 6.6).
const MAX_SEGMENTS: usize = 64;
/// The most bytes of one UDP datagram over IPv4.
const MAX_BYTES: usize = 65_507;
/// A payload of no more bytes than this is copied, which is cheaper than another gather entry.
const COPY_LIMIT: usize = 256;
/// Zero bytes to pad with.
const PAD: [u8; 4] = [0; 4];

/// Packets to one destination, to be sent together.
///
/// Nothing is allocated after [`new`](Self::new).
pub struct TxBatch {
    /// Headers, small payloads, pads and checksums.
    arena: Box<[u8]>,
    used: usize,
    /// The bytes of all packets in order.
    parts: Vec<Part>,
    packets: Vec<Queued>,
    to: Option<To>,
    /// The destination's slot: its host steers a message by the first packet's QPN.
    slot: u32,
    bytes: usize,
    /// No other packet may follow: one smaller than the first was taken, or some have left.
    closed: bool,
    /// Packet i's ICRC was computed with Identification i, else with zero.
    numbered: bool,
    gather: Gather,
}

/// A packet of a batch.
#[derive(Clone, Copy)]
struct Queued {
    /// The end of its parts.
    end: usize,
    /// Bytes with ICRC.
    len: usize,
    /// Where its ICRC lies in the arena.
    icrc: usize,
}

/// The destination of a batch.
struct To {
    destination: Destination,
    name: SockAddr,
}

/// Why a batch did not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// It does not go with what is in the batch: flush, then push it again.
    #[error("flush the batch first")]
    Full,
    /// It can never be sent.
    #[error("a packet of {len} bytes does not fit in a datagram")]
    TooLarge {
        /// Bytes of UDP payload, with ICRC.
        len: usize,
    },
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Packets.
    pub packets: usize,
    /// Bytes of UDP payload, ICRCs included.
    pub bytes: usize,
}

/// Why not all was sent.
#[derive(Debug, thiserror::Error)]
pub enum TxFail {
    /// The socket's buffer is full. The batch keeps the packets that did not leave: flush it again
    /// when the socket is writable, or clear it and let the transport send them again.
    #[error("the socket is full ({kept} packets kept)")]
    Busy {
        /// What left before.
        sent: Flushed,
        /// Packets that stay in the batch.
        kept: usize,
    },
    /// A packet is larger than the path takes. It and what followed it are gone.
    #[error("a packet of {len} bytes is larger than the path takes ({lost} packets lost)")]
    TooLarge {
        /// Bytes of UDP payload of the packet.
        len: usize,
        /// What left before.
        sent: Flushed,
        /// Packets that did not leave.
        lost: usize,
    },
    /// The system refused a packet: no route, a firewall. It and what followed it are gone.
    #[error("the system refused to send ({lost} packets lost): {source}")]
    Io {
        /// What it said.
        source: io::Error,
        /// What left before.
        sent: Flushed,
        /// Packets that did not leave.
        lost: usize,
    },
}

impl TxBatch {
    /// The largest packet: BTH to ICRC.
    pub const MAX_PACKET: usize = MAX_BYTES;

    /// An empty one.
    pub fn new() -> Self {
        Self {
            arena: vec![0; MAX_BYTES].into_boxed_slice(),
            used: 0,
            parts: Vec::with_capacity(MAX_PIECES),
            packets: Vec::with_capacity(MAX_SEGMENTS),
            to: None,
            slot: 0,
            bytes: 0,
            closed: false,
            numbered: false,
            gather: Gather::new(),
        }
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether a packet of `len` bytes, ICRC included, to `to` would be taken without a flush, if it
    /// also goes to a queue pair of the same process as those in the batch.
    pub fn room(&self, to: &Destination, len: usize) -> bool {
        let Some(first) = self.packets.first() else { return len <= MAX_BYTES };
        !self.closed
            && self.packets.len() < MAX_SEGMENTS
            && len <= first.len
            && self.bytes + len <= MAX_BYTES
            && self.to.as_ref().is_some_and(|t| t.destination == *to)
    }

    /// Takes a packet and computes its ICRC. Nothing is sent yet. All packets of a batch must be
    /// pushed and flushed through the same port.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the packet was not taken.
    pub fn push(
        &mut self,
        port: &UdpPort,
        to: &Destination,
        frame: &Frame<'_>,
    ) -> Result<(), PushError> {
        let pad = &PAD[..usize::from(frame.pad & 3)];
        let len = [frame.payload.len(), pad.len(), Icrc::LEN]
            .iter()
            .fold(frame.header.len(), |n, l| n.saturating_add(*l));
        if len > MAX_BYTES {
            return Err(PushError::TooLarge { len });
        }
        // A list of pieces that would overflow the system call's is copied instead.
        let pieces = if let Payload::Pieces(p) = frame.payload { p.len() } else { 0 };
        let refer = frame.payload.len() > COPY_LIMIT && pieces + 2 <= MAX_PIECES;
        let slot = slot_bits(frame.header);
        if !self.room(to, len)
            || (slot != self.slot && !self.is_empty())
            || (refer && self.parts.len() + pieces + 2 > MAX_PIECES)
        {
            return Err(PushError::Full);
        }
        if self.packets.is_empty() {
            self.begin(port, to);
            self.slot = slot;
        }
        let id = if self.numbered { self.packets.len() } else { 0 };
        let id = u16::try_from(id).unwrap_or_default();
        let mut icrc = checksum::begin(port.local_addr(), to.addr.ip(), id, len);
        icrc.update(frame.header);
        self.append(frame.header);
        match frame.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => {
                icrc.update(bytes);
                self.append(bytes);
            }
            Payload::Pieces(pieces) => {
                for piece in pieces.iter().filter(|p| !p.is_empty()) {
                    if refer {
                        piece.read(|bytes| icrc.update(bytes));
                        self.parts.push(Part::Piece(*piece));
                    } else {
                        let start = self.used;
                        piece.copy_to(&mut self.arena[start..start + piece.len()]);
                        icrc.update(&self.arena[start..start + piece.len()]);
                        self.extend(piece.len());
                    }
                }
            }
        }
        icrc.update(pad);
        self.append(pad);
        let at = self.used;
        self.append(&icrc.finish());
        self.closed |= self.packets.first().is_some_and(|first| len < first.len);
        self.packets.push(Queued { end: self.parts.len(), len, icrc: at });
        self.bytes += len;
        Ok(())
    }

    /// Sends everything, without blocking.
    ///
    /// # Errors
    ///
    /// [`TxFail`], which says what left, what is kept and what is gone.
    pub fn flush(&mut self, port: &UdpPort) -> Result<Flushed, TxFail> {
        if self.packets.is_empty() {
            return Ok(Flushed::default());
        }
        if self.packets.len() == 1 || !self.numbered || !port.segments() {
            self.renumber(port);
            return self.flush_singly(port);
        }
        match self.send_segmented(port) {
            Ok(()) => {
                let sent = Flushed { packets: self.packets.len(), bytes: self.bytes };
                self.clear();
                Ok(sent)
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => {
                    Err(TxFail::Busy { sent: Flushed::default(), kept: self.packets.len() })
                }
                // No checksum offload on the way out, or packets larger than the path: one by one
                // tells.
                Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) => {
                    self.renumber(port);
                    let outcome = self.flush_singly(port);
                    if outcome.is_ok() {
                        port.refuse_segments();
                    }
                    outcome
                }
                _ => {
                    let lost = self.packets.len();
                    self.clear();
                    Err(TxFail::Io { source: e, sent: Flushed::default(), lost })
                }
            },
        }
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        self.used = 0;
        self.bytes = 0;
        self.closed = false;
        self.parts.clear();
        self.packets.clear();
        self.to = None;
    }

    fn begin(&mut self, port: &UdpPort, to: &Destination) {
        self.to = Some(To { destination: *to, name: SockAddr::from(to.addr) });
        self.numbered = port.segments();
    }

    /// Copies bytes into the arena, and to the end of the parts.
    fn append(&mut self, bytes: &[u8]) {
        self.arena[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.extend(bytes.len());
    }

    /// Adds the arena's next `n` bytes to the parts of the packet in the making.
    fn extend(&mut self, n: usize) {
        let first = self.packets.last().map_or(0, |p| p.end);
        match self.parts[first..].last_mut() {
            Some(Part::Arena { len, .. }) => *len += n,
            _ => self.parts.push(Part::Arena { start: self.used, len: n }),
        }
        self.used += n;
    }

    fn send_segmented(&mut self, port: &UdpPort) -> io::Result<()> {
        let Some(to) = &self.to else { return Ok(()) };
        let segment = self.packets.first().map_or(0, |p| p.len);
        let segment = u16::try_from(segment).unwrap_or(u16::MAX);
        let mut control = control_of(&to.destination);
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        sys::send(port, &to.name, &self.arena, &self.parts, control.as_slice(), &mut self.gather)?;
        Ok(())
    }

    /// Computes every ICRC anew with Identification 0, as a packet that leaves alone has it.
    fn renumber(&mut self, port: &UdpPort) {
        let (true, Some(to)) = (self.numbered, &self.to) else { return };
        self.numbered = false;
        let mut first = self.packets.first().map_or(0, |p| p.end);
        for packet in self.packets.iter().skip(1) {
            let mut icrc =
                checksum::begin(port.local_addr(), to.destination.addr.ip(), 0, packet.len);
            for part in &self.parts[first..packet.end] {
                match *part {
                    Part::Arena { start, len } => {
                        let end = if start + len > packet.icrc { packet.icrc } else { start + len };
                        icrc.update(&self.arena[start..end]);
                    }
                    Part::Piece(piece) => piece.read(|bytes| icrc.update(bytes)),
                }
            }
            self.arena[packet.icrc..packet.icrc + Icrc::LEN].copy_from_slice(&icrc.finish());
            first = packet.end;
        }
    }

    /// Sends packet by packet. All have Identification 0 here.
    fn flush_singly(&mut self, port: &UdpPort) -> Result<Flushed, TxFail> {
        let mut sent = Flushed::default();
        let Some(to) = &self.to else { return Ok(sent) };
        let control = control_of(&to.destination);
        let mut first = 0;
        for packet in &self.packets {
            let parts = &self.parts[first..packet.end];
            let outcome =
                sys::send(port, &to.name, &self.arena, parts, control.as_slice(), &mut self.gather);
            let Err(source) = outcome else {
                sent.packets += 1;
                sent.bytes += packet.len;
                first = packet.end;
                continue;
            };
            let left = self.packets.len() - sent.packets;
            let fail = match source.raw_os_error() {
                Some(libc::EAGAIN) => TxFail::Busy { sent, kept: left },
                Some(libc::EMSGSIZE) => TxFail::TooLarge { len: packet.len, sent, lost: left },
                _ => TxFail::Io { source, sent, lost: left },
            };
            if matches!(fail, TxFail::Busy { .. }) {
                self.forget(sent.packets);
            } else {
                self.clear();
            }
            return Err(fail);
        }
        self.clear();
        Ok(sent)
    }

    /// Drops the first `n` packets, which left, and takes no more until the rest has left, too.
    fn forget(&mut self, n: usize) {
        let Some(last) = n.checked_sub(1).and_then(|i| self.packets.get(i)) else { return };
        let parts = last.end;
        self.parts.drain(..parts);
        for packet in self.packets.drain(..n) {
            self.bytes -= packet.len;
        }
        for packet in &mut self.packets {
            packet.end -= parts;
        }
        self.closed = true;
    }
}

/// What of a BTH's destination QPN decides which socket of the destination gets the packet.
fn slot_bits(header: &[u8]) -> u32 {
    let qpn = header.get(4..).and_then(|h| h.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    (qpn & 0x00ff_ffff) >> SLOT_SHIFT
}

/// Control messages that say traffic class and hop limit, where they are not the socket's own.
fn control_of(to: &Destination) -> ControlBuf {
    let mut control = ControlBuf::new();
    let (level, tos, ttl) = if to.addr.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    };
    // To a group the system's own is 1, whatever the socket has for others.
    let usual = to.ttl == super::HOP_LIMIT && !to.addr.ip().is_multicast();
    let told = if usual { 0 } else { to.ttl };
    for (kind, value) in [(tos, to.tos), (ttl, told)] {
        if value != 0 {
            control.push(level, kind, &i32::from(value).to_ne_bytes());
        }
    }
    control
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.as_ref().map(|to| to.destination);
        f.debug_struct("TxBatch")
            .field("to", &to)
            .field("packets", &self.packets.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
