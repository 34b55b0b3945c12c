//! The datagram between services: the sender's address, the address sought, and the groups that the
//! sender can receive from.
//!
//! A service sends a request to the lowest group. Every service that receives it learns the
//! sender's address. Only the service that has the address sought responds, to the queue pair that
//! sent the request, with the best group that both have. There is no negative response.

use core::fmt;

use arrayvec::ArrayVec;

use super::{ADDRESS_LEN, Address, AddressType, CLASS_VERSION, MGMT_CLASS};
use crate::bytes::{get, get16, put};
use crate::mad::{MAD_LEN, MadHeader, Method};
use crate::{Gid, WireError};

/// The maximum number of groups in a datagram: as many as fit after the addresses, although the
/// record is declared with 10.
pub const MAX_GROUPS: usize = (MAD_LEN - field::GIDS) / 16;

/// GIDs of groups, from the lowest priority to the highest.
pub type Groups = ArrayVec<Gid, MAX_GROUPS>;

/// Offsets in the datagram. The MAD header ends with the transaction ID: the class has no attributes.
mod field {
    pub(super) const DEST_TYPE: usize = 16;
    pub(super) const DEST_LEN: usize = 17;
    pub(super) const SOURCE_TYPE: usize = 18;
    pub(super) const SOURCE_LEN: usize = 19;
    pub(super) const GID_COUNT: usize = 20;
    pub(super) const DEST: usize = 24;
    pub(super) const SOURCE: usize = 88;
    pub(super) const GIDS: usize = 152;
}

/// The control field, at the offset of other classes' class-specific field. This value means
/// resolve. 0x8000 is reserved for acknowledgements, which are never sent.
const CONTROL_RESOLVE: u16 = 1;

/// A datagram from service to service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// Sent to a group.
    Request(Request),
    /// Sent to the requester's queue pair.
    Response(Response),
}

/// A request for an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The transaction ID, which the response repeats.
    pub tid: u64,
    /// An address of the requesting endpoint.
    pub source: Address,
    /// The address sought.
    pub dest: Address,
    /// All groups of the requesting endpoint.
    pub groups: Groups,
}

/// A response that the address sought belongs to the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The transaction ID of the request.
    pub tid: u64,
    /// The status: 0, or the error in the high byte.
    pub status: u16,
    /// The chosen group: exactly one, unless the status is not 0.
    pub groups: Groups,
}

impl Datagram {
    /// The length on the wire, in bytes: one MAD.
    pub const LEN: usize = MAD_LEN;

    /// Parses a datagram. The lengths of addresses are ignored, as in ibacm, and so are the addresses of a response.
    ///
    /// # Errors
    /// If the length is not [`Self::LEN`], the class, version, method or control field is another,
    /// the number of groups exceeds the maximum, or a request has an invalid address.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact(bytes)?;
        let header = MadHeader::parse(b)?;
        expect("class of an ACM datagram", header.mgmt_class.0.into(), MGMT_CLASS.0.into())?;
        expect("ACM class version", header.class_version.into(), CLASS_VERSION.into())?;
        expect("ACM control", header.class_specific.into(), CONTROL_RESOLVE.into())?;
        let (tid, groups) = (header.tid, groups(b)?);
        match header.method {
            Method::GET => {
                let source = address(b, field::SOURCE_TYPE, field::SOURCE)?;
                let dest = address(b, field::DEST_TYPE, field::DEST)?;
                Ok(Self::Request(Request { tid, source, dest, groups }))
            }
            Method::GET_RESP => {
                let status = header.status;
                if status == 0 {
                    expect("groups of an ACM response", b[field::GID_COUNT].into(), 1)?;
                }
                Ok(Self::Response(Response { tid, status, groups }))
            }
            Method(other) => {
                Err(WireError::Value { what: "method of an ACM datagram", value: other.into() })
            }
        }
    }

    /// Returns the datagram in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        match self {
            Self::Request(Request { tid, source, dest, groups }) => {
                put_header(&mut b, Method::GET, *tid, 0);
                put_address(&mut b, field::SOURCE_TYPE, field::SOURCE, source);
                put_address(&mut b, field::DEST_TYPE, field::DEST, dest);
                put_groups(&mut b, groups);
            }
            Self::Response(Response { tid, status, groups }) => {
                put_header(&mut b, Method::GET_RESP, *tid, *status);
                put_groups(&mut b, groups);
            }
        }
        // ibacm writes the length of the field for any address.
        b[field::DEST_LEN] = 64;
        b[field::SOURCE_LEN] = 64;
        b
    }

    /// Returns the transaction ID.
    pub const fn tid(&self) -> u64 {
        match self {
            Self::Request(request) => request.tid,
            Self::Response(response) => response.tid,
        }
    }
}

impl Response {
    /// Returns the chosen group, unless the status is an error.
    pub fn group(&self) -> Option<Gid> {
        if self.status == 0 { self.groups.first().copied() } else { None }
    }
}

fn exact(bytes: &[u8]) -> Result<&[u8; MAD_LEN], WireError> {
    let what = "ACM datagram";
    let have = bytes.len();
    if have > MAD_LEN {
        let value = u32::try_from(have).unwrap_or(u32::MAX);
        return Err(WireError::Value { what: "length of an ACM datagram", value });
    }
    bytes.first_chunk().ok_or(WireError::Short { what, need: MAD_LEN, have })
}

fn expect(what: &'static str, value: u32, right: u32) -> Result<(), WireError> {
    if value == right { Ok(()) } else { Err(WireError::Value { what, value }) }
}

fn groups(b: &[u8; MAD_LEN]) -> Result<Groups, WireError> {
    let says = usize::from(b[field::GID_COUNT]);
    if says > MAX_GROUPS {
        let (what, have) = ("groups of an ACM datagram", MAX_GROUPS * 16);
        return Err(WireError::Truncated { what, says: says * 16, have });
    }
    Ok((0..says).map(|i| Gid(get(b, field::GIDS + i * 16))).collect())
}

fn address(b: &[u8; MAD_LEN], kind: usize, at: usize) -> Result<Address, WireError> {
    Address::from_field(AddressType(b[kind].into()), &get::<ADDRESS_LEN>(b, at))
}

fn put_header(b: &mut [u8], method: Method, tid: u64, status: u16) {
    let header = MadHeader::new(MGMT_CLASS, CLASS_VERSION, method);
    MadHeader { tid, status, class_specific: CONTROL_RESOLVE, ..header }.emit(b);
}

fn put_address(b: &mut [u8], kind: usize, at: usize, address: &Address) {
    let [_, low] = address.kind().0.to_be_bytes();
    b[kind] = low;
    put(b, at, address.to_field());
}

fn put_groups(b: &mut [u8], groups: &Groups) {
    b[field::GID_COUNT] = u8::try_from(groups.len()).unwrap_or_default();
    for (i, gid) in groups.iter().enumerate() {
        put(b, field::GIDS + i * 16, gid.0);
    }
}

/// Returns whether a MAD is of the class of these datagrams, for receivers of several classes.
pub fn is_acm(bytes: &[u8]) -> bool {
    bytes.len() == MAD_LEN && get16(bytes, 0) == 0x0100 | u16::from(MGMT_CLASS.0)
}

impl fmt::Display for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(Request { tid, source, dest, groups }) => {
                let n = groups.len();
                write!(f, "ACM request tid {tid:#x}: {source} seeks {dest}, {n} groups")
            }
            Self::Response(response) => {
                write!(f, "ACM response tid {:#x}", response.tid)?;
                match response.group() {
                    Some(group) => write!(f, ": {group}"),
                    None => write!(f, ": status {:#06x}", response.status),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use super::*;
    use crate::sa::Rate;
    use crate::{Mtu, Pkey};

    const LOWEST: Group =
        Group { pkey: Pkey::DEFAULT, tos: 0, rate: Rate::GBPS_10, mtu: Mtu::M2048 };

    fn request() -> Request {
        Request {
            tid: 0x0102_0304_0506_0708,
            source: Address::name("node1").unwrap(),
            dest: Address::Ip4([10, 0, 0, 2].into()),
            groups: [LOWEST.gid()].into_iter().collect(),
        }
    }

    /// Builds bytes from pairs of an offset and its contents.
    fn bytes(parts: &[(usize, &[u8])]) -> [u8; 256] {
        let mut all = [0; 256];
        for (at, part) in parts {
            all[*at..at + part.len()].copy_from_slice(part);
        }
        all
    }

    #[test]
    fn request_has_the_bytes_of_the_protocol() {
        let right = bytes(&[
            (0, &[1, 0x2c, 1, 0x01, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]),
            (16, &[2, 64, 1, 64, 1, 0, 0, 0]),
            (24, &[10, 0, 0, 2]),
            (88, b"node1"),
            (152, &[0xff, 0x15, 0x40, 0x01, 0xff, 0xff, 0, 3, 4]),
        ]);
        let request = Datagram::Request(request());
        assert_eq!(request.to_bytes(), right);
        assert_eq!(Datagram::parse(&right), Ok(request));
        assert!(is_acm(&right));
    }

    #[test]
    fn response_has_the_bytes_of_the_protocol() {
        let response = Response { tid: 9, status: 0, groups: request().groups };
        let right = bytes(&[
            (0, &[1, 0x2c, 1, 0x81, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]),
            (16, &[0, 64, 0, 64, 1, 0, 0, 0]),
            (152, &LOWEST.gid().0),
        ]);
        assert_eq!(response.group(), Some(LOWEST.gid()));
        assert_eq!(Datagram::Response(response.clone()).to_bytes(), right);
        assert_eq!(Datagram::parse(&right), Ok(Datagram::Response(response)));
    }

    #[test]
    fn acm_datagram_holds_six_mgids_and_refuses_a_larger_count() {
        let groups: Groups = (0..6).map(|i| Gid([i; 16])).collect();
        let six = Datagram::Request(Request { groups, ..request() });
        let mut bytes = six.to_bytes();
        assert_eq!(bytes[232..248], [5; 16]);
        assert_eq!(Datagram::parse(&bytes), Ok(six));
        for count in 7..=255 {
            bytes[field::GID_COUNT] = count;
            assert!(matches!(Datagram::parse(&bytes), Err(WireError::Truncated { .. })), "{count}");
        }
    }

    #[test]
    fn datagrams_of_another_length_are_refused() {
        let mut bytes = [0; 296];
        bytes[..256].copy_from_slice(&Datagram::Request(request()).to_bytes());
        for len in (0..256).chain(257..=296) {
            assert!(Datagram::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn acm_datagrams_with_invalid_headers_or_addresses_are_refused() {
        let good = Datagram::Request(request()).to_bytes();
        // Base version, class, class version, method, control, types of addresses.
        for (at, value) in [
            (0, 2),
            (1, 3),
            (2, 2),
            (3, 2),
            (3, 0x82),
            (6, 0x80),
            (7, 2),
            (16, 0),
            (16, 6),
            (18, 0),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Datagram::parse(&bytes).is_err(), "{value} at {at}");
        }
        let mut endless = good;
        endless[field::SOURCE..field::SOURCE + 64].fill(b'x');
        assert!(Datagram::parse(&endless).is_err());
    }

    #[test]
    fn acm_response_without_mgid_needs_a_failure_status() {
        let groups = Groups::new();
        let none = Datagram::Response(Response { tid: 1, status: 0, groups: groups.clone() });
        assert!(Datagram::parse(&none.to_bytes()).is_err());
        let failed = Datagram::Response(Response { tid: 1, status: 0x0300, groups });
        assert_eq!(Datagram::parse(&failed.to_bytes()), Ok(failed.clone()));
        assert_eq!(failed.to_string(), "ACM response tid 0x1: status 0x0300");
    }
}
