//! Ethernet header with VLAN tags (IEEE 802.3, 802.1Q).

use crate::WireError;
use crate::bytes::{get, get16, head};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of RoCEv1: a GRH follows.
pub const ROCE_V1: u16 = 0x8915;
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and the old value for nested tags.
pub const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// An Ethernet header, with the innermost VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ether {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// VLAN ID of the innermost tag.
    pub vlan: Option<u16>,
    /// The protocol of the payload.
    pub ethertype: u16,
    /// Length of the header with its tags, in bytes.
    pub header_len: usize,
}

impl Ether {
    /// The length on the wire without tags, in bytes.
    pub const LEN: usize = 14;

    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    /// When the bytes end within header or tags.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = head::<{ Self::LEN }>(bytes, "Ethernet header")?;
        let (vlan, ethertype, tags) = skip_vlan(get16(b, 12), &bytes[Self::LEN..])?;
        Ok(Self { dst: get(b, 0), src: get(b, 6), vlan, ethertype, header_len: Self::LEN + tags })
    }
}

/// Skips VLAN tags in `bytes`, which follow `ethertype`. Returns the last VLAN ID, the EtherType
/// after the tags, and the length of the tags in bytes.
///
/// # Errors
/// When the bytes end within a tag.
pub fn skip_vlan(mut ethertype: u16, bytes: &[u8]) -> Result<(Option<u16>, u16, usize), WireError> {
    let (mut vlan, mut at) = (None, 0);
    while VLAN.contains(&ethertype) {
        let tag = head::<4>(&bytes[at..], "VLAN tag")?;
        vlan = Some(get16(tag, 0) & 0x0fff);
        ethertype = get16(tag, 2);
        at += 4;
    }
    Ok((vlan, ethertype, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_header_with_nested_vlan_tags_is_parsed() {
        let mut b = [0; 22];
        b[12..22].copy_from_slice(&[0x88, 0xa8, 0, 1, 0x81, 0, 0xe0, 7, 0x08, 0]);
        let ether = Ether::parse(&b).unwrap();
        assert_eq!((ether.vlan, ether.ethertype, ether.header_len), (Some(7), IPV4, 22));
        for len in 0..22 {
            assert!(Ether::parse(&b[..len]).is_err(), "{len}");
        }
    }
}
