//! Counters by virtual lane (IBTA 16.1.4): PortVLOpPackets, PortVLOpData, PortVLXmitFlowCtlUpdateErrors and
//! PortVLXmitWaitCounters. All are optional.

use crate::layout::{codes, layout};

layout! {
    /// Packets received.
    PortVlOpPackets("PortVLOpPackets", 36) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// The packets of each lane.
        port_vl_op_packets: [u16; 16] = 4;
    }
}

layout! {
    /// Data received.
    PortVlOpData("PortVLOpData", 68) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// The words of each lane.
        port_vl_op_data: [u32; 16] = 4;
    }
}

layout! {
    /// Flow control errors.
    PortVlXmitFlowCtlUpdateErrors("PortVLXmitFlowCtlUpdateErrors", 8) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// The errors of each lane.
        port_vl_xmit_flow_ctl_update_errors: [TwoBits; 16] = 4;
    }
}

codes! {
    /// A counter of two bits.
    TwoBits(u8, 2 bits) {
        /// The largest value, at which the counter stays.
        MAX = 3, "3";
    }
}

layout! {
    /// Waits for credit.
    PortVlXmitWaitCounters("PortVLXmitWaitCounters", 36) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// Ticks in which each lane had data to send but no credit.
        port_vl_xmit_wait: [u16; 16] = 4;
    }
}
