//! Performance management (IBTA 16.1): the counters of ports, one file for each group.
//!
//! A datagram of the class is a header and 40 reserved bytes, then the attribute at [`DATA_AT`]. A
//! Set clears or sets the counters whose bits are set in `counter_select`.

use core::fmt;

use crate::WireError;
use crate::bytes::{get, head, put};
use crate::class_port_info::ClassPortInfo;
use crate::layout::attributes;
use crate::mad::{MAD_LEN, MadHeader, Method, MgmtClass};

mod by_sl;
mod by_vl;
mod details;
mod port_counters;
mod port_counters_extended;
mod samples;

pub use by_sl::{PortRcvDataSl, PortXmitDataSl};
pub use by_vl::{
    PortVlOpData, PortVlOpPackets, PortVlXmitFlowCtlUpdateErrors, PortVlXmitWaitCounters, TwoBits,
};
pub use details::{
    PortFlowCtlCounters, PortOpRcvCounters, PortRcvErrorDetails, PortXmitDiscardDetails,
};
pub use port_counters::{CounterSelect, PortCounters};
pub use port_counters_extended::{ExtendedCounterSelect, PortCountersExtended};
pub use samples::{PortSamplesControl, PortSamplesResult};

/// The class version of performance management.
pub const CLASS_VERSION: u8 = 1;

/// The offset of the attribute in the datagram.
pub const DATA_AT: usize = 64;

/// The length of an attribute's data, in bytes.
pub const DATA_LEN: usize = MAD_LEN - DATA_AT;

/// The port number that means all ports of the node together.
pub const ALL_PORTS: u8 = 0xff;

/// The class-specific bits of [`ClassPortInfo::capability_mask`] and [`ClassPortInfo::capability_mask2`].
pub mod capability {
    /// The port number 255 means all ports.
    pub const ALL_PORT_SELECT: u16 = 0x0100;
    /// The agent has [`PortCountersExtended`](super::PortCountersExtended).
    pub const EXTENDED_WIDTH: u16 = 0x0200;
    /// The agent has them without the counters of unicast and multicast packets.
    pub const EXTENDED_WIDTH_NO_IETF: u16 = 0x0400;
    /// [`PortCounters`](super::PortCounters) include `port_xmit_wait`.
    pub const XMIT_WAIT: u16 = 0x1000;
    /// In the second mask: the extended counters include those of errors.
    pub const ADDITIONAL_EXTENDED_COUNTERS: u32 = 0x0002;
}

attributes! {
    /// An attribute of performance management.
    Attribute {
        /// The agent's capabilities.
        ClassPortInfo = 0x01, shared;
        /// The configuration of sampling.
        PortSamplesControl = 0x10;
        /// Samples.
        PortSamplesResult = 0x11;
        /// The counters that every port has.
        PortCounters = 0x12;
        /// The reasons why received packets were bad.
        PortRcvErrorDetails = 0x15;
        /// The reasons why packets were not sent.
        PortXmitDiscardDetails = 0x16;
        /// Packets and data received on the operational lanes.
        PortOpRcvCounters = 0x17;
        /// Flow control packets.
        PortFlowCtlCounters = 0x18;
        /// Packets by virtual lane.
        PortVlOpPackets = 0x19;
        /// Data by virtual lane.
        PortVlOpData = 0x1a;
        /// Flow control errors by virtual lane.
        PortVlXmitFlowCtlUpdateErrors = 0x1b;
        /// Waits for credit by virtual lane.
        PortVlXmitWaitCounters = 0x1c;
        /// Counters of 64 bits.
        PortCountersExtended = 0x1d;
        /// Data sent by service level.
        PortXmitDataSl = 0x36;
        /// Data received by service level.
        PortRcvDataSl = 0x37;
    }
}

/// A datagram of performance management: all 256 bytes, except two reserved ones of the header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PmMad {
    /// The header.
    pub header: MadHeader,
    /// Reserved.
    pub reserved: [u8; 40],
    /// The attribute.
    pub data: [u8; DATA_LEN],
}

impl PmMad {
    /// Creates a request without data.
    pub const fn new(method: Method, attr_id: u16) -> Self {
        let header = MadHeader::new(MgmtClass::PERF, CLASS_VERSION, method);
        Self { header: MadHeader { attr_id, ..header }, reserved: [0; 40], data: [0; DATA_LEN] }
    }

    /// Parses a datagram.
    ///
    /// # Errors
    /// If it is shorter than 256 bytes, of another base version, or of another class.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = head::<MAD_LEN>(bytes, "performance management MAD")?;
        let header = MadHeader::parse(b)?;
        if header.mgmt_class != MgmtClass::PERF {
            let value = header.mgmt_class.0.into();
            return Err(WireError::Value { what: "class of a performance management MAD", value });
        }
        Ok(Self { header, reserved: get(b, MadHeader::LEN), data: get(b, DATA_AT) })
    }

    /// Returns the datagram in wire format.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut b = [0; MAD_LEN];
        self.header.emit(&mut b);
        put(&mut b, MadHeader::LEN, self.reserved);
        put(&mut b, DATA_AT, self.data);
        b
    }

    /// Returns the attribute, if it is a known one.
    pub fn attribute(&self) -> Option<Attribute> {
        Attribute::parse(self.header.attr_id, &self.data).ok().flatten()
    }

    /// Writes an attribute into the data and its ID into the header. The rest of the data becomes 0.
    pub fn set_attribute(&mut self, attribute: &Attribute) {
        self.header.attr_id = attribute.attr_id();
        self.data = [0; DATA_LEN];
        attribute.emit(&mut self.data);
    }
}

impl fmt::Debug for PmMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PmMad({self})")
    }
}

/// Prints `Perf Get tid ... PortCounters port_select 1 ...`
impl fmt::Display for PmMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MadHeader { method, tid, status, attr_id, attr_mod, .. } = self.header;
        write!(f, "Perf {method} tid {tid:#018x}")?;
        if status != 0 {
            write!(f, " status {status:#06x}")?;
        }
        if attr_mod != 0 {
            write!(f, " modifier {attr_mod:#x}")?;
        }
        match self.attribute() {
            Some(attribute) => write!(f, " {attribute}"),
            None => write!(f, " attr {attr_id:#06x}"),
        }
    }
}

#[cfg(test)]
mod tests;
