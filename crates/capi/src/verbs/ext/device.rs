//! Extended queries of a device (`ibv_query_device_ex(3)`, `ibv_query_rt_values_ex(3)`).

use std::ffi::c_int;
use std::ptr;

use rdmux_verbs::Device;
use rdmux_verbs::kind::Services;

use crate::abi::verbs::*;
use crate::boundary::{Errno, code};
use crate::verbs::objects::clock;
use crate::verbs::objects::dm::MAX_DM_SIZE;
use crate::verbs::objects::{Context, Object};
use crate::verbs::query;

/// The capabilities of on-demand paging: all operations, because the engine accesses memory by virtual address anyway.
const ODP: ibv_odp_caps = ibv_odp_caps {
    general_caps: (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT) as u64,
    per_transport_caps: ibv_odp_transport_caps {
        rc_odp_caps: ODP_MESSAGES | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | ODP_WRITE,
        uc_odp_caps: ODP_MESSAGES | ODP_WRITE,
        ud_odp_caps: ODP_MESSAGES,
    },
};
const ODP_MESSAGES: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
const ODP_WRITE: u32 = IBV_ODP_SUPPORT_WRITE;

/// Queries the device. The result never changes, so it works in a child after a fork, too.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (context, input) = unsafe { (Context::peek(context)?, input.as_ref()) };
        if attr.is_null()
            || attr_size < size_of::<ibv_device_attr>()
            || input.is_some_and(|input| input.comp_mask != 0)
        {
            return Err(Errno::EINVAL);
        }
        let known =
            attributes(query::device_attr(&context.opened.device), odp(&context.opened.device));
        // Newer and older programs have longer and shorter structures.
        let length = attr_size.min(size_of_val(&known));
        // SAFETY: the program's structure has `attr_size` bytes, this library's at least `length`.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, attr_size);
            ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), attr.cast(), length);
        }
        Ok(())
    })
}

/// Returns the on-demand paging capabilities of a device: some, such as iWARP devices, have reliable connections only.
fn odp(device: &Device) -> ibv_odp_caps {
    let mut caps = ODP;
    let services = device.kind().row().services;
    if services == Services::ReliableConnections {
        (caps.per_transport_caps.uc_odp_caps, caps.per_transport_caps.ud_odp_caps) = (0, 0);
    }
    caps
}

fn attributes(orig_attr: ibv_device_attr, odp_caps: ibv_odp_caps) -> ibv_device_attr_ex {
    let has_xrc = orig_attr.device_cap_flags & IBV_DEVICE_XRC != 0;
    ibv_device_attr_ex {
        comp_mask: 0,
        odp_caps,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: clock::KILOHERTZ,
        // The low half is that of the classic query.
        device_cap_flags_ex: orig_attr.device_cap_flags.into(),
        tso_caps: ibv_tso_caps { max_tso: 0, supported_qpts: 0 },
        rss_caps: ibv_rss_caps {
            supported_qpts: 0,
            max_rwq_indirection_tables: 0,
            max_rwq_indirection_table_size: 0,
            rx_hash_fields_mask: 0,
            rx_hash_function: 0,
        },
        max_wq_type_rq: 0,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: 0,
            qp_rate_limit_max: 0,
            supported_qpts: 0,
        },
        raw_packet_caps: 0,
        tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: 0,
            max_num_tags: 0,
            flags: 0,
            max_ops: 0,
            max_sge: 0,
        },
        cq_mod_caps: ibv_cq_moderation_caps { max_cq_count: 0, max_cq_period: 0 },
        max_dm_size: MAX_DM_SIZE,
        // Atomics of the PCI bus, to which this device is not attached.
        pci_atomic_caps: ibv_pci_atomic_caps { fetch_add: 0, swap: 0, compare_swap: 0 },
        xrc_odp_caps: if has_xrc { odp_caps.per_transport_caps.rc_odp_caps } else { 0 },
        phys_port_cnt_ex: orig_attr.phys_port_cnt.into(),
        orig_attr,
    }
}

pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let (_, values) = unsafe { (Context::get(context)?, values.as_mut()) };
        let values = values.ok_or(Errno::EINVAL)?;
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno::EINVAL);
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // All ticks in one number, as adapters return it and timestamps have it.
            let ticks = clock::now().cast_signed();
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks };
        }
        Ok(())
    })
}
