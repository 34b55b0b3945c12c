//! P_KeyTable: a block of a port's partition keys (IBTA 14.2.5.7). The modifier is the block's
//! number; for an external port of a switch its upper half is the port's number.

use crate::Pkey;
use crate::layout::layout;

layout! {
    /// Thirty-two partition keys of a port.
    PkeyTable("P_KeyTable", 64) {
        /// The keys, zero for an empty entry.
        pkeys: [Pkey; 32] = 0;
    }
}
