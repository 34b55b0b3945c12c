//! P_KeyTable: a block of a port's partition keys (IBTA 14.2.5.7). The modifier is the block's number; of a switch's
//! external port also the port's, in the upper half.

use crate::Pkey;
use crate::layout::layout;

layout! {
    /// Thirty-two partition keys of a port.
    PkeyTable("P_KeyTable", 64) {
        /// Zero where there is none.
        pkeys: [Pkey; 32] = 0;
    }
}
