//! Types of <rdmux/cm.h>.

use super::cma::rdma_cm_event_type;
use super::verbs::ibv_gid;
use std::ffi::c_uint;

/// A level of rdma_set_option(3).
pub const RDMUX_OPTION_CM: c_uint = 0x72_636d;
pub const RDMUX_OPTION_CM_REMOTE_RESPONSE_TIMEOUT: c_uint = 0;
pub const RDMUX_OPTION_CM_LOCAL_RESPONSE_TIMEOUT: c_uint = 1;
pub const RDMUX_OPTION_CM_MAX_RETRIES: c_uint = 2;
pub const RDMUX_OPTION_CM_STARTING_PSN: c_uint = 3;
pub const RDMUX_OPTION_CM_PATH_MTU: c_uint = 4;
pub const RDMUX_OPTION_CM_LOCAL_QKEY: c_uint = 5;
pub const RDMUX_OPTION_CM_TARGET_ACK_DELAY: c_uint = 6;
pub const RDMUX_OPTION_CM_FAILOVER_ACCEPTED: c_uint = 7;
pub const RDMUX_OPTION_CM_SERVICE_TIMEOUT: c_uint = 8;
pub const RDMUX_OPTION_CM_MAX_REDIRECTS: c_uint = 9;
pub const RDMUX_OPTION_CM_MESSAGES: c_uint = 10;
pub const RDMUX_OPTION_CM_LOCAL_EECN: c_uint = 11;
pub const RDMUX_OPTION_CM_REMOTE_EECN: c_uint = 12;
pub const RDMUX_OPTION_CM_RDC_EXISTS: c_uint = 13;
pub const RDMUX_CM_EVENT_ALTERNATE_REQUEST: rdma_cm_event_type = 128;
pub const RDMUX_CM_EVENT_ALTERNATE_RESPONSE: rdma_cm_event_type = 129;
pub const RDMUX_CM_EVENT_MORE_TIME: rdma_cm_event_type = 130;
pub const RDMUX_CM_REQ: c_uint = 0x10;
pub const RDMUX_CM_MRA: c_uint = 0x11;
pub const RDMUX_CM_REJ: c_uint = 0x12;
pub const RDMUX_CM_REP: c_uint = 0x13;
pub const RDMUX_CM_RTU: c_uint = 0x14;
pub const RDMUX_CM_DREQ: c_uint = 0x15;
pub const RDMUX_CM_DREP: c_uint = 0x16;
pub const RDMUX_CM_SIDR_REQ: c_uint = 0x17;
pub const RDMUX_CM_SIDR_REP: c_uint = 0x18;
pub const RDMUX_CM_LAP: c_uint = 0x19;
pub const RDMUX_CM_APR: c_uint = 0x1a;

/// A path, as REQ and LAP describe it.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdmux_cm_path {
    pub local_gid: ibv_gid,
    pub remote_gid: ibv_gid,
    pub flow_label: u32,
    pub local_lid: u16,
    pub remote_lid: u16,
    pub rate: u8,
    pub tclass: u8,
    pub hop_limit: u8,
    pub sl: u8,
    pub subnet_local: u8,
    pub ack_timeout: u8,
    pub reserved: [u8; 2],
}

/// A message of the connection manager.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdmux_cm_message {
    pub tid: u64,
    pub service_id: u64,
    pub ca_guid: u64,
    pub kind: u32,
    pub local_comm_id: u32,
    pub remote_comm_id: u32,
    pub qpn: u32,
    pub qkey: u32,
    pub starting_psn: u32,
    pub vendor_id: u32,
    pub ece_options: u32,
    pub local_eecn: u32,
    pub remote_eecn: u32,
    pub pkey: u16,
    pub reason: u16,
    pub status: u8,
    pub answered: u8,
    pub info_len: u8,
    pub transport: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub path_mtu: u8,
    pub max_retries: u8,
    pub remote_response_timeout: u8,
    pub local_response_timeout: u8,
    pub target_ack_delay: u8,
    pub failover_accepted: u8,
    pub service_timeout: u8,
    pub private_data_len: u8,
    pub rdc_exists: u8,
    pub reserved: [u8; 1],
    pub info: [u8; 72],
    pub primary: rdmux_cm_path,
    pub alternate: rdmux_cm_path,
    pub private_data: [u8; 224],
}

/// The address to which a peer should send its request instead.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdmux_cm_redirect {
    pub gid: ibv_gid,
    pub flow_label: u32,
    pub lid: u16,
    pub pkey: u16,
    pub sl: u8,
    pub tclass: u8,
    pub reserved: [u8; 6],
}
