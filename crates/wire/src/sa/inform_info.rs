//! InformInfo: a subscription to events, and InformInfoRecord: an existing subscription (IBTA 13.4.8.3 and 15.2.5.12).

use crate::layout::{components, layout};
use crate::sm::Producer;
use crate::{Gid, Lid, Qpn};

layout! {
    /// A subscription. All ones mean any value.
    InformInfo("InformInfo", 36) {
        /// The port that events are about; zero if `lid_range_begin` is used instead.
        gid: Gid = 0;
        /// The first LID of the ports that events are about; 0xffff means all.
        lid_range_begin: Lid = 16;
        /// The last LID of these ports.
        lid_range_end: Lid = 18;
        /// Reserved.
        reserved20: u16 = 20;
        /// 1 for traps of the specification, 0 for a vendor's.
        is_generic: u8 = 22;
        /// 1 subscribes, 0 ends the subscription.
        subscribe: u8 = 23;
        /// A [`NoticeType`](crate::sm::NoticeType); 0xffff means all.
        notice_type: u16 = 24;
        /// The trap number, or a vendor's device ID; 0xffff means all.
        trap_number: u16 = 26;
        /// The subscriber's queue pair, when a subscription ends.
        qpn: Qpn = 28;
        /// Reserved.
        reserved31: u8 = 31 [0, 3];
        /// The subscriber's response time: 4.096 us * 2^code.
        resp_time_value: u8 = 31 [3, 5];
        /// Reserved.
        reserved32: u8 = 32;
        /// The type of node that events are about, or a vendor; all ones mean all.
        producer: Producer = 33;
    }
}

layout! {
    /// An existing subscription.
    InformInfoRecord("InformInfoRecord", 64) {
        /// The GID of the subscriber.
        subscriber_gid: Gid = 0;
        /// A number that distinguishes several subscriptions of one subscriber.
        enumeration: u16 = 16;
        /// Reserved.
        reserved18: [u8; 6] = 18;
        /// The subscription.
        inform_info: InformInfo = 24;
        /// Pads the record to a multiple of 8 bytes.
        reserved60: u32 = 60;
    }
}

components! {
    /// Components of a query for [`InformInfoRecord`]s.
    InformInfoRecordMask(InformInfoRecord) {
        SUBSCRIBER_GID = 0, "subscriber_gid";
        ENUMERATION = 1, "enumeration";
    }
}
