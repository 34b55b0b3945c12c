//! PortXmitDataSL and PortRcvDataSL: data by service level (IBTA annex A13, optional).

use crate::layout::layout;

layout! {
    /// Data sent.
    PortXmitDataSl("PortXmitDataSL", 68) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// The words of each service level.
        port_xmit_data_sl: [u32; 16] = 4;
    }
}

layout! {
    /// Data received.
    PortRcvDataSl("PortRcvDataSL", 68) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// The words of each service level.
        port_rcv_data_sl: [u32; 16] = 4;
    }
}
