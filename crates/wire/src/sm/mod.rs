//! Attributes of subnet management (IBTA 14.2.5), one file each: the data of an [`Smp`](crate::smp::Smp).
//!
//! An attribute is a value with a field for each of its bits, reserved ones included. No bytes are
//! rejected: agents decide what a value means, and whether it may be set.
//!
//! ```
//! # use rdmux_wire::mad::Method;
//! # use rdmux_wire::sm::{Attribute, PortInfo, PortState};
//! # use rdmux_wire::smp::Smp;
//! # use rdmux_wire::Lid;
//! let mut smp = Smp::lid_routed(Method::SET, PortInfo::ATTR_ID, 1);
//! let info = PortInfo { lid: Lid(7), port_state: PortState::ARMED, ..PortInfo::default() };
//! info.emit(&mut smp.data);
//! assert_eq!(smp.attribute(), Some(Attribute::PortInfo(info)));
//! ```

use crate::layout::attributes;

mod forwarding;
mod guid_info;
mod led_info;
mod link;
mod mlnx_ext_port_info;
mod node_description;
mod node_info;
mod notice;
mod pkey_table;
mod port_info;
mod sl_to_vl;
mod sm_info;
mod switch_info;
mod trap;
mod vendor_diag;
mod vl_arbitration;

pub use forwarding::{LinearForwardingTable, MulticastForwardingTable, NO_ROUTE};
pub use guid_info::GuidInfo;
pub use led_info::LedInfo;
pub use link::{LinkDownDefault, LinkSpeed, LinkSpeedExt, LinkWidth, PhysState, PortState, VlCap};
pub use mlnx_ext_port_info::{MlnxExtPortInfo, MlnxLinkSpeed};
pub use node_description::NodeDescription;
pub use node_info::{NodeInfo, NodeType};
pub use notice::{Notice, NoticeType, Producer};
pub use pkey_table::PkeyTable;
pub use port_info::{CapabilityMask, CapabilityMask2, PortInfo};
pub use sl_to_vl::{SlToVlTable, Vl};
pub use sm_info::{SmInfo, SmState};
pub use switch_info::SwitchInfo;
pub use trap::{
    BadKey, BadMkey, BadSwitchPkey, GidEvent, LinkError, LinkStateChange, LocalChange,
    LocalChangeFlags, SystemImageGuidChange, Trap,
};
pub use vendor_diag::VendorDiag;
pub use vl_arbitration::{VlArbEntry, VlArbitration};

attributes! {
    /// An attribute of subnet management.
    Attribute {
        /// The contents of a trap.
        Notice = 0x02;
        /// The administrator's name of a node.
        NodeDescription = 0x10;
        /// The properties of a node.
        NodeInfo = 0x11;
        /// The capabilities and the configuration of a switch.
        SwitchInfo = 0x12;
        /// A block of a port's GUIDs.
        GuidInfo = 0x14;
        /// A port.
        PortInfo = 0x15;
        /// A block of a port's partition keys.
        PkeyTable = 0x16;
        /// The mapping from service levels to virtual lanes.
        SlToVlTable = 0x17;
        /// The arbitration between virtual lanes.
        VlArbitration = 0x18;
        /// A block of a switch's unicast routes.
        LinearForwardingTable = 0x19;
        /// A block of a switch's multicast routes.
        MulticastForwardingTable = 0x1b;
        /// A subnet manager.
        SmInfo = 0x20;
        /// A vendor's diagnostics.
        VendorDiag = 0x30;
        /// The LED that identifies a port.
        LedInfo = 0x31;
        /// Mellanox's link speeds beyond the standard's.
        MlnxExtPortInfo = 0xff90;
    }
}

#[cfg(test)]
mod tests;
