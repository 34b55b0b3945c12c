//! SwitchInfo: the capabilities and the configuration of a switch (IBTA 14.2.5.4).

use crate::Lid;
use crate::layout::layout;

layout! {
    /// A switch.
    SwitchInfo("SwitchInfo", 20) {
        /// The number of entries in the linear forwarding table.
        linear_fdb_cap: u16 = 0;
        /// The number of entries in the random forwarding table.
        random_fdb_cap: u16 = 2;
        /// The number of entries in the multicast forwarding table.
        multicast_fdb_cap: u16 = 4;
        /// The highest unicast LID with a route.
        linear_fdb_top: Lid = 6;
        /// For random forwarding: the egress port for LIDs without an entry.
        default_port: u8 = 8;
        /// The egress port for multicast packets without a route that did not arrive on it.
        default_multicast_primary_port: u8 = 9;
        /// The egress port for multicast packets without a route that arrived on the primary port.
        default_multicast_not_primary_port: u8 = 10;
        /// The lifetime of a packet in the switch: 4.096 us * 2^code, unlimited from 20 on.
        life_time_value: u8 = 11 [0, 5];
        /// Whether a port's state has changed. A Set with 1 clears it.
        port_state_change: bool = 11 [5, 1];
        /// Whether mapping tables from service levels to lanes can be set for many ports at once.
        optimized_sl_to_vl_mapping: u8 = 11 [6, 2];
        /// The number of LIDs that a port may have.
        lids_per_port: u16 = 12;
        /// The number of entries in the partition table of an external port.
        partition_enforcement_cap: u16 = 14;
        /// Whether partitions can be enforced on received packets.
        inbound_enforcement_cap: bool = 16 [0, 1];
        /// Whether partitions can be enforced on sent packets.
        outbound_enforcement_cap: bool = 16 [1, 1];
        /// Whether received raw packets can be dropped.
        filter_raw_inbound_cap: bool = 16 [2, 1];
        /// Whether raw packets to send can be dropped.
        filter_raw_outbound_cap: bool = 16 [3, 1];
        /// Whether port 0 is an enhanced one, which is much like a channel adapter's port.
        enhanced_port0: bool = 16 [4, 1];
        /// Reserved.
        reserved16: u16 = 16 [5, 11];
        /// The highest multicast LID with a route.
        multicast_fdb_top: Lid = 18;
    }
}
