//! Short names of frames that are not RDMA.

use std::net::Ipv4Addr;

use rdmux_wire::{ether, ip};

/// Describes the payload of an Ethernet frame of this type.
pub(super) fn ethertype(ethertype: u16, payload: &[u8]) -> String {
    match ethertype {
        ether::ARP => arp(payload).unwrap_or_else(|| "ARP".into()),
        0..0x0600 => "802.3 frame".into(),
        0x8863 | 0x8864 => "PPPoE".into(),
        0x8808 => "Ethernet flow control".into(),
        0x888e => "802.1X".into(),
        0x88cc => "LLDP".into(),
        0x88f7 => "PTP".into(),
        other => format!("EtherType {other:#06x}"),
    }
}

fn arp(payload: &[u8]) -> Option<String> {
    let address = |at: usize| {
        let octets: [u8; 4] = *payload.get(at..)?.first_chunk()?;
        Some(Ipv4Addr::from(octets))
    };
    let (sender, target) = (address(14)?, address(24)?);
    match payload.get(6..8)? {
        [0, 1] if sender == target => Some(format!("ARP announces {sender}")),
        [0, 1] => Some(format!("ARP who has {target}? tell {sender}")),
        [0, 2] => Some(format!("ARP {sender} is here")),
        _ => None,
    }
}

/// Describes the payload of an IP packet of this protocol.
pub(super) fn protocol(protocol: u8, payload: &[u8]) -> String {
    match protocol {
        ip::IGMP => igmp(payload).unwrap_or_else(|| "IGMP".into()),
        ip::ICMP => icmp(payload),
        ip::ICMPV6 => icmpv6(payload),
        other => format!("IP protocol {other}"),
    }
}

fn igmp(payload: &[u8]) -> Option<String> {
    let group = |at: usize| {
        let octets: [u8; 4] = *payload.get(at..)?.first_chunk()?;
        Some(Ipv4Addr::from(octets))
    };
    Some(match payload.first()? {
        0x11 if group(4)?.is_unspecified() => "IGMP general query".into(),
        0x11 => format!("IGMP query {}", group(4)?),
        0x12 => format!("IGMPv1 report {}", group(4)?),
        0x16 => format!("IGMPv2 report {}", group(4)?),
        0x17 => format!("IGMPv2 leave {}", group(4)?),
        0x22 => igmp_v3_report(payload, group(12)?),
        _ => return None,
    })
}

/// Describes a report by its first group; most reports have one.
fn igmp_v3_report(payload: &[u8], group: Ipv4Addr) -> String {
    let sources = payload.get(10..12) != Some(&[0, 0]);
    let action = match payload.get(8) {
        Some(1 | 3) if !sources => "leave",
        Some(2 | 4) if !sources => "join",
        _ => "sources of",
    };
    let more = match payload.get(6..8) {
        Some([0, 0 | 1]) | None => "",
        Some(_) => " and more",
    };
    format!("IGMPv3 report, {action} {group}{more}")
}

fn icmp(payload: &[u8]) -> String {
    match payload.first() {
        Some(0) => "ICMP echo reply".into(),
        Some(3) => "ICMP destination unreachable".into(),
        Some(8) => "ICMP echo request".into(),
        Some(11) => "ICMP time exceeded".into(),
        Some(kind) => format!("ICMP type {kind}"),
        None => "ICMP".into(),
    }
}

fn icmpv6(payload: &[u8]) -> String {
    match payload.first() {
        Some(1) => "ICMPv6 destination unreachable".into(),
        Some(2) => "ICMPv6 packet too big".into(),
        Some(128) => "ICMPv6 echo request".into(),
        Some(129) => "ICMPv6 echo reply".into(),
        Some(130) => "MLD query".into(),
        Some(131 | 143) => "MLD report".into(),
        Some(132) => "MLD done".into(),
        Some(133) => "ICMPv6 router solicitation".into(),
        Some(134) => "ICMPv6 router advertisement".into(),
        Some(135) => "ICMPv6 neighbor solicitation".into(),
        Some(136) => "ICMPv6 neighbor advertisement".into(),
        Some(kind) => format!("ICMPv6 type {kind}"),
        None => "ICMPv6".into(),
    }
}
