//! The IP addressing header: the first 36 bytes of the private data of a REQ or SIDR_REQ for IP
//! addresses (IBTA annex A11).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::WireError;
use crate::bytes::{get, get16, put, put16};

/// The IP addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The source port; the destination port is in the service ID.
    pub src_port: u16,
    /// The source and destination address.
    pub addrs: IpPair,
}

/// Two addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "source and destination")]
pub enum IpPair {
    /// IPv4.
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    /// IPv6.
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

mod field {
    pub(super) const CMA_VERSION: usize = 0;
    pub(super) const IP_VERSION: usize = 1;
    pub(super) const SRC_PORT: usize = 2;
    pub(super) const SRC: usize = 4;
    pub(super) const DST: usize = 20;
    /// An IPv4 address is at the end of its 16 bytes.
    pub(super) const V4: usize = 12;
}

header!(IpHeader, 36, "IP addressing header");

impl IpHeader {
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let (version, ip_version) = (b[field::CMA_VERSION], b[field::IP_VERSION] >> 4);
        if version != 0 {
            return Err(WireError::Value { what: "IP addressing version", value: version.into() });
        }
        let addrs = match ip_version {
            4 => IpPair::V4 {
                src: get(b, field::SRC + field::V4).into(),
                dst: get(b, field::DST + field::V4).into(),
            },
            6 => IpPair::V6 { src: get(b, field::SRC).into(), dst: get(b, field::DST).into() },
            value => {
                return Err(WireError::Value {
                    what: "addressing IP version",
                    value: value.into(),
                });
            }
        };
        Ok(Self { src_port: get16(b, field::SRC_PORT), addrs })
    }

    /// Returns the header in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put16(&mut b, field::SRC_PORT, self.src_port);
        match self.addrs {
            IpPair::V4 { src, dst } => {
                b[field::IP_VERSION] = 4 << 4;
                put(&mut b, field::SRC + field::V4, src.octets());
                put(&mut b, field::DST + field::V4, dst.octets());
            }
            IpPair::V6 { src, dst } => {
                b[field::IP_VERSION] = 6 << 4;
                put(&mut b, field::SRC, src.octets());
                put(&mut b, field::DST, dst.octets());
            }
        }
        b
    }
}

impl IpPair {
    /// Returns the pair of two addresses, or none if they are of different families.
    pub const fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }

    /// Returns the source address.
    pub const fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// Returns the destination address.
    pub const fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }
}

impl fmt::Display for IpHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let src = core::net::SocketAddr::new(self.addrs.src(), self.src_port);
        write!(f, "{src} > {}", self.addrs.dst())
    }
}
