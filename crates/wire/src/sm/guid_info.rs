//! GUIDInfo: a block of a port's GUIDs (IBTA 14.2.5.5). The modifier is the block's number.

use crate::Guid;
use crate::layout::layout;

layout! {
    /// Eight GUIDs of a port.
    GuidInfo("GUIDInfo", 64) {
        /// The GUIDs, zero for an empty entry. The first one of block 0 is the port's own and cannot be set.
        guids: [Guid; 8] = 0;
    }
}
