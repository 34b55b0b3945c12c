//! What `ibv_query_device(3)` tells.

use rdmux_wire::Guid;

use crate::objects::control::{DeviceKind, Limits};

/// Attributes of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// Version of the software.
    pub fw_ver: &'static str,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the system.
    pub sys_image_guid: Guid,
    /// The longest message.
    pub max_mr_size: u64,
    /// Page sizes, one bit each.
    pub page_size_cap: u64,
    /// Vendor: none has this number.
    pub vendor_id: u32,
    /// Part of the vendor.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hw_ver: u32,
    /// Limits.
    pub limits: Limits,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Entries of the P_Key table.
    pub max_pkeys: u16,
    /// Code of the time within which the device answers.
    pub local_ca_ack_delay: u8,
}

/// The vendor that we say we are: bit 23 set makes it none of the IEEE's.
pub(crate) const VENDOR_ID: u32 = 0x0080_7264;
