//! Notice: what a trap or a report says (IBTA 13.4.8.2 and 14.2.5.1).

use super::Trap;
use crate::Lid;
use crate::layout::{codes, layout};

layout! {
    /// An event. What the details mean is [`Notice::trap`]'s to say.
    Notice("Notice", 64) {
        /// The specification says what the trap means; else a vendor does.
        is_generic: bool = 0 [0, 1];
        /// How urgent it is.
        notice_type: NoticeType = 0 [1, 7];
        /// What it is about; of a vendor's trap the vendor, an OUI.
        producer: Producer = 1 [0, 24];
        /// Which event; of a vendor's trap the device ID.
        trap_number: u16 = 4;
        /// Who sent it.
        issuer_lid: Lid = 6;
        /// Changes when a notice that was asked for is another one than before.
        notice_toggle: bool = 8 [0, 1];
        /// How many notices wait.
        notice_count: u16 = 8 [1, 15];
        /// More of the event.
        details: [u8; 54] = 10;
    }
}

codes! {
    /// How urgent a notice is.
    NoticeType(u8, 7 bits) {
        /// Nothing works any more.
        FATAL = 0, "Fatal";
        /// Somebody should look at once.
        URGENT = 1, "Urgent";
        /// Somebody tried what they may not.
        SECURITY = 2, "Security";
        /// For subnet managers.
        SUBNET_MANAGEMENT = 3, "SubnetManagement";
        /// For information.
        INFORMATIONAL = 4, "Informational";
        /// There is no notice.
        EMPTY = 0x7f, "Empty";
    }
}

codes! {
    /// What a generic notice is about.
    Producer(u32, 24 bits) {
        /// A channel adapter.
        CA = 1, "CA";
        /// A switch.
        SWITCH = 2, "Switch";
        /// A router.
        ROUTER = 3, "Router";
        /// The manager of a class, such as subnet administration.
        CLASS_MANAGER = 4, "ClassManager";
    }
}

impl Notice {
    /// A generic notice of this event.
    pub fn new(trap: &Trap, producer: Producer, issuer_lid: Lid) -> Self {
        Self {
            is_generic: true,
            notice_type: trap.notice_type(),
            producer,
            trap_number: trap.number(),
            issuer_lid,
            notice_toggle: false,
            notice_count: 0,
            details: trap.details(),
        }
    }

    /// What the details mean; nothing of a vendor's notice or of an unknown number.
    pub fn trap(&self) -> Option<Trap> {
        if self.is_generic { Trap::parse(self.trap_number, &self.details) } else { None }
    }
}
