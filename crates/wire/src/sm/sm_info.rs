//! SMInfo: a subnet manager (IBTA 14.2.5.13). The modifier of a Set is the command: [`SmInfo::HANDOVER`] and the others.

use crate::layout::{codes, layout};
use crate::{Guid, SmKey};

layout! {
    /// A subnet manager.
    SmInfo("SMInfo", 21) {
        /// The GUID of its port.
        guid: Guid = 0;
        /// The key of the manager; 0 if it does not disclose it.
        sm_key: SmKey = 8;
        /// A counter that increases while the manager works.
        act_count: u32 = 16;
        /// The priority, 0 to 15. The manager with the highest becomes the master.
        priority: u8 = 20 [0, 4];
        /// The state of the manager.
        state: SmState = 20 [4, 4];
    }
}

codes! {
    /// The state of a subnet manager.
    SmState(u8, 4 bits) {
        /// The manager is inactive, because another manager disabled it.
        NOT_ACTIVE = 0, "NotActive";
        /// The manager discovers the subnet.
        DISCOVERING = 1, "Discovering";
        /// The manager waits for the master to fail.
        STANDBY = 2, "Standby";
        /// The manager manages the subnet.
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
    /// Modifier of a Set: the receiver discovers the subnet again.
    pub const DISCOVER: u32 = 5;
}
