//! SwitchInfo: what a switch can do, and how it is set up (IBTA 14.2.5.4).

use crate::Lid;
use crate::layout::layout;

layout! {
    /// A switch.
    SwitchInfo("SwitchInfo", 20) {
        /// Entries of the linear forwarding table.
        linear_fdb_cap: u16 = 0;
        /// Entries of the random forwarding table.
        random_fdb_cap: u16 = 2;
        /// Entries of the multicast forwarding table.
        multicast_fdb_cap: u16 = 4;
        /// The highest unicast LID with a route.
        linear_fdb_top: Lid = 6;
        /// Of random forwarding: where LIDs without an entry go.
        default_port: u8 = 8;
        /// Where multicast packets without a route go that do not come from there.
        default_multicast_primary_port: u8 = 9;
        /// Where multicast packets without a route go that come from the primary port.
        default_multicast_not_primary_port: u8 = 10;
        /// How long a packet may be in the switch: 4.096 us * 2^code, for ever from 20 on.
        life_time_value: u8 = 11 [0, 5];
        /// A port's state has changed. A Set with 1 clears it.
        port_state_change: bool = 11 [5, 1];
        /// Whether tables from service levels to lanes can be set for many ports at once.
        optimized_sl_to_vl_mapping: u8 = 11 [6, 2];
        /// LIDs that a port may have.
        lids_per_port: u16 = 12;
        /// Entries of the partition table of an external port.
        partition_enforcement_cap: u16 = 14;
        /// Partitions can be enforced on what comes in.
        inbound_enforcement_cap: bool = 16 [0, 1];
        /// Partitions can be enforced on what goes out.
        outbound_enforcement_cap: bool = 16 [1, 1];
        /// Raw packets that come in can be dropped.
        filter_raw_inbound_cap: bool = 16 [2, 1];
        /// Raw packets that go out can be dropped.
        filter_raw_outbound_cap: bool = 16 [3, 1];
        /// Port 0 is an enhanced one, much like a channel adapter's.
        enhanced_port0: bool = 16 [4, 1];
        /// Reserved.
        reserved16: u16 = 16 [5, 11];
        /// The highest multicast LID with a route.
        multicast_fdb_top: Lid = 18;
    }
}
