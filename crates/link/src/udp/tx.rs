//! Sending of packets: several to one destination in one system call.
//!
//! The kernel cuts one message into segments of equal size, except that the last may be shorter (`UDP_SEGMENT`, `udp(7)`). So a
//! packet is added to the batch if it is not larger than the first, and closes the batch if it is smaller. The FIRST packet of a
//! WRITE is larger than a MIDDLE one by its RETH: such a message of n packets takes a call for two of them and then one for each
//! 64 KiB. So the transport cuts long WRITEs into WRITEs of one packet each, if that is permitted.
//!
//! On loopback a message is not cut at all before it is steered to a socket, by its first packet's QPN. So the packets of a batch
//! go to queue pairs of one process, as identified by their numbers.
//!
//! Payload is copied into the batch and its checksum computed from the copy: the program may write to its memory meanwhile, or
//! unmap it, and the sent packet is valid nevertheless. The system call then reads one run of bytes from a warm cache, which
//! compensates for most of the copy. For a receiver on this machine the run may be sent zero-copy instead ([`super::zerocopy`]).

use std::fmt;
use std::io;
use std::ops::Range;

use rdmux_wire::icrc::Icrc;
use socket2::SockAddr;

use super::checksum;
use super::control::ControlBuf;
use super::port::{Destination, UdpPort};
use super::steer::SLOT_SHIFT;
use super::zerocopy::{ZeroCopyBuf, ZeroCopyDest};
use crate::guarded::Unmapped;
use crate::wire::{Flushed, Frame, Payload, Piece, TxFail};

/// The maximum number of segments of one message (`UDP_MAX_SEGMENTS` of kernels before 6.6).
const MAX_SEGMENTS: usize = 64;
/// The maximum number of bytes of one UDP datagram over IPv4.
const MAX_BYTES: usize = 65_507;
/// Zero bytes for padding.
const PAD: [u8; 4] = [0; 4];

/// Packets to one destination, to be sent together.
///
/// Nothing is allocated after [`new`](Self::new).
pub struct TxBatch {
    /// All packets, one after another.
    arena: Box<[u8]>,
    used: usize,
    packets: Vec<Queued>,
    to: Option<To>,
    /// The destination's slot: its host steers a message by the first packet's QPN.
    slot: u32,
    bytes: usize,
    /// Whether no other packet may follow: one smaller than the first was added, or some have been sent.
    closed: bool,
    /// Whether packet i's ICRC was computed with Identification i; otherwise with zero.
    numbered: bool,
}

/// A packet of a batch.
#[derive(Clone, Copy)]
struct Queued {
    /// The packet's offset in the arena.
    start: usize,
    /// The packet's length with ICRC.
    len: usize,
}

impl Queued {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The destination of a batch.
struct To {
    destination: Destination,
    name: SockAddr,
}

/// The reason why a batch did not accept a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The packet cannot be combined with the batch: flush, then push it again.
    #[error("the packet cannot join this batch: flush the batch first")]
    Full,
    /// The packet's payload is not mapped.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// The packet can never be sent.
    #[error("a packet of {len} bytes does not fit in a datagram")]
    TooLarge {
        /// The packet's UDP payload in bytes, with ICRC.
        len: usize,
    },
}

impl TxBatch {
    /// The largest packet: BTH to ICRC.
    pub const MAX_PACKET: usize = MAX_BYTES;

    /// Creates an empty batch.
    pub fn new() -> Self {
        Self {
            arena: vec![0; MAX_BYTES].into_boxed_slice(),
            used: 0,
            packets: Vec::with_capacity(MAX_SEGMENTS),
            to: None,
            slot: 0,
            bytes: 0,
            closed: false,
            numbered: false,
        }
    }

    /// Returns the number of packets in the batch.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns whether a packet of `len` bytes, ICRC included, to `to` would be accepted without a flush, if its destination
    /// is also a queue pair of the same process as those in the batch.
    pub fn room(&self, to: &Destination, len: usize) -> bool {
        let Some(first) = self.packets.first() else { return len <= MAX_BYTES };
        !self.closed
            && self.packets.len() < MAX_SEGMENTS
            && len <= first.len
            && self.bytes + len <= MAX_BYTES
            && self.to.as_ref().is_some_and(|t| t.destination == *to)
    }

    /// Adds a packet and computes its ICRC. Nothing is sent yet. All packets of a batch must be pushed and flushed through the
    /// same port.
    ///
    /// # Errors
    ///
    /// [`PushError`]; the packet was not added.
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
        let slot = slot_bits(frame.header);
        if !self.room(to, len) || (slot != self.slot && !self.is_empty()) {
            return Err(PushError::Full);
        }
        if self.packets.is_empty() {
            self.begin(port, to);
            self.slot = slot;
        }
        let id = if self.numbered { self.packets.len() } else { 0 };
        let id = u16::try_from(id).unwrap_or_default();
        let icrc = checksum::begin(port.local_addr(), to.addr, id, len);
        let start = self.used;
        // The packet is not part of the batch until `used` includes it.
        let mut packet = Packet { rest: &mut self.arena[start..start + len], icrc };
        packet.put(frame.header);
        match frame.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => packet.put(bytes),
            Payload::Pieces(pieces) => pieces.iter().try_for_each(|p| packet.put_piece(*p))?,
        }
        packet.put(pad);
        packet.finish();
        self.used += len;
        self.closed |= self.packets.first().is_some_and(|first| len < first.len);
        self.packets.push(Queued { start, len });
        self.bytes += len;
        Ok(())
    }

    /// Sends all packets, without blocking.
    ///
    /// # Errors
    ///
    /// [`TxFail`], which has the numbers of packets sent, kept and lost.
    pub fn flush(&mut self, port: &UdpPort) -> Result<Flushed, TxFail> {
        let Some(to) = self.zerocopy_dest() else { return Ok(Flushed::default()) };
        if self.packets.len() == 1 || !self.numbered || !port.segments(to.addr) {
            self.renumber(port);
            return self.flush_singly(port);
        }
        match self.send_segmented(port, None) {
            Ok(()) => {
                let sent = Flushed { packets: self.packets.len(), bytes: self.bytes };
                self.clear();
                Ok(sent)
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => {
                    Err(TxFail::Busy { sent: Flushed::default(), kept: self.packets.len() })
                }
                // There is no checksum offload on the path, or packets exceed the path MTU: sending them one by one decides.
                Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) => {
                    self.renumber(port);
                    let outcome = self.flush_singly(port);
                    if outcome.is_ok() {
                        port.refuse_segments(to.addr);
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

    /// Flushes like [`flush`](Self::flush), but zero-copy from the buffer `buf` if the kernel accepts it. Returns whether the
    /// kernel may use the buffer.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub fn flush_zerocopy(
        &mut self,
        port: &UdpPort,
        buf: &mut ZeroCopyBuf,
    ) -> (bool, Result<Flushed, TxFail>) {
        let several = self.zerocopy_dest().filter(|_| self.packets.len() > 1 && self.numbered);
        let Some(to) = several.filter(|to| port.supports_zerocopy(to.addr)) else {
            return (false, self.flush(port));
        };
        match self.send_segmented(port, Some(buf)) {
            Ok(()) => {
                let sent = Flushed { packets: self.packets.len(), bytes: self.bytes };
                self.clear();
                (true, Ok(sent))
            }
            Err(e) => {
                port.zerocopy_refused(to.addr, &e);
                // Some packets may have been sent; the receiver then gets them twice.
                (true, self.flush(port))
            }
        }
    }

    /// Returns the socket that all packets are for, or none if the batch is empty.
    pub fn zerocopy_dest(&self) -> Option<ZeroCopyDest> {
        self.packets.first()?;
        let addr = self.to.as_ref()?.destination.addr;
        Some(ZeroCopyDest { addr, slot: self.slot })
    }

    /// Returns the number of bytes in the batch, ICRCs included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Discards all packets.
    pub fn clear(&mut self) {
        self.used = 0;
        self.bytes = 0;
        self.closed = false;
        self.packets.clear();
        self.to = None;
    }

    fn begin(&mut self, port: &UdpPort, to: &Destination) {
        self.to = Some(To { destination: *to, name: SockAddr::from(to.addr) });
        self.numbered = port.segments(to.addr);
    }

    fn send_segmented(&mut self, port: &UdpPort, buf: Option<&mut ZeroCopyBuf>) -> io::Result<()> {
        let (Some(to), Some(first)) = (&self.to, self.packets.first()) else { return Ok(()) };
        let segment = u16::try_from(first.len).unwrap_or(u16::MAX);
        let mut control = control_of(&to.destination);
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        let bytes = &self.arena[first.start..self.used];
        match buf {
            Some(buf) => port.send_zerocopy(&to.name, bytes, &control, buf),
            None => port.send_message(&to.name, bytes, &control),
        }
    }

    /// Recomputes every ICRC with Identification 0, as for a packet that is sent alone.
    fn renumber(&mut self, port: &UdpPort) {
        let (true, Some(to)) = (self.numbered, &self.to) else { return };
        self.numbered = false;
        for packet in self.packets.iter().skip(1) {
            let (src, dst) = (port.local_addr(), to.destination.addr);
            let mut icrc = checksum::begin(src, dst, 0, packet.len);
            if let Some((bytes, old)) =
                self.arena[packet.range()].split_last_chunk_mut::<{ Icrc::LEN }>()
            {
                icrc.update(bytes);
                *old = icrc.finish();
            }
        }
    }

    /// Sends the packets one by one. All have Identification 0 here.
    fn flush_singly(&mut self, port: &UdpPort) -> Result<Flushed, TxFail> {
        let mut sent = Flushed::default();
        let Some(to) = &self.to else { return Ok(sent) };
        let control = control_of(&to.destination);
        for packet in &self.packets {
            let bytes = &self.arena[packet.range()];
            let Err(source) = port.send_message(&to.name, bytes, &control) else {
                sent.packets += 1;
                sent.bytes += packet.len;
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

    /// Drops the first `n` packets, which have been sent, and accepts no more until the rest has been sent, too.
    fn forget(&mut self, n: usize) {
        self.bytes -= self.packets.drain(..n).map(|packet| packet.len).sum::<usize>();
        self.closed |= n != 0;
    }
}

/// A packet that is being written.
struct Packet<'a> {
    rest: &'a mut [u8],
    icrc: Icrc,
}

impl<'a> Packet<'a> {
    fn next(&mut self, n: usize) -> &'a mut [u8] {
        let (part, rest) = std::mem::take(&mut self.rest).split_at_mut(n);
        self.rest = rest;
        part
    }

    fn put(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
        self.icrc.update(bytes);
    }

    fn put_piece(&mut self, piece: Piece) -> Result<(), Unmapped> {
        let copy = self.next(piece.len());
        piece.copy_to(copy)?;
        self.icrc.update(copy);
        Ok(())
    }

    fn finish(mut self) {
        self.next(Icrc::LEN).copy_from_slice(&self.icrc.finish());
    }
}

/// Returns the bits of a BTH's destination QPN that determine which socket of the destination gets the packet.
fn slot_bits(header: &[u8]) -> u32 {
    let qpn = header.get(4..).and_then(|h| h.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    (qpn & 0x00ff_ffff) >> SLOT_SHIFT
}

/// Returns control messages for traffic class and hop limit, if they are not the socket's own.
fn control_of(to: &Destination) -> ControlBuf {
    let mut control = ControlBuf::new();
    let (level, tos, ttl) = if to.addr.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    };
    // For a group the kernel's default is 1, independent of the socket's value for other destinations.
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
