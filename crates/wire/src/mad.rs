//! Management datagrams: 256 bytes, of which the first 24 are this header (IBTA 13.4.3).

use core::fmt;

use crate::WireError;
use crate::bytes::{get16, get32, get64, put16, put32, put64};
use crate::layout::codes;

/// The length of a management datagram, in bytes.
pub const MAD_LEN: usize = 256;

/// The only version of the MAD format.
pub const BASE_VERSION: u8 = 1;

/// What follows the header in a MAD, in bytes.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The header that all management classes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the MAD format; [`BASE_VERSION`].
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

codes! {
    /// A management class.
    MgmtClass(u8, 8 bits) {
        /// Subnet management, LID routed.
        SUBN_LID = 0x01, "SubnLID";
        /// Subnet administration.
        SUBN_ADM = 0x03, "SubnAdm";
        /// Performance management.
        PERF = 0x04, "Perf";
        /// Baseboard management.
        BM = 0x05, "BM";
        /// Device management.
        DEV_MGT = 0x06, "DevMgt";
        /// Communication management.
        COMM = 0x07, "ComMgt";
        /// SNMP tunneling.
        SNMP = 0x08, "SNMP";
        /// Device administration.
        DEV_ADM = 0x10, "DevAdm";
        /// Boot management.
        BOOT = 0x11, "BootMgt";
        /// Boot information service.
        BIS = 0x12, "BIS";
        /// Congestion management.
        CONGESTION = 0x21, "Congestion";
        /// Subnet management, directed route.
        SUBN_DIRECTED = 0x81, "SubnDirected";
    }
}

impl MgmtClass {
    /// Whether it is of subnet management, whose datagrams go from QP0 to QP0.
    pub const fn is_subnet_management(self) -> bool {
        self.0 == Self::SUBN_LID.0 || self.0 == Self::SUBN_DIRECTED.0
    }

    /// Whether it is a vendor's, without OUI: 0x09 to 0x0f.
    pub const fn is_vendor(self) -> bool {
        matches!(self.0, 0x09..=0x0f)
    }

    /// Whether it is a vendor's whose datagrams carry RMPP and an OUI: 0x30 to 0x4f.
    pub const fn is_vendor_with_oui(self) -> bool {
        matches!(self.0, 0x30..=0x4f)
    }

    /// Whether its datagrams have an RMPP header, so that messages of many datagrams are possible.
    pub const fn has_rmpp(self) -> bool {
        matches!(self.0, 0x03 | 0x06 | 0x10 | 0x12) || self.is_vendor_with_oui()
    }
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Method(pub u8);

impl Method {
    /// Asks for an attribute.
    pub const GET: Self = Self(0x01);
    /// Sets an attribute.
    pub const SET: Self = Self(0x02);
    /// A datagram that is no request; all of communication management's are.
    pub const SEND: Self = Self(0x03);
    /// Tells a manager of an event, until it is repressed.
    pub const TRAP: Self = Self(0x05);
    /// Tells a subscriber of an event.
    pub const REPORT: Self = Self(0x06);
    /// Says that a trap has been heard. Its bit 7 is clear, and there is no answer.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// Asks for all records that match.
    pub const GET_TABLE: Self = Self(0x12);
    /// Asks for the ports on a path.
    pub const GET_TRACE_TABLE: Self = Self(0x13);
    /// Asks with a request of many datagrams.
    pub const GET_MULTI: Self = Self(0x14);
    /// Deletes a record.
    pub const DELETE: Self = Self(0x15);
    /// The answer to a Get or a Set.
    pub const GET_RESP: Self = Self(0x81);
    /// The answer to a Report.
    pub const REPORT_RESP: Self = Self(0x86);
    /// The answer to a GetTable.
    pub const GET_TABLE_RESP: Self = Self(0x92);
    /// The answer to a GetMulti.
    pub const GET_MULTI_RESP: Self = Self(0x94);
    /// The answer to a Delete.
    pub const DELETE_RESP: Self = Self(0x95);
    /// The bit that makes a method a response.
    pub const RESPONSE_BIT: u8 = 0x80;

    /// Whether this is a response.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE_BIT != 0
    }

    /// The method of the answer: Get and Set have one in common, the others one each.
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self(method) => Self(method | Self::RESPONSE_BIT),
        }
    }
}

/// Values of [`MadHeader::status`], and its parts (IBTA 13.4.7). The low byte is for all classes alike, the high
/// byte is the class's own.
pub mod status {
    /// All is well.
    pub const OK: u16 = 0;
    /// Busy; to be tried again later.
    pub const BUSY: u16 = 0x0001;
    /// To be sent where the ClassPortInfo in the answer says.
    pub const REDIRECT: u16 = 0x0002;
    /// Base version or class version that the receiver does not have.
    pub const BAD_VERSION: u16 = 0x0004;
    /// Method that the class does not have here.
    pub const UNSUPPORTED_METHOD: u16 = 0x0008;
    /// Method that the attribute does not have, or unknown attribute.
    pub const UNSUPPORTED_METHOD_ATTRIBUTE: u16 = 0x000c;
    /// Value in the attribute or its modifier that is not allowed.
    pub const INVALID_VALUE: u16 = 0x001c;
    /// Subnet administration: no resources.
    pub const SA_NO_RESOURCES: u16 = 0x0100;
    /// Subnet administration: the request is invalid.
    pub const SA_REQUEST_INVALID: u16 = 0x0200;
    /// Subnet administration: nothing matches.
    pub const SA_NO_RECORDS: u16 = 0x0300;
    /// Subnet administration: a Get matches more than one record.
    pub const SA_TOO_MANY_RECORDS: u16 = 0x0400;
    /// Subnet administration: a GID is wrong.
    pub const SA_INVALID_GID: u16 = 0x0500;
    /// Subnet administration: a component that is needed is not in the mask.
    pub const SA_INSUFFICIENT_COMPONENTS: u16 = 0x0600;
    /// Subnet administration: denied.
    pub const SA_DENIED: u16 = 0x0700;
    /// Subnet administration: another priority is suggested.
    pub const SA_PRIORITY_SUGGESTED: u16 = 0x0800;
    /// In directed-route SMPs not a part of the status: the datagram is on its way back.
    pub const DIRECTION: u16 = 0x8000;
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
        let header = Self::of_any_version(b);
        if header.base_version != BASE_VERSION {
            let value = header.base_version.into();
            return Err(WireError::Value { what: "MAD base version", value });
        }
        Ok(header)
    }

    /// The header that these bytes are, whatever their base version is. Of another version than
    /// [`BASE_VERSION`] the other fields may mean something else.
    pub fn of_any_version(b: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: b[field::BASE_VERSION],
            mgmt_class: MgmtClass(b[field::MGMT_CLASS]),
            class_version: b[field::CLASS_VERSION],
            method: Method(b[field::METHOD]),
            status: get16(b, field::STATUS),
            class_specific: get16(b, field::CLASS_SPECIFIC),
            tid: get64(b, field::TID),
            attr_id: get16(b, field::ATTR_ID),
            attr_mod: get32(b, field::ATTR_MOD),
        }
    }

    /// A request with this class, version and method; everything else is 0.
    pub const fn new(mgmt_class: MgmtClass, class_version: u8, method: Method) -> Self {
        Self {
            base_version: BASE_VERSION,
            mgmt_class,
            class_version,
            method,
            status: 0,
            class_specific: 0,
            tid: 0,
            attr_id: 0,
            attr_mod: 0,
        }
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

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match Self(self.0 & !Self::RESPONSE_BIT) {
            Self::GET => "Get",
            Self::SET => "Set",
            Self::SEND => "Send",
            Self::TRAP => "Trap",
            Self::REPORT => "Report",
            Self::TRAP_REPRESS => "TrapRepress",
            Self::GET_TABLE => "GetTable",
            Self::GET_TRACE_TABLE => "GetTraceTable",
            Self::GET_MULTI => "GetMulti",
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
