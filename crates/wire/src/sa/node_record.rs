//! NodeRecord: a node, as seen from one of its ports (IBTA 15.2.5.2).

use crate::Lid;
use crate::layout::{Text, components, layout};
use crate::sm::NodeInfo;

layout! {
    /// A node.
    NodeRecord("NodeRecord", 112) {
        /// The LID of the port.
        lid: Lid = 0;
        /// Reserved.
        reserved2: u16 = 2;
        /// The node.
        node_info: NodeInfo = 4;
        /// The node's name.
        node_description: Text<64> = 44;
        /// Pads the record to a multiple of 8 bytes.
        reserved108: u32 = 108;
    }
}

components! {
    /// Components of a query for [`NodeRecord`]s.
    NodeRecordMask(NodeRecord) {
        LID = 0, "lid";
        BASE_VERSION = 2, "node_info.base_version";
        CLASS_VERSION = 3, "node_info.class_version";
        NODE_TYPE = 4, "node_info.node_type";
        NUM_PORTS = 5, "node_info.num_ports";
        SYSTEM_IMAGE_GUID = 6, "node_info.system_image_guid";
        NODE_GUID = 7, "node_info.node_guid";
        PORT_GUID = 8, "node_info.port_guid";
        PARTITION_CAP = 9, "node_info.partition_cap";
        DEVICE_ID = 10, "node_info.device_id";
        REVISION = 11, "node_info.revision";
        LOCAL_PORT_NUM = 12, "node_info.local_port_num";
        VENDOR_ID = 13, "node_info.vendor_id";
        NODE_DESCRIPTION = 14, "node_description";
    }
}
