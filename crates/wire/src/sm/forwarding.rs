//! LinearForwardingTable and MulticastForwardingTable: by which ports a switch sends a packet on (IBTA 14.2.5.10 and
//! 14.2.5.12).

use crate::layout::layout;

/// What a linear table says of a LID that has no route: drop.
pub const NO_ROUTE: u8 = 0xff;

layout! {
    /// The routes of 64 unicast LIDs, from 64 times the modifier on.
    LinearForwardingTable("LinearForwardingTable", 64) {
        /// The port by which each goes; [`NO_ROUTE`] where there is none.
        ports: [u8; 64] = 0;
    }
}

layout! {
    /// The routes of 32 multicast LIDs by 16 ports. The modifier has the position k in bits 31 to 28, for ports 16k to
    /// 16k+15, and the block in bits 8 to 0, for LIDs from 0xc000 plus 32 times the block on.
    MulticastForwardingTable("MulticastForwardingTable", 64) {
        /// Bit n is port 16k + n.
        port_masks: [u16; 32] = 0;
    }
}
