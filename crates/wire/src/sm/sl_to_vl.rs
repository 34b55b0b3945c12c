//! SLtoVLMappingTable: which virtual lane each service level takes (IBTA 14.2.5.8). The modifier of a switch has the
//! input port in bits 15 to 8 and the output port in bits 7 to 0; a channel adapter's is 0.

use crate::layout::{codes, layout};

layout! {
    /// A virtual lane for each service level.
    SlToVlTable("SLtoVLMappingTable", 8) {
        /// By service level; 15 drops the packet.
        vls: [Vl; 16] = 0;
    }
}

codes! {
    /// A virtual lane, 0 to 15.
    Vl(u8, 4 bits) {
        /// Subnet management's; data of a service level that is mapped to it is dropped.
        MANAGEMENT = 15, "15";
    }
}
