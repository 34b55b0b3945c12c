//! Sending of datagrams: several packets, or several parts of one, in one system call.
//!
//! The kernel cuts one message into datagrams of one size, except that the last may be shorter (`UDP_SEGMENT`). So a packet is
//! added to the gathered ones if it is for the same process and its parts have the same size; a packet in a single smaller part
//! ends the batch. If the path MTU turns out to be smaller than assumed, packets are reassembled from their parts and split
//! again.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use rdmux_wire::icrc::Icrc;

use super::Encap;
use super::outlet::{Name, Outlet};
use super::state::room;
use crate::guarded::Unmapped;
use crate::udp::{SLOT_SHIFT, ZeroCopyBuf, ZeroCopyDest};
use crate::wire::{Flushed, Frame, Payload};

/// The maximum number of datagrams of one message (`UDP_MAX_SEGMENTS` of kernels before 6.6).
const MAX_DATAGRAMS: usize = 64;
/// The maximum number of bytes of one message.
const MAX_BYTES: usize = 65_507;

/// A packet's headers below the BTH, and the rest of it.
#[derive(Clone, Copy)]
pub(super) struct Contents<'a> {
    /// LRH and GRH.
    pub(super) route: &'a [u8],
    /// The packet from the BTH on.
    pub(super) frame: &'a Frame<'a>,
}

impl Contents<'_> {
    /// Returns the length of the packet in bytes, LRH to ICRC.
    pub(super) fn len(&self) -> usize {
        self.route.len().saturating_add(self.frame.len()).saturating_add(Icrc::LEN)
    }

    /// Writes the packet into a buffer of its length.
    pub(super) fn put(&self, to: &mut [u8]) -> Result<(), Unmapped> {
        let (route, rest) = to.split_at_mut(self.route.len());
        route.copy_from_slice(self.route);
        let (transport, icrc) = rest.split_at_mut(rest.len() - Icrc::LEN);
        let (header, mut rest) = transport.split_at_mut(self.frame.header.len());
        header.copy_from_slice(self.frame.header);
        let mut next = |len| rest.split_off_mut(..len).unwrap_or_default();
        match self.frame.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => next(bytes.len()).copy_from_slice(bytes),
            Payload::Pieces(pieces) => {
                pieces.iter().try_for_each(|piece| piece.copy_to(next(piece.len())))?;
            }
        }
        rest.fill(0);
        // Computed over the copy, since the program may write to its memory meanwhile.
        let mut checksum = Icrc::of_route_headers(self.route);
        checksum.update(transport);
        icrc.copy_from_slice(&checksum.finish());
        Ok(())
    }
}

/// A packet's destination process and its division into parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The address of the destination process's host.
    pub(super) to: SocketAddr,
    /// The QPN by which datagrams are steered to the process.
    pub(super) steer: u32,
    /// The total length of the packet in bytes.
    pub(super) total: u16,
    /// The number of parts.
    pub(super) parts: u8,
}

impl Shape {
    fn part(&self, part: u8, number: u32) -> Encap {
        let Self { steer, total, parts, .. } = *self;
        Encap { part, parts, steer, number, total }
    }

    /// Returns the length of each of its datagrams in bytes.
    fn datagram(&self) -> usize {
        Encap::LEN + self.part(0, 0).size()
    }

    /// Returns the length of all its datagrams in bytes, before the last is cut short.
    fn bytes(&self) -> usize {
        self.datagram() * usize::from(self.parts)
    }

    /// Returns how many of these bytes are padding.
    fn filling(&self) -> usize {
        self.part(0, 0).size() * usize::from(self.parts) - usize::from(self.total)
    }
}

/// The packets gathered for one process.
pub(super) struct Batch {
    /// Datagrams, one after another.
    arena: Box<[u8]>,
    used: usize,
    packets: Vec<(usize, Shape)>,
    datagrams: usize,
    to: Option<Name>,
    /// Set when the last datagram is smaller: no other may follow.
    closed: bool,
    /// A buffer for a packet that is reassembled from its parts.
    whole: Vec<u8>,
    /// The simulated MTU of the path, for tests.
    #[cfg(test)]
    pub(super) pretended: Option<usize>,
}

/// The result of a flush.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The packets that were sent.
    pub(super) sent: Flushed,
    /// Packets that the kernel refused.
    pub(super) refused: u64,
    /// An address, and the maximum size of parts to it, if the path MTU is smaller.
    pub(super) narrowed: Option<(SocketAddr, usize)>,
}

/// Numbers of the packets of one socket that are sent in parts: the sender's slot in the upper bits, and a count.
#[derive(Debug)]
pub(super) struct Numbers {
    slot: u32,
    count: AtomicU32,
}

impl Numbers {
    /// The bits that count packets of one socket. The bits above distinguish the sockets of an address.
    const COUNT_BITS: u32 = 21;

    pub(super) fn new(slot: u16) -> Self {
        Self { slot: u32::from(slot) << Self::COUNT_BITS, count: AtomicU32::new(0) }
    }

    /// Returns the number of a packet in this many parts. A whole packet needs none.
    fn next(&self, parts: u8) -> u32 {
        let count = if parts > 1 { self.count.fetch_add(1, Ordering::Relaxed) } else { 0 };
        self.slot | count & ((1 << Self::COUNT_BITS) - 1)
    }
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            arena: vec![0; MAX_BYTES].into_boxed_slice(),
            used: 0,
            packets: Vec::with_capacity(MAX_DATAGRAMS),
            datagrams: 0,
            to: None,
            closed: false,
            whole: Vec::with_capacity(Encap::MAX_TOTAL.into()),
            #[cfg(test)]
            pretended: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns the length of all datagrams in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.used
    }

    /// Returns the socket that all gathered packets are for, or none if no packet is gathered.
    pub(super) fn zerocopy_dest(&self) -> Option<ZeroCopyDest> {
        let (_, Shape { to, steer, .. }) = *self.packets.first()?;
        Some(ZeroCopyDest { addr: to, slot: steer >> SLOT_SHIFT })
    }

    /// Returns whether a packet can be added without a flush.
    pub(super) fn has_room(&self, shape: &Shape) -> bool {
        let Some((_, first)) = self.packets.first() else { return shape.bytes() <= MAX_BYTES };
        let same = shape.datagram() == first.datagram();
        !self.closed
            && shape.to == first.to
            && shape.steer >> SLOT_SHIFT == first.steer >> SLOT_SHIFT
            && (same || (shape.parts == 1 && shape.datagram() < first.datagram()))
            && self.datagrams + usize::from(shape.parts) <= MAX_DATAGRAMS
            && self.used + shape.bytes() <= MAX_BYTES
    }

    /// Adds a packet. The batch must have room for it. `put` writes it into a buffer of its length.
    ///
    /// # Errors
    ///
    /// That of `put`; nothing was added.
    pub(super) fn push(
        &mut self,
        shape: &Shape,
        numbers: &Numbers,
        put: impl FnOnce(&mut [u8]) -> Result<(), Unmapped>,
    ) -> Result<(), Unmapped> {
        let (start, headers) = (self.used, Encap::LEN * usize::from(shape.parts));
        let place = &mut self.arena[start..start + shape.bytes()];
        // The whole packet is written first, after the room for all headers. Each part is then moved to its place, which is never
        // after it.
        put(&mut place[headers..headers + usize::from(shape.total)])?;
        let number = numbers.next(shape.parts);
        for part in 0..shape.parts {
            let encap = shape.part(part, number);
            let (from, at) = (encap.place(), usize::from(part) * shape.datagram());
            if shape.parts > 1 {
                place.copy_within(headers + from.start..headers + from.end, at + Encap::LEN);
            }
            place[at..at + Encap::LEN].copy_from_slice(&encap.to_bytes());
        }
        let end = place.len() - shape.filling();
        place[end..].fill(0);
        if self.to.as_ref().is_none_or(|to| to.addr() != shape.to) {
            self.to = Some(shape.to.into());
        }
        self.closed = self.packets.first().is_some_and(|(_, f)| shape.datagram() < f.datagram());
        self.packets.push((start, *shape));
        self.datagrams += usize::from(shape.parts);
        self.used += shape.bytes();
        Ok(())
    }

    /// Flushes like [`flush`](Self::flush), but zero-copy from the buffer `buf` if the kernel accepts it. Returns whether the
    /// kernel may use the buffer.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub(super) fn flush_zerocopy(
        &mut self,
        port: &impl Outlet,
        numbers: &Numbers,
        buf: &mut ZeroCopyBuf,
    ) -> (bool, io::Result<Outcome>) {
        let several = self.extent().filter(|_| self.datagrams > 1);
        let taken = several.zip(self.to.as_ref()).and_then(|((segment, end), name)| {
            port.send_zerocopy(name, segment, &self.arena[..end], buf)
        });
        match taken {
            None => (false, self.flush(port, numbers)),
            Some(Ok(())) => {
                let sent = self.contents();
                self.clear();
                (true, Ok(Outcome { sent, ..Outcome::default() }))
            }
            // Some datagrams may have been sent; the receiver then gets them twice.
            Some(Err(_)) => (true, self.flush(port, numbers)),
        }
    }

    /// Returns the length of a datagram, and of all, in bytes.
    fn extent(&self) -> Option<(usize, usize)> {
        let (first, last) = (self.packets.first()?, self.packets.last()?);
        Some((first.1.datagram(), self.used - last.1.filling()))
    }

    /// Sends the gathered packets.
    ///
    /// # Errors
    ///
    /// `WouldBlock` while the socket is full; all packets are kept.
    pub(super) fn flush(&mut self, port: &impl Outlet, numbers: &Numbers) -> io::Result<Outcome> {
        let mut outcome = Outcome::default();
        let (Some((segment, end)), Some(to)) = (self.extent(), self.zerocopy_dest()) else {
            return Ok(outcome);
        };
        let several = self.datagrams > 1;
        if several && !port.segments(to.addr) {
            self.send_singly(port, numbers, &mut outcome);
            self.clear();
            return Ok(outcome);
        }
        let failed = self.send(port, segment, 0..end);
        match failed.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => outcome.sent = self.contents(),
            Err((Some(libc::EAGAIN), error)) => return Err(error),
            Err((Some(libc::EMSGSIZE | libc::EINVAL | libc::EIO | libc::EOPNOTSUPP), _)) => {
                self.send_singly(port, numbers, &mut outcome);
                if several && outcome.narrowed.is_none() && outcome.refused == 0 {
                    port.refuse_segments(to.addr);
                }
            }
            Err(_) => outcome.refused = self.packets.len() as u64,
        }
        self.clear();
        Ok(outcome)
    }

    /// Returns the number and length of the gathered packets.
    fn contents(&self) -> Flushed {
        let bytes = self.packets.iter().map(|(_, shape)| usize::from(shape.total)).sum();
        Flushed { packets: self.packets.len(), bytes }
    }

    /// Discards the gathered packets.
    pub(super) fn clear(&mut self) {
        (self.used, self.datagrams, self.closed) = (0, 0, false);
        self.packets.clear();
    }

    /// Sends a range of the arena as one message.
    fn send(
        &self,
        port: &impl Outlet,
        segment: usize,
        range: std::ops::Range<usize>,
    ) -> io::Result<()> {
        let Some(name) = &self.to else { return Ok(()) };
        self.transmit(port, name, segment, &self.arena[range])
    }

    fn transmit(
        &self,
        port: &impl Outlet,
        name: &Name,
        segment: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        #[cfg(test)]
        if self.pretended.is_some_and(|mtu| segment.min(bytes.len()) > mtu) {
            let error = if bytes.len() > segment { libc::EINVAL } else { libc::EMSGSIZE };
            return Err(io::Error::from_raw_os_error(error));
        }
        port.send(name, segment, bytes)
    }

    /// Sends one datagram at a time, because the kernel refuses several at once: it does not segment here, or they exceed the path
    /// MTU.
    fn send_singly(&mut self, port: &impl Outlet, numbers: &Numbers, outcome: &mut Outcome) {
        let mut whole = std::mem::take(&mut self.whole);
        for i in 0..self.packets.len() {
            let (start, shape) = self.packets[i];
            self.take_out(start, &shape, &mut whole);
            match self.send_parts((port, numbers), shape, &whole, outcome) {
                Ok(()) => {
                    outcome.sent.packets += 1;
                    outcome.sent.bytes += whole.len();
                }
                Err(_) => outcome.refused += 1,
            }
        }
        self.whole = whole;
    }

    /// Reassembles a packet from its parts.
    fn take_out(&self, start: usize, shape: &Shape, whole: &mut Vec<u8>) {
        whole.clear();
        for part in 0..shape.parts {
            let at = start + usize::from(part) * shape.datagram() + Encap::LEN;
            whole.extend_from_slice(&self.arena[at..at + shape.part(part, 0).place().len()]);
        }
    }

    /// Sends the parts of a packet, and smaller ones if they are too large.
    fn send_parts(
        &self,
        (port, numbers): (&impl Outlet, &Numbers),
        mut shape: Shape,
        whole: &[u8],
        outcome: &mut Outcome,
    ) -> io::Result<()> {
        let name = Name::from(shape.to);
        let mut datagram = [0; Encap::LEN + Encap::MAX_TOTAL as usize];
        loop {
            if let Some((_, room)) = outcome.narrowed {
                let parts = Encap::parts_for(shape.total, room);
                shape.parts = parts.ok_or(io::ErrorKind::InvalidInput)?;
            }
            let number = numbers.next(shape.parts);
            let sent = (0..shape.parts).try_for_each(|part| {
                let encap = shape.part(part, number);
                let body = &whole[encap.place()];
                datagram[..Encap::LEN].copy_from_slice(&encap.to_bytes());
                datagram[Encap::LEN..][..body.len()].copy_from_slice(body);
                let bytes = &datagram[..Encap::LEN + body.len()];
                self.transmit(port, &name, bytes.len(), bytes)
            });
            let Err(error) = sent else { return Ok(()) };
            let tried = outcome.narrowed.map_or(shape.part(0, 0).size(), |(_, room)| room);
            match room::below(tried) {
                Some(narrower) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    outcome.narrowed = Some((shape.to, narrower));
                }
                _ => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("to", &self.to)
            .field("packets", &self.packets.len())
            .field("bytes", &self.used)
            .finish_non_exhaustive()
    }
}
