//! Notice: the contents of a trap or a report (IBTA 13.4.8.2 and 14.2.5.1).

use super::Trap;
use crate::Lid;
use crate::layout::{codes, layout};

layout! {
    /// An event. [`Notice::trap`] decodes the details.
    Notice("Notice", 64) {
        /// Whether the specification defines the trap, and not a vendor.
        is_generic: bool = 0 [0, 1];
        /// The urgency.
        notice_type: NoticeType = 0 [1, 7];
        /// The type of node that the notice is about; for a vendor's trap the vendor, an OUI.
        producer: Producer = 1 [0, 24];
        /// The trap number; for a vendor's trap the device ID.
        trap_number: u16 = 4;
        /// The LID of the sender.
        issuer_lid: Lid = 6;
        /// Changes whenever a queried notice differs from the previous one.
        notice_toggle: bool = 8 [0, 1];
        /// The number of waiting notices.
        notice_count: u16 = 8 [1, 15];
        /// The details of the event.
        details: [u8; 54] = 10;
    }
}

codes! {
    /// The urgency of a notice.
    NoticeType(u8, 7 bits) {
        /// The node no longer works.
        FATAL = 0, "Fatal";
        /// Immediate attention is needed.
        URGENT = 1, "Urgent";
        /// An access violation was attempted.
        SECURITY = 2, "Security";
        /// The notice is for subnet managers.
        SUBNET_MANAGEMENT = 3, "SubnetManagement";
        /// The notice is informational.
        INFORMATIONAL = 4, "Informational";
        /// There is no notice.
        EMPTY = 0x7f, "Empty";
    }
}

codes! {
    /// The type of node that a generic notice is about.
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
    /// Creates a generic notice of this event.
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

    /// Decodes the details; returns none for a vendor's notice or an unknown number.
    pub fn trap(&self) -> Option<Trap> {
        if self.is_generic { Trap::parse(self.trap_number, &self.details) } else { None }
    }
}
