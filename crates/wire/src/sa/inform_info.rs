//! InformInfo: a subscription to events, and InformInfoRecord: one that there is (IBTA 13.4.8.3 and 15.2.5.12).

use crate::layout::{components, layout};
use crate::sm::Producer;
use crate::{Gid, Lid, Qpn};

layout! {
    /// A subscription. All ones stand for any value.
    InformInfo("InformInfo", 36) {
        /// The port that events are about; zero where `lid_range_begin` says so.
        gid: Gid = 0;
        /// The ports that events are about; 0xffff is all.
        lid_range_begin: Lid = 16;
        /// The last of them.
        lid_range_end: Lid = 18;
        /// Reserved.
        reserved20: u16 = 20;
        /// 1 for the specification's traps, 0 for a vendor's.
        is_generic: u8 = 22;
        /// 1 subscribes, 0 ends the subscription.
        subscribe: u8 = 23;
        /// A [`NoticeType`](crate::sm::NoticeType); 0xffff is all.
        notice_type: u16 = 24;
        /// The trap, or a vendor's device; 0xffff is all.
        trap_number: u16 = 26;
        /// The subscriber's queue pair, when it ends the subscription.
        qpn: Qpn = 28;
        /// Reserved.
        reserved31: u8 = 31 [0, 3];
        /// How long the subscriber takes to answer: 4.096 us * 2^code.
        resp_time_value: u8 = 31 [3, 5];
        /// Reserved.
        reserved32: u8 = 32;
        /// What events are about, or a vendor; all ones is all.
        producer: Producer = 33;
    }
}

layout! {
    /// A subscription that there is.
    InformInfoRecord("InformInfoRecord", 64) {
        /// Whose it is.
        subscriber_gid: Gid = 0;
        /// Tells several of one subscriber apart.
        enumeration: u16 = 16;
        /// Reserved.
        reserved18: [u8; 6] = 18;
        /// The subscription.
        inform_info: InformInfo = 24;
        /// Fills up to a multiple of 8 bytes.
        reserved60: u32 = 60;
    }
}

components! {
    /// Components of a question for [`InformInfoRecord`]s.
    InformInfoRecordMask(InformInfoRecord) {
        SUBSCRIBER_GID = 0, "subscriber_gid";
        ENUMERATION = 1, "enumeration";
    }
}
