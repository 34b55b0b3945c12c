//! Subnet administration (IBTA 15.2): its header, and its records, one file each.
//!
//! A datagram is a MAD header, an [`Rmpp`] header and an [`SaHeader`], then the data at
//! [`DATA_AT`]: one record in a query, and all matching records in a response, which may take
//! several datagrams. [`SaMad`] is one datagram, or a message that RMPP has reassembled.
//!
//! ```
//! # use rdmux_wire::mad::Method;
//! # use rdmux_wire::sa::{NodeRecord, NodeRecordMask, SaMad};
//! # use rdmux_wire::Lid;
//! let question = NodeRecord { lid: Lid(7), ..NodeRecord::default() }.to_bytes();
//! let mut mad = SaMad::new(Method::GET, NodeRecord::ATTR_ID, &question);
//! mad.sa.component_mask = NodeRecordMask::LID.bits();
//! let bytes: [u8; 256] = mad.to_bytes();
//! assert_eq!(SaMad::parse(&bytes)?.record::<NodeRecord>()?.lid, Lid(7));
//! # Ok::<(), rdmux_wire::WireError>(())
//! ```

use core::fmt;

use crate::class_port_info::ClassPortInfo;
use crate::layout::{Layout, attributes, layout};
use crate::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use crate::rmpp::{self, Rmpp, RmppFlags, RmppStatus, RmppType};
use crate::{SmKey, WireError};

mod guid_info_record;
mod inform_info;
mod link_record;
mod mcmember_record;
mod multi_path_record;
mod node_record;
mod path_record;
mod pattern;
mod port_info_record;
mod port_tables;
mod rate;
mod reported_notice;
mod service_record;
mod show;
mod sm_info_record;
mod switch_records;

pub use crate::layout::Components;
pub use guid_info_record::{GuidInfoRecord, GuidInfoRecordMask};
pub use inform_info::{InformInfo, InformInfoRecord, InformInfoRecordMask};
pub use link_record::{LinkRecord, LinkRecordMask};
pub use mcmember_record::{JoinState, McMemberRecord, McMemberRecordMask};
pub use multi_path_record::{MultiPathRecord, MultiPathRecordMask};
pub use node_record::{NodeRecord, NodeRecordMask};
pub use path_record::{PathRecord, PathRecordMask};
pub use pattern::Pattern;
pub use port_info_record::{PortInfoRecord, PortInfoRecordMask};
pub use port_tables::{
    PkeyTableRecord, PkeyTableRecordMask, SlToVlTableRecord, SlToVlTableRecordMask,
    VlArbitrationRecord, VlArbitrationRecordMask,
};
pub use rate::{Rate, Selector};
pub use reported_notice::ReportedNotice;
pub use service_record::{ServiceRecord, ServiceRecordMask};
pub use sm_info_record::{SmInfoRecord, SmInfoRecordMask};
pub use switch_records::{
    LinearForwardingTableRecord, LinearForwardingTableRecordMask, MulticastForwardingTableRecord,
    MulticastForwardingTableRecordMask, SwitchInfoRecord, SwitchInfoRecordMask,
};

/// The class version of subnet administration.
pub const CLASS_VERSION: u8 = 2;

/// The offset of the [`SaHeader`] in the datagram.
pub const HEADER_AT: usize = MadHeader::LEN + Rmpp::LEN;

/// The offset of the data in the datagram.
pub const DATA_AT: usize = HEADER_AT + SaHeader::LEN;

/// The length of the data of a datagram, in bytes.
pub const DATA_LEN: usize = MAD_LEN - DATA_AT;

/// The class-specific bits of [`ClassPortInfo::capability_mask`] and [`ClassPortInfo::capability_mask2`].
pub mod capability {
    /// Multicast groups can be joined.
    pub const UD_MULTICAST: u16 = 0x0200;
    /// MultiPathRecords are supported.
    pub const MULTI_PATH: u16 = 0x0400;
    /// PortInfoRecords can be queried by bits of their capability mask.
    pub const PORT_INFO_CAPABILITY_MASK_MATCH: u16 = 0x2000;
    /// In the second mask: quality of service.
    pub const QOS: u32 = 1 << 1;
    /// In the second mask: the highest multicast LID of switches.
    pub const MULTICAST_TOP: u32 = 1 << 3;
    /// In the second mask: alias GUIDs.
    pub const ALIAS_GUID: u32 = 1 << 5;
    /// In the second mask: PortInfoRecords with all fields.
    pub const FULL_PORT_INFO: u32 = 1 << 6;
    /// In the second mask: extended speeds.
    pub const EXTENDED_SPEEDS: u32 = 1 << 7;
    /// In the second mask: service records of multicast GIDs.
    pub const MULTICAST_SERVICE_RECORD: u32 = 1 << 8;
    /// In the second mask: PortInfoRecords can be queried by bits of their second capability mask.
    pub const PORT_INFO_CAPABILITY_MASK2_MATCH: u32 = 1 << 10;
    /// In the second mask: groups can be joined as a send-only full member.
    pub const SEND_ONLY_FULL_MEMBER: u32 = 1 << 12;
    /// In the second mask: links of two lanes.
    pub const LINK_WIDTH_2X: u32 = 1 << 13;
    /// In the second mask: HDR.
    pub const LINK_SPEED_HDR: u32 = 1 << 15;
}

/// Bit 31 of the modifier in a query for PortInfoRecords: the record's capability mask must include
/// the bits of the query's, instead of being equal.
pub const MATCH_CAPABILITY_BITS: u32 = 1 << 31;

/// Bit 30, which does the same for the second capability mask.
pub const MATCH_CAPABILITY2_BITS: u32 = 1 << 30;

layout! {
    /// The header of subnet administration after the RMPP header.
    SaHeader("SA header", 20) {
        /// The key of trusted clients, or 0.
        sm_key: SmKey = 0;
        /// The distance between records, in units of 8 bytes; 0 without records.
        attribute_offset: u16 = 8;
        /// Reserved.
        reserved10: u16 = 10;
        /// The components of the record that count in a query, a bit each.
        component_mask: u64 = 12;
    }
}

attributes! {
    /// The data of a datagram.
    Record {
        /// The capabilities of subnet administration.
        ClassPortInfo = 0x01, shared;
        /// An event.
        ReportedNotice = 0x02;
        /// A subscription to events.
        InformInfo = 0x03;
        /// A node.
        NodeRecord = 0x11;
        /// A port.
        PortInfoRecord = 0x12;
        /// The mapping from service levels to virtual lanes between two ports.
        SlToVlTableRecord = 0x13;
        /// A switch.
        SwitchInfoRecord = 0x14;
        /// A block of a switch's unicast routes.
        LinearForwardingTableRecord = 0x15;
        /// A block of a switch's multicast routes.
        MulticastForwardingTableRecord = 0x17;
        /// A subnet manager.
        SmInfoRecord = 0x18;
        /// A link.
        LinkRecord = 0x20;
        /// A block of a port's GUIDs.
        GuidInfoRecord = 0x30;
        /// A service.
        ServiceRecord = 0x31;
        /// A block of a port's partition keys.
        PkeyTableRecord = 0x33;
        /// A path.
        PathRecord = 0x35;
        /// Half an arbitration table of a port.
        VlArbitrationRecord = 0x36;
        /// A member of a multicast group.
        McMemberRecord = 0x38;
        /// A query for paths between several ports.
        MultiPathRecord = 0x3a;
        /// An existing subscription.
        InformInfoRecord = 0xf3;
    }
}

/// A datagram of subnet administration, or a message of several that RMPP has reassembled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SaMad<'a> {
    /// The MAD header.
    pub header: MadHeader,
    /// The RMPP header; for a message of several datagrams that of the first.
    pub rmpp: Rmpp,
    /// The class's header.
    pub sa: SaHeader,
    /// The data: [`DATA_LEN`] bytes of a datagram, or any number of a message.
    pub data: &'a [u8],
}

impl<'a> SaMad<'a> {
    /// Creates a datagram without RMPP.
    pub fn new(method: Method, attr_id: u16, data: &'a [u8]) -> Self {
        let header = MadHeader::new(MgmtClass::SUBN_ADM, CLASS_VERSION, method);
        let rmpp = Rmpp {
            version: 0,
            kind: RmppType(0),
            resp_time: 0,
            flags: RmppFlags::default(),
            status: RmppStatus::NORMAL,
            segment: 0,
            length: 0,
        };
        let sa = SaHeader::default();
        Self { header: MadHeader { attr_id, ..header }, rmpp, sa, data }
    }

    /// Parses a datagram or a message.
    ///
    /// # Errors
    /// If it is shorter than [`DATA_AT`] bytes, of another base version, or of another class.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let short = WireError::Short {
            what: "subnet administration MAD",
            need: DATA_AT,
            have: bytes.len(),
        };
        let (head, data) = bytes.split_at_checked(DATA_AT).ok_or(short)?;
        let header = MadHeader::parse(head)?;
        if header.mgmt_class != MgmtClass::SUBN_ADM {
            let value = header.mgmt_class.0.into();
            return Err(WireError::Value { what: "class of a subnet administration MAD", value });
        }
        let rmpp = Rmpp::parse(&head[rmpp::OFFSET..])?;
        let sa = SaHeader::parse(&head[HEADER_AT..])?;
        Ok(Self { header, rmpp, sa, data })
    }

    /// Returns the three headers in wire format; the data follows them.
    pub fn head(&self) -> [u8; DATA_AT] {
        let mut b = [0; DATA_AT];
        self.header.emit(&mut b);
        self.rmpp.emit(&mut b[rmpp::OFFSET..]);
        self.sa.emit(&mut b[HEADER_AT..]);
        b
    }

    /// Returns the datagram in wire format. Shorter data is padded with zeros, and data beyond
    /// [`DATA_LEN`] bytes is truncated.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut b = [0; MAD_LEN];
        let (head, data) = b.split_at_mut(DATA_AT);
        head.copy_from_slice(&self.head());
        for (to, from) in data.iter_mut().zip(self.data) {
            *to = *from;
        }
        b
    }

    /// Returns the record of a datagram that has one.
    ///
    /// # Errors
    /// If the data is too short for it.
    pub fn record<T: Layout>(&self) -> Result<T, WireError> {
        T::read(self.data)
    }

    /// Returns the consecutive records of a message.
    pub fn records<T: Layout>(&self) -> Records<'a, T> {
        let distance = usize::from(self.sa.attribute_offset) * 8;
        Records { rest: self.data, distance, kind: core::marker::PhantomData }
    }
}

/// An iterator over the complete records of a message. There are none if the header's distance is
/// 0, or too small for a record.
#[derive(Clone, Debug)]
pub struct Records<'a, T> {
    rest: &'a [u8],
    distance: usize,
    kind: core::marker::PhantomData<T>,
}

impl<T: Layout> Iterator for Records<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.distance < T::LEN {
            return None;
        }
        let (record, rest) = self.rest.split_at_checked(self.distance)?;
        self.rest = rest;
        T::read(record).ok()
    }
}

impl fmt::Debug for SaMad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaMad({self})")
    }
}

#[cfg(test)]
mod tests;
