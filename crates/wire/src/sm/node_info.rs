//! NodeInfo: what a node is (IBTA 14.2.5.3). It cannot be set.

use crate::Guid;
use crate::layout::{codes, layout};

layout! {
    /// A node, seen by one of its ports.
    NodeInfo("NodeInfo", 40) {
        /// Version of the MAD format.
        base_version: u8 = 0;
        /// Version of subnet management.
        class_version: u8 = 1;
        /// What it is.
        node_type: NodeType = 2;
        /// Physical ports; port 0 of a switch is none.
        num_ports: u8 = 3;
        /// The system that the node is a part of.
        system_image_guid: Guid = 4;
        /// The node.
        node_guid: Guid = 12;
        /// The port that the question came in by; of a switch that of port 0.
        port_guid: Guid = 20;
        /// Entries of the partition table of each port; of a switch of port 0.
        partition_cap: u16 = 28;
        /// The vendor's name for the device.
        device_id: u16 = 30;
        /// The device's revision.
        revision: u32 = 32;
        /// The port that the question came in by.
        local_port_num: u8 = 36;
        /// The vendor, an OUI of 24 bits.
        vendor_id: u32 = 37 [0, 24];
    }
}

codes! {
    /// What a node is.
    NodeType(u8, 8 bits) {
        /// A channel adapter.
        CA = 1, "CA";
        /// A switch.
        SWITCH = 2, "Switch";
        /// A router.
        ROUTER = 3, "Router";
    }
}
