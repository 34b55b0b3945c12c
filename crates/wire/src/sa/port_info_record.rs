//! PortInfoRecord: a port (IBTA 15.2.5.3).

use crate::Lid;
use crate::layout::{components, layout};
use crate::sm::PortInfo;

layout! {
    /// A port.
    PortInfoRecord("PortInfoRecord", 72) {
        /// The LID of the port; for a port of a switch that of the switch.
        lid: Lid = 0;
        /// The number of the port.
        port_num: u8 = 2;
        /// The requested form of the attribute.
        options: u8 = 3;
        /// The attribute.
        port_info: PortInfo = 4;
        /// Pads the record to a multiple of 8 bytes.
        reserved68: u32 = 68;
    }
}

components! {
    /// Components of a query for [`PortInfoRecord`]s.
    PortInfoRecordMask(PortInfoRecord) {
        LID = 0, "lid";
        PORT_NUM = 1, "port_num";
        OPTIONS = 2, "options";
        MKEY = 3, "port_info.mkey";
        GID_PREFIX = 4, "port_info.gid_prefix";
        BASE_LID = 5, "port_info.lid";
        SM_LID = 6, "port_info.sm_lid";
        CAPABILITY_MASK = 7, "port_info.capability_mask";
        DIAG_CODE = 8, "port_info.diag_code";
        MKEY_LEASE_PERIOD = 9, "port_info.mkey_lease_period";
        LOCAL_PORT_NUM = 10, "port_info.local_port_num";
        LINK_WIDTH_ENABLED = 11, "port_info.link_width_enabled";
        LINK_WIDTH_SUPPORTED = 12, "port_info.link_width_supported";
        LINK_WIDTH_ACTIVE = 13, "port_info.link_width_active";
        LINK_SPEED_SUPPORTED = 14, "port_info.link_speed_supported";
        PORT_STATE = 15, "port_info.port_state";
        PORT_PHYSICAL_STATE = 16, "port_info.port_physical_state";
        LINK_DOWN_DEFAULT_STATE = 17, "port_info.link_down_default_state";
        MKEY_PROTECT_BITS = 18, "port_info.mkey_protect_bits";
        LMC = 20, "port_info.lmc";
        LINK_SPEED_ACTIVE = 21, "port_info.link_speed_active";
        LINK_SPEED_ENABLED = 22, "port_info.link_speed_enabled";
        NEIGHBOR_MTU = 23, "port_info.neighbor_mtu";
        MASTER_SMSL = 24, "port_info.master_smsl";
        VL_CAP = 25, "port_info.vl_cap";
        INIT_TYPE = 26, "port_info.init_type";
        VL_HIGH_LIMIT = 27, "port_info.vl_high_limit";
        VL_ARBITRATION_HIGH_CAP = 28, "port_info.vl_arbitration_high_cap";
        VL_ARBITRATION_LOW_CAP = 29, "port_info.vl_arbitration_low_cap";
        INIT_TYPE_REPLY = 30, "port_info.init_type_reply";
        MTU_CAP = 31, "port_info.mtu_cap";
        VL_STALL_COUNT = 32, "port_info.vl_stall_count";
        HOQ_LIFE = 33, "port_info.hoq_life";
        OPERATIONAL_VLS = 34, "port_info.operational_vls";
        PARTITION_ENFORCEMENT_INBOUND = 35, "port_info.partition_enforcement_inbound";
        PARTITION_ENFORCEMENT_OUTBOUND = 36, "port_info.partition_enforcement_outbound";
        FILTER_RAW_INBOUND = 37, "port_info.filter_raw_inbound";
        FILTER_RAW_OUTBOUND = 38, "port_info.filter_raw_outbound";
        MKEY_VIOLATIONS = 39, "port_info.mkey_violations";
        PKEY_VIOLATIONS = 40, "port_info.pkey_violations";
        QKEY_VIOLATIONS = 41, "port_info.qkey_violations";
        GUID_CAP = 42, "port_info.guid_cap";
        CLIENT_REREGISTER = 43, "port_info.client_reregister";
        MULTICAST_PKEY_TRAP_SUPPRESSION = 44, "port_info.multicast_pkey_trap_suppression";
        SUBNET_TIMEOUT = 45, "port_info.subnet_timeout";
        RESP_TIME_VALUE = 47, "port_info.resp_time_value";
        LOCAL_PHY_ERRORS = 48, "port_info.local_phy_errors";
        OVERRUN_ERRORS = 49, "port_info.overrun_errors";
        MAX_CREDIT_HINT = 50, "port_info.max_credit_hint";
        LINK_ROUND_TRIP_LATENCY = 52, "port_info.link_round_trip_latency";
        CAPABILITY_MASK2 = 53, "port_info.capability_mask2";
        LINK_SPEED_EXT_ACTIVE = 54, "port_info.link_speed_ext_active";
        LINK_SPEED_EXT_SUPPORTED = 55, "port_info.link_speed_ext_supported";
        LINK_SPEED_EXT_ENABLED = 57, "port_info.link_speed_ext_enabled";
    }
}
