//! Management datagrams: 256 bytes, of which the first 24 are this header (IBTA 13.4.3).

use core::fmt;

use crate::WireError;
use crate::bytes::{get16, get32, get64, put16, put32, put64};

/// The length of a management datagram, in bytes.
pub const MAD_LEN: usize = 256;

/// What follows the header in a MAD, in bytes.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The header that all management classes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the MAD format; 1.
    pub base_version: u8,
    /// Whom it is for.
    pub mgmt_class: MgmtClass,
    /// Version of the class.
    pub class_version: u8,
    /// What to do, and in bit 7 whether it is a response.
    pub method: Method,
    /// Of a response: how it went; 0 is well.
    pub status: u16,
    /// The class gives it a meaning; subnet management puts hop pointers there.
    pub class_specific: u16,
    /// Transaction ID: a response repeats that of its request.
    pub tid: u64,
    /// What it is about.
    pub attr_id: u16,
    /// More of that.
    pub attr_mod: u32,
}

/// A management class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MgmtClass(pub u8);

impl MgmtClass {
    /// Subnet management, LID routed.
    pub const SUBN_LID: Self = Self(0x01);
    /// Subnet administration.
    pub const SUBN_ADM: Self = Self(0x03);
    /// Performance management.
    pub const PERF: Self = Self(0x04);
    /// Communication management.
    pub const COMM: Self = Self(0x07);
    /// Subnet management, directed route.
    pub const SUBN_DIRECTED: Self = Self(0x81);
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method(pub u8);

impl Method {
    /// Asks for an attribute.
    pub const GET: Self = Self(0x01);
    /// Sets an attribute.
    pub const SET: Self = Self(0x02);
    /// A datagram that is no request; all of communication management's are.
    pub const SEND: Self = Self(0x03);
    /// Tells of an event.
    pub const TRAP: Self = Self(0x05);
    /// Asks for a table.
    pub const GET_TABLE: Self = Self(0x12);
    /// Deletes a record.
    pub const DELETE: Self = Self(0x15);
    /// The bit that makes a method a response.
    pub const RESPONSE_BIT: u8 = 0x80;

    /// Whether this is a response.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE_BIT != 0
    }
}

mod field {
    pub(super) const BASE_VERSION: usize = 0;
    pub(super) const MGMT_CLASS: usize = 1;
    pub(super) const CLASS_VERSION: usize = 2;
    pub(super) const METHOD: usize = 3;
    pub(super) const STATUS: usize = 4;
    pub(super) const CLASS_SPECIFIC: usize = 6;
    pub(super) const TID: usize = 8;
    pub(super) const ATTR_ID: usize = 16;
    pub(super) const ATTR_MOD: usize = 20;
}

header!(MadHeader, 24, "MAD header");

impl MadHeader {
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let base_version = b[field::BASE_VERSION];
        if base_version != 1 {
            return Err(WireError::Value { what: "MAD base version", value: base_version.into() });
        }
        Ok(Self {
            base_version,
            mgmt_class: MgmtClass(b[field::MGMT_CLASS]),
            class_version: b[field::CLASS_VERSION],
            method: Method(b[field::METHOD]),
            status: get16(b, field::STATUS),
            class_specific: get16(b, field::CLASS_SPECIFIC),
            tid: get64(b, field::TID),
            attr_id: get16(b, field::ATTR_ID),
            attr_mod: get32(b, field::ATTR_MOD),
        })
    }

    /// The header as it goes on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[field::BASE_VERSION] = self.base_version;
        b[field::MGMT_CLASS] = self.mgmt_class.0;
        b[field::CLASS_VERSION] = self.class_version;
        b[field::METHOD] = self.method.0;
        put16(&mut b, field::STATUS, self.status);
        put16(&mut b, field::CLASS_SPECIFIC, self.class_specific);
        put64(&mut b, field::TID, self.tid);
        put16(&mut b, field::ATTR_ID, self.attr_id);
        put32(&mut b, field::ATTR_MOD, self.attr_mod);
        b
    }
}

impl fmt::Display for MgmtClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::SUBN_LID => "SubnLID",
            Self::SUBN_ADM => "SubnAdm",
            Self::PERF => "Perf",
            Self::COMM => "ComMgt",
            Self::SUBN_DIRECTED => "SubnDirected",
            Self(other) => return write!(f, "class {other:#04x}"),
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match Self(self.0 & !Self::RESPONSE_BIT) {
            Self::GET => "Get",
            Self::SET => "Set",
            Self::SEND => "Send",
            Self::TRAP => "Trap",
            Self::GET_TABLE => "GetTable",
            Self::DELETE => "Delete",
            _ => return write!(f, "method {:#04x}", self.0),
        };
        f.write_str(name)?;
        if self.is_response() { f.write_str("Resp") } else { Ok(()) }
    }
}

impl fmt::Display for MadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mgmt_class, method, attr_id, tid, .. } = self;
        write!(f, "MAD {mgmt_class} {method} attr {attr_id:#06x} tid {tid:#018x}")?;
        if self.status == 0 { Ok(()) } else { write!(f, " status {:#06x}", self.status) }
    }
}
