//! SMInfo: a subnet manager (IBTA 14.2.5.13). The modifier of a Set says what it asks for: [`SmInfo::HANDOVER`] and the
//! others.

use crate::layout::{codes, layout};
use crate::{Guid, SmKey};

layout! {
    /// A subnet manager.
    SmInfo("SMInfo", 21) {
        /// The port that it is on.
        guid: Guid = 0;
        /// Its key; 0 when it does not show it.
        sm_key: SmKey = 8;
        /// Grows while the manager works.
        act_count: u32 = 16;
        /// The higher one becomes the master, 0 to 15.
        priority: u8 = 20 [0, 4];
        /// What it is doing.
        state: SmState = 20 [4, 4];
    }
}

codes! {
    /// What a subnet manager is doing.
    SmState(u8, 4 bits) {
        /// Nothing, because another one said so.
        NOT_ACTIVE = 0, "NotActive";
        /// It looks around.
        DISCOVERING = 1, "Discovering";
        /// It waits for the master to go away.
        STANDBY = 2, "Standby";
        /// It manages the subnet.
        MASTER = 3, "Master";
    }
}

impl SmInfo {
    /// Modifier of a Set: the receiver becomes the master.
    pub const HANDOVER: u32 = 1;
    /// Modifier of a Set: the handover is acknowledged.
    pub const ACKNOWLEDGE: u32 = 2;
    /// Modifier of a Set: the receiver stops.
    pub const DISABLE: u32 = 3;
    /// Modifier of a Set: the receiver stands by.
    pub const STANDBY: u32 = 4;
    /// Modifier of a Set: the receiver looks around again.
    pub const DISCOVER: u32 = 5;
}
