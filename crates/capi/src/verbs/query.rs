//! Queries of a device, its port, and their tables (`ibv_query_device(3)`, `ibv_query_port(3)`,
//! `ibv_query_gid(3)`, `ibv_query_gid_ex(3)`, `ibv_query_pkey(3)`, `ibv_get_pkey_index(3)`).

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;

use rdmux_verbs::Device;
use rdmux_verbs::kind::{GidKind, Services};
use rdmux_verbs::port::{GidEntry, PortAttr};

use super::names;
use super::objects::{Context, Object};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, guarded, status};

/// `ibv_query_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's variable.
        unsafe { attr.write(device_attr(device)) };
        Ok(())
    })
}

/// The capability flags of devices of any kind.
const EVERY_DEVICE: c_uint = IBV_DEVICE_CURR_QP_STATE_MOD
    | IBV_DEVICE_PORT_ACTIVE_EVENT
    | IBV_DEVICE_SYS_IMAGE_GUID
    | IBV_DEVICE_SRQ_RESIZE
    | IBV_DEVICE_MEM_WINDOW
    | IBV_DEVICE_MEM_WINDOW_TYPE_2B
    | IBV_DEVICE_MEM_MGT_EXTENSIONS;
/// The further flags of devices that support more than reliable connections.
const INFINIBAND: c_uint = IBV_DEVICE_AUTO_PATH_MIG
    | IBV_DEVICE_UD_AV_PORT_ENFORCE
    | IBV_DEVICE_RC_RNR_NAK_GEN
    | IBV_DEVICE_XRC;

fn capabilities(services: Services) -> c_uint {
    match services {
        Services::All => EVERY_DEVICE | INFINIBAND,
        Services::ReliableConnections => EVERY_DEVICE,
    }
}

/// Returns a device's attributes in C's form.
pub(crate) fn device_attr(device: &Device) -> ibv_device_attr {
    let attr = device.query();
    let limits = &attr.limits;
    let int = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let depth = c_int::from(limits.max_rd_atomic);
    let mut fw_ver = [0; 64];
    names::fill(&mut fw_ver, attr.fw_ver);
    ibv_device_attr {
        fw_ver,
        node_guid: attr.node_guid.0.to_be(),
        sys_image_guid: attr.sys_image_guid.0.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(limits.max_qp),
        max_qp_wr: int(limits.max_qp_wr),
        device_cap_flags: capabilities(attr.kind.row().services),
        max_sge: int(limits.max_sge),
        max_sge_rd: int(limits.max_sge),
        max_cq: int(limits.max_cq),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mr),
        max_pd: int(limits.max_pd),
        max_qp_rd_atom: depth,
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(limits.max_qp).saturating_mul(depth),
        max_qp_init_rd_atom: limits.max_init_rd_atomic.into(),
        max_ee_init_rd_atom: 0,
        atomic_cap: IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(limits.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(limits.max_mcast_grp),
        max_mcast_qp_attach: int(limits.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(limits.max_mcast_grp)
            .saturating_mul(int(limits.max_mcast_qp_attach)),
        max_ah: int(limits.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(limits.max_srq),
        max_srq_wr: int(limits.max_srq_wr),
        max_srq_sge: int(limits.max_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

/// `query_port` of the context, which <infiniband/verbs.h> calls with the size of its own `ibv_port_attr`:
/// fields unknown to the program are left out, fields unknown to this library are zero.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        let known = port_attr(&device.query_port(port)?);
        // SAFETY: the caller has `size` bytes there; what is copied are that many at most.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            let from = (&raw const known).cast::<u8>();
            attr.cast::<u8>().copy_from_nonoverlapping(from, size.min(size_of_val(&known)));
        }
        Ok(())
    })
}

/// The `ibv_port_attr` of before 2019, which ends where `port_cap_flags2` begins.
const OLD_PORT_ATTR: usize = offset_of!(ibv_port_attr, port_cap_flags2);

/// `ibv_query_port(3)`, for programs compiled before the structure had a size.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { query_port(context, port, attr, OLD_PORT_ATTR) }
}

/// `IBV_QPF_GRH_REQUIRED`: RoCE needs a GRH.
const GRH_REQUIRED: u8 = 1;

fn port_attr(attr: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state as u32,
        max_mtu: attr.max_mtu.code().into(),
        active_mtu: attr.active_mtu.code().into(),
        gid_tbl_len: attr.gid_tbl_len.max(attr.kind.row().gid_table).into(),
        port_cap_flags: attr.capabilities,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.pkey_violations.into(),
        qkey_viol_cntr: attr.qkey_violations.into(),
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid.0,
        sm_lid: attr.sm_lid.0,
        lmc: attr.lmc,
        max_vl_num: attr.max_vls,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state as u8,
        link_layer: attr.link_layer as u8,
        flags: if attr.grh_required { GRH_REQUIRED } else { 0 },
        port_cap_flags2: 0,
    }
}

/// Returns an entry of a port's GID table. It is zero if the entry currently has no address.
fn gid_entry(device: &Device, port: u32, index: u32) -> Result<GidEntry> {
    let port = u8::try_from(port).map_err(|_| Errno::EINVAL)?;
    let index = u8::try_from(index).map_err(|_| Errno::EINVAL)?;
    let in_table = device.has_port(port) && u16::from(index) < device.kind().row().gid_table;
    device.gid(port, index).or_else(|| in_table.then(GidEntry::empty)).ok_or(Errno::EINVAL)
}

/// `ibv_query_gid(3)`: returns 0 or -1; an empty entry is a zero GID.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        let entry = gid_entry(device, port.into(), index)?;
        // SAFETY: the caller's variable.
        *unsafe { gid.as_mut() }.ok_or(Errno::EINVAL)? = ibv_gid { raw: entry.gid.0 };
        Ok(())
    })
}

/// An entry's type in sysfs: `IBV_GID_TYPE_SYSFS_ROCE_V2`, or `IBV_GID_TYPE_SYSFS_IB_ROCE_V1` for other than
/// RoCE.
const SYSFS_ROCE_V2: c_uint = 1;
const SYSFS_OTHER: c_uint = 0;

/// `ibv_query_gid_type`, of <infiniband/driver.h>: returns 0 or -1. `ibv_devinfo` calls it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        let entry = gid_entry(device, port.into(), index)?;
        // SAFETY: the caller's variable.
        *unsafe { gid_type.as_mut() }.ok_or(Errno::EINVAL)? = match entry.kind {
            GidKind::Address => SYSFS_ROCE_V2,
            GidKind::Node => SYSFS_OTHER,
        };
        Ok(())
    })
}

/// `ibv_query_gid_ex(3)`, which calls this with the size of its own `ibv_gid_entry`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        if flags != 0 || entry.is_null() {
            return Err(Errno::EINVAL);
        }
        let found = gid_entry(device, port, index)?;
        if found.gid.is_zero() {
            return Err(Errno(libc::ENODATA));
        }
        // SAFETY: the caller has `size` bytes there.
        unsafe { write_entry(entry, size, (port, index), &found) };
        Ok(())
    })
}

/// `ibv_query_gid_table(3)`, which calls this with the size of its own `ibv_gid_entry`: returns the number of entries, or a
/// negative errno.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    size: usize,
) -> isize {
    let count = guarded(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        if flags != 0 || (entries.is_null() && max_entries != 0) {
            return Err(Errno::EINVAL);
        }
        let of_port = |port: u8| (0..).zip(device.gids(port)).map(move |entry| (port, entry));
        let all = (1..=device.num_ports()).flat_map(of_port);
        let present: Vec<_> = all.filter(|(_, (_, entry))| !entry.gid.is_zero()).collect();
        if present.len() > max_entries {
            return Err(Errno::EINVAL);
        }
        for (n, (port, (index, found))) in present.iter().enumerate() {
            let at = (u32::from(*port), *index);
            // SAFETY: the caller has `max_entries` times `size` bytes there.
            unsafe { write_entry(entries.byte_add(n * size), size, at, found) };
        }
        Ok(present.len().cast_signed())
    });
    count.unwrap_or_else(|Errno(errno)| -isize::try_from(errno).unwrap_or(isize::MAX))
}

/// Returns the type of a GID. Those that are not addresses count as InfiniBand's.
fn gid_type(kind: GidKind) -> u32 {
    match kind {
        GidKind::Address => IBV_GID_TYPE_ROCE_V2,
        GidKind::Node => IBV_GID_TYPE_IB,
    }
}

/// Writes the entry of a port's GID table.
///
/// # Safety
/// There are `size` bytes at `to`.
unsafe fn write_entry(
    to: *mut ibv_gid_entry,
    size: usize,
    (port_num, gid_index): (u32, u32),
    entry: &GidEntry,
) {
    let known = ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index,
        port_num,
        gid_type: gid_type(entry.kind),
        ndev_ifindex: entry.interface_index,
    };
    // SAFETY: the caller guarantees it; at most `size` bytes are copied.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        let from = (&raw const known).cast::<u8>();
        to.cast::<u8>().copy_from_nonoverlapping(from, size.min(size_of_val(&known)));
    }
}

/// `ibv_query_pkey(3)`: stores the key in network order; returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        let index = u16::try_from(index).map_err(|_| Errno::EINVAL)?;
        let found = device.query_pkey(port, index).ok_or(Errno::EINVAL)?;
        // SAFETY: the caller's variable.
        *unsafe { pkey.as_mut() }.ok_or(Errno::EINVAL)? = found.0.to_be();
        Ok(())
    })
}

/// `ibv_get_pkey_index(3)`: returns the index of a key, in network order, in the table; -1 if it has none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    let index = guarded(|| {
        // SAFETY: the caller guarantees it.
        let device = &unsafe { Context::get(context)? }.opened.device;
        let table = (0..).map_while(|index| device.query_pkey(port, index));
        table.zip(0..).find(|(key, _)| key.0 == u16::from_be(pkey)).ok_or(Errno::EINVAL)
    });
    match index {
        Ok((_, index)) => index,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}
