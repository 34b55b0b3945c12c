//! The datagrams of <infiniband/umad_sm.h>, <infiniband/umad_sa.h>, <infiniband/umad_sa_mcm.h> and <infiniband/umad_cm.h>.
//! Programs fill them in by these structures, and `rdmux_wire` parses them. The values here are `rdmux_wire`'s, so the test that compares
//! them with the headers checks its parser. Fields whose C type begins with `__be` are in network order.

use rdmux_wire::cm;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{self, JoinState, McMemberRecordMask, Selector, capability};
use rdmux_wire::{sm, smp};

use super::umad::{umad_hdr, umad_rmpp_hdr};

pub const UMAD_SMP_DIRECTION: u16 = status::DIRECTION;
pub const UMAD_SM_ATTR_NODE_DESC: u16 = sm::NodeDescription::ATTR_ID;
pub const UMAD_SM_ATTR_NODE_INFO: u16 = sm::NodeInfo::ATTR_ID;
pub const UMAD_SM_ATTR_SWITCH_INFO: u16 = sm::SwitchInfo::ATTR_ID;
pub const UMAD_SM_ATTR_GUID_INFO: u16 = sm::GuidInfo::ATTR_ID;
pub const UMAD_SM_ATTR_PORT_INFO: u16 = sm::PortInfo::ATTR_ID;
pub const UMAD_SM_ATTR_PKEY_TABLE: u16 = sm::PkeyTable::ATTR_ID;
pub const UMAD_SM_ATTR_SLVL_TABLE: u16 = sm::SlToVlTable::ATTR_ID;
pub const UMAD_SM_ATTR_VL_ARB_TABLE: u16 = sm::VlArbitration::ATTR_ID;
pub const UMAD_SM_ATTR_LINEAR_FT: u16 = sm::LinearForwardingTable::ATTR_ID;
pub const UMAD_SM_ATTR_MCAST_FT: u16 = sm::MulticastForwardingTable::ATTR_ID;
pub const UMAD_SM_ATTR_SM_INFO: u16 = sm::SmInfo::ATTR_ID;
pub const UMAD_SM_ATTR_VENDOR_DIAG: u16 = sm::VendorDiag::ATTR_ID;
pub const UMAD_SM_ATTR_LED_INFO: u16 = sm::LedInfo::ATTR_ID;
pub const UMAD_SM_ATTR_MLNX_EXT_PORT_INFO: u16 = sm::MlnxExtPortInfo::ATTR_ID;
// The headers have no constants for trap numbers: a test compares these.
pub const UMAD_SM_GID_IN_SERVICE_TRAP: u16 = 64;
pub const UMAD_SM_GID_OUT_OF_SERVICE_TRAP: u16 = 65;
pub const UMAD_SM_MGID_CREATED_TRAP: u16 = 66;
pub const UMAD_SM_MGID_DESTROYED_TRAP: u16 = 67;
pub const UMAD_SM_LINK_STATE_CHANGED_TRAP: u16 = 128;
pub const UMAD_SM_LINK_INTEGRITY_THRESHOLD_TRAP: u16 = 129;
pub const UMAD_SM_BUFFER_OVERRUN_THRESHOLD_TRAP: u16 = 130;
pub const UMAD_SM_WATCHDOG_TIMER_EXPIRED_TRAP: u16 = 131;
pub const UMAD_SM_LOCAL_CHANGES_TRAP: u16 = 144;
pub const UMAD_SM_SYS_IMG_GUID_CHANGED_TRAP: u16 = 145;
pub const UMAD_SM_BAD_MKEY_TRAP: u16 = 256;
pub const UMAD_SM_BAD_PKEY_TRAP: u16 = 257;
pub const UMAD_SM_BAD_QKEY_TRAP: u16 = 258;
pub const UMAD_SM_BAD_SWITCH_PKEY_TRAP: u16 = 259;
pub const UMAD_LEN_SMP_DATA: u8 = 64;
pub const UMAD_SMP_MAX_HOPS: u8 = smp::MAX_HOPS + 1;

pub const UMAD_SA_CLASS_VERSION: u8 = sa::CLASS_VERSION;
pub const UMAD_SA_METHOD_GET_TABLE: u8 = Method::GET_TABLE.0;
pub const UMAD_SA_METHOD_GET_TABLE_RESP: u8 = Method::GET_TABLE_RESP.0;
pub const UMAD_SA_METHOD_DELETE: u8 = Method::DELETE.0;
pub const UMAD_SA_METHOD_DELETE_RESP: u8 = Method::DELETE_RESP.0;
pub const UMAD_SA_METHOD_GET_MULTI: u8 = Method::GET_MULTI.0;
pub const UMAD_SA_METHOD_GET_MULTI_RESP: u8 = Method::GET_MULTI_RESP.0;
pub const UMAD_SA_METHOD_GET_TRACE_TABLE: u8 = Method::GET_TRACE_TABLE.0;
// Status values of the class are in the upper byte of the status.
pub const UMAD_SA_STATUS_SUCCESS: u16 = status::OK >> 8;
pub const UMAD_SA_STATUS_NO_RESOURCES: u16 = status::SA_NO_RESOURCES >> 8;
pub const UMAD_SA_STATUS_REQ_INVALID: u16 = status::SA_REQUEST_INVALID >> 8;
pub const UMAD_SA_STATUS_NO_RECORDS: u16 = status::SA_NO_RECORDS >> 8;
pub const UMAD_SA_STATUS_TOO_MANY_RECORDS: u16 = status::SA_TOO_MANY_RECORDS >> 8;
pub const UMAD_SA_STATUS_INVALID_GID: u16 = status::SA_INVALID_GID >> 8;
pub const UMAD_SA_STATUS_INSUF_COMPS: u16 = status::SA_INSUFFICIENT_COMPONENTS >> 8;
pub const UMAD_SA_STATUS_REQ_DENIED: u16 = status::SA_DENIED >> 8;
pub const UMAD_SA_STATUS_PRI_SUGGESTED: u16 = status::SA_PRIORITY_SUGGESTED >> 8;
pub const UMAD_SA_ATTR_NODE_REC: u16 = sa::NodeRecord::ATTR_ID;
pub const UMAD_SA_ATTR_PORT_INFO_REC: u16 = sa::PortInfoRecord::ATTR_ID;
pub const UMAD_SA_ATTR_SLVL_REC: u16 = sa::SlToVlTableRecord::ATTR_ID;
pub const UMAD_SA_ATTR_SWITCH_INFO_REC: u16 = sa::SwitchInfoRecord::ATTR_ID;
pub const UMAD_SA_ATTR_LINEAR_FT_REC: u16 = sa::LinearForwardingTableRecord::ATTR_ID;
pub const UMAD_SA_ATTR_MCAST_FT_REC: u16 = sa::MulticastForwardingTableRecord::ATTR_ID;
pub const UMAD_SA_ATTR_SM_INFO_REC: u16 = sa::SmInfoRecord::ATTR_ID;
pub const UMAD_SA_ATTR_INFORM_INFO_REC: u16 = sa::InformInfoRecord::ATTR_ID;
pub const UMAD_SA_ATTR_LINK_REC: u16 = sa::LinkRecord::ATTR_ID;
pub const UMAD_SA_ATTR_GUID_INFO_REC: u16 = sa::GuidInfoRecord::ATTR_ID;
pub const UMAD_SA_ATTR_SERVICE_REC: u16 = sa::ServiceRecord::ATTR_ID;
pub const UMAD_SA_ATTR_PKEY_TABLE_REC: u16 = sa::PkeyTableRecord::ATTR_ID;
pub const UMAD_SA_ATTR_PATH_REC: u16 = sa::PathRecord::ATTR_ID;
pub const UMAD_SA_ATTR_VL_ARB_REC: u16 = sa::VlArbitrationRecord::ATTR_ID;
pub const UMAD_SA_ATTR_MCMEMBER_REC: u16 = sa::McMemberRecord::ATTR_ID;
pub const UMAD_SA_ATTR_MULTI_PATH_REC: u16 = sa::MultiPathRecord::ATTR_ID;
pub const UMAD_LEN_SA_DATA: u8 = 200;
pub const UMAD_SA_CAP_MASK_IS_UD_MCAST_SUP: u16 = capability::UD_MULTICAST;
pub const UMAD_SA_CAP_MASK_IS_MULTIPATH_SUP: u16 = capability::MULTI_PATH;
pub const UMAD_SA_CAP_MASK_IS_PORTINFO_CAP_MASK_MATCH_SUP: u16 =
    capability::PORT_INFO_CAPABILITY_MASK_MATCH;
pub const UMAD_SA_CAP_MASK2_IS_QOS_SUP: u32 = capability::QOS;
pub const UMAD_SA_CAP_MASK2_IS_MCAST_TOP_SUP: u32 = capability::MULTICAST_TOP;
pub const UMAD_SA_CAP_MASK2_IS_ADDITIONAL_GUID_SUP: u32 = capability::ALIAS_GUID;
pub const UMAD_SA_CAP_MASK2_IS_FULL_PORTINFO_REC_SUP: u32 = capability::FULL_PORT_INFO;
pub const UMAD_SA_CAP_MASK2_IS_EXT_SPEEDS_SUP: u32 = capability::EXTENDED_SPEEDS;
pub const UMAD_SA_CAP_MASK2_IS_MCAST_SERVICE_REC_SUP: u32 = capability::MULTICAST_SERVICE_RECORD;
pub const UMAD_SA_CAP_MASK2_IS_PORT_INFO_CAPMASK2_MATCH_SUP: u32 =
    capability::PORT_INFO_CAPABILITY_MASK2_MATCH;
pub const UMAD_SA_SELECTOR_GREATER_THAN: u8 = Selector::GREATER_THAN.0;
pub const UMAD_SA_SELECTOR_LESS_THAN: u8 = Selector::LESS_THAN.0;
pub const UMAD_SA_SELECTOR_EXACTLY: u8 = Selector::EXACTLY.0;
pub const UMAD_SA_SELECTOR_LARGEST_AVAIL: u8 = Selector::LARGEST.0;
pub const UMAD_SA_SELECTOR_SMALLEST_AVAIL: u8 = Selector::LARGEST.0;

pub const UMAD_SA_MCM_COMP_MASK_MGID: u64 = McMemberRecordMask::MGID.bits();
pub const UMAD_SA_MCM_COMP_MASK_PORT_GID: u64 = McMemberRecordMask::PORT_GID.bits();
pub const UMAD_SA_MCM_COMP_MASK_QKEY: u64 = McMemberRecordMask::QKEY.bits();
pub const UMAD_SA_MCM_COMP_MASK_MLID: u64 = McMemberRecordMask::MLID.bits();
pub const UMAD_SA_MCM_COMP_MASK_MTU_SEL: u64 = McMemberRecordMask::MTU_SELECTOR.bits();
pub const UMAD_SA_MCM_COMP_MASK_MTU: u64 = McMemberRecordMask::MTU.bits();
pub const UMAD_SA_MCM_COMP_MASK_TCLASS: u64 = McMemberRecordMask::TCLASS.bits();
pub const UMAD_SA_MCM_COMP_MASK_PKEY: u64 = McMemberRecordMask::PKEY.bits();
pub const UMAD_SA_MCM_COMP_MASK_RATE_SEL: u64 = McMemberRecordMask::RATE_SELECTOR.bits();
pub const UMAD_SA_MCM_COMP_MASK_RATE: u64 = McMemberRecordMask::RATE.bits();
pub const UMAD_SA_MCM_COMP_MASK_LIFE_TIME_SEL: u64 =
    McMemberRecordMask::PACKET_LIFE_TIME_SELECTOR.bits();
pub const UMAD_SA_MCM_COMP_MASK_LIFE_TIME: u64 = McMemberRecordMask::PACKET_LIFE_TIME.bits();
pub const UMAD_SA_MCM_COMP_MASK_SL: u64 = McMemberRecordMask::SL.bits();
pub const UMAD_SA_MCM_COMP_MASK_FLOW_LABEL: u64 = McMemberRecordMask::FLOW_LABEL.bits();
pub const UMAD_SA_MCM_COMP_MASK_HOP_LIMIT: u64 = McMemberRecordMask::HOP_LIMIT.bits();
pub const UMAD_SA_MCM_COMP_MASK_SCOPE: u64 = McMemberRecordMask::SCOPE.bits();
pub const UMAD_SA_MCM_COMP_MASK_JOIN_STATE: u64 = McMemberRecordMask::JOIN_STATE.bits();
pub const UMAD_SA_MCM_COMP_MASK_PROXY_JOIN: u64 = McMemberRecordMask::PROXY_JOIN.bits();
pub const UMAD_SA_MCM_JOIN_STATE_FULL_MEMBER: u8 = JoinState::FULL_MEMBER.bits();
pub const UMAD_SA_MCM_JOIN_STATE_NON_MEMBER: u8 = JoinState::NON_MEMBER.bits();
pub const UMAD_SA_MCM_JOIN_STATE_SEND_ONLY_NON_MEMBER: u8 = JoinState::SEND_ONLY_NON_MEMBER.bits();
pub const UMAD_SA_MCM_JOIN_STATE_SEND_ONLY_FULL_MEMBER: u8 =
    JoinState::SEND_ONLY_FULL_MEMBER.bits();

pub const UMAD_CM_ATTR_REQ: u16 = cm::Req::ATTR_ID;
pub const UMAD_CM_ATTR_MRA: u16 = cm::Mra::ATTR_ID;
pub const UMAD_CM_ATTR_REJ: u16 = cm::Rej::ATTR_ID;
pub const UMAD_CM_ATTR_REP: u16 = cm::Rep::ATTR_ID;
pub const UMAD_CM_ATTR_RTU: u16 = cm::Rtu::ATTR_ID;
pub const UMAD_CM_ATTR_DREQ: u16 = cm::Dreq::ATTR_ID;
pub const UMAD_CM_ATTR_DREP: u16 = cm::Drep::ATTR_ID;
pub const UMAD_CM_ATTR_SIDR_REQ: u16 = cm::SidrReq::ATTR_ID;
pub const UMAD_CM_ATTR_SIDR_REP: u16 = cm::SidrRep::ATTR_ID;
pub const UMAD_CM_ATTR_LAP: u16 = cm::Lap::ATTR_ID;
pub const UMAD_CM_ATTR_APR: u16 = cm::Apr::ATTR_ID;

#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_smp {
    pub base_version: u8,
    pub mgmt_class: u8,
    pub class_version: u8,
    pub method: u8,
    pub status: u16,
    pub hop_ptr: u8,
    pub hop_cnt: u8,
    pub tid: u64,
    pub attr_id: u16,
    pub resv: u16,
    pub attr_mod: u32,
    pub mkey: u64,
    pub dr_slid: u16,
    pub dr_dlid: u16,
    pub reserved: [u8; 28],
    pub data: [u8; UMAD_LEN_SMP_DATA as usize],
    pub initial_path: [u8; UMAD_SMP_MAX_HOPS as usize],
    pub return_path: [u8; UMAD_SMP_MAX_HOPS as usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_sa_packet {
    pub mad_hdr: umad_hdr,
    pub rmpp_hdr: umad_rmpp_hdr,
    pub sm_key: [u8; 8],
    pub attr_offset: u16,
    pub reserved: u16,
    pub comp_mask: u64,
    pub data: [u8; UMAD_LEN_SA_DATA as usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_sa_mcmember_record {
    pub mgid: [u8; 16],
    pub portgid: [u8; 16],
    pub qkey: u32,
    pub mlid: u16,
    pub mtu: u8,
    pub tclass: u8,
    pub pkey: u16,
    pub rate: u8,
    pub pkt_life: u8,
    pub sl_flow_hop: u32,
    pub scope_state: u8,
    pub proxy_join: u8,
    pub reserved: [u8; 2],
    pub pad: [u8; 4],
}
