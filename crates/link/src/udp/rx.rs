//! Receiving of packets: many in one system call, and several in one message.
//!
//! The kernel merges datagrams of one sender (`UDP_GRO`, `udp(7)`) and reports the size of all but the last, so that one copy and
//! one call return up to 64 KiB.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

use super::control;
use super::port::UdpPort;
use crate::sys::{self, RxMeta};
use crate::wire::{Arrival, Trailer};

/// The size of the buffer of one message: no datagram, merged or not, is larger.
const BUFFER: usize = 65_536;

/// Buffers for the messages of one system call.
///
/// Nothing is allocated after [`new`](Self::new).
pub struct RxBatch {
    data: Box<[u8]>,
    meta: Box<[RxMeta]>,
    filled: usize,
    dst: SocketAddr,
    truncated: u64,
}

impl RxBatch {
    /// The usual number of buffers of a process: together they fit in a core's second-level cache.
    pub const USUAL: usize = 8;

    /// Creates buffers for `messages` messages of 64 KiB, up to 64, in one call. With zero it allocates and receives nothing, as
    /// a placeholder.
    pub fn new(messages: usize) -> Self {
        let messages = messages.min(sys::MAX_MESSAGES);
        Self {
            data: vec![0; messages * BUFFER].into_boxed_slice(),
            meta: vec![RxMeta::EMPTY; messages].into_boxed_slice(),
            filled: 0,
            dst: SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
            truncated: 0,
        }
    }

    /// Receives available messages, without blocking, and replaces the previous ones. Returns their number, zero if none is
    /// queued. While many arrive, each call requests more.
    ///
    /// # Errors
    ///
    /// Those of `recvmmsg(2)`; the batch is then empty.
    pub fn recv(&mut self, port: &UdpPort) -> io::Result<usize> {
        self.filled = 0;
        self.dst = port.local_addr();
        // The kernel checks once more after the last message, unless it has returned as many as requested. So one message is
        // requested from a socket that has one at a time.
        let ask = port.ask().min(self.meta.len());
        let (data, meta) = (&mut self.data[..ask * BUFFER], &mut self.meta[..ask]);
        let received = sys::receive(port, data, meta);
        port.brought(ask, *received.as_ref().unwrap_or(&0));
        self.filled = received?;
        let truncated = self.meta[..self.filled].iter().filter(|m| m.truncated).count();
        self.truncated += truncated as u64;
        Ok(self.filled)
    }

    /// Returns how many messages there is room for.
    pub fn capacity(&self) -> usize {
        self.meta.len()
    }

    /// Returns the packets of the last [`recv`](Self::recv), in order.
    pub fn arrivals(&self) -> Datagrams<'_> {
        Datagrams { batch: self, next: 0, message: None }
    }

    /// Returns the position of bytes of a packet, for [`bytes`](Self::bytes).
    pub(crate) fn place_of(&self, bytes: &[u8]) -> Range<usize> {
        let start = bytes.as_ptr().addr().wrapping_sub(self.data.as_ptr().addr());
        start..start.saturating_add(bytes.len())
    }

    /// Returns the bytes at a position since the last [`recv`](Self::recv); empty outside of all buffers.
    pub(crate) fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.data.get(place).unwrap_or_default()
    }

    /// Returns how many messages have been longer than a buffer; their datagrams are not returned.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Returns message i, with its metadata.
    fn message(&self, i: usize) -> Option<Message<'_>> {
        let meta = self.meta[..self.filled].get(i)?;
        let bytes = self.data.get(i * BUFFER..)?.get(..meta.len)?;
        let bytes = if meta.truncated { &[] } else { bytes };
        let mut message = Message {
            rest: bytes,
            segment: bytes.len(),
            index: 0,
            src: parse_name(&meta.name),
            tos: None,
            ttl: None,
        };
        for (level, kind, data) in control::parse(&meta.control[..meta.control_len]) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = control::small_int(data).and_then(|n| usize::try_from(n).ok());
                    message.segment = size.filter(|n| *n > 0).unwrap_or(bytes.len());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    message.tos = control::small_int(data).and_then(|n| u8::try_from(n).ok());
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    message.ttl = control::small_int(data).and_then(|n| u8::try_from(n).ok());
                }
                _ => {}
            }
        }
        Some(message)
    }
}

impl fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxBatch")
            .field("capacity", &self.meta.len())
            .field("filled", &self.filled)
            .field("truncated", &self.truncated)
            .finish_non_exhaustive()
    }
}

/// One received message: datagrams of one sender.
#[derive(Clone, Debug)]
struct Message<'a> {
    rest: &'a [u8],
    segment: usize,
    index: u16,
    src: Option<SocketAddr>,
    tos: Option<u8>,
    ttl: Option<u8>,
}

/// The datagrams of an [`RxBatch`].
#[derive(Clone, Debug)]
pub struct Datagrams<'a> {
    batch: &'a RxBatch,
    next: usize,
    message: Option<Message<'a>>,
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Arrival<'a>;

    fn next(&mut self) -> Option<Arrival<'a>> {
        loop {
            if let Some(message) = &mut self.message
                && !message.rest.is_empty()
                && let Some(src) = message.src
            {
                let len = message.segment.min(message.rest.len());
                let (bytes, rest) = message.rest.split_at(len);
                message.rest = rest;
                let icrc = Trailer::Ip(message.index);
                message.index = message.index.saturating_add(1);
                let (tos, ttl) = (message.tos, message.ttl);
                let dst = self.batch.dst;
                return Some(Arrival { src, dst, bytes, icrc, tos, ttl, ib: None });
            }
            self.message = Some(self.batch.message(self.next)?);
            self.next += 1;
        }
    }
}

/// Parses a `sockaddr_in` or `sockaddr_in6`.
fn parse_name(name: &[u8; sys::NAME_LEN]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*name.first_chunk()?));
    let port = u16::from_be_bytes(*name[2..].first_chunk()?);
    match family {
        libc::AF_INET => {
            let ip: [u8; 4] = *name[4..].first_chunk()?;
            Some(SocketAddr::new(ip.into(), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = *name[8..].first_chunk()?;
            let scope = u32::from_ne_bytes(*name[24..].first_chunk()?);
            Some(SocketAddrV6::new(ip.into(), port, 0, scope).into())
        }
        _ => None,
    }
}
