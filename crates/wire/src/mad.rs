//! Management datagrams: 256 bytes, of which the first 24 are this header (IBTA 13.4.3).

use core::fmt;

use crate::WireError;
use crate::bytes::{get16, get32, get64, put16, put32, put64};
use crate::layout::codes;

/// The length of a management datagram, in bytes.
pub const MAD_LEN: usize = 256;

/// The only version of the MAD format.
pub const BASE_VERSION: u8 = 1;

/// The length of a MAD after the header, in bytes.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The header that all management classes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// The version of the MAD format; [`BASE_VERSION`].
    pub base_version: u8,
    /// The management class, which selects the receiver.
    pub mgmt_class: MgmtClass,
    /// The version of the class.
    pub class_version: u8,
    /// The method; bit 7 marks a response.
    pub method: Method,
    /// The status of a response; 0 means success.
    pub status: u16,
    /// A field specific to the class; in subnet management the hop pointer and the hop count.
    pub class_specific: u16,
    /// The transaction ID: a response repeats that of its request.
    pub tid: u64,
    /// The attribute ID.
    pub attr_id: u16,
    /// The attribute modifier.
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
    /// Returns whether the class is subnet management, whose datagrams go from QP0 to QP0.
    pub const fn is_subnet_management(self) -> bool {
        self.0 == Self::SUBN_LID.0 || self.0 == Self::SUBN_DIRECTED.0
    }

    /// Returns whether the class is a vendor's without OUI: 0x09 to 0x0f.
    pub const fn is_vendor(self) -> bool {
        matches!(self.0, 0x09..=0x0f)
    }

    /// Returns whether the class is a vendor's whose datagrams have RMPP and an OUI: 0x30 to 0x4f.
    pub const fn is_vendor_with_oui(self) -> bool {
        matches!(self.0, 0x30..=0x4f)
    }

    /// Returns whether datagrams of the class have an RMPP header, which allows messages of several datagrams.
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
    /// A datagram that is not a request; all datagrams of communication management are Sends.
    pub const SEND: Self = Self(0x03);
    /// Reports an event to a manager, repeatedly until it is repressed.
    pub const TRAP: Self = Self(0x05);
    /// Reports an event to a subscriber.
    pub const REPORT: Self = Self(0x06);
    /// Acknowledges a trap, which is then no longer repeated. Bit 7 is clear, and there is no response.
    pub const TRAP_REPRESS: Self = Self(0x07);
    /// Asks for all matching records.
    pub const GET_TABLE: Self = Self(0x12);
    /// Asks for the ports on a path.
    pub const GET_TRACE_TABLE: Self = Self(0x13);
    /// Asks with a request of several datagrams.
    pub const GET_MULTI: Self = Self(0x14);
    /// Deletes a record.
    pub const DELETE: Self = Self(0x15);
    /// The response to a Get or a Set.
    pub const GET_RESP: Self = Self(0x81);
    /// The response to a Report.
    pub const REPORT_RESP: Self = Self(0x86);
    /// The response to a GetTable.
    pub const GET_TABLE_RESP: Self = Self(0x92);
    /// The response to a GetMulti.
    pub const GET_MULTI_RESP: Self = Self(0x94);
    /// The response to a Delete.
    pub const DELETE_RESP: Self = Self(0x95);
    /// The bit that marks a method as a response.
    pub const RESPONSE_BIT: u8 = 0x80;

    /// Returns whether the method is a response.
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE_BIT != 0
    }

    /// Returns the method of the response: Get and Set share one, each of the others has its own.
    #[must_use]
    pub const fn response(self) -> Self {
        match self {
            Self::SET => Self::GET_RESP,
            Self(method) => Self(method | Self::RESPONSE_BIT),
        }
    }
}

/// Values of [`MadHeader::status`], and its parts (IBTA 13.4.7). The low byte is common to all
/// classes, the high byte is specific to a class.
pub mod status {
    /// Success.
    pub const OK: u16 = 0;
    /// Busy: try again later.
    pub const BUSY: u16 = 0x0001;
    /// Redirected: send the request to the address in the ClassPortInfo of the response.
    pub const REDIRECT: u16 = 0x0002;
    /// The receiver does not support the base version or class version.
    pub const BAD_VERSION: u16 = 0x0004;
    /// The class does not support the method here.
    pub const UNSUPPORTED_METHOD: u16 = 0x0008;
    /// The attribute does not support the method, or is unknown.
    pub const UNSUPPORTED_METHOD_ATTRIBUTE: u16 = 0x000c;
    /// A value in the attribute or its modifier is invalid.
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
    /// Subnet administration: a required component is not in the mask.
    pub const SA_INSUFFICIENT_COMPONENTS: u16 = 0x0600;
    /// Subnet administration: the request was denied.
    pub const SA_DENIED: u16 = 0x0700;
    /// Subnet administration: another priority is suggested.
    pub const SA_PRIORITY_SUGGESTED: u16 = 0x0800;
    /// The D bit of directed-route SMPs, which is not a part of the status: the datagram is returning.
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

    /// Parses the header of any base version. In another version than [`BASE_VERSION`] the other
    /// fields may have another meaning.
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

    /// Creates a request with this class, version and method; everything else is 0.
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

    /// Returns the header in wire format.
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
