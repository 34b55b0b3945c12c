//! PortCounters: the counters that every port has (IBTA 16.1.3.5). They stay at their largest value.

use crate::layout::{flags, layout};

layout! {
    /// A port's counters. Data is counted in 4-byte words, from the LRH through the ICRC.
    PortCounters("PortCounters", 44) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: the counters to set.
        counter_select: CounterSelect = 2;
        /// Bad symbols, on all lanes.
        symbol_error_counter: u16 = 4;
        /// Successful recoveries of the link.
        link_error_recovery_counter: u8 = 6;
        /// Failed recoveries, after which the link was down.
        link_downed_counter: u8 = 7;
        /// Bad packets received.
        port_rcv_errors: u16 = 8;
        /// Packets received with the delimiter that marks them as bad already.
        port_rcv_remote_physical_errors: u16 = 10;
        /// Packets received that could not be forwarded.
        port_rcv_switch_relay_errors: u16 = 12;
        /// Packets that were not sent.
        port_xmit_discards: u16 = 14;
        /// Packets that were not sent because of their partition or because they are raw.
        port_xmit_constraint_errors: u8 = 16;
        /// Packets that were dropped because of their partition or because they are raw.
        port_rcv_constraint_errors: u8 = 17;
        /// In a Set: bit 0 is `port_xmit_wait`.
        counter_select2: u8 = 18;
        /// The number of times that physical errors reached their threshold.
        local_link_integrity_errors: u8 = 19 [0, 4];
        /// The number of times that buffer overruns reached their threshold.
        excessive_buffer_overrun_errors: u8 = 19 [4, 4];
        /// Datagrams to QP1 dropped for lack of a buffer. libibmad 44 shows `vl15_dropped` in its place: its table
        /// of fields has the specification's bit offset 160, without the conversion that it applies to all others.
        qp1_dropped: u16 = 20;
        /// Subnet management datagrams dropped for lack of a buffer.
        vl15_dropped: u16 = 22;
        /// Words sent.
        port_xmit_data: u32 = 24;
        /// Words received.
        port_rcv_data: u32 = 28;
        /// Packets sent.
        port_xmit_pkts: u32 = 32;
        /// Packets received.
        port_rcv_pkts: u32 = 36;
        /// Ticks in which there was data to send but no credit.
        port_xmit_wait: u32 = 40;
    }
}

flags! {
    /// The counters to set.
    CounterSelect(u16, 16 bits) {
        /// `symbol_error_counter`.
        SYMBOL_ERROR = 0;
        /// `link_error_recovery_counter`.
        LINK_ERROR_RECOVERY = 1;
        /// `link_downed_counter`.
        LINK_DOWNED = 2;
        /// `port_rcv_errors`.
        RCV_ERRORS = 3;
        /// `port_rcv_remote_physical_errors`.
        RCV_REMOTE_PHYSICAL_ERRORS = 4;
        /// `port_rcv_switch_relay_errors`.
        RCV_SWITCH_RELAY_ERRORS = 5;
        /// `port_xmit_discards`.
        XMIT_DISCARDS = 6;
        /// `port_xmit_constraint_errors`.
        XMIT_CONSTRAINT_ERRORS = 7;
        /// `port_rcv_constraint_errors`.
        RCV_CONSTRAINT_ERRORS = 8;
        /// `local_link_integrity_errors`.
        LOCAL_LINK_INTEGRITY_ERRORS = 9;
        /// `excessive_buffer_overrun_errors`.
        EXCESSIVE_BUFFER_OVERRUN_ERRORS = 10;
        /// `vl15_dropped`.
        VL15_DROPPED = 11;
        /// `port_xmit_data`.
        XMIT_DATA = 12;
        /// `port_rcv_data`.
        RCV_DATA = 13;
        /// `port_xmit_pkts`.
        XMIT_PKTS = 14;
        /// `port_rcv_pkts`.
        RCV_PKTS = 15;
    }
}
