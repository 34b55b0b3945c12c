//! ARP on InfiniBand (RFC 826, RFC 4391 9.2).

use core::net::Ipv4Addr;

use super::LinkAddress;
use crate::WireError;
use crate::bytes::{get, get16, put, put16};

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: Operation,
    /// The sender's link address.
    pub sender: LinkAddress,
    /// The sender's IP address.
    pub sender_ip: Ipv4Addr,
    /// The target's link address, which is not valid in a request.
    pub target: LinkAddress,
    /// The target's IP address: the one sought in a request, the requester's in a reply.
    pub target_ip: Ipv4Addr,
}

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks for the owner of the target's IP address.
    Request,
    /// Says that the sender has its IP address.
    Reply,
}

/// The hardware type of InfiniBand (RFC 4391 9.2).
const INFINIBAND: u16 = 32;
/// The protocol type of IPv4.
const IPV4: u16 = 0x0800;

mod field {
    pub(super) const HARDWARE: usize = 0;
    pub(super) const PROTOCOL: usize = 2;
    pub(super) const HARDWARE_LEN: usize = 4;
    pub(super) const PROTOCOL_LEN: usize = 5;
    pub(super) const OPERATION: usize = 6;
    pub(super) const SENDER: usize = 8;
    pub(super) const SENDER_IP: usize = 28;
    pub(super) const TARGET: usize = 32;
    pub(super) const TARGET_IP: usize = 52;
}

header!(Arp, 56, "ARP packet");

impl Arp {
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let is = |what, value: u16, right: u16| {
            let value = value.into();
            if value == u32::from(right) { Ok(()) } else { Err(WireError::Value { what, value }) }
        };
        is("hardware type of an ARP packet", get16(b, field::HARDWARE), INFINIBAND)?;
        is("protocol of an ARP packet", get16(b, field::PROTOCOL), IPV4)?;
        is("hardware address length of an ARP packet", b[field::HARDWARE_LEN].into(), 20)?;
        is("protocol address length of an ARP packet", b[field::PROTOCOL_LEN].into(), 4)?;
        let operation = match get16(b, field::OPERATION) {
            1 => Operation::Request,
            2 => Operation::Reply,
            value => {
                let what = "operation of an ARP packet";
                return Err(WireError::Value { what, value: value.into() });
            }
        };
        Ok(Self {
            operation,
            sender: LinkAddress::read(b, field::SENDER),
            sender_ip: get(b, field::SENDER_IP).into(),
            target: LinkAddress::read(b, field::TARGET),
            target_ip: get(b, field::TARGET_IP).into(),
        })
    }

    /// Returns the packet in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put16(&mut b, field::HARDWARE, INFINIBAND);
        put16(&mut b, field::PROTOCOL, IPV4);
        b[field::HARDWARE_LEN] = 20;
        b[field::PROTOCOL_LEN] = 4;
        let operation = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        put16(&mut b, field::OPERATION, operation);
        self.sender.write(&mut b, field::SENDER);
        put(&mut b, field::SENDER_IP, self.sender_ip.octets());
        self.target.write(&mut b, field::TARGET);
        put(&mut b, field::TARGET_IP, self.target_ip.octets());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gid, Qpn};

    #[test]
    fn arp_packets_of_other_hardware_or_protocol_types_are_refused() {
        let link = LinkAddress::datagrams(Qpn::new(1), Gid::ZERO);
        let arp = Arp {
            operation: Operation::Reply,
            sender: link,
            sender_ip: [10, 0, 0, 1].into(),
            target: link,
            target_ip: [10, 0, 0, 2].into(),
        };
        assert_eq!(Arp::parse(&arp.to_bytes()), Ok(arp));
        for at in [1, 2, 4, 5, 7] {
            let mut bytes = arp.to_bytes();
            bytes[at] ^= 0x10;
            assert!(Arp::parse(&bytes).is_err(), "byte {at}");
        }
    }
}
