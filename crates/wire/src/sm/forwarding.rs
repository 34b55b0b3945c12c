//! LinearForwardingTable and MulticastForwardingTable: the egress ports of a switch's routes (IBTA
//! 14.2.5.10 and 14.2.5.12).

use crate::layout::layout;

/// The entry of a linear table for a LID without a route, whose packets are dropped.
pub const NO_ROUTE: u8 = 0xff;

layout! {
    /// The routes of 64 unicast LIDs, from 64 times the modifier on.
    LinearForwardingTable("LinearForwardingTable", 64) {
        /// The egress port of each LID, or [`NO_ROUTE`].
        ports: [u8; 64] = 0;
    }
}

layout! {
    /// The routes of 32 multicast LIDs to 16 ports. Bits 31 to 28 of the modifier are the position k, for
    /// ports 16k to 16k+15, and bits 8 to 0 are the block, for LIDs from 0xc000 plus 32 times the block on.
    MulticastForwardingTable("MulticastForwardingTable", 64) {
        /// The ports of each LID; bit n is port 16k + n.
        port_masks: [u16; 32] = 0;
    }
}
