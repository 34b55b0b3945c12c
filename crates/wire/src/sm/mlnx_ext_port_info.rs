//! ExtendedPortInfo of Mellanox: link speeds beside the standard's. Asked only of devices that are known to have it.

use crate::layout::{flags, layout};

layout! {
    /// Link speeds beside the standard's, of the port that is the modifier.
    MlnxExtPortInfo("MlnxExtPortInfo", 64) {
        /// Reserved.
        reserved0: [u8; 3] = 0;
        /// Which changes of the state are told.
        state_change_enable: u8 = 3;
        /// Reserved.
        reserved4: [u8; 3] = 4;
        /// Speeds that can be used.
        link_speed_supported: MlnxLinkSpeed = 7;
        /// Reserved.
        reserved8: [u8; 3] = 8;
        /// Speeds that may be used.
        link_speed_enabled: MlnxLinkSpeed = 11;
        /// Reserved.
        reserved12: [u8; 3] = 12;
        /// The speed that is used.
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
