//! ExtendedPortInfo of Mellanox: link speeds beyond the standard's. Queried only from devices that
//! are known to support it.

use crate::layout::{flags, layout};

layout! {
    /// Link speeds beyond the standard's, for the port named by the modifier.
    MlnxExtPortInfo("MlnxExtPortInfo", 64) {
        /// Reserved.
        reserved0: [u8; 3] = 0;
        /// The state changes that are reported.
        state_change_enable: u8 = 3;
        /// Reserved.
        reserved4: [u8; 3] = 4;
        /// The supported speeds.
        link_speed_supported: MlnxLinkSpeed = 7;
        /// Reserved.
        reserved8: [u8; 3] = 8;
        /// The enabled speeds.
        link_speed_enabled: MlnxLinkSpeed = 11;
        /// Reserved.
        reserved12: [u8; 3] = 12;
        /// The active speed.
        link_speed_active: MlnxLinkSpeed = 15;
        /// Reserved.
        reserved16: [u8; 48] = 16;
    }
}

flags! {
    /// Mellanox's speeds.
    MlnxLinkSpeed(u8, 8 bits) {
        /// 10 Gb/s with FDR's line code.
        FDR10 = 0;
    }
}
