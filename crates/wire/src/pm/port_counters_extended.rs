//! PortCountersExtended: counters of 64 bits, which wrap (IBTA 16.1.4.11).

use crate::layout::{flags, layout};

layout! {
    /// A port's counters. Data is counted in 4-byte words, from the LRH through the ICRC.
    PortCountersExtended("PortCountersExtended", 184) {
        /// Reserved.
        reserved0: u8 = 0;
        /// The port, or [`ALL_PORTS`](super::ALL_PORTS) if the agent supports it.
        port_select: u8 = 1;
        /// In a Set: which of the first counters to set.
        counter_select: ExtendedCounterSelect = 2;
        /// In a Set: which of the error counters to set, in order from bit 0.
        counter_select2: u32 = 4;
        /// Words sent.
        port_xmit_data: u64 = 8;
        /// Words received.
        port_rcv_data: u64 = 16;
        /// Packets sent.
        port_xmit_pkts: u64 = 24;
        /// Packets received.
        port_rcv_pkts: u64 = 32;
        /// Unicast packets sent.
        port_unicast_xmit_pkts: u64 = 40;
        /// Unicast packets received.
        port_unicast_rcv_pkts: u64 = 48;
        /// Multicast packets sent.
        port_multicast_xmit_pkts: u64 = 56;
        /// Multicast packets received.
        port_multicast_rcv_pkts: u64 = 64;
        /// As in [`PortCounters`](super::PortCounters), like all fields from here on.
        symbol_error_counter: u64 = 72;
        /// Successful recoveries of the link.
        link_error_recovery_counter: u64 = 80;
        /// Failed recoveries of the link.
        link_downed_counter: u64 = 88;
        /// Bad packets received.
        port_rcv_errors: u64 = 96;
        /// Packets received that were already marked as bad.
        port_rcv_remote_physical_errors: u64 = 104;
        /// Packets received that could not be forwarded.
        port_rcv_switch_relay_errors: u64 = 112;
        /// Packets that were not sent.
        port_xmit_discards: u64 = 120;
        /// Packets that were not sent because of their partition or because they are raw.
        port_xmit_constraint_errors: u64 = 128;
        /// Packets that were dropped because of their partition or because they are raw.
        port_rcv_constraint_errors: u64 = 136;
        /// The number of times that physical errors reached their threshold.
        local_link_integrity_errors: u64 = 144;
        /// The number of times that buffer overruns reached their threshold.
        excessive_buffer_overrun_errors: u64 = 152;
        /// Subnet management datagrams dropped for lack of a buffer.
        vl15_dropped: u64 = 160;
        /// Ticks in which there was data to send but no credit.
        port_xmit_wait: u64 = 168;
        /// Datagrams to QP1 dropped for lack of a buffer.
        qp1_dropped: u64 = 176;
    }
}

flags! {
    /// The counters to set.
    ExtendedCounterSelect(u16, 16 bits) {
        /// `port_xmit_data`.
        XMIT_DATA = 0;
        /// `port_rcv_data`.
        RCV_DATA = 1;
        /// `port_xmit_pkts`.
        XMIT_PKTS = 2;
        /// `port_rcv_pkts`.
        RCV_PKTS = 3;
        /// `port_unicast_xmit_pkts`.
        UNICAST_XMIT_PKTS = 4;
        /// `port_unicast_rcv_pkts`.
        UNICAST_RCV_PKTS = 5;
        /// `port_multicast_xmit_pkts`.
        MULTICAST_XMIT_PKTS = 6;
        /// `port_multicast_rcv_pkts`.
        MULTICAST_RCV_PKTS = 7;
    }
}
