//! The operating system's answers about addresses, for devices with IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rdmux::GidEntry;
use rdmux_acm::System;
use rdmux_wire::acm::Address;

/// The default hop limit of packets.
const HOP_LIMIT: u8 = 64;

/// Returns the IP address in an address, if any.
pub(crate) fn ip_of(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Ip4(ip) => Some((*ip).into()),
        Address::Ip6(ip) => Some((*ip).into()),
        Address::Gid(gid) => Some(gid.ip()),
        Address::Name(_) | Address::Lid(_) => None,
    }
}

/// Returns the answer for the first of some addresses that is reachable from a local one.
pub(crate) fn system_of(addresses: &[IpAddr], own: &[GidEntry]) -> Option<System> {
    addresses.iter().find_map(|&ip| {
        let source = source_of(ip, own)?;
        Some(System { gid: ip.into(), source: source.gid, mtu: source.mtu, hop_limit: HOP_LIMIT })
    })
}

/// Returns the local address from which packets to `ip` are sent: `ip` itself if it is local; the address that the kernel would choose
/// if it is one of `own`; otherwise the first of its family. Routes to loopback addresses are ignored, because a virtual host has its
/// own.
fn source_of(ip: IpAddr, own: &[GidEntry]) -> Option<&GidEntry> {
    let of = |wanted: IpAddr| own.iter().find(|entry| entry.gid.ip() == wanted);
    let by_kernel = || kernel_source(ip).and_then(of);
    let of_family = || own.iter().find(|entry| entry.gid.ip().is_ipv4() == ip.is_ipv4());
    of(ip).or_else(by_kernel).or_else(of_family)
}

/// Returns the source address that the kernel would choose for a destination. Nothing is sent.
fn kernel_source(ip: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::from((any, 0))).ok()?;
    socket.connect((ip, 1)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use rdmux::{Gid, Mtu};

    use super::*;

    fn own(addresses: &[&str]) -> Vec<GidEntry> {
        let entry = |text: &&str| {
            let ip: IpAddr = text.parse().unwrap();
            GidEntry { gid: Gid::from(ip), mtu: Mtu::M1024, ..GidEntry::empty() }
        };
        addresses.iter().map(entry).collect()
    }

    fn source(ip: &str, addresses: &[&str]) -> Option<IpAddr> {
        source_of(ip.parse().unwrap(), &own(addresses)).map(|entry| entry.gid.ip())
    }

    #[test]
    fn source_of_a_virtual_host_is_its_own_address_whatever_the_routes_say() {
        let host = ["127.77.0.9", "fd00::9"];
        assert_eq!(source("127.77.0.10", &host), Some(IpAddr::from([127, 77, 0, 9])));
        assert_eq!(source("fd00::7", &host), Some("fd00::9".parse().unwrap()));
        assert_eq!(source("127.0.0.1", &["127.77.0.9", "127.0.0.1"]), Some([127, 0, 0, 1].into()));
        assert_eq!(source("fd00::7", &["127.77.0.9"]), None);
    }

    #[test]
    fn system_resolved_address_has_mtu_of_the_local_address() {
        let known = system_of(&["127.77.0.10".parse().unwrap()], &own(&["127.77.0.9"])).unwrap();
        assert_eq!((known.gid.ip(), known.mtu), (IpAddr::from([127, 77, 0, 10]), Mtu::M1024));
        assert!(system_of(&[], &own(&["127.77.0.9"])).is_none());
    }
}
