//! LedInfo: the LED that identifies a port (IBTA 14.2.5.15).

use crate::layout::layout;

layout! {
    /// A port's LED.
    LedInfo("LedInfo", 4) {
        /// Whether the LED is on.
        led_mask: bool = 0 [0, 1];
        /// Reserved.
        reserved0: u32 = 0 [1, 31];
    }
}
