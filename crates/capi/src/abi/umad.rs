//! Types of <infiniband/umad.h> and <infiniband/umad_types.h>, whose layout is compiled into programs. Fields whose C type
//! begins with `__be` are in network order.

use std::ffi::{c_char, c_int, c_uint};

pub const UMAD_MAX_DEVICES: u32 = 32;
pub const UMAD_ANY_PORT: c_int = 0;
pub const IB_UMAD_ABI_VERSION: u32 = 5;
pub const UMAD_CA_NAME_LEN: u32 = 20;
pub const UMAD_CA_MAX_PORTS: u32 = 10;
pub const UMAD_CA_MAX_AGENTS: u32 = 32;
pub const UMAD_MAX_PORTS: u32 = 64;
pub const UMAD_USER_RMPP: u32 = 1;
pub const UMAD_CLASS_SUBN_LID_ROUTED: u8 = 1;
pub const UMAD_CLASS_SUBN_DIRECTED_ROUTE: u8 = 129;
pub const UMAD_CLASS_SUBN_ADM: u8 = 3;
pub const UMAD_CLASS_CM: u8 = 7;
pub const UMAD_CLASS_VENDOR_RANGE2_START: u8 = 48;
pub const UMAD_CLASS_VENDOR_RANGE2_END: u8 = 79;
pub const UMAD_OPENIB_OUI: u32 = 5125;

#[repr(C, packed(4))]
#[derive(Copy, Clone)]
pub union umad_gid {
    pub raw: [u8; 16],
    pub raw_be16: [u16; 8],
    pub global: umad_gid_global,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_gid_global {
    pub subnet_prefix: u64,
    pub interface_id: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ib_mad_addr {
    pub qpn: u32,
    pub qkey: u32,
    pub lid: u16,
    pub sl: u8,
    pub path_bits: u8,
    pub grh_present: u8,
    pub gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub gid: [u8; 16],
    pub flow_label: u32,
    pub pkey_index: u16,
    pub reserved: [u8; 6],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ib_user_mad {
    pub agent_id: u32,
    pub status: u32,
    pub timeout_ms: u32,
    pub retries: u32,
    pub length: u32,
    pub addr: ib_mad_addr,
    pub data: [u8; 0],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_port {
    pub ca_name: [c_char; UMAD_CA_NAME_LEN as usize],
    pub portnum: c_int,
    pub base_lid: c_uint,
    pub lmc: c_uint,
    pub sm_lid: c_uint,
    pub sm_sl: c_uint,
    pub state: c_uint,
    pub phys_state: c_uint,
    pub rate: c_uint,
    pub capmask: u32,
    pub gid_prefix: u64,
    pub port_guid: u64,
    pub pkeys_size: c_uint,
    pub pkeys: *mut u16,
    pub link_layer: [c_char; UMAD_CA_NAME_LEN as usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_ca {
    pub ca_name: [c_char; UMAD_CA_NAME_LEN as usize],
    pub node_type: c_uint,
    pub numports: c_int,
    pub fw_ver: [c_char; 20],
    pub ca_type: [c_char; 40],
    pub hw_ver: [c_char; 20],
    pub node_guid: u64,
    pub system_guid: u64,
    pub ports: [*mut umad_port; UMAD_CA_MAX_PORTS as usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_device_node {
    pub next: *mut umad_device_node,
    pub ca_name: *const c_char,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_reg_attr {
    pub mgmt_class: u8,
    pub mgmt_class_version: u8,
    pub flags: u32,
    pub method_mask: [u64; 2],
    pub oui: u32,
    pub rmpp_version: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_hdr {
    pub base_version: u8,
    pub mgmt_class: u8,
    pub class_version: u8,
    pub method: u8,
    pub status: u16,
    pub class_specific: u16,
    pub tid: u64,
    pub attr_id: u16,
    pub resv: u16,
    pub attr_mod: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_rmpp_hdr {
    pub rmpp_version: u8,
    pub rmpp_type: u8,
    pub rmpp_rtime_flags: u8,
    pub rmpp_status: u8,
    pub seg_num: u32,
    pub paylen_newwin: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_packet {
    pub mad_hdr: umad_hdr,
    pub data: [u8; 232],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_rmpp_packet {
    pub mad_hdr: umad_hdr,
    pub rmpp_hdr: umad_rmpp_hdr,
    pub data: [u8; 220],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_dm_packet {
    pub mad_hdr: umad_hdr,
    pub reserved: [u8; 40],
    pub data: [u8; 192],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_vendor_packet {
    pub mad_hdr: umad_hdr,
    pub rmpp_hdr: umad_rmpp_hdr,
    pub reserved: u8,
    pub oui: [u8; 3],
    pub data: [u8; 216],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct umad_class_port_info {
    pub base_ver: u8,
    pub class_ver: u8,
    pub cap_mask: u16,
    pub cap_mask2_resp_time: u32,
    pub redirgid: umad_gid,
    pub redir_tc_sl_fl: u32,
    pub redir_lid: u16,
    pub redir_pkey: u16,
    pub redir_qp: u32,
    pub redir_qkey: u32,
    pub trapgid: umad_gid,
    pub trap_tc_sl_fl: u32,
    pub trap_lid: u16,
    pub trap_pkey: u16,
    pub trap_hl_qp: u32,
    pub trap_qkey: u32,
}
