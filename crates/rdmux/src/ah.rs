//! Address handles: the destinations of datagrams.

use std::net::IpAddr;

use rdmux_transport::attr::AddressVector;
use rdmux_transport::wr::{Completion, WcFlags};
use rdmux_wire::{Gid, Lid};

/// An address handle: the route to a host or to a multicast group. A datagram's work request names it together with
/// the queue pair and the Q_Key ([`SendWr::to`](crate::SendWr::to)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ah(AddressVector);

impl Ah {
    /// The default time to live.
    pub const HOP_LIMIT: u8 = 64;

    /// Returns a handle for `ip`, a host or a group, from entry `sgid_index` of the local GID table.
    pub fn to_ip(ip: IpAddr, sgid_index: u8) -> Self {
        Self::to_gid(Gid::from(ip), sgid_index)
    }
    /// Returns a handle for `gid` from entry `sgid_index` of the local GID table.
    pub fn to_gid(dgid: Gid, sgid_index: u8) -> Self {
        Self(AddressVector {
            is_global: true,
            dgid,
            sgid_index,
            hop_limit: Self::HOP_LIMIT,
            port_num: 1,
            ..AddressVector::default()
        })
    }
    /// Returns a handle for a port of the subnet by its LID, without a GRH. InfiniBand only.
    pub fn to_lid(dlid: Lid) -> Self {
        Self(AddressVector { dlid: dlid.0, port_num: 1, ..AddressVector::default() })
    }
    /// Returns a handle from an address vector, such as that of an event.
    pub fn from_vector(av: AddressVector) -> Self {
        Self(av)
    }
    /// Returns a handle for the sender of a received datagram, from the 40 bytes in front of its data (for IPv4 the
    /// last 20 of them). None if they are not an IP header.
    pub fn reply_to(grh: &[u8; 40], sgid_index: u8) -> Option<Self> {
        let (sgid, traffic_class) = match grh[0] >> 4 {
            6 => (Gid(*grh[8..].first_chunk()?), (grh[0] << 4) | (grh[1] >> 4)),
            _ if grh[20] >> 4 == 4 => {
                let source: [u8; 4] = *grh[32..].first_chunk()?;
                (Gid::from(std::net::Ipv4Addr::from(source)), grh[21])
            }
            _ => return None,
        };
        let mut ah = Self::to_gid(sgid, sgid_index);
        ah.0.traffic_class = traffic_class;
        Some(ah)
    }
    /// Returns the destination of a received datagram, from the 40 bytes in front of its data. None if they are not an IP header.
    pub(crate) fn destination(grh: &[u8; 40]) -> Option<Gid> {
        match grh[0] >> 4 {
            6 => Some(Gid(*grh[24..].first_chunk()?)),
            _ if grh[20] >> 4 == 4 => {
                let destination: [u8; 4] = *grh[36..].first_chunk()?;
                Some(Gid::from(std::net::Ipv4Addr::from(destination)))
            }
            _ => None,
        }
    }
    /// Returns a handle for the sender of a received datagram: from its completion where packets have LIDs, otherwise
    /// as [`reply_to`](Self::reply_to).
    pub fn reply_to_completion(done: &Completion, grh: &[u8; 40], sgid_index: u8) -> Option<Self> {
        if done.slid == 0 {
            return Self::reply_to(grh, sgid_index);
        }
        let by_lid = AddressVector {
            sl: done.sl,
            src_path_bits: done.dlid_path_bits,
            ..Self::to_lid(Lid(done.slid)).0
        };
        if !done.flags.contains(WcFlags::GRH) {
            return Some(Self(by_lid));
        }
        let routed = Self::reply_to(grh, sgid_index)?.0;
        Some(Self(AddressVector {
            dlid: by_lid.dlid,
            sl: by_lid.sl,
            src_path_bits: by_lid.src_path_bits,
            ..routed
        }))
    }
    /// Sends from the port with this number, which must be the queue pair's; by default the first.
    #[must_use]
    pub fn port(mut self, number: u8) -> Self {
        self.0.port_num = number;
        self
    }
    /// Sends from one of the port's LIDs, selected by its low bits (the port's LMC is their number). InfiniBand only.
    #[must_use]
    pub fn path_bits(mut self, bits: u8) -> Self {
        self.0.src_path_bits = bits;
        self
    }
    /// Sets the traffic class (the IP header's TOS).
    #[must_use]
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.0.traffic_class = class;
        self
    }
    /// Sets the time to live.
    #[must_use]
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.0.hop_limit = hops;
        self
    }
    /// Returns the address vector.
    pub fn vector(&self) -> &AddressVector {
        &self.0
    }
    /// Returns the destination's IP address.
    pub fn ip(&self) -> IpAddr {
        self.0.dgid.ip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_goes_to_the_source_in_the_header() {
        let mut v4 = [0; 40];
        v4[20] = 0x45;
        v4[21] = 0x20;
        v4[32..36].copy_from_slice(&[10, 0, 0, 7]);
        let ah = Ah::reply_to(&v4, 3).unwrap();
        assert_eq!(ah.ip(), IpAddr::from([10, 0, 0, 7]));
        assert_eq!((ah.vector().sgid_index, ah.vector().traffic_class), (3, 0x20));

        let mut v6 = [0; 40];
        v6[0] = 0x61;
        v6[1] = 0x20;
        v6[8..24].copy_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
        let ah = Ah::reply_to(&v6, 0).unwrap();
        assert_eq!(ah.ip(), IpAddr::from(std::net::Ipv6Addr::LOCALHOST));
        assert_eq!(ah.vector().traffic_class, 0x12);
        assert_eq!(Ah::reply_to(&[0; 40], 0), None);
    }
}
