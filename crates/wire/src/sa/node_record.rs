//! NodeRecord: a node, seen by one of its ports (IBTA 15.2.5.2).

use crate::Lid;
use crate::layout::{Text, flags, layout};
use crate::sm::NodeInfo;

layout! {
    /// A node.
    NodeRecord("NodeRecord", 112) {
        /// The port.
        lid: Lid = 0;
        /// Reserved.
        reserved2: u16 = 2;
        /// The node.
        node_info: NodeInfo = 4;
        /// Its name.
        node_description: Text<64> = 44;
        /// Fills up to a multiple of 8 bytes.
        reserved108: u32 = 108;
    }
}

flags! {
    /// Components of a question for [`NodeRecord`]s.
    NodeRecordMask(u64, 64 bits) {
        /// `lid`.
        LID = 0;
        /// `node_info.base_version`.
        BASE_VERSION = 2;
        /// `node_info.class_version`.
        CLASS_VERSION = 3;
        /// `node_info.node_type`.
        NODE_TYPE = 4;
        /// `node_info.num_ports`.
        NUM_PORTS = 5;
        /// `node_info.system_image_guid`.
        SYSTEM_IMAGE_GUID = 6;
        /// `node_info.node_guid`.
        NODE_GUID = 7;
        /// `node_info.port_guid`.
        PORT_GUID = 8;
        /// `node_info.partition_cap`.
        PARTITION_CAP = 9;
        /// `node_info.device_id`.
        DEVICE_ID = 10;
        /// `node_info.revision`.
        REVISION = 11;
        /// `node_info.local_port_num`.
        LOCAL_PORT_NUM = 12;
        /// `node_info.vendor_id`.
        VENDOR_ID = 13;
        /// `node_description`.
        NODE_DESCRIPTION = 14;
    }
}
