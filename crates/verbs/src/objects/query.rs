//! What `ibv_query_device(3)` and `ibv_query_port(3)` tell.

use rdmux_wire::{Gid, Guid, Mtu};

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

/// The state of a port; the values of `ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortState {
    /// Nothing passes.
    Down = 1,
    /// All is well.
    Active = 4,
}

/// Attributes of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// The kind of its device.
    pub kind: DeviceKind,
    /// State.
    pub state: PortState,
    /// The largest MTU.
    pub max_mtu: Mtu,
    /// The MTU in force.
    pub active_mtu: Mtu,
    /// Entries of the GID table.
    pub gid_tbl_len: u16,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// The longest message.
    pub max_msg_sz: u32,
    /// Code of the width: 4x.
    pub active_width: u8,
    /// Code of the speed: EDR, 25 Gb/s a lane.
    pub active_speed: u8,
}

/// The one GID of an iWARP device, which is no address: it begins with six bytes like those of an
/// Ethernet address, locally administered, and the rest is 0.
pub fn iwarp_gid(node: Guid) -> Gid {
    let [_, _, _, tail @ ..] = node.0.to_be_bytes();
    let mut gid = Gid::ZERO;
    gid.0[0] = 0x02;
    gid.0[1..6].copy_from_slice(&tail);
    gid
}

/// The vendor that we say we are: bit 23 set makes it none of the IEEE's.
pub(crate) const VENDOR_ID: u32 = 0x0080_7264;
/// The longest message (IBTA 9.7.7.1.1).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
