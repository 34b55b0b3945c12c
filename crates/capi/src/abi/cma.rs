//! Types of <rdma/rdma_cma.h>, whose layout is compiled into programs.

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use super::verbs::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The family of InfiniBand's own addresses (<infiniband/ib.h>).
pub const AF_IB: c_int = 27;
/// InfiniBand's own address (`struct sockaddr_ib`, <infiniband/ib.h>). Fields of more than one byte are in network order, except the
/// family and the scope.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: u16,
    pub sib_flowinfo: u32,
    pub sib_addr: [u8; 16],
    pub sib_sid: u64,
    pub sib_sid_mask: u64,
    pub sib_scope_id: u64,
}
pub const RDMA_IB_IP_PS_MASK: u64 = 0xffff_ffff_ffff_0000;
pub const RDMA_IB_IP_PORT_MASK: u64 = 65535;
pub const RDMA_IB_IP_PS_TCP: u64 = 17170432;
pub const RDMA_IB_IP_PS_UDP: u64 = 17891328;
pub const RDMA_IB_PS_IB: u64 = 20905984;
pub const RDMA_UDP_QKEY: u32 = 19088743;
pub const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
pub const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
pub const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
pub const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
pub const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;
// Newer than 44.
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = 16;
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = 17;
pub const RDMA_CM_EVENT_USER: rdma_cm_event_type = 18;
pub const RDMA_CM_EVENT_INTERNAL: rdma_cm_event_type = 19;
pub type rdma_cm_event_type = c_uint;
pub const RDMA_PS_IPOIB: rdma_port_space = 2;
pub const RDMA_PS_TCP: rdma_port_space = 262;
pub const RDMA_PS_UDP: rdma_port_space = 273;
pub const RDMA_PS_IB: rdma_port_space = 319;
pub type rdma_port_space = c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_addr {
    pub src: rdma_src_addr,
    pub dst: rdma_dst_addr,
    pub addr: rdma_dev_addr,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_src_addr {
    pub src_addr: sockaddr,
    pub src_sin: sockaddr_in,
    pub src_sin6: sockaddr_in6,
    pub src_storage: sockaddr_storage,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_dst_addr {
    pub dst_addr: sockaddr,
    pub dst_sin: sockaddr_in,
    pub dst_sin6: sockaddr_in6,
    pub dst_storage: sockaddr_storage,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_dev_addr {
    pub ibaddr: rdma_ib_addr,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_event_channel {
    pub fd: c_int,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}
pub const RDMA_MAX_RESP_RES: c_uint = 255;
pub const RDMA_MAX_INIT_DEPTH: c_uint = 255;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    /// Newer than 44.
    pub arg: u64,
}
pub const RAI_PASSIVE: c_int = 1;
pub const RAI_NUMERICHOST: c_int = 2;
pub const RAI_NOROUTE: c_int = 4;
pub const RAI_FAMILY: c_int = 8;
// Newer than 44.
pub const RAI_SA: c_int = 16;
pub const RAI_DNS: c_int = 32;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}
pub const RDMA_CM_JOIN_MC_ATTR_ADDRESS: rdma_cm_join_mc_attr_mask = 1;
pub const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: rdma_cm_join_mc_attr_mask = 2;
pub const RDMA_CM_JOIN_MC_ATTR_RESERVED: rdma_cm_join_mc_attr_mask = 4;
pub type rdma_cm_join_mc_attr_mask = c_uint;
pub const RDMA_MC_JOIN_FLAG_FULLMEMBER: rdma_cm_mc_join_flags = 0;
pub const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: rdma_cm_mc_join_flags = 1;
pub const RDMA_MC_JOIN_FLAG_RESERVED: rdma_cm_mc_join_flags = 2;
pub type rdma_cm_mc_join_flags = c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}
pub const RDMA_OPTION_ID: c_uint = 0;
pub const RDMA_OPTION_IB: c_uint = 1;
pub const RDMA_OPTION_ID_TOS: c_uint = 0;
pub const RDMA_OPTION_ID_REUSEADDR: c_uint = 1;
pub const RDMA_OPTION_ID_AFONLY: c_uint = 2;
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_uint = 3;
pub const RDMA_OPTION_IB_PATH: c_uint = 1;
/// A constant of <rdmux/cm.h>.
pub const RDMUX_RAI_NATIVE: c_int = 0x2000_0000;
/// A constant of <rdmux/multicast.h>, as is the next one.
pub const RDMA_PROTO_IP: c_uint = 0x7269;
pub const RDMA_PROTO_IB: c_uint = 0x7262;
/// A constant of <netinet/in.h>.
pub const IP_ADD_MEMBERSHIP: c_uint = 35;
/// A constant of <netinet/in.h>.
pub const IP_DROP_MEMBERSHIP: c_uint = 36;
pub const IB_ADD_MEMBERSHIP: c_uint = 35;
pub const IB_DROP_MEMBERSHIP: c_uint = 36;
/// Fields of more than one byte are in network order, except `proxy_join`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ib_sa_mcmember_rec {
    pub mgid: ibv_gid,
    pub port_gid: ibv_gid,
    pub qkey: u32,
    pub mlid: u16,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub traffic_class: u8,
    pub pkey: u16,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub sl: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub scope: u8,
    pub join_state: u8,
    pub proxy_join: c_int,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ib_mreq {
    pub rec: ib_sa_mcmember_rec,
    pub comp_mask: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdmux_ip_group {
    pub addr: sockaddr_storage,
    pub rec: ib_sa_mcmember_rec,
}
/// A constant of <rdmux/iwarp.h>.
pub const RDMUX_OPTION_IWARP: c_uint = 0x7264;
/// A constant of <rdmux/iwarp.h>.
pub const RDMUX_OPTION_IWARP_PEER_TO_PEER: c_uint = 0;
