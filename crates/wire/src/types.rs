//! Small values of the field, one newtype each, so that a PSN cannot be mistaken for a QPN.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

/// A packet sequence number: 24 bits, compared by signed distance (IBTA 9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u32"))]
pub struct Psn(u32);

impl From<u32> for Psn {
    fn from(v: u32) -> Self {
        Self::new(v)
    }
}

impl Psn {
    /// The number of distinct PSNs.
    pub const SPACE: u32 = 1 << 24;

    /// Creates a value from the low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self(v & 0x00ff_ffff)
    }
    /// Returns the value, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// Returns the PSN `n` after this one, modulo 2^24.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// Returns the PSN `n` before this one, modulo 2^24.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }
    /// Returns the signed distance `self - other`: positive if `self` is later, in -2^23 .. 2^23.
    pub const fn diff(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u32"))]
pub struct Qpn(u32);

impl From<u32> for Qpn {
    fn from(v: u32) -> Self {
        Self::new(v)
    }
}

impl Qpn {
    /// The queue pair of the subnet management interface.
    pub const QP0: Self = Self(0);
    /// The queue pair of the general services interface.
    pub const QP1: Self = Self(1);
    /// The destination of every multicast packet.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// Creates a value from the low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self(v & 0x00ff_ffff)
    }
    /// Returns the value, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}
impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[repr(transparent)]
        pub struct $name(pub $int);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $fmt, ")"), self.0)
            }
        }
        impl From<$int> for $name {
            fn from(v: $int) -> Self {
                Self(v)
            }
        }
    };
}

number!(
    /// A local identifier of an InfiniBand subnet.
    Lid(u16), "{:#06x}"
);
number!(
    /// A 64-bit globally unique identifier (EUI-64), in host order here, big-endian on the wire.
    Guid(u64), "{:#018x}"
);
number!(
    /// A queue key, which a datagram must contain to be accepted.
    Qkey(u32), "{:#010x}"
);
number!(
    /// The key with which a process names its own memory.
    Lkey(u32), "{:#010x}"
);
number!(
    /// The key with which a peer names our memory.
    Rkey(u32), "{:#010x}"
);
number!(
    /// A steering tag: iWARP's key of either kind (RFC 5041, section 2.1).
    Stag(u32), "{:#010x}"
);
number!(
    /// A partition key: bit 15 means full membership, the low 15 bits are the partition.
    Pkey(u16), "{:#06x}"
);
number!(
    /// A management key, which a subnet manager must present to a port that has one (IBTA 14.2.4).
    Mkey(u64), "{:#018x}"
);
number!(
    /// A subnet manager's key, with which managers and trusted clients identify themselves (IBTA 14.4.7).
    SmKey(u64), "{:#018x}"
);
number!(
    /// A 64-bit service ID of the connection manager.
    ServiceId(u64), "{:#018x}"
);

impl From<Lkey> for Stag {
    fn from(key: Lkey) -> Self {
        Self(key.0)
    }
}

impl From<Rkey> for Stag {
    fn from(key: Rkey) -> Self {
        Self(key.0)
    }
}

impl From<Stag> for Lkey {
    fn from(stag: Stag) -> Self {
        Self(stag.0)
    }
}

impl From<Stag> for Rkey {
    fn from(stag: Stag) -> Self {
        Self(stag.0)
    }
}

impl Lid {
    /// The LID of a port without one.
    pub const NONE: Self = Self(0);
    /// The first LID of a multicast group.
    pub const FIRST_MULTICAST: Self = Self(0xc000);
    /// The LID that addresses the receiving port, whatever its own LID is.
    pub const PERMISSIVE: Self = Self(0xffff);

    /// Returns whether this is the LID of a port: 0x0001 to 0xbfff.
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 < Self::FIRST_MULTICAST.0
    }
    /// Returns whether this is the LID of a group: 0xc000 to 0xfffe.
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::FIRST_MULTICAST.0 && self.0 != Self::PERMISSIVE.0
    }
}

impl Qkey {
    /// The well-known Q_Key of QP1.
    pub const QP1: Self = Self(0x8001_0000);
    /// The Q_Key of RDMA_PS_UDP and RDMA_PS_IB.
    pub const RDMA_UDP: Self = Self(0x0123_4567);
}

impl Pkey {
    /// The default partition, with full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns whether a port with the key `table` accepts a packet with this key: they are of the same
    /// partition, and at least one of the two is a full member. There is no partition 0 (IBTA 10.9.3).
    pub const fn admits(self, table: Self) -> bool {
        let partition = self.0 & 0x7fff;
        partition != 0 && partition == table.0 & 0x7fff && (self.0 | table.0) & 0x8000 != 0
    }
}

/// A global identifier: 128 bits, written like an IPv6 address. In RoCEv2 an IPv4 address is `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of all zeros.
    pub const ZERO: Self = Self([0; 16]);
    /// The subnet prefix of a subnet without an assigned one: `fe80::/64`.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Creates the GID of a port from its subnet's prefix and a GUID of the port.
    pub const fn new(prefix: u64, guid: Guid) -> Self {
        Self(((prefix as u128) << 64 | guid.0 as u128).to_be_bytes())
    }
    /// Returns the subnet prefix: the first 64 bits.
    pub const fn prefix(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
    /// Returns the port's GUID: the last 64 bits.
    pub const fn guid(self) -> Guid {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        Guid(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
    /// Returns the IP address of this GID on RoCEv2.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
    /// Returns whether this is a multicast GID: `ff00::/8`, or a mapped IPv4 group as in RoCEv2.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }
    /// Returns whether all bytes are zero.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}
impl From<Ipv4Addr> for Gid {
    fn from(a: Ipv4Addr) -> Self {
        Self(a.to_ipv6_mapped().octets())
    }
}
impl From<Ipv6Addr> for Gid {
    fn from(a: Ipv6Addr) -> Self {
        Self(a.octets())
    }
}
impl From<IpAddr> for Gid {
    fn from(a: IpAddr) -> Self {
        match a {
            IpAddr::V4(a) => a.into(),
            IpAddr::V6(a) => a.into(),
        }
    }
}
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}
impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A path MTU: the payload bytes of a full packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// Returns the MTU of a wire code, 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::M256,
            2 => Self::M512,
            3 => Self::M1024,
            4 => Self::M2048,
            5 => Self::M4096,
            _ => return None,
        })
    }
    /// Returns the wire code, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }
    /// Returns the size in bytes.
    pub const fn bytes(self) -> u32 {
        128 << (self as u8)
    }
    /// Returns the largest MTU of at most `bytes`.
    pub const fn at_most(bytes: u32) -> Option<Self> {
        Some(match bytes {
            4096.. => Self::M4096,
            2048.. => Self::M2048,
            1024.. => Self::M1024,
            512.. => Self::M512,
            256.. => Self::M256,
            _ => return None,
        })
    }
}
impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// A timeout code of 5 bits: 4.096 us * 2^code; 0 means none (IBTA 9.7.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u8"))]
pub struct AckTimeout(u8);

impl From<u8> for AckTimeout {
    fn from(v: u8) -> Self {
        Self::new(v)
    }
}

impl AckTimeout {
    /// Creates a value from the low 5 bits.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }
    /// Returns the code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }
    /// Returns the time, or none for code 0, which means that there is no timer.
    pub const fn duration(self) -> Option<Duration> {
        match self.nanos() {
            Some(nanos) => Some(Duration::from_nanos(nanos)),
            None => None,
        }
    }
    /// Returns the same in nanoseconds, at most 2^43.
    pub const fn nanos(self) -> Option<u64> {
        if self.0 == 0 { None } else { Some(4096 << self.0) }
    }
}

/// A receiver-not-ready timer code of 5 bits (IBTA table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u8"))]
pub struct RnrTimer(u8);

impl From<u8> for RnrTimer {
    fn from(v: u8) -> Self {
        Self::new(v)
    }
}

impl RnrTimer {
    /// The times in hundredths of a millisecond, by code.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    /// Creates a value from the low 5 bits.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }
    /// Returns the code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }
    /// Returns the time that the sender waits.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::TABLE[self.0 as usize] as u64 * 10)
    }
}
