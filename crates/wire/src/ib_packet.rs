//! A whole packet of an InfiniBand subnet, from the LRH through the VCRC (IBTA 5.2).
//!
//! ```text
//! LRH 8 | GRH 40, if LNH says so | BTH 12, extension headers | payload | pad | ICRC 4 | VCRC 2
//! ```
//!
//! ```
//! # use rdmux_wire::ib_packet::IbPacket;
//! # use rdmux_wire::lrh::{Lnh, Lrh};
//! # use rdmux_wire::{Bth, Lid, Opcode, Packet, Psn, Qpn};
//! let lrh = Lrh { sl: 2, dlid: Lid(7), slid: Lid(5), ..Lrh::DEFAULT };
//! let bth = Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(9), Psn::new(1));
//! let sent = IbPacket { lrh, grh: None, packet: Packet::new(bth, b"hello") };
//! let mut bytes = [0; 64];
//! let len = sent.emit(&mut bytes);
//! let received = IbPacket::parse(&bytes[..len])?;
//! assert_eq!((received.lrh.slid, received.packet.payload), (Lid(5), &b"hello"[..]));
//! # Ok::<(), rdmux_wire::WireError>(())
//! ```

use core::fmt;

use crate::icrc::Icrc;
use crate::lrh::Lnh;
use crate::{Bth, Grh, Lrh, Packet, WireError, vcrc};

/// A parsed packet, with the payload in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbPacket<'a> {
    /// The local route header. [`IbPacket::emit`] fills in the next header and the length.
    pub lrh: Lrh,
    /// The global route header, for packets that may leave the subnet and for multicast.
    /// [`IbPacket::emit`] fills in the next header and the length.
    pub grh: Option<Grh>,
    /// The transport packet. [`IbPacket::emit`] fills in its pad count.
    pub packet: Packet<'a>,
}

/// A packet that is split into its parts, but not decoded. Its CRCs may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header.
    pub grh: Option<Grh>,
    /// The LRH and the GRH, as received.
    pub route: &'a [u8],
    /// The bytes from the BTH through the pad.
    pub transport: &'a [u8],
    /// The ICRC, as received.
    pub icrc: [u8; Icrc::LEN],
    /// The VCRC, as received; none if the bytes end with the ICRC.
    pub vcrc: Option<[u8; vcrc::LEN]>,
}

impl<'a> Parts<'a> {
    /// Splits a packet into its parts. Its length is that in the LRH. The VCRC may be missing, as
    /// in some captures, and bytes after it are ignored.
    ///
    /// # Errors
    /// If the packet is raw, or a length is invalid or exceeds the bytes available.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<Self, WireError> {
        let lrh = Lrh::parse(bytes)?;
        let len = usize::from(lrh.pkt_len) * 4;
        let have = bytes.len();
        let cut = WireError::Truncated { what: "LRH packet length", says: len, have };
        let (covered, rest) = bytes.split_at_checked(len).ok_or(cut)?;
        let grh = match lrh.lnh {
            Lnh::Local => None,
            Lnh::Global => Some(Grh::parse(covered.get(Lrh::LEN..).unwrap_or_default())?),
            raw => return Err(WireError::Value { what: "LNH", value: raw as u32 }),
        };
        if let Some(grh) = grh {
            check_grh(&grh, len)?;
        }
        let route_len = Lrh::LEN + if grh.is_some() { Grh::LEN } else { 0 };
        let need = route_len + Bth::LEN + Icrc::LEN;
        let short = WireError::Short { what: "InfiniBand packet", need, have: len };
        let (route, rest_of_packet) = covered.split_at_checked(route_len).ok_or(short)?;
        let (transport, icrc) = rest_of_packet.split_last_chunk().ok_or(short)?;
        if transport.len() < Bth::LEN {
            return Err(short);
        }
        Ok(Self { lrh, grh, route, transport, icrc: *icrc, vcrc: rest.first_chunk().copied() })
    }

    /// Returns the correct ICRC of the packet.
    pub fn right_icrc(&self) -> [u8; Icrc::LEN] {
        let mut icrc = Icrc::of_route_headers(self.route);
        icrc.update(self.transport);
        icrc.finish()
    }

    /// Returns the correct VCRC of the packet.
    pub fn right_vcrc(&self) -> [u8; vcrc::LEN] {
        vcrc::vcrc(&[self.route, self.transport, &self.icrc])
    }

    /// Decodes the transport packet.
    ///
    /// # Errors
    /// Those of [`Packet::parse`].
    pub fn packet(&self) -> Result<IbPacket<'a>, WireError> {
        let packet = Packet::parse(self.transport)?;
        Ok(IbPacket { lrh: self.lrh, grh: self.grh, packet })
    }
}

fn check_grh(grh: &Grh, packet_len: usize) -> Result<(), WireError> {
    if grh.next_hdr != Grh::NEXT_BTH {
        let value = grh.next_hdr.into();
        return Err(WireError::Value { what: "next header of a GRH", value });
    }
    let have = packet_len.saturating_sub(Lrh::LEN + Grh::LEN);
    let says = usize::from(grh.pay_len);
    if says == have {
        Ok(())
    } else {
        Err(WireError::Truncated { what: "GRH payload length", says, have })
    }
}

impl<'a> IbPacket<'a> {
    /// Parses a packet, from the LRH through the VCRC.
    ///
    /// # Errors
    /// Those of [`Parts::split`] and [`Packet::parse`]. Also if the link version is not 0, the VCRC
    /// is missing, or a CRC is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let parts = Parts::split(bytes)?;
        if parts.lrh.lver != 0 {
            return Err(WireError::Value { what: "link version", value: parts.lrh.lver.into() });
        }
        let vcrc_at = usize::from(parts.lrh.pkt_len) * 4;
        let (need, have) = (vcrc_at + vcrc::LEN, bytes.len());
        let found = parts.vcrc.ok_or(WireError::Short { what: "VCRC", need, have })?;
        let right = parts.right_vcrc();
        if found != right {
            let [found, right] = [found, right].map(u16::from_be_bytes);
            return Err(WireError::Vcrc { found, right });
        }
        let right = parts.right_icrc();
        if parts.icrc != right {
            let [found, right] = [parts.icrc, right].map(u32::from_be_bytes);
            return Err(WireError::Icrc { found, right });
        }
        parts.packet()
    }

    /// Returns the length on the wire, through the VCRC, in bytes.
    pub fn wire_len(&self) -> usize {
        self.covered_len() + vcrc::LEN
    }

    /// Returns the length from the LRH through the ICRC.
    fn covered_len(&self) -> usize {
        let grh = if self.grh.is_some() { Grh::LEN } else { 0 };
        let payload = self.packet.payload.len();
        Lrh::LEN + grh + self.packet.header().len() + payload.next_multiple_of(4) + Icrc::LEN
    }

    /// Writes the packet at the start of `out`, fills in LNH, lengths, pad count and CRCs, and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`IbPacket::wire_len`], or the packet exceeds the maximum length of
    /// an LRH: 8,188 bytes through the ICRC.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.covered_len();
        let words = u16::try_from(len / 4).ok().filter(|&words| words <= Lrh::MAX_PKT_LEN);
        let pkt_len = words.expect("a packet of at most 8,188 bytes");
        let lnh = if self.grh.is_some() { Lnh::Global } else { Lnh::Local };
        let mut out = Writer { out, len: 0 };
        out.put(&Lrh { lnh, pkt_len, ..self.lrh }.to_bytes());
        if let Some(grh) = &self.grh {
            let pay_len = pkt_len * 4 - HEADERS;
            out.put(&Grh { pay_len, next_hdr: Grh::NEXT_BTH, ..*grh }.to_bytes());
        }
        let route = out.len;
        let payload = self.packet.payload;
        let pad = payload.len().next_multiple_of(4) - payload.len();
        let mut packet = self.packet;
        packet.bth.pad = u8::try_from(pad).unwrap_or(0);
        out.put(&packet.header());
        out.put(payload);
        out.put(&[0; 3][..pad]);
        let (route, transport) = out.written().split_at(route);
        let mut icrc = Icrc::of_route_headers(route);
        icrc.update(transport);
        let icrc = icrc.finish();
        out.put(&icrc);
        let vcrc = vcrc::vcrc(&[out.written()]);
        out.put(&vcrc);
        out.len
    }
}

/// The header bytes that the length of the LRH includes and that of the GRH does not.
const HEADERS: u16 = 48;
const _: () = assert!(HEADERS as usize == Lrh::LEN + Grh::LEN);

/// A buffer, and the number of bytes written to it.
struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn written(&self) -> &[u8] {
        &self.out[..self.len]
    }
}

/// Prints `lid 0x0005 > 0x0007 sl 2 vl 0 UC SEND_ONLY qpn 0x000009 ...`
impl fmt::Display for IbPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.lrh)?;
        if let Some(grh) = &self.grh {
            write!(f, "{grh} ")?;
        }
        self.packet.fmt(f)
    }
}

#[cfg(test)]
mod tests;
