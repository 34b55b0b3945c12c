//! Names and addresses of endpoints, each in a field of 64 bytes with a separate type.

use core::fmt::{self, Write};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{get, get16, put, put16};
use crate::layout::codes;
use crate::{Gid, Lid, WireError};

/// The length of an address field, in bytes.
pub const ADDRESS_LEN: usize = 64;

codes! {
    /// The type of an address field's contents. Datagrams have it in 8 bits, client messages in 16.
    AddressType(u16, 16 bits) {
        /// No address.
        INVALID = 0, "none";
        /// A name, 1 to 63 bytes, padded with zeros.
        NAME = 1, "name";
        /// An IPv4 address, 4 bytes.
        IP4 = 2, "IPv4";
        /// An IPv6 address, 16 bytes.
        IP6 = 3, "IPv6";
        /// A GID, 16 bytes.
        GID = 4, "GID";
        /// A LID, 2 bytes, big-endian.
        LID = 5, "LID";
        /// In client messages only: a path record, 64 bytes.
        PATH = 0x10, "path";
    }
}

/// The name of an endpoint: 1 to 63 bytes without a zero. Received names need not be UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The name, padded with at least one zero.
    bytes: [u8; ADDRESS_LEN],
}

impl Name {
    /// The longest name, in bytes.
    pub const MAX: usize = ADDRESS_LEN - 1;

    /// Creates a name from bytes, or returns none if there are none, more than [`Self::MAX`], or a zero among them.
    pub fn new(name: impl AsRef<[u8]>) -> Option<Self> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > Self::MAX || name.contains(&0) {
            return None;
        }
        let mut bytes = [0; ADDRESS_LEN];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self { bytes })
    }

    /// Returns the bytes of the name, without the padding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..first_zero(&self.bytes).unwrap_or(Self::MAX)]
    }

    /// Returns the name as text, or none if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        core::str::from_utf8(self.as_bytes()).ok()
    }
}

/// Escapes control characters and bytes that are not UTF-8, so that a received name cannot forge a line of a log.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

/// A name or an address that identifies an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A name.
    Name(Name),
    /// An IPv4 address.
    Ip4(Ipv4Addr),
    /// An IPv6 address.
    Ip6(Ipv6Addr),
    /// A GID of the endpoint's port.
    Gid(Gid),
    /// A LID of the endpoint's port.
    Lid(Lid),
}

impl Address {
    /// Creates an address from a name, or returns none if [`Name::new`] rejects it.
    pub fn name(name: impl AsRef<[u8]>) -> Option<Self> {
        Name::new(name).map(Self::Name)
    }

    /// Returns the type of the address field.
    pub const fn kind(&self) -> AddressType {
        match self {
            Self::Name(_) => AddressType::NAME,
            Self::Ip4(_) => AddressType::IP4,
            Self::Ip6(_) => AddressType::IP6,
            Self::Gid(_) => AddressType::GID,
            Self::Lid(_) => AddressType::LID,
        }
    }

    /// Reads an address field. Bytes after an address of fixed length, or after the zero that ends a name, are ignored.
    ///
    /// # Errors
    /// If the type is not that of an address, or a name is empty or fills the field without a zero.
    pub fn from_field(kind: AddressType, field: &[u8; ADDRESS_LEN]) -> Result<Self, WireError> {
        Ok(match kind {
            AddressType::NAME => Self::Name(name_of(field)?),
            AddressType::IP4 => Self::Ip4(get::<4>(field, 0).into()),
            AddressType::IP6 => Self::Ip6(get::<16>(field, 0).into()),
            AddressType::GID => Self::Gid(Gid(get(field, 0))),
            AddressType::LID => Self::Lid(Lid(get16(field, 0))),
            AddressType(other) => {
                return Err(WireError::Value { what: "ACM address type", value: other.into() });
            }
        })
    }

    /// Returns the field, padded with zeros.
    pub fn to_field(&self) -> [u8; ADDRESS_LEN] {
        let mut field = [0; ADDRESS_LEN];
        match self {
            Self::Name(name) => field = name.bytes,
            Self::Ip4(ip) => put(&mut field, 0, ip.octets()),
            Self::Ip6(ip) => put(&mut field, 0, ip.octets()),
            Self::Gid(gid) => put(&mut field, 0, gid.0),
            Self::Lid(lid) => put16(&mut field, 0, lid.0),
        }
        field
    }
}

fn name_of(field: &[u8; ADDRESS_LEN]) -> Result<Name, WireError> {
    match first_zero(field) {
        Some(0) => Err(WireError::Value { what: "length of an ACM name", value: 0 }),
        Some(end) => {
            let mut bytes = *field;
            bytes[end..].fill(0);
            Ok(Name { bytes })
        }
        None => Err(WireError::Value { what: "length of an ACM name", value: 64 }),
    }
}

/// Returns the index of the first zero. Checks eight bytes at a time.
fn first_zero(field: &[u8; ADDRESS_LEN]) -> Option<usize> {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    field.as_chunks().0.iter().enumerate().find_map(|(i, chunk)| {
        let word = u64::from_le_bytes(*chunk);
        // The top bit of each zero byte, and possibly of bytes after it.
        let zeros = word.wrapping_sub(LOW) & !word & LOW << 7;
        (zeros != 0).then(|| i * 8 + zeros.trailing_zeros() as usize / 8)
    })
}

impl From<Ipv4Addr> for Address {
    fn from(ip: Ipv4Addr) -> Self {
        Self::Ip4(ip)
    }
}

impl From<Ipv6Addr> for Address {
    fn from(ip: Ipv6Addr) -> Self {
        Self::Ip6(ip)
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::Ip4(ip),
            IpAddr::V6(ip) => Self::Ip6(ip),
        }
    }
}

impl From<Gid> for Address {
    fn from(gid: Gid) -> Self {
        Self::Gid(gid)
    }
}

impl From<Lid> for Address {
    fn from(lid: Lid) -> Self {
        Self::Lid(lid)
    }
}

/// Prints the address without its type, and a LID in decimal like other tools.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Ip4(ip) => ip.fmt(f),
            Self::Ip6(ip) => ip.fmt(f),
            Self::Gid(gid) => gid.fmt(f),
            Self::Lid(lid) => lid.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(start: &[u8]) -> [u8; ADDRESS_LEN] {
        let mut field = [0; ADDRESS_LEN];
        field[..start.len()].copy_from_slice(start);
        field
    }

    #[test]
    fn acm_name_ends_at_the_first_nul_byte() {
        for byte in [1, 0x7f, 0x80, 0x81, 0xff] {
            for len in 1..ADDRESS_LEN {
                let mut field = [byte; ADDRESS_LEN];
                field[len] = 0;
                // Bytes after the zero are ignored.
                let name = name_of(&field).unwrap();
                assert_eq!(name.bytes[..len], field[..len], "{byte} {len}");
                assert_eq!(name.bytes[len..], [0; ADDRESS_LEN][len..], "{byte} {len}");
            }
            assert!(name_of(&[byte; ADDRESS_LEN]).is_err());
        }
        assert!(name_of(&[0; ADDRESS_LEN]).is_err());
    }

    #[test]
    fn acm_address_fields_have_the_bytes_of_the_protocol() {
        let gid = Gid([9; 16]);
        for (address, kind, bytes) in [
            (Address::name("node7").unwrap(), 1, &b"node7"[..]),
            (Ipv4Addr::new(10, 1, 2, 3).into(), 2, &[10, 1, 2, 3]),
            (Ipv6Addr::LOCALHOST.into(), 3, &Ipv6Addr::LOCALHOST.octets()),
            (gid.into(), 4, &gid.0),
            (Lid(0x0102).into(), 5, &[1, 2]),
        ] {
            assert_eq!(address.kind(), AddressType(kind));
            assert_eq!(address.to_field(), field(bytes));
            assert_eq!(Address::from_field(AddressType(kind), &field(bytes)), Ok(address));
        }
    }

    #[test]
    fn bytes_behind_an_address_are_ignored() {
        let mut name = field(b"a\0b");
        name[63] = b'c';
        assert_eq!(Address::from_field(AddressType::NAME, &name).ok(), Address::name("a"));
        let ip = Address::from_field(AddressType::IP4, &[1; ADDRESS_LEN]).unwrap();
        assert_eq!(ip, Ipv4Addr::new(1, 1, 1, 1).into());
    }

    #[test]
    fn name_of_64_bytes_without_a_zero_is_refused() {
        let error = Address::from_field(AddressType::NAME, &[b'x'; ADDRESS_LEN]).unwrap_err();
        assert_eq!(error.to_string(), "length of an ACM name cannot be 0x40");
        assert!(Address::from_field(AddressType::NAME, &[0; ADDRESS_LEN]).is_err());
        let longest = Name::new([b'x'; Name::MAX]).unwrap();
        assert_eq!(longest.as_bytes().len(), 63);
        assert_eq!(Name::new([b'x'; 64]), None);
        assert_eq!(Name::new("a\0"), None);
        assert_eq!(Name::new(""), None);
    }

    #[test]
    fn unknown_acm_address_types_are_refused() {
        for kind in [0, 6, 15, 0x10, 0xffff] {
            assert!(Address::from_field(AddressType(kind), &[1; ADDRESS_LEN]).is_err(), "{kind}");
        }
    }

    #[test]
    fn control_characters_in_acm_names_are_escaped() {
        assert_eq!(Name::new("nöde\n1").unwrap().to_string(), "nöde\\n1");
        assert_eq!(Name::new([b'a', 0xff, 0x1b]).unwrap().to_string(), "a\\xff\\u{1b}");
        assert_eq!(Address::from(Lid(12)).to_string(), "12");
    }
}
