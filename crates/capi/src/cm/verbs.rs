//! The functions of libibverbs that the connection manager uses, with errors as results.
//!
//! Pointers are fields of ids and of the program's attributes: NULL where documented, otherwise objects that live.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdmux_cm::Ece;

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, zeroed};
use crate::verbs::ah::{ibv_create_ah, ibv_destroy_ah};
use crate::verbs::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::verbs::context::{ibv_close_device, ibv_open_device};
use crate::verbs::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::verbs::devices::{ibv_free_device_list, ibv_get_device_list};
use crate::verbs::ext::ece::{ibv_query_ece, ibv_set_ece};
use crate::verbs::pd::ibv_alloc_pd;
use crate::verbs::post::post_send;
use crate::verbs::qp::{
    create_qp_ex, ibv_attach_mcast, ibv_destroy_qp, ibv_detach_mcast, ibv_modify_qp,
};
use crate::verbs::query::ibv_query_device;
use crate::verbs::srq::{create_srq_ex, ibv_destroy_srq};
use crate::verbs::xrc::open_xrcd;

/// Returns the object, or errno for NULL.
fn made<T>(object: *mut T) -> Result<*mut T> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

/// Converts an error number, 0 for none; some functions return -1 and set errno.
fn done(code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        errno => Err(Errno(errno.abs())),
    }
}

/// Calls `each` with every device that this process sees, in order, until it fails.
pub(super) fn for_each_device(mut each: impl FnMut(*mut ibv_device) -> Result<()>) -> Result<()> {
    // SAFETY: the list ends with NULL, and is freed after its entries were used.
    unsafe {
        let list = made(ibv_get_device_list(ptr::null_mut()))?;
        let mut next = list;
        let mut outcome = Ok(());
        while outcome.is_ok() && !(*next).is_null() {
            outcome = each(*next);
            next = next.add(1);
        }
        ibv_free_device_list(list);
        outcome
    }
}

/// Opens a device of the list.
pub(super) fn open_device(device: *mut ibv_device) -> Result<*mut ibv_context> {
    // SAFETY: devices are never freed.
    made(unsafe { ibv_open_device(device) })
}

pub(super) fn close_device(context: *mut ibv_context) {
    // SAFETY: no other thread has it.
    unsafe { ibv_close_device(context) };
}

pub(super) fn query_device(context: *mut ibv_context) -> Result<ibv_device_attr> {
    // SAFETY: zero is a value of every field.
    let mut attr = unsafe { zeroed() };
    // SAFETY: an open device, and room for the answer.
    done(unsafe { ibv_query_device(context, &raw mut attr) })?;
    Ok(attr)
}

pub(super) fn alloc_pd(context: *mut ibv_context) -> Result<*mut ibv_pd> {
    // SAFETY: an open device.
    made(unsafe { ibv_alloc_pd(context) })
}

/// Opens an XRC domain that only this process knows.
pub(super) fn open_private_xrcd(context: *mut ibv_context) -> Result<*mut ibv_xrcd> {
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: an open device.
    made(unsafe { open_xrcd(context, &raw mut attr) })
}

pub(super) fn create_comp_channel(context: *mut ibv_context) -> Result<*mut ibv_comp_channel> {
    // SAFETY: an open device.
    made(unsafe { ibv_create_comp_channel(context) })
}

/// Destroys a channel. Does nothing for NULL.
pub(super) fn destroy_comp_channel(channel: *mut ibv_comp_channel) {
    if !channel.is_null() {
        // SAFETY: the id's own, which drops its pointer.
        unsafe { ibv_destroy_comp_channel(channel) };
    }
}

/// Creates a completion queue with this context.
pub(super) fn create_cq(
    context: *mut ibv_context,
    size: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> Result<*mut ibv_cq> {
    let size = c_int::try_from(size).map_err(|_| Errno::EINVAL)?;
    // SAFETY: an open device, and a channel of it.
    made(unsafe { ibv_create_cq(context, size, cq_context, channel, 0) })
}

/// Destroys a completion queue. Does nothing for NULL.
pub(super) fn destroy_cq(cq: *mut ibv_cq) {
    if !cq.is_null() {
        // SAFETY: the id's own, which drops its pointer.
        unsafe { ibv_destroy_cq(cq) };
    }
}

pub(super) fn create_qp(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    // SAFETY: an open device; the attributes are the program's.
    made(unsafe { create_qp_ex(context, attr) })
}

pub(super) fn modify_qp(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: u32) -> Result<()> {
    // SAFETY: the id's queue pair.
    done(unsafe { ibv_modify_qp(qp, attr, mask.cast_signed()) })
}

pub(super) fn destroy_qp(qp: *mut ibv_qp) {
    // SAFETY: the id's queue pair, whose pointer it drops.
    unsafe { ibv_destroy_qp(qp) };
}

pub(super) fn create_srq(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq> {
    // SAFETY: an open device; the attributes are the program's.
    made(unsafe { create_srq_ex(context, attr) })
}

pub(super) fn destroy_srq(srq: *mut ibv_srq) {
    // SAFETY: the id's own, which drops its pointer.
    unsafe { ibv_destroy_srq(srq) };
}

/// Creates an address handle.
///
/// # Safety
/// `pd` is a domain.
pub(super) unsafe fn create_ah(pd: *mut ibv_pd, attr: &mut ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: the caller guarantees it.
    made(unsafe { ibv_create_ah(pd, attr) })
}

pub(super) fn destroy_ah(ah: *mut ibv_ah) {
    // SAFETY: the connection manager's own, which drops its pointer.
    unsafe { ibv_destroy_ah(ah) };
}

/// Posts one request.
///
/// # Safety
/// `qp` is a queue pair, and the request is valid for `ibv_post_send(3)`.
pub(super) unsafe fn post_one(qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> Result<()> {
    let mut bad = ptr::null_mut();
    // SAFETY: the caller guarantees it.
    done(unsafe { post_send(qp, wr, &raw mut bad) })
}

pub(super) fn attach_mcast(qp: *mut ibv_qp, mgid: &ibv_gid) -> Result<()> {
    // SAFETY: the id's queue pair.
    done(unsafe { ibv_attach_mcast(qp, mgid, 0) })
}

pub(super) fn detach_mcast(qp: *mut ibv_qp, mgid: &ibv_gid) -> Result<()> {
    // SAFETY: the id's queue pair.
    done(unsafe { ibv_detach_mcast(qp, mgid, 0) })
}

/// Returns a queue pair's options; none if it does not support them.
pub(super) fn query_ece(qp: *mut ibv_qp) -> Result<Ece> {
    let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
    // SAFETY: the id's queue pair.
    match unsafe { ibv_query_ece(qp, &raw mut ece) } {
        libc::EOPNOTSUPP => Ok(Ece::default()),
        code => done(code).map(|()| Ece { vendor_id: ece.vendor_id, options: ece.options }),
    }
}

/// Sets a queue pair's options. Does nothing if it does not support them.
pub(super) fn set_ece(qp: *mut ibv_qp, ece: Ece) -> Result<()> {
    let Ece { vendor_id, options } = ece;
    let mut ece = ibv_ece { vendor_id, options, comp_mask: 0 };
    // SAFETY: the id's queue pair.
    match unsafe { ibv_set_ece(qp, &raw mut ece) } {
        libc::EOPNOTSUPP => Ok(()),
        code => done(code),
    }
}
