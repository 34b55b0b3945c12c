//! ClassPortInfo: what an agent or manager of a class can do, and where else to ask (IBTA 13.4.8.1). All classes but
//! subnet management have it, as attribute 0x0001.

use crate::layout::{flags, layout};
use crate::{Gid, Lid, Pkey, Qkey, Qpn};

layout! {
    /// An agent or manager of a class.
    ClassPortInfo("ClassPortInfo", 72) {
        /// Version of the MAD format.
        base_version: u8 = 0;
        /// Version of the class.
        class_version: u8 = 1;
        /// What it can do. The low byte is the same for all classes.
        capability_mask: ClassCapabilities = 2;
        /// More of what it can do, 27 bits, by class.
        capability_mask2: u32 = 4 [0, 27];
        /// How long it takes to answer: 4.096 us * 2^code.
        resp_time_value: u8 = 7 [3, 5];
        /// Where to ask instead; zero when nowhere else.
        redirect_gid: Gid = 8;
        /// Traffic class to there.
        redirect_tclass: u8 = 24;
        /// Service level to there.
        redirect_sl: u8 = 25 [0, 4];
        /// Flow label to there.
        redirect_flow_label: u32 = 25 [4, 20];
        /// The LID of there, or 0.
        redirect_lid: Lid = 28;
        /// P_Key to there.
        redirect_pkey: Pkey = 30;
        /// Reserved.
        reserved32: u8 = 32;
        /// Queue pair of there.
        redirect_qp: Qpn = 33;
        /// Q_Key of there.
        redirect_qkey: Qkey = 36;
        /// Where traps of the class go.
        trap_gid: Gid = 40;
        /// Traffic class of traps.
        trap_tclass: u8 = 56;
        /// Service level of traps.
        trap_sl: u8 = 57 [0, 4];
        /// Flow label of traps.
        trap_flow_label: u32 = 57 [4, 20];
        /// LID of traps.
        trap_lid: Lid = 60;
        /// P_Key of traps.
        trap_pkey: Pkey = 62;
        /// Hop limit of traps.
        trap_hop_limit: u8 = 64;
        /// Queue pair of traps.
        trap_qp: Qpn = 65;
        /// Q_Key of traps.
        trap_qkey: Qkey = 68;
    }
}

impl ClassPortInfo {
    /// The attribute ID, in all classes.
    pub const ATTR_ID: u16 = 0x01;
}

flags! {
    /// What an agent or manager can do, of any class. The other bits are the class's own: see
    /// [`pm::capability`](crate::pm::capability) and [`sa::capability`](crate::sa::capability).
    ClassCapabilities(u16, 16 bits) {
        /// It sends traps.
        TRAP = 0;
        /// It has notices that can be read and set.
        GET_SET_NOTICE = 1;
    }
}
