//! SLtoVLMappingTable: the virtual lane of each service level (IBTA 14.2.5.8). For a switch, bits 15 to
//! 8 of the modifier are the input port and bits 7 to 0 the output port; for a channel adapter it is 0.

use crate::layout::{codes, layout};

layout! {
    /// A virtual lane for each service level.
    SlToVlTable("SLtoVLMappingTable", 8) {
        /// The lanes by service level; 15 drops the packet.
        vls: [Vl; 16] = 0;
    }
}

codes! {
    /// A virtual lane, 0 to 15.
    Vl(u8, 4 bits) {
        /// The lane of subnet management. Data of a service level that is mapped to it is dropped.
        MANAGEMENT = 15, "15";
    }
}
