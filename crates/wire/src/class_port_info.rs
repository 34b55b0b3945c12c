//! ClassPortInfo: the capabilities of an agent or manager of a class, and where to redirect
//! requests (IBTA 13.4.8.1). All classes but subnet management have it, as attribute 0x0001.

use crate::layout::{flags, layout};
use crate::{Gid, Lid, Pkey, Qkey, Qpn};

layout! {
    /// An agent or manager of a class.
    ClassPortInfo("ClassPortInfo", 72) {
        /// Version of the MAD format.
        base_version: u8 = 0;
        /// Version of the class.
        class_version: u8 = 1;
        /// The capabilities. The low byte is the same for all classes.
        capability_mask: ClassCapabilities = 2;
        /// More capabilities, 27 bits, by class.
        capability_mask2: u32 = 4 [0, 27];
        /// The response time: 4.096 us * 2^code.
        resp_time_value: u8 = 7 [3, 5];
        /// The GID to which requests are redirected, or zero.
        redirect_gid: Gid = 8;
        /// The traffic class for redirected requests.
        redirect_tclass: u8 = 24;
        /// The service level for redirected requests.
        redirect_sl: u8 = 25 [0, 4];
        /// The flow label for redirected requests.
        redirect_flow_label: u32 = 25 [4, 20];
        /// The LID to which requests are redirected, or 0.
        redirect_lid: Lid = 28;
        /// The P_Key for redirected requests.
        redirect_pkey: Pkey = 30;
        /// Reserved.
        reserved32: u8 = 32;
        /// The queue pair to which requests are redirected.
        redirect_qp: Qpn = 33;
        /// The Q_Key for redirected requests.
        redirect_qkey: Qkey = 36;
        /// The destination of the class's traps.
        trap_gid: Gid = 40;
        /// The traffic class of traps.
        trap_tclass: u8 = 56;
        /// The service level of traps.
        trap_sl: u8 = 57 [0, 4];
        /// The flow label of traps.
        trap_flow_label: u32 = 57 [4, 20];
        /// The destination LID of traps.
        trap_lid: Lid = 60;
        /// The P_Key of traps.
        trap_pkey: Pkey = 62;
        /// The hop limit of traps.
        trap_hop_limit: u8 = 64;
        /// The destination queue pair of traps.
        trap_qp: Qpn = 65;
        /// The Q_Key of traps.
        trap_qkey: Qkey = 68;
    }
}

impl ClassPortInfo {
    /// The attribute ID, which is the same in all classes.
    pub const ATTR_ID: u16 = 0x01;
}

flags! {
    /// The capabilities of an agent or manager of any class. The other bits are specific to a class:
    /// see [`pm::capability`](crate::pm::capability) and [`sa::capability`](crate::sa::capability).
    ClassCapabilities(u16, 16 bits) {
        /// The agent sends traps.
        TRAP = 0;
        /// The agent has notices that can be read and set.
        GET_SET_NOTICE = 1;
    }
}
