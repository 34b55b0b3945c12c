//! The details of the sums in [`PortCounters`](super::PortCounters): PortRcvErrorDetails,
//! PortXmitDiscardDetails, PortOpRcvCounters and PortFlowCtlCounters (IBTA 16.1.4). All are optional.

use crate::layout::layout;

layout! {
    /// The reasons why received packets were bad.
    PortRcvErrorDetails("PortRcvErrorDetails", 16) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// Physical errors: CRC, length, end of packet.
        port_local_physical_errors: u16 = 4;
        /// Malformed packets.
        port_malformed_packet_errors: u16 = 6;
        /// Packets dropped for lack of a buffer.
        port_buffer_overrun_errors: u16 = 8;
        /// Packets whose DLID has no route.
        port_dlid_mapping_errors: u16 = 10;
        /// Packets whose lane has no mapping.
        port_vl_mapping_errors: u16 = 12;
        /// Packets that would leave by their ingress port.
        port_looping_errors: u16 = 14;
    }
}

layout! {
    /// The reasons why packets were not sent.
    PortXmitDiscardDetails("PortXmitDiscardDetails", 12) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// The port is not active.
        port_inactive_discards: u16 = 4;
        /// The packet is larger than the peer's MTU.
        port_neighbor_mtu_discards: u16 = 6;
        /// The packet exceeded its lifetime in the switch.
        port_sw_lifetime_limit_discards: u16 = 8;
        /// The packet was at the head of a queue for too long.
        port_sw_hoq_lifetime_limit_discards: u16 = 10;
    }
}

layout! {
    /// Traffic received on the operational lanes.
    PortOpRcvCounters("PortOpRcvCounters", 12) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// Packets.
        port_op_rcv_pkts: u32 = 4;
        /// Words.
        port_op_rcv_data: u32 = 8;
    }
}

layout! {
    /// Flow control packets.
    PortFlowCtlCounters("PortFlowCtlCounters", 12) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set, in order from bit 0.
        counter_select: u16 = 2;
        /// Packets sent.
        port_xmit_flow_pkts: u32 = 4;
        /// Packets received.
        port_rcv_flow_pkts: u32 = 8;
    }
}
