//! NodeInfo: the properties of a node (IBTA 14.2.5.3). It cannot be set.

use crate::Guid;
use crate::layout::{codes, layout};

layout! {
    /// A node, as seen from one of its ports.
    NodeInfo("NodeInfo", 40) {
        /// The version of the MAD format.
        base_version: u8 = 0;
        /// The version of subnet management.
        class_version: u8 = 1;
        /// The type of the node.
        node_type: NodeType = 2;
        /// The number of physical ports; port 0 of a switch does not count.
        num_ports: u8 = 3;
        /// The GUID of the system that contains the node.
        system_image_guid: Guid = 4;
        /// The GUID of the node.
        node_guid: Guid = 12;
        /// The GUID of the port that received the request; in a switch that of port 0.
        port_guid: Guid = 20;
        /// The number of entries in each port's partition table; in a switch in that of port 0.
        partition_cap: u16 = 28;
        /// The vendor's ID of the device.
        device_id: u16 = 30;
        /// The device's revision.
        revision: u32 = 32;
        /// The port that received the request.
        local_port_num: u8 = 36;
        /// The vendor, an OUI of 24 bits.
        vendor_id: u32 = 37 [0, 24];
    }
}

codes! {
    /// The type of a node.
    NodeType(u8, 8 bits) {
        /// A channel adapter.
        CA = 1, "CA";
        /// A switch.
        SWITCH = 2, "Switch";
        /// A router.
        ROUTER = 3, "Router";
    }
}
