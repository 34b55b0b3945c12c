//! IPv4 and IPv6 headers, with the fields needed for RDMA and captures (RFC 791, RFC 8200).

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::WireError;
use crate::bytes::{get, get16, get32, head, put, put16, put32};

/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of IGMP.
pub const IGMP: u8 = 2;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// An IPv4 header. Options are counted in the length, and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Length of the header with its options in bytes, 20 to 60.
    pub header_len: u8,
    /// Type of service; RoCEv2's traffic class.
    pub tos: u8,
    /// Length of the packet in bytes, this header included.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Whether the packet must not be fragmented.
    pub dont_fragment: bool,
    /// Whether more fragments follow.
    pub more_fragments: bool,
    /// The offset of this fragment, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Time to live; RoCEv2's hop limit.
    pub ttl: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// Sender.
    pub src: Ipv4Addr,
    /// Receiver.
    pub dst: Ipv4Addr,
}

mod v4 {
    pub(super) const VERSION_IHL: usize = 0;
    pub(super) const TOS: usize = 1;
    pub(super) const TOTAL_LEN: usize = 2;
    pub(super) const ID: usize = 4;
    pub(super) const FRAGMENT: usize = 6;
    pub(super) const TTL: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const CHECKSUM: usize = 10;
    pub(super) const SRC: usize = 12;
    pub(super) const DST: usize = 16;
}

impl Ipv4 {
    /// The length on the wire without options, in bytes.
    pub const LEN: usize = 20;

    /// Parses the header at the start of `bytes`. Does not check that `total_len` bytes are present.
    ///
    /// # Errors
    /// If there are too few bytes, the version is not 4, or a length contradicts another.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = head::<{ Self::LEN }>(bytes, "IPv4 header")?;
        let version = b[v4::VERSION_IHL] >> 4;
        if version != 4 {
            return Err(WireError::Value {
                what: "IP version of an IPv4 header",
                value: version.into(),
            });
        }
        let header_len = (b[v4::VERSION_IHL] & 0xf) * 4;
        if usize::from(header_len) < Self::LEN {
            return Err(WireError::Value { what: "IPv4 header length", value: header_len.into() });
        }
        if bytes.len() < header_len.into() {
            let (need, have) = (header_len.into(), bytes.len());
            return Err(WireError::Short { what: "IPv4 header", need, have });
        }
        let total_len = get16(b, v4::TOTAL_LEN);
        if total_len < header_len.into() {
            return Err(WireError::Value { what: "IPv4 total length", value: total_len.into() });
        }
        let fragment = get16(b, v4::FRAGMENT);
        Ok(Self {
            header_len,
            tos: b[v4::TOS],
            total_len,
            id: get16(b, v4::ID),
            dont_fragment: fragment & 0x4000 != 0,
            more_fragments: fragment & 0x2000 != 0,
            fragment_offset: fragment & 0x1fff,
            ttl: b[v4::TTL],
            protocol: b[v4::PROTOCOL],
            src: get(b, v4::SRC).into(),
            dst: get(b, v4::DST).into(),
        })
    }

    /// Returns whether the packet is a fragment.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Returns the header in wire format, without options, with its checksum.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[v4::VERSION_IHL] = 0x45;
        b[v4::TOS] = self.tos;
        put16(&mut b, v4::TOTAL_LEN, self.total_len);
        put16(&mut b, v4::ID, self.id);
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13;
        put16(&mut b, v4::FRAGMENT, flags | self.fragment_offset & 0x1fff);
        b[v4::TTL] = self.ttl;
        b[v4::PROTOCOL] = self.protocol;
        put(&mut b, v4::SRC, self.src.octets());
        put(&mut b, v4::DST, self.dst.octets());
        let sum = checksum(&b);
        put16(&mut b, v4::CHECKSUM, sum);
        b
    }
}

/// Returns the Internet checksum (RFC 1071) of a whole number of 16-bit words. An odd byte is left out.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u16;
    for pair in bytes.chunks_exact(2) {
        let (low, carry) = sum.overflowing_add(get16(pair, 0));
        sum = low + u16::from(carry); // a sum that overflowed is at most 0xfffe
    }
    !sum
}

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header, extension headers included.
    pub payload_len: u16,
    /// The next header: a protocol or an extension header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Sender.
    pub src: Ipv6Addr,
    /// Receiver.
    pub dst: Ipv6Addr,
}

mod v6 {
    pub(super) const VERSION_CLASS_FLOW: usize = 0;
    pub(super) const PAYLOAD_LEN: usize = 4;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SRC: usize = 8;
    pub(super) const DST: usize = 24;
}

header!(Ipv6, 40, "IPv6 header");

impl Ipv6 {
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let word = get32(b, v6::VERSION_CLASS_FLOW);
        if word >> 28 != 6 {
            return Err(WireError::Value {
                what: "IP version of an IPv6 header",
                value: word >> 28,
            });
        }
        Ok(Self {
            tclass: (word << 4).to_be_bytes()[0],
            flow_label: word & 0x000f_ffff,
            payload_len: get16(b, v6::PAYLOAD_LEN),
            next_header: b[v6::NEXT_HEADER],
            hop_limit: b[v6::HOP_LIMIT],
            src: get(b, v6::SRC).into(),
            dst: get(b, v6::DST).into(),
        })
    }

    /// Returns the header in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word = 6 << 28 | u32::from(self.tclass) << 20 | self.flow_label & 0x000f_ffff;
        put32(&mut b, v6::VERSION_CLASS_FLOW, word);
        put16(&mut b, v6::PAYLOAD_LEN, self.payload_len);
        b[v6::NEXT_HEADER] = self.next_header;
        b[v6::HOP_LIMIT] = self.hop_limit;
        put(&mut b, v6::SRC, self.src.octets());
        put(&mut b, v6::DST, self.dst.octets());
        b
    }
}

/// The payload of an IPv6 packet after its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Payload<'a> {
    /// The protocol.
    pub protocol: u8,
    /// The offset of `bytes` in the original packet, in bytes, if a fragment header makes them a
    /// fragment (RFC 8200, section 4.5).
    pub fragment: Option<u16>,
    /// The payload.
    pub bytes: &'a [u8],
}

/// Skips the extension headers in `bytes`, which follow an IPv6 header with this `next_header`.
///
/// # Errors
/// If an extension header is truncated.
pub fn skip_ipv6_extensions(
    mut next_header: u8,
    mut bytes: &[u8],
) -> Result<Ipv6Payload<'_>, WireError> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    const WHAT: &str = "IPv6 extension header";
    let mut fragment = None;
    while matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
        let b = head::<8>(bytes, WHAT)?;
        let len = if next_header == FRAGMENT {
            // The offset in units of 8 bytes, 2 reserved bits, and the more-fragments flag.
            let field = get16(b, 2);
            fragment = (field & !6 != 0).then_some(field & !7);
            8
        } else {
            8 + 8 * usize::from(b[1])
        };
        next_header = b[0];
        let short = WireError::Short { what: WHAT, need: len, have: bytes.len() };
        bytes = bytes.get(len..).ok_or(short)?;
        if fragment.is_some() {
            break; // what follows a later fragment is no header
        }
    }
    Ok(Ipv6Payload { protocol: next_header, fragment, bytes })
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {} tos {} ttl {} id {:#06x}",
            self.src, self.dst, self.tos, self.ttl, self.id
        )
    }
}

impl fmt::Display for Ipv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { src, dst, tclass, flow_label, hop_limit, .. } = self;
        write!(f, "{src} > {dst} tclass {tclass} flow {flow_label:#07x} hop_limit {hop_limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IPv4 header of the packet in `icrc`'s tests, whose checksum is right.
    const SAMPLE: [u8; 20] =
        [0x45, 0, 0, 0x4c, 0, 1, 0, 0, 0x40, 0x11, 0xf5, 0x4c, 0xc0, 0xa8, 2, 1, 0xc0, 0xa8, 2, 2];

    #[test]
    fn ipv4_round_trip_with_checksum() {
        let header = Ipv4::parse(&SAMPLE).unwrap();
        assert_eq!(header.total_len, 76);
        assert_eq!(header.to_bytes(), SAMPLE);
    }

    #[test]
    fn ipv4_header_with_invalid_length_is_refused() {
        assert!(Ipv4::parse(&SAMPLE[..19]).is_err());
        let mut options_missing = SAMPLE;
        options_missing[0] = 0x46;
        assert!(Ipv4::parse(&options_missing).is_err());
        let mut ihl_too_small = SAMPLE;
        ihl_too_small[0] = 0x44;
        assert!(Ipv4::parse(&ihl_too_small).is_err());
        let mut total_too_small = SAMPLE;
        total_too_small[3] = 19;
        assert!(Ipv4::parse(&total_too_small).is_err());
    }

    #[test]
    fn ipv6_extension_and_fragment_headers_are_skipped() {
        // Hop-by-hop options of 16 bytes, then destination options of 8, then UDP.
        let mut b = [0; 26];
        (b[0], b[1], b[16]) = (60, 1, UDP);
        let found = skip_ipv6_extensions(0, &b).unwrap();
        assert_eq!((found.protocol, found.fragment, found.bytes.len()), (UDP, None, 2));
        assert!(skip_ipv6_extensions(0, &b[..20]).is_err());
        // A first fragment, a later one, the last, and a whole packet (RFC 6946).
        for (field, fragment) in
            [(1_u16, Some(0)), (0x0599, Some(0x598)), (0xfff8, Some(0xfff8)), (6, None)]
        {
            let [high, low] = field.to_be_bytes();
            let b = [UDP, 0, high, low, 0, 0, 0, 0];
            assert_eq!(skip_ipv6_extensions(44, &b).unwrap().fragment, fragment);
        }
    }
}
