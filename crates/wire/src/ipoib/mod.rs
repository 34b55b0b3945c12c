//! IP over InfiniBand, as far as address resolution needs it: the encapsulation header, ARP and neighbour
//! discovery with link addresses of 20 bytes, and the groups of multicast addresses (RFC 4391).
//!
//! - [`arp`]: ARP packets (RFC 826, RFC 4391 9.2)
//! - [`nd`]: neighbour solicitations and advertisements (RFC 4861, RFC 4391 9.3)
//! - [`group`]: multicast GIDs of IP addresses (RFC 4391 4)

pub mod arp;
pub mod group;
pub mod nd;

use core::fmt;

use crate::bytes::{get, get16, get24, head, put, put16, put24};
use crate::{Gid, Qpn, WireError};

pub use arp::Arp;
pub use nd::Neighbour;

/// The link address of an interface (RFC 4391 9.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkAddress {
    /// The transports of the interface besides datagrams: 0x80 RC, 0x40 UC (RFC 4755 3).
    pub flags: u8,
    /// The queue pair that receives its datagrams.
    pub qpn: Qpn,
    /// A GID of the interface's port.
    pub gid: Gid,
}

impl LinkAddress {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 20;

    /// Creates the link address of an interface that only uses datagrams.
    pub const fn datagrams(qpn: Qpn, gid: Gid) -> Self {
        Self { flags: 0, qpn, gid }
    }

    /// Reads an address at offset `at`. There must be enough bytes.
    fn read(b: &[u8], at: usize) -> Self {
        Self { flags: b[at], qpn: Qpn::new(get24(b, at + 1)), gid: Gid(get(b, at + 4)) }
    }

    fn write(&self, b: &mut [u8], at: usize) {
        b[at] = self.flags;
        put24(b, at + 1, self.qpn.get());
        put(b, at + 4, self.gid.0);
    }
}

impl fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qpn {}", self.gid, self.qpn)
    }
}

/// Ethertypes of the encapsulation header.
mod ethertype {
    pub(super) const ARP: u16 = 0x0806;
    pub(super) const IPV6: u16 = 0x86dd;
}

/// The length of the encapsulation header: an Ethertype and two reserved bytes (RFC 4391 6).
pub const ENCAPSULATION_LEN: usize = 4;

/// A datagram that resolves an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Resolves an IPv4 address.
    Arp(Arp),
    /// Resolves an IPv6 address.
    Neighbour(Neighbour),
}

/// The bytes of a [`Resolution`].
#[derive(Clone, Copy, Debug)]
pub struct ResolutionBytes {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl ResolutionBytes {
    const MAX: usize = ENCAPSULATION_LEN + Neighbour::LEN;

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Resolution {
    /// Parses a datagram, from its encapsulation header on.
    ///
    /// # Errors
    /// If it is truncated, or of another protocol.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let header = head::<ENCAPSULATION_LEN>(bytes, "IPoIB encapsulation header")?;
        let rest = &bytes[ENCAPSULATION_LEN..];
        match get16(header, 0) {
            ethertype::ARP => Arp::parse(rest).map(Self::Arp),
            ethertype::IPV6 => Neighbour::parse(rest).map(Self::Neighbour),
            other => {
                Err(WireError::Value { what: "Ethertype of a resolution", value: other.into() })
            }
        }
    }

    /// Returns the datagram in wire format, from its encapsulation header on.
    pub fn to_bytes(&self) -> ResolutionBytes {
        let mut bytes = [0; ResolutionBytes::MAX];
        let (header, rest) = bytes.split_at_mut(ENCAPSULATION_LEN);
        let len = match self {
            Self::Arp(arp) => {
                put16(header, 0, ethertype::ARP);
                put(rest, 0, arp.to_bytes());
                Arp::LEN
            }
            Self::Neighbour(neighbour) => {
                put16(header, 0, ethertype::IPV6);
                put(rest, 0, neighbour.to_bytes());
                neighbour.wire_len()
            }
        };
        ResolutionBytes { bytes, len: ENCAPSULATION_LEN + len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LinkAddress = LinkAddress::datagrams(Qpn::new(0x48), Gid([0xfe; 16]));
    const B: LinkAddress = LinkAddress { flags: 0x80, qpn: Qpn::new(0x1234), gid: Gid([7; 16]) };

    #[test]
    fn arp_and_neighbour_discovery_datagrams_round_trip() {
        let arp = Arp {
            operation: arp::Operation::Request,
            sender: A,
            sender_ip: [10, 0, 0, 1].into(),
            target: B,
            target_ip: [10, 0, 0, 2].into(),
        };
        let advertisement = Neighbour {
            src: "fe80::1".parse().unwrap(),
            dst: "fe80::2".parse().unwrap(),
            kind: nd::Kind::Advertisement { solicited: true },
            target: "fd00::7".parse().unwrap(),
            link: Some(B),
        };
        let solicitation = Neighbour { kind: nd::Kind::Solicitation, ..advertisement };
        for datagram in [
            Resolution::Arp(arp),
            Resolution::Neighbour(advertisement),
            Resolution::Neighbour(solicitation),
        ] {
            let bytes = datagram.to_bytes();
            assert_eq!(Resolution::parse(bytes.as_slice()), Ok(datagram));
            for len in 0..bytes.as_slice().len() {
                assert!(Resolution::parse(&bytes.as_slice()[..len]).is_err(), "{len} bytes");
            }
        }
        assert_eq!(Resolution::Arp(arp).to_bytes().as_slice().len(), 60);
    }

    #[test]
    fn ip_ethertype_is_no_address_resolution() {
        let mut bytes = [0; 100];
        put16(&mut bytes, 0, 0x0800);
        let error = Resolution::parse(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "Ethertype of a resolution cannot be 0x800");
    }
}
