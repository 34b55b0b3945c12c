//! Printing a datagram of subnet administration.

use core::fmt;

use super::{
    GuidInfoRecordMask, InformInfoRecordMask, LinearForwardingTableRecordMask, LinkRecordMask,
    McMemberRecordMask, MultiPathRecord, MultiPathRecordMask, MulticastForwardingTableRecordMask,
    NodeRecordMask, PathRecord, PathRecordMask, PkeyTableRecordMask, PortInfoRecordMask, Record,
    SaHeader, SaMad, ServiceRecordMask, SlToVlTableRecordMask, SmInfoRecordMask,
    SwitchInfoRecordMask, VlArbitrationRecordMask,
};
use crate::mad::{MadHeader, Method};
use crate::rmpp::{RmppFlags, RmppType};

/// Prints `SubnAdm Get tid ... mask 0x1(LID) NodeRecord lid ...`, without fields that have their usual value.
impl fmt::Display for SaMad<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MadHeader { method, tid, status, attr_mod, .. } = self.header;
        write!(f, "SubnAdm {method} tid {tid:#018x}")?;
        if status != 0 {
            write!(f, " status {status:#06x}")?;
        }
        if attr_mod != 0 {
            write!(f, " modifier {attr_mod:#x}")?;
        }
        if self.rmpp.is_active() {
            write!(f, " {}", self.rmpp)?;
        }
        let SaHeader { sm_key, component_mask, .. } = self.sa;
        if sm_key.0 != 0 {
            write!(f, " sm_key {sm_key}")?;
        }
        if component_mask != 0 {
            write!(f, " mask {}", ShownMask(self.shown_attribute(), component_mask))?;
        }
        self.fmt_data(f)
    }
}

impl SaMad<'_> {
    /// Returns the attribute ID of the data: that of paths in the response to a MultiPathRecord query.
    fn shown_attribute(&self) -> u16 {
        match (self.header.method, self.header.attr_id) {
            (Method::GET_MULTI_RESP, MultiPathRecord::ATTR_ID) => PathRecord::ATTR_ID,
            (_, id) => id,
        }
    }

    fn fmt_data(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.shown_attribute();
        if self.rmpp.is_active() && self.rmpp.kind != RmppType::DATA {
            return fmt_name(f, id);
        }
        if self.rmpp.is_active() && self.rmpp.segment > 1 {
            fmt_name(f, id)?;
            return write!(f, ", a segment of {} bytes", self.data.len());
        }
        let is_table =
            matches!(self.header.method, Method::GET_TABLE_RESP | Method::GET_MULTI_RESP);
        if is_table { self.fmt_table(f, id) } else { fmt_record(f, id, self.data) }
    }

    /// Prints the records that are complete in this datagram or message.
    fn fmt_table(&self, f: &mut fmt::Formatter<'_>, id: u16) -> fmt::Result {
        let distance = usize::from(self.sa.attribute_offset) * 8;
        let only = RmppFlags::FIRST.with(RmppFlags::LAST);
        let len = if self.rmpp.is_active() && self.rmpp.flags.contains(only) {
            usize::try_from(self.rmpp.length).unwrap_or(usize::MAX).saturating_sub(SaHeader::LEN)
        } else {
            usize::MAX
        };
        let data = &self.data[..self.data.len().min(len)];
        if distance == 0 {
            fmt_name(f, id)?;
            return f.write_str(", no records");
        }
        data.chunks_exact(distance).try_for_each(|record| fmt_record(f, id, record))
    }
}

fn fmt_name(f: &mut fmt::Formatter<'_>, id: u16) -> fmt::Result {
    match Record::name_of(id) {
        Some(name) => write!(f, " {name}"),
        None => write!(f, " attr {id:#06x}"),
    }
}

fn fmt_record(f: &mut fmt::Formatter<'_>, id: u16, data: &[u8]) -> fmt::Result {
    match Record::parse(id, data) {
        Ok(Some(record)) => write!(f, " {record}"),
        Ok(None) => fmt_name(f, id),
        Err(error) => {
            fmt_name(f, id)?;
            write!(f, ", cut off: {error}")
        }
    }
}

/// A component mask, printed with the names of its bits, which depend on the attribute.
struct ShownMask(u16, u64);

macro_rules! shown_masks {
    ($($id:literal $mask:ident;)*) => {
        impl fmt::Display for ShownMask {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($id => $mask::from_bits_retain(self.1).fmt(f),)*
                    _ => write!(f, "{:#x}", self.1),
                }
            }
        }
    };
}

shown_masks! {
    0x11 NodeRecordMask;
    0x12 PortInfoRecordMask;
    0x13 SlToVlTableRecordMask;
    0x14 SwitchInfoRecordMask;
    0x15 LinearForwardingTableRecordMask;
    0x17 MulticastForwardingTableRecordMask;
    0x18 SmInfoRecordMask;
    0x20 LinkRecordMask;
    0x30 GuidInfoRecordMask;
    0x31 ServiceRecordMask;
    0x33 PkeyTableRecordMask;
    0x35 PathRecordMask;
    0x36 VlArbitrationRecordMask;
    0x38 McMemberRecordMask;
    0x3a MultiPathRecordMask;
    0xf3 InformInfoRecordMask;
}
