//! Packets in: many in one system call, and several in one message.
//!
//! The kernel merges datagrams of one sender (`UDP_GRO`, `udp(7)`) and tells the size of all but the
//! last, so that one copy and one call bring up to 64 KiB.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rdmux_wire::icrc::Icrc;

use super::checksum;
pub use super::checksum::IcrcCheck;
use super::control;
use super::port::UdpPort;
use crate::sys::{self, RxMeta};

/// Bytes of the buffer of one message: no datagram, merged or not, is larger.
const BUFFER: usize = 65_536;

/// Buffers for what one system call brings.
///
/// Nothing is allocated after [`new`](Self::new).
pub struct RxBatch {
    data: Box<[u8]>,
    meta: Box<[RxMeta]>,
    filled: usize,
    /// How many messages the next call asks for.
    ask: usize,
    dst: SocketAddr,
    truncated: u64,
}

impl RxBatch {
    /// Buffers that suit a process: their total stays in a core's second-level cache.
    pub const USUAL: usize = 8;

    /// Room for `messages` messages of 64 KiB, up to 64, in one call. With none it allocates and
    /// receives nothing, as a stand-in.
    pub fn new(messages: usize) -> Self {
        let messages = messages.min(sys::MAX_MESSAGES);
        Self {
            data: vec![0; messages * BUFFER].into_boxed_slice(),
            meta: vec![RxMeta::EMPTY; messages].into_boxed_slice(),
            filled: 0,
            ask: 1,
            dst: SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
            truncated: 0,
        }
    }

    /// Receives what there is, without blocking, in place of what was there. Returns the number of
    /// messages, zero when none waits. Where many come it takes more and more in a call.
    ///
    /// # Errors
    ///
    /// Whatever `recvmmsg(2)` says; the batch is then empty.
    pub fn recv(&mut self, port: &UdpPort) -> io::Result<usize> {
        self.filled = 0;
        self.dst = port.local_addr();
        // The kernel looks once more than there is something, unless it is asked for no more: who
        // gets one message at a time asks for one.
        let ask = self.ask.min(self.meta.len());
        self.ask = 1;
        self.filled = sys::receive(port, &mut self.data[..ask * BUFFER], &mut self.meta[..ask])?;
        if self.filled == ask {
            self.ask = (2 * ask).max(1);
        } else if self.filled != 0 {
            self.ask = ask;
        }
        let truncated = self.meta[..self.filled].iter().filter(|m| m.truncated).count();
        self.truncated += truncated as u64;
        Ok(self.filled)
    }

    /// How many messages there is room for.
    pub fn capacity(&self) -> usize {
        self.meta.len()
    }

    /// The datagrams of the last [`recv`](Self::recv), in order.
    pub fn datagrams(&self) -> Datagrams<'_> {
        Datagrams { batch: self, next: 0, message: None }
    }

    /// How many messages were ever longer than a buffer; their datagrams are not shown.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Where message i lies, and what was said about it.
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
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        loop {
            if let Some(message) = &mut self.message
                && !message.rest.is_empty()
                && let Some(src) = message.src
            {
                let len = message.segment.min(message.rest.len());
                let (bytes, rest) = message.rest.split_at(len);
                message.rest = rest;
                let index_in_gro = message.index;
                message.index = message.index.saturating_add(1);
                let (tos, ttl) = (message.tos, message.ttl);
                return Some(Datagram { src, dst: self.batch.dst, bytes, index_in_gro, tos, ttl });
            }
            self.message = Some(self.batch.message(self.next)?);
            self.next += 1;
        }
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub src: SocketAddr,
    /// What the socket is bound to: one of our addresses, or a multicast group.
    pub dst: SocketAddr,
    /// The UDP payload: BTH to ICRC. Of any length and content.
    pub bytes: &'a [u8],
    /// The position among the datagrams that the kernel merged.
    pub index_in_gro: u16,
    /// The traffic class (IPv4 TOS), if the socket tells it.
    pub tos: Option<u8>,
    /// The hop limit (IPv4 TTL), if the socket tells it.
    pub ttl: Option<u8>,
}

impl<'a> Datagram<'a> {
    /// Checks the ICRC. Reads all bytes once.
    pub fn check_icrc(&self) -> IcrcCheck {
        checksum::check(self.src, self.dst.ip(), self.index_in_gro, self.bytes)
    }

    /// Everything before the ICRC; nothing if it is too short to have one.
    pub fn without_icrc(&self) -> &'a [u8] {
        self.bytes.split_last_chunk::<{ Icrc::LEN }>().map_or(&[], |(packet, _)| packet)
    }

    /// The destination QPN, if there is a BTH's worth of it: to tell whose packet this is without
    /// parsing it.
    pub fn dest_qpn(&self) -> Option<u32> {
        let word = self.bytes.get(4..)?.first_chunk()?;
        Some(u32::from_be_bytes(*word) & 0x00ff_ffff)
    }

    /// Whether this answers a request: a READ or ATOMIC response or an acknowledgement, by its opcode, of whatever
    /// transport (IBTA table 38).
    pub fn is_response(&self) -> bool {
        self.bytes.first().is_some_and(|opcode| (0x0d..=0x12).contains(&(opcode & 0x1f)))
    }

    /// The network header as the 40-byte GRH area of a UD receive shows it: an IPv6 header, or an
    /// IPv4 header in the last 20 bytes (IBTA A17.4.5.1). Fields that a socket does not tell are zero:
    /// flow label, Identification, and what was not asked for.
    pub fn grh(&self) -> [u8; 40] {
        let mut grh = [0; 40];
        let udp_len = u16::try_from(8 + self.bytes.len()).unwrap_or(u16::MAX);
        let (tos, ttl) = (self.tos.unwrap_or(0), self.ttl.unwrap_or(0));
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = &mut grh[20..];
                ip[0] = 0x45;
                ip[1] = tos;
                ip[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
                ip[6] = 0x40;
                ip[8] = ttl;
                ip[9] = IPPROTO_UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let sum = ipv4_checksum(ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (src, dst) => {
                let v6 = |ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                let word = 6 << 28 | u32::from(tos) << 20;
                grh[..4].copy_from_slice(&word.to_be_bytes());
                grh[4..6].copy_from_slice(&udp_len.to_be_bytes());
                grh[6] = IPPROTO_UDP;
                grh[7] = ttl;
                grh[8..24].copy_from_slice(&v6(src).octets());
                grh[24..40].copy_from_slice(&v6(dst).octets());
            }
        }
        grh
    }
}

const IPPROTO_UDP: u8 = 17;

/// The checksum of an IPv4 header whose checksum field is zero (RFC 1071).
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)
}

/// A `sockaddr_in` or `sockaddr_in6`.
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
