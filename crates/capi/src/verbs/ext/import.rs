//! Objects of another context of this process (`ibv_import_device(3)`, `ibv_import_pd(3)`, `ibv_import_mr(3)`).
//!
//! A context is found by its command descriptor, which the program has duplicated, and objects by their
//! handles. Objects of another process cannot be imported: each process is a device of its own.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdmux_verbs::control::Control as _;
use rustix::fs::fstat;

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, pointer};
use crate::verbs::objects::dm::MrExt;
use crate::verbs::objects::domain::PdExt;
use crate::verbs::objects::{Context, Mr, Object, Opened, Pd};
use crate::verbs::{context, pd, process};

/// `ibv_import_device(3)`. The new context takes over the descriptor and closes it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| {
        if cmd_fd < 0 {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: it is only queried, and a closed descriptor is an error.
        let (opened, device) = find(unsafe { BorrowedFd::borrow_raw(cmd_fd) })?;
        let events = opened.device.async_fd().try_clone_to_owned();
        let events = events.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)))?;
        // SAFETY: the program passes on its ownership.
        let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Ok(context::publish(device, opened, Some([fd, events])))
    })
}

/// Returns the open device behind a command descriptor, with its `ibv_device`.
///
/// # Errors
/// EBADF for an invalid descriptor, EOPNOTSUPP for one that is no command descriptor of this process.
fn find(fd: BorrowedFd<'_>) -> Result<(Arc<Opened>, *mut ibv_device)> {
    let stat = fstat(fd).map_err(|e| Errno(e.raw_os_error()))?;
    let is_it = |opened: &Arc<Opened>| {
        let own = fstat(&opened.cmd_fd);
        own.is_ok_and(|own| (own.st_dev, own.st_ino) == (stat.st_dev, stat.st_ino))
    };
    let lists = process::lists();
    let opened = lists.open_ones().find(is_it).ok_or(Errno::EOPNOTSUPP)?;
    let kind = opened.client.info().kind;
    let mut devices = lists.devices.iter();
    let device = devices.find(|d| d.kind() == kind && d.host() == opened.client.host());
    Ok((opened, device.ok_or(Errno(libc::ENODEV))?.as_ptr()))
}

/// `ibv_import_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    pd_handle: u32,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let opened = &unsafe { Context::get(context)? }.opened;
        let core = opened.pds.lock().get(&pd_handle).and_then(Weak::upgrade);
        let core = core.ok_or(Errno(libc::ENOENT))?;
        Ok(pd::publish(context, opened, core, pd_handle, PdExt::default()))
    })
}

/// `ibv_unimport_pd(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the caller guarantees it.
    unsafe { forget_import::<Pd>(pd) }
}

/// `ibv_import_mr(3)`. The program knows the region's address; `addr` is NULL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let domain = unsafe { Pd::get(pd)? };
        let opened = domain.opened.clone();
        let core = opened.mrs.lock().get(&mr_handle).and_then(Weak::upgrade);
        let core = core.ok_or(Errno(libc::ENOENT))?;
        let (lkey, rkey, length) = {
            let mr = core.mr.lock();
            (mr.lkey().0, mr.rkey().0, mr.init().length)
        };
        let public = ibv_mr {
            // SAFETY: a field that is never written.
            context: unsafe { (*pd).context },
            pd,
            addr: ptr::null_mut(),
            length: usize::try_from(length).unwrap_or(usize::MAX),
            handle: mr_handle,
            lkey,
            rkey,
        };
        let (public, pd) = (UnsafeCell::new(public), Mutex::new(None));
        Ok(Box::new(Mr { public, opened, core, pd, ext: MrExt::default() }).into_ptr())
    })
}

/// `ibv_unimport_mr(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller guarantees it.
    unsafe { forget_import::<Mr>(mr) }
}

/// Drops the program's reference to an object, which itself stays.
///
/// # Safety
/// The pointer is NULL or one of this library's, and no longer used.
pub(super) unsafe fn forget_import<T: Object>(ptr: *mut T::Public) {
    let _ = guarded(|| {
        // SAFETY: the caller guarantees it.
        if unsafe { T::peek(ptr)? }.opened().is_ours() {
            // SAFETY: as above.
            drop(unsafe { T::take(ptr) });
        }
        Ok(())
    });
}
