//! The addresses of ids: IP addresses and InfiniBand's own (AF_IB).

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use rdmux_wire::{Gid, Pkey, ServiceId};

use crate::ports::PortSpace;

/// The address of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Addr {
    /// An IP address and a port. An IPv6 address keeps its flow label and scope: a link-local address means nothing without its interface.
    Ip(#[cfg_attr(feature = "serde", serde(with = "whole"))] SocketAddr),
    /// A GID and a service ID.
    Ib(IbAddr),
}

/// InfiniBand's own service address (`struct sockaddr_ib`). A GID and a partition identify a port, a service ID the service there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IbAddr {
    /// The GID. On RoCE it is an IP address. Zero is the wildcard.
    pub gid: Gid,
    /// The partition. Zero is that of the port's first key; for a listener, any.
    pub pkey: Pkey,
    /// The flow label (low 20 bits) and the traffic class (above it) of packets.
    pub flowinfo: u32,
    /// The service ID, sent as it is.
    pub sid: ServiceId,
    /// The bits of the service ID that count. A listener serves all IDs that match in these bits. For an id without a service
    /// of its own, the bits that the caller fixes.
    pub sid_mask: u64,
    /// The scope of the GID, which is kept but not used.
    pub scope_id: u64,
}

/// Serialises a socket's address completely; serde by itself omits an IPv6 address's flow label and scope.
#[cfg(feature = "serde")]
mod whole {
    use core::net::SocketAddr;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(addr: &SocketAddr, to: S) -> Result<S::Ok, S::Error> {
        let (flowinfo, scope_id) = match addr {
            SocketAddr::V4(_) => (0, 0),
            SocketAddr::V6(v6) => (v6.flowinfo(), v6.scope_id()),
        };
        (addr, flowinfo, scope_id).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<SocketAddr, D::Error> {
        let (mut addr, flowinfo, scope_id) = <(SocketAddr, u32, u32)>::deserialize(from)?;
        if let SocketAddr::V6(v6) = &mut addr {
            v6.set_flowinfo(flowinfo);
            v6.set_scope_id(scope_id);
        }
        Ok(addr)
    }
}

impl IbAddr {
    /// Returns the address of the service with this ID at a GID, in the partition of the port's first key.
    pub const fn new(gid: Gid, sid: ServiceId) -> Self {
        Self { gid, pkey: Pkey(0), flowinfo: 0, sid, sid_mask: u64::MAX, scope_id: 0 }
    }

    /// Returns the address of any service at a GID.
    pub const fn of_port(gid: Gid) -> Self {
        Self { sid_mask: 0, ..Self::new(gid, ServiceId(0)) }
    }

    /// Returns whether the GID is the wildcard.
    pub fn is_any(&self) -> bool {
        self.gid.is_zero()
    }

    /// Returns the port space and, if the mask fixes it, the port that the service ID encodes: service IDs of IP-based services
    /// (IBTA annex A11) share the ports of IP addresses.
    pub fn ip_service(&self) -> Option<(PortSpace, Option<u16>)> {
        const SPACE: u64 = !0xffff;
        if self.sid_mask & SPACE != SPACE {
            return None;
        }
        let (space, port) = self.sid.port()?;
        let port = (self.sid_mask & 0xffff == 0xffff && port != 0).then_some(port);
        Some((PortSpace::from_code(space)?, port))
    }

    /// Returns the flow label.
    pub const fn flow_label(&self) -> u32 {
        self.flowinfo & 0xf_ffff
    }

    /// Returns the traffic class.
    pub const fn traffic_class(&self) -> u8 {
        self.flowinfo.to_be_bytes()[0] << 4 | self.flowinfo.to_be_bytes()[1] >> 4
    }
}

impl Addr {
    /// Returns the IP address and port, if it is an IP address.
    pub const fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(*addr),
            Self::Ib(_) => None,
        }
    }

    /// Returns the InfiniBand address, if it is one.
    pub const fn ib(&self) -> Option<&IbAddr> {
        match self {
            Self::Ip(_) => None,
            Self::Ib(addr) => Some(addr),
        }
    }

    /// Returns the IP address. For a GID: the IP address that it maps on RoCE, otherwise the GID written as an IPv6 address.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Ip(addr) => addr.ip(),
            Self::Ib(addr) => addr.gid.ip(),
        }
    }

    /// Returns the port; for a service ID, its last 16 bits.
    pub const fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Ib(addr) => (addr.sid.0 & 0xffff) as u16,
        }
    }

    /// Returns whether the address is an IPv4 socket address.
    pub const fn is_ipv4(&self) -> bool {
        matches!(self, Self::Ip(SocketAddr::V4(_)))
    }
}

/// An IP address equals the socket address that it was made from.
impl PartialEq<SocketAddr> for Addr {
    fn eq(&self, other: &SocketAddr) -> bool {
        self.socket() == Some(*other)
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<IbAddr> for Addr {
    fn from(addr: IbAddr) -> Self {
        Self::Ib(addr)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Ib(addr) => addr.fmt(f),
        }
    }
}

/// `GID service ID/MASK pkey KEY`, without the parts that are not given.
impl fmt::Display for IbAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gid)?;
        match self.sid_mask {
            0 => {}
            u64::MAX => write!(f, " service {:#018x}", self.sid.0)?,
            mask => write!(f, " service {:#018x}/{mask:#018x}", self.sid.0)?,
        }
        if self.pkey.0 != 0 {
            write!(f, " pkey {:#06x}", self.pkey.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn ip_service_ids_yield_their_port_space_and_port() {
        let at = |sid, sid_mask| IbAddr { sid_mask, ..IbAddr::new(Gid::ZERO, ServiceId(sid)) };
        assert_eq!(at(0x0106_1c06, u64::MAX).ip_service(), Some((PortSpace::Tcp, Some(7174))));
        assert_eq!(at(0x0106_0000, !0xffff).ip_service(), Some((PortSpace::Tcp, None)));
        assert_eq!(at(0x0106_0000, u64::MAX).ip_service(), Some((PortSpace::Tcp, None)));
        assert_eq!(at(0x0106_1c06, 0xffff).ip_service(), None);
        assert_eq!(at(0x1000_0000_0106_1c06, u64::MAX).ip_service(), None);
    }

    #[test]
    fn flow_information_has_label_and_class() {
        let addr = IbAddr { flowinfo: 0x1234_5678, ..IbAddr::of_port(Gid::ZERO) };
        assert_eq!((addr.flow_label(), addr.traffic_class()), (0x4_5678, 0x23));
    }

    #[test]
    fn ib_address_text_omits_unset_service_id_and_pkey() {
        let gid = Gid::new(0xfe80 << 48, rdmux_wire::Guid(7));
        let addr = IbAddr { pkey: Pkey(0x8001), ..IbAddr::new(gid, ServiceId(0x1234)) };
        let text = Addr::from(addr).to_string();
        assert_eq!(text, format!("{gid} service 0x0000000000001234 pkey 0x8001"));
        assert_eq!(Addr::from(IbAddr::of_port(gid)).to_string(), gid.to_string());
    }
}
