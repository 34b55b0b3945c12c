//! Capabilities of the hardware in a subnet.

use rdmux_wire::Mtu;
use rdmux_wire::sm::VlCap;

/// Sizes and limits that all nodes of a subnet have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most unicast LIDs that a switch can route: at most 49152.
    pub linear_fdb_cap: u16,
    /// The most multicast LIDs that a switch can route: at most 16383.
    pub multicast_fdb_cap: u16,
    /// The size of the P_Key table of an adapter's port and of port 0 of a switch.
    pub partition_cap: u16,
    /// The size of the P_Key table of a switch's external port.
    pub partition_enforcement_cap: u16,
    /// The size of the GUID table of an adapter's port.
    pub guid_cap: u8,
    /// Virtual lanes of every port.
    pub vl_cap: VlCap,
    /// The largest MTU of every port.
    pub mtu_cap: Mtu,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            linear_fdb_cap: 0xc000,
            multicast_fdb_cap: 1024,
            partition_cap: 64,
            partition_enforcement_cap: 64,
            guid_cap: 32,
            vl_cap: VlCap::VL0_7,
            mtu_cap: Mtu::M4096,
        }
    }
}
