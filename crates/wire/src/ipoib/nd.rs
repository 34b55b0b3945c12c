//! Neighbour discovery on InfiniBand: solicitations and advertisements (RFC 4861 4.3 and 4.4, RFC 4391 9.3).

use core::net::Ipv6Addr;

use super::LinkAddress;
use crate::WireError;
use crate::bytes::{get, get16, head, put, put16};
use crate::ip::{ICMPV6, Ipv6};

/// A neighbour solicitation or advertisement, with the IPv6 header before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The sender; unspecified if it has no address yet and probes whether another host has the target (RFC 4862 5.4).
    pub src: Ipv6Addr,
    /// The receiver: the solicitor, the solicited-node group of the target (RFC 4291 2.7.1), or [`ALL_NODES`].
    pub dst: Ipv6Addr,
    /// Solicitation or advertisement.
    pub kind: Kind,
    /// The address to resolve.
    pub target: Ipv6Addr,
    /// The link address: the sender's in a solicitation, the target's in an advertisement.
    pub link: Option<LinkAddress>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks for the owner of the target.
    Solicitation,
    /// Says that the sender owns the target.
    Advertisement {
        /// Whether the advertisement answers a solicitation.
        solicited: bool,
    },
}

/// ICMPv6 types.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: it answers a solicitation; it replaces a cache entry.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Option types: the link address of the source, and of the target.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// The hop limit of a message that no router has forwarded (RFC 4861 7.1).
const HOP_LIMIT: u8 = 255;

/// Offsets after the IPv6 header.
mod field {
    pub(super) const TYPE: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: usize = 2;
    pub(super) const FLAGS: usize = 4;
    pub(super) const TARGET: usize = 8;
    pub(super) const OPTION: usize = 24;
    pub(super) const OPTION_LEN: usize = 25;
    pub(super) const LINK: usize = 28;
}

/// The length of the message without and with its option.
const BARE: u16 = 24;
const MESSAGE: usize = (BARE + OPTION) as usize;
/// The length of the option, in bytes and in units of eight bytes.
const OPTION: u16 = 24;
const OPTION_UNITS: u8 = 3;

impl Neighbour {
    /// The length on the wire with the IPv6 header and the link address option, in bytes.
    pub const LEN: usize = Ipv6::LEN + MESSAGE;

    /// Returns the length of this message on the wire: without a link address there is no option.
    pub const fn wire_len(&self) -> usize {
        Ipv6::LEN + self.message_len() as usize
    }

    /// Returns the length without the IPv6 header, which is the payload length in that header.
    const fn message_len(&self) -> u16 {
        if self.link.is_some() { BARE + OPTION } else { BARE }
    }

    /// Parses a message, from its IPv6 header on. Options after the first link address are ignored.
    ///
    /// # Errors
    /// If it is truncated, of another kind, has crossed a router, has a wrong checksum, or is inconsistent. A probe
    /// for an address ([`src`](Self::src) unspecified) must have no link address and be sent to a solicited-node
    /// group, source and target must not be groups, and a solicited advertisement must not be sent to a group.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let ip = Ipv6::parse(bytes)?;
        let what = "neighbour discovery message";
        if ip.next_header != ICMPV6 {
            let (what, value) =
                ("protocol of a neighbour discovery message", ip.next_header.into());
            return Err(WireError::Value { what, value });
        }
        if ip.hop_limit != HOP_LIMIT {
            let (what, value) = ("hop limit of a neighbour discovery message", ip.hop_limit.into());
            return Err(WireError::Value { what, value });
        }
        let (says, have) = (usize::from(ip.payload_len), bytes.len() - Ipv6::LEN);
        let message = bytes[Ipv6::LEN..].get(..says);
        let message = message.ok_or(WireError::Truncated { what, says, have })?;
        let b = head::<{ BARE as usize }>(message, what)?;
        if checksum(&ip, message) != 0 {
            let value = get16(b, field::CHECKSUM).into();
            return Err(WireError::Value {
                what: "checksum of a neighbour discovery message",
                value,
            });
        }
        let (kind, option) = match (b[field::TYPE], b[field::CODE]) {
            (SOLICITATION, 0) => (Kind::Solicitation, SOURCE_LINK),
            (ADVERTISEMENT, 0) => {
                let solicited = b[field::FLAGS] & SOLICITED != 0;
                (Kind::Advertisement { solicited }, TARGET_LINK)
            }
            (value, _) => {
                return Err(WireError::Value {
                    what: "type of an ICMPv6 message",
                    value: value.into(),
                });
            }
        };
        let link = find_link(&message[usize::from(BARE)..], option)?;
        let target = get(b, field::TARGET).into();
        let this = Self { src: ip.src, dst: ip.dst, kind, target, link };
        this.check()?;
        Ok(this)
    }

    /// Checks the rules by which a receiver must drop messages (RFC 4861 7.1.1 and 7.1.2), except those about the format.
    fn check(&self) -> Result<(), WireError> {
        let refused = |what, address: Ipv6Addr| {
            Err(WireError::Value { what, value: address.segments()[0].into() })
        };
        if self.target.is_multicast() {
            return refused("target of a neighbour discovery message", self.target);
        }
        if self.src.is_multicast() {
            return refused("source of a neighbour discovery message", self.src);
        }
        match self.kind {
            Kind::Solicitation if self.src.is_unspecified() && !is_solicited_node(self.dst) => {
                refused("destination of a solicitation without a source", self.dst)
            }
            Kind::Solicitation if self.src.is_unspecified() && self.link.is_some() => {
                let what = "option of a solicitation without a source";
                Err(WireError::Value { what, value: SOURCE_LINK.into() })
            }
            Kind::Advertisement { solicited: true } if self.dst.is_multicast() => {
                refused("destination of a solicited advertisement", self.dst)
            }
            _ => Ok(()),
        }
    }

    /// Returns the message in wire format, from its IPv6 header on: the first [`wire_len`](Self::wire_len) bytes.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let ip = Ipv6 {
            tclass: 0,
            flow_label: 0,
            payload_len: self.message_len(),
            next_header: ICMPV6,
            hop_limit: HOP_LIMIT,
            src: self.src,
            dst: self.dst,
        };
        let (header, b) = bytes.split_at_mut(Ipv6::LEN);
        header.copy_from_slice(&ip.to_bytes());
        let (kind, flags, option) = match self.kind {
            Kind::Solicitation => (SOLICITATION, 0, SOURCE_LINK),
            Kind::Advertisement { solicited } => {
                let solicited = if solicited { SOLICITED } else { 0 };
                (ADVERTISEMENT, OVERRIDE | solicited, TARGET_LINK)
            }
        };
        (b[field::TYPE], b[field::FLAGS]) = (kind, flags);
        put(b, field::TARGET, self.target.octets());
        if let Some(link) = &self.link {
            (b[field::OPTION], b[field::OPTION_LEN]) = (option, OPTION_UNITS);
            link.write(b, field::LINK);
        }
        let sum = checksum(&ip, b);
        put16(b, field::CHECKSUM, sum);
        bytes
    }
}

/// Finds the link address among a message's options.
fn find_link(mut options: &[u8], kind: u8) -> Result<Option<LinkAddress>, WireError> {
    while let [this, units, ..] = *options {
        let len = usize::from(units) * 8;
        if len == 0 || len > options.len() {
            let what = "option length of a neighbour discovery message";
            return Err(WireError::Value { what, value: units.into() });
        }
        if this == kind && len == usize::from(OPTION) {
            return Ok(Some(LinkAddress::read(options, field::LINK - field::OPTION)));
        }
        options = &options[len..];
    }
    Ok(None)
}

/// Returns the checksum of a message whose checksum field is zero, or zero for a valid message (RFC 4443 2.3).
fn checksum(ip: &Ipv6, message: &[u8]) -> u16 {
    let words = |bytes: &[u8]| {
        let pairs = bytes
            .chunks(2)
            .map(|pair| u32::from_be_bytes([0, 0, pair[0], *pair.get(1).unwrap_or(&0)]));
        pairs.fold(0u32, |sum, word| sum.wrapping_add(word))
    };
    let mut sum = words(&ip.src.octets()) + words(&ip.dst.octets()) + words(message);
    sum += u32::from(ip.payload_len) + u32::from(ip.next_header);
    loop {
        match u16::try_from(sum) {
            Ok(sum) => return !sum,
            Err(_) => sum = (sum >> 16) + (sum & 0xffff),
        }
    }
}

/// The group of all nodes on the link (RFC 4291 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn is_solicited_node(group: Ipv6Addr) -> bool {
    group == solicited_node(group)
}

/// Returns the solicited-node group of an address (RFC 4291 2.7.1).
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gid, Qpn};

    fn message() -> Neighbour {
        Neighbour {
            src: "fe80::a".parse().unwrap(),
            dst: solicited_node("fd00::1234:5678".parse().unwrap()),
            kind: Kind::Solicitation,
            target: "fd00::1234:5678".parse().unwrap(),
            link: Some(LinkAddress::datagrams(Qpn::new(0x48), Gid([3; 16]))),
        }
    }

    #[test]
    fn solicited_node_multicast_address_has_the_last_24_bits_of_the_target() {
        assert_eq!(message().dst.to_string(), "ff02::1:ff34:5678");
    }

    #[test]
    fn neighbour_message_without_link_address_has_no_option() {
        let bare = Neighbour { link: None, ..message() };
        let bytes = bare.to_bytes();
        assert_eq!(bare.wire_len(), Neighbour::LEN - 24);
        assert_eq!(Neighbour::parse(&bytes[..bare.wire_len()]), Ok(bare));
    }

    #[test]
    fn routed_or_damaged_neighbour_messages_are_refused() {
        let right = message().to_bytes();
        assert_eq!(Neighbour::parse(&right), Ok(message()));
        // Next header, hop limit, type, checksum, target, length of the option.
        for at in [6, 7, 40, 42, 50, 65] {
            let mut bytes = right;
            bytes[at] ^= 0x04;
            assert!(Neighbour::parse(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn neighbour_messages_against_rfc_4861_validity_rules_are_refused() {
        let is_right = |message: Neighbour| {
            Neighbour::parse(&message.to_bytes()[..message.wire_len()]).is_ok()
        };
        let group = ALL_NODES;
        let probe = Neighbour { src: Ipv6Addr::UNSPECIFIED, link: None, ..message() };
        assert!(is_right(probe));
        assert!(!is_right(Neighbour { link: message().link, ..probe }), "it has no link address");
        assert!(
            !is_right(Neighbour { dst: probe.target, ..probe }),
            "not to a solicited-node group"
        );
        assert!(!is_right(Neighbour { dst: group, ..probe }), "not to a solicited-node group");
        let advertisement = |solicited| Neighbour {
            dst: group,
            kind: Kind::Advertisement { solicited },
            ..message()
        };
        assert!(is_right(advertisement(false)));
        assert!(!is_right(advertisement(true)), "nobody in particular had asked");
        for message in [message(), probe, advertisement(false)] {
            assert!(!is_right(Neighbour { target: group, ..message }), "a group's link address");
            assert!(!is_right(Neighbour { src: group, ..message }), "from a group");
        }
    }

    #[test]
    fn nd_options_of_length_zero_or_beyond_the_message_are_refused() {
        assert!(find_link(&[1, 0, 0, 0, 0, 0, 0, 0], SOURCE_LINK).is_err());
        assert!(find_link(&[9, 2, 0, 0, 0, 0, 0, 0], SOURCE_LINK).is_err());
        assert_eq!(find_link(&[9, 1, 0, 0, 0, 0, 0, 0], SOURCE_LINK), Ok(None));
        assert_eq!(find_link(&[], SOURCE_LINK), Ok(None));
    }
}
