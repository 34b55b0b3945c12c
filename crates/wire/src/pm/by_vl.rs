//! Counters by virtual lane (IBTA 16.1.4): PortVLOpPackets, PortVLOpData, PortVLXmitFlowCtlUpdateErrors and
//! PortVLXmitWaitCounters. All are optional.

use crate::layout::{codes, layout};

layout! {
    /// Packets received.
    PortVlOpPackets("PortVLOpPackets", 36) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port; [`ALL_PORTS`](super::ALL_PORTS) where the agent has that.
        port_select: u8 = 1;
        /// Of a Set: which counters to set, in their order from bit 0.
        counter_select: u16 = 2;
        /// Of each lane.
        port_vl_op_packets: [u16; 16] = 4;
    }
}

layout! {
    /// Data received.
    PortVlOpData("PortVLOpData", 68) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port; [`ALL_PORTS`](super::ALL_PORTS) where the agent has that.
        port_select: u8 = 1;
        /// Of a Set: which counters to set, in their order from bit 0.
        counter_select: u16 = 2;
        /// Words of each lane.
        port_vl_op_data: [u32; 16] = 4;
    }
}

layout! {
    /// Errors of flow control.
    PortVlXmitFlowCtlUpdateErrors("PortVLXmitFlowCtlUpdateErrors", 8) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port; [`ALL_PORTS`](super::ALL_PORTS) where the agent has that.
        port_select: u8 = 1;
        /// Of a Set: which counters to set, in their order from bit 0.
        counter_select: u16 = 2;
        /// Of each lane.
        port_vl_xmit_flow_ctl_update_errors: [TwoBits; 16] = 4;
    }
}

codes! {
    /// A counter of two bits.
    TwoBits(u8, 2 bits) {
        /// The largest value, at which it stays.
        MAX = 3, "3";
    }
}

layout! {
    /// Waits.
    PortVlXmitWaitCounters("PortVLXmitWaitCounters", 36) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port; [`ALL_PORTS`](super::ALL_PORTS) where the agent has that.
        port_select: u8 = 1;
        /// Of a Set: which counters to set, in their order from bit 0.
        counter_select: u16 = 2;
        /// Ticks in which each lane had something to send and no credit for it.
        port_vl_xmit_wait: [u16; 16] = 4;
    }
}
