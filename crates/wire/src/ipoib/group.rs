//! Groups: the multicast GIDs of multicast IP addresses (RFC 4391 4).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Gid, Pkey};

/// The protocol of a group's datagrams, by bytes 2 and 3 of its GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signature {
    /// IP packets (RFC 4391 4).
    Ip,
    /// Datagrams of programs that use the connection manager's UDP port space. The value is Linux's choice.
    Cm,
}

/// The scope of groups within a subnet: link-local (RFC 4291 2.7).
pub const LINK_LOCAL: u8 = 2;

const IPV4: u8 = 0x40;
const IPV6: u8 = 0x60;

/// Returns the broadcast group of a partition, whose parameters all other groups share (RFC 4391
/// 4). The key is that of a full member.
pub fn broadcast(pkey: Pkey, scope: u8) -> Gid {
    of_v4(Ipv4Addr::BROADCAST, pkey, scope, Signature::Ip)
}

/// Returns the group of a multicast address in a partition.
pub fn of(group: IpAddr, pkey: Pkey, scope: u8, signature: Signature) -> Gid {
    match group {
        IpAddr::V4(group) => of_v4(group, pkey, scope, signature),
        IpAddr::V6(group) => of_v6(group, pkey, scope, signature),
    }
}

/// Returns whether an IPv6 address is a GID assigned by subnet administration (FF1x:A01B::/32), which is not mapped.
pub fn is_assigned(group: Ipv6Addr) -> bool {
    let [first, second, ..] = group.segments();
    first & 0xfff0 == 0xff10 && second == 0xa01b
}

fn of_v4(group: Ipv4Addr, pkey: Pkey, scope: u8, signature: Signature) -> Gid {
    let [a, b, c, d] = group.octets();
    let mut gid = prefix(IPV4, pkey, scope, signature);
    // The low 28 bits, or all 32 of the broadcast address.
    let a = if group.is_broadcast() { a } else { a & 0x0f };
    gid[12..].copy_from_slice(&[a, b, c, d]);
    Gid(gid)
}

fn of_v6(group: Ipv6Addr, pkey: Pkey, scope: u8, signature: Signature) -> Gid {
    if is_assigned(group) {
        return Gid(group.octets());
    }
    let mut gid = prefix(IPV6, pkey, scope, signature);
    gid[6..].copy_from_slice(&group.octets()[6..]);
    Gid(gid)
}

fn prefix(family: u8, pkey: Pkey, scope: u8, signature: Signature) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[0] = 0xff;
    // The first flag: transient.
    gid[1] = 0x10 | scope & 0xf;
    (gid[2], gid[3]) = match signature {
        Signature::Ip => (family, 0x1b),
        Signature::Cm => (family, 0x01),
    };
    gid[4..6].copy_from_slice(&(pkey.0 | 0x8000).to_be_bytes());
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn ipoib_multicast_mgids_are_those_of_the_kernel() {
        let full = Pkey(0xffff);
        assert_eq!(broadcast(full, LINK_LOCAL), gid("ff12:401b:ffff::ffff:ffff"));
        assert_eq!(broadcast(Pkey(1), 5), gid("ff15:401b:8001::ffff:ffff"));
        let of = |ip: &str, signature| of(ip.parse().unwrap(), full, LINK_LOCAL, signature);
        assert_eq!(of("239.1.2.3", Signature::Ip), gid("ff12:401b:ffff::f01:203"));
        assert_eq!(of("239.1.2.3", Signature::Cm), gid("ff12:4001:ffff::f01:203"));
        assert_eq!(of("ff0e::1:2", Signature::Ip), gid("ff12:601b:ffff::1:2"));
        assert_eq!(of("ff0e::1:2", Signature::Cm), gid("ff12:6001:ffff::1:2"));
        assert_eq!(of("ff12:a01b::7", Signature::Cm), gid("ff12:a01b::7"));
    }
}
