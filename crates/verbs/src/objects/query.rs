//! The attributes that `ibv_query_device(3)` returns.

use rdmux_wire::Guid;

use crate::objects::control::{DeviceKind, Limits};

/// Attributes of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Version of the software.
    pub fw_ver: &'static str,
    /// GUID of the node.
    pub node_guid: Guid,
    /// GUID of the system image.
    pub sys_image_guid: Guid,
    /// The largest region that can be registered, in bytes.
    pub max_mr_size: u64,
    /// Page sizes, one bit each.
    pub page_size_cap: u64,
    /// The vendor ID, which no vendor has.
    pub vendor_id: u32,
    /// The vendor's part ID.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hw_ver: u32,
    /// Limits.
    pub limits: Limits,
    /// The number of ports.
    pub phys_port_cnt: u8,
    /// Entries of the P_Key table.
    pub max_pkeys: u16,
    /// Code of the time within which the device answers.
    pub local_ca_ack_delay: u8,
}

/// The vendor ID that rdmux reports: bit 23 set makes it none of the IEEE's.
pub(crate) const VENDOR_ID: u32 = 0x0080_7264;
