//! MCMemberRecord: a member of a multicast group (IBTA 15.2.5.17). A Set joins, a Delete leaves.

use super::{Rate, Selector};
use crate::layout::{components, flags, layout};
use crate::{Gid, Lid, Pkey, Qkey};

layout! {
    /// A member of a group, or a group.
    McMemberRecord("MCMemberRecord", 56) {
        /// The group.
        mgid: Gid = 0;
        /// The member's port GID.
        port_gid: Gid = 16;
        /// The group's Q_Key.
        qkey: Qkey = 32;
        /// The group's LID.
        mlid: Lid = 36;
        /// How to compare with `mtu`.
        mtu_selector: Selector = 38 [0, 2];
        /// A code of [`Mtu`](crate::Mtu).
        mtu: u8 = 38 [2, 6];
        /// Traffic class.
        tclass: u8 = 39;
        /// The group's partition.
        pkey: Pkey = 40;
        /// How to compare with `rate`.
        rate_selector: Selector = 42 [0, 2];
        /// The group's rate.
        rate: Rate = 42 [2, 6];
        /// How to compare with `packet_life_time`.
        packet_life_time_selector: Selector = 43 [0, 2];
        /// The packet lifetime: 4.096 us * 2^code.
        packet_life_time: u8 = 43 [2, 6];
        /// Service level.
        sl: u8 = 44 [0, 4];
        /// Flow label, 20 bits.
        flow_label: u32 = 44 [4, 20];
        /// Hop limit.
        hop_limit: u8 = 47;
        /// The scope, as in the group's GID.
        scope: u8 = 48 [0, 4];
        /// The kind of member.
        join_state: JoinState = 48 [4, 4];
        /// Whether another port has joined for the member.
        proxy_join: bool = 49 [0, 1];
        /// Reserved.
        reserved49: u8 = 49 [1, 7];
        /// Reserved, including 4 bytes that pad the record to a multiple of 8.
        reserved50: [u8; 6] = 50;
    }
}

flags! {
    /// The kind of a member.
    JoinState(u8, 4 bits) {
        /// The port sends and receives, and keeps the group in existence.
        FULL_MEMBER = 0;
        /// The port sends and receives.
        NON_MEMBER = 1;
        /// The port only sends.
        SEND_ONLY_NON_MEMBER = 2;
        /// The port only sends, and keeps the group in existence.
        SEND_ONLY_FULL_MEMBER = 3;
    }
}

components! {
    /// Components of a query for [`McMemberRecord`]s.
    McMemberRecordMask(McMemberRecord) {
        MGID = 0, "mgid";
        PORT_GID = 1, "port_gid";
        QKEY = 2, "qkey";
        MLID = 3, "mlid";
        MTU_SELECTOR = 4, "mtu_selector";
        MTU = 5, "mtu";
        TCLASS = 6, "tclass";
        PKEY = 7, "pkey";
        RATE_SELECTOR = 8, "rate_selector";
        RATE = 9, "rate";
        PACKET_LIFE_TIME_SELECTOR = 10, "packet_life_time_selector";
        PACKET_LIFE_TIME = 11, "packet_life_time";
        SL = 12, "sl";
        FLOW_LABEL = 13, "flow_label";
        HOP_LIMIT = 14, "hop_limit";
        SCOPE = 15, "scope";
        JOIN_STATE = 16, "join_state";
        PROXY_JOIN = 17, "proxy_join";
    }
}
