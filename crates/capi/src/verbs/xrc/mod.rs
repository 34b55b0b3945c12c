//! XRC: a connection that reaches the shared receive queues of several processes, and the receive queue pair at its end,
//! which belongs to none of them. There are three interfaces to the same objects.
//!
//! This module has domains (`ibv_open_xrcd(3)`), which all three use. `target` holds receive queue pairs by handle, as
//! programs do today (`ibv_open_qp(3)`). `number` uses numbers and registrations, as the proposal of 2007 and OFED 1.3
//! do (<rdmux/xrc.h>). Shared receive queues are in `srq`, sending in `qp` and `post`.

mod number;
pub(crate) mod target;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use rdmux_verbs::{self as verbs, XrcdFlags};

use super::objects::{Context, Object, Xrcd};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};

/// Opens a domain: that of a file, or for -1 one private to the context.
///
/// # Errors
/// EBADF for a descriptor that is not open, EAGAIN for a domain that does not exist and must not be created, EINVAL for one
/// that exists and must be new; EOPNOTSUPP for a device without XRC.
fn open(context: &Context, fd: c_int, oflags: c_int) -> Result<*mut Xrcd> {
    context.opened.check_infiniband()?;
    let file = match fd {
        -1 => None,
        fd => Some(borrow(fd)?),
    };
    let flags = XrcdFlags {
        // A private domain is always a new one.
        create: file.is_none() || oflags & libc::O_CREAT != 0,
        exclusive: oflags & libc::O_EXCL != 0,
    };
    let opened = context.opened.clone();
    let xrcd = verbs::Xrcd::open(&opened.device, file, flags)?;
    let public = ibv_xrc_domain { context: context.as_ptr(), handle: opened.next_handle() };
    Ok(Box::into_raw(Box::new(Xrcd { public: UnsafeCell::new(public), opened, xrcd })))
}

fn borrow<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    // SAFETY: any number may be queried.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: it is open, and the program keeps it open until the call returns.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes a domain.
///
/// # Errors
/// EBUSY while a shared receive queue, a handle or a registration that was made with it exists.
///
/// # Safety
/// The pointer is NULL or a domain's, which is no longer used.
unsafe fn close(ptr: *mut ibv_xrcd) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let xrcd = unsafe { Xrcd::peek(ptr)? };
    if !xrcd.opened.is_ours() {
        return Ok(());
    }
    if xrcd.xrcd.users() != 0 {
        return Err(Errno(libc::EBUSY));
    }
    // SAFETY: the caller guarantees it.
    drop(unsafe { Xrcd::take(ptr) });
    Ok(())
}

/// `ibv_open_xrcd(3)`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: ibv_xrcd_init_attr_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (context, init) =
            unsafe { (Context::get(context)?, init.as_ref().ok_or(Errno::EINVAL)?) };
        if init.comp_mask != NEEDED {
            return Err(Errno::EINVAL);
        }
        Ok(open(context, init.fd, init.oflags)?.cast())
    })
}

/// `ibv_close_xrcd(3)`.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller guarantees it.
    code(|| unsafe { close(xrcd) })
}
