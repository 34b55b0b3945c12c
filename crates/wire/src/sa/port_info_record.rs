//! PortInfoRecord: a port (IBTA 15.2.5.3).

use crate::Lid;
use crate::layout::{flags, layout};
use crate::sm::PortInfo;

layout! {
    /// A port.
    PortInfoRecord("PortInfoRecord", 72) {
        /// The port; of a switch's port that of the switch.
        lid: Lid = 0;
        /// The port.
        port_num: u8 = 2;
        /// Which form of the attribute is asked for.
        options: u8 = 3;
        /// The attribute.
        port_info: PortInfo = 4;
        /// Fills up to a multiple of 8 bytes.
        reserved68: u32 = 68;
    }
}

flags! {
    /// Components of a question for [`PortInfoRecord`]s.
    PortInfoRecordMask(u64, 64 bits) {
        /// `lid`.
        LID = 0;
        /// `port_num`.
        PORT_NUM = 1;
        /// `options`.
        OPTIONS = 2;
        /// `port_info.mkey`.
        MKEY = 3;
        /// `port_info.gid_prefix`.
        GID_PREFIX = 4;
        /// `port_info.lid`.
        BASE_LID = 5;
        /// `port_info.sm_lid`.
        SM_LID = 6;
        /// `port_info.capability_mask`.
        CAPABILITY_MASK = 7;
        /// `port_info.diag_code`.
        DIAG_CODE = 8;
        /// `port_info.mkey_lease_period`.
        MKEY_LEASE_PERIOD = 9;
        /// `port_info.local_port_num`.
        LOCAL_PORT_NUM = 10;
        /// `port_info.link_width_enabled`.
        LINK_WIDTH_ENABLED = 11;
        /// `port_info.link_width_supported`.
        LINK_WIDTH_SUPPORTED = 12;
        /// `port_info.link_width_active`.
        LINK_WIDTH_ACTIVE = 13;
        /// `port_info.link_speed_supported`.
        LINK_SPEED_SUPPORTED = 14;
        /// `port_info.port_state`.
        PORT_STATE = 15;
        /// `port_info.port_physical_state`.
        PORT_PHYSICAL_STATE = 16;
        /// `port_info.link_down_default_state`.
        LINK_DOWN_DEFAULT_STATE = 17;
        /// `port_info.mkey_protect_bits`.
        MKEY_PROTECT_BITS = 18;
        /// `port_info.lmc`.
        LMC = 20;
        /// `port_info.link_speed_active`.
        LINK_SPEED_ACTIVE = 21;
        /// `port_info.link_speed_enabled`.
        LINK_SPEED_ENABLED = 22;
        /// `port_info.neighbor_mtu`.
        NEIGHBOR_MTU = 23;
        /// `port_info.master_smsl`.
        MASTER_SMSL = 24;
        /// `port_info.vl_cap`.
        VL_CAP = 25;
        /// `port_info.init_type`.
        INIT_TYPE = 26;
        /// `port_info.vl_high_limit`.
        VL_HIGH_LIMIT = 27;
        /// `port_info.vl_arbitration_high_cap`.
        VL_ARBITRATION_HIGH_CAP = 28;
        /// `port_info.vl_arbitration_low_cap`.
        VL_ARBITRATION_LOW_CAP = 29;
        /// `port_info.init_type_reply`.
        INIT_TYPE_REPLY = 30;
        /// `port_info.mtu_cap`.
        MTU_CAP = 31;
        /// `port_info.vl_stall_count`.
        VL_STALL_COUNT = 32;
        /// `port_info.hoq_life`.
        HOQ_LIFE = 33;
        /// `port_info.operational_vls`.
        OPERATIONAL_VLS = 34;
        /// `port_info.partition_enforcement_inbound`.
        PARTITION_ENFORCEMENT_INBOUND = 35;
        /// `port_info.partition_enforcement_outbound`.
        PARTITION_ENFORCEMENT_OUTBOUND = 36;
        /// `port_info.filter_raw_inbound`.
        FILTER_RAW_INBOUND = 37;
        /// `port_info.filter_raw_outbound`.
        FILTER_RAW_OUTBOUND = 38;
        /// `port_info.mkey_violations`.
        MKEY_VIOLATIONS = 39;
        /// `port_info.pkey_violations`.
        PKEY_VIOLATIONS = 40;
        /// `port_info.qkey_violations`.
        QKEY_VIOLATIONS = 41;
        /// `port_info.guid_cap`.
        GUID_CAP = 42;
        /// `port_info.client_reregister`.
        CLIENT_REREGISTER = 43;
        /// `port_info.multicast_pkey_trap_suppression`.
        MULTICAST_PKEY_TRAP_SUPPRESSION = 44;
        /// `port_info.subnet_timeout`.
        SUBNET_TIMEOUT = 45;
        /// `port_info.resp_time_value`.
        RESP_TIME_VALUE = 47;
        /// `port_info.local_phy_errors`.
        LOCAL_PHY_ERRORS = 48;
        /// `port_info.overrun_errors`.
        OVERRUN_ERRORS = 49;
        /// `port_info.max_credit_hint`.
        MAX_CREDIT_HINT = 50;
        /// `port_info.link_round_trip_latency`.
        LINK_ROUND_TRIP_LATENCY = 52;
        /// `port_info.capability_mask2`.
        CAPABILITY_MASK2 = 53;
        /// `port_info.link_speed_ext_active`.
        LINK_SPEED_EXT_ACTIVE = 54;
        /// `port_info.link_speed_ext_supported`.
        LINK_SPEED_EXT_SUPPORTED = 55;
        /// `port_info.link_speed_ext_enabled`.
        LINK_SPEED_EXT_ENABLED = 57;
    }
}
