//! Device memory (`ibv_alloc_dm(3)`): memory that only the device and two copy functions access. Here it is memory of the
//! process. Offsets and lengths are multiples of four bytes, as with adapters.
//!
//! It also works in a child after a fork, where it is a copy of the parent's.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use rdmux_link::guarded;
use rdmux_transport::attr::Access;
use rdmux_verbs as verbs;

use crate::abi::verbs::*;
use crate::boundary::{Errno, code, pointer};
use crate::verbs::mr;
use crate::verbs::objects::dm::{DmCore, MrExt};
use crate::verbs::objects::{Context, Object, Opened, Pd};

/// `ibv_dm`.
#[repr(C)]
struct Dm {
    public: UnsafeCell<ibv_dm>,
    opened: Arc<Opened>,
    core: Arc<DmCore>,
}

// SAFETY: `repr(C)`, and the first field is the public structure.
unsafe impl Object for Dm {
    type Public = ibv_dm;
    fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

/// Passes device memory to the program.
fn publish(context: *mut ibv_context, opened: &Arc<Opened>, core: Arc<DmCore>) -> *mut ibv_dm {
    let public = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle: core.handle(),
    };
    Box::new(Dm { public: UnsafeCell::new(public), opened: opened.clone(), core }).into_ptr()
}

pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (opened, attr) = unsafe { (&Context::peek(context)?.opened, attr.as_ref()) };
        let core = DmCore::alloc(&opened.dms, || opened.next_handle(), attr.ok_or(Errno::EINVAL)?)?;
        Ok(publish(context, opened, core))
    })
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        unsafe { Dm::peek(dm)? }.core.users().check_none()?;
        // SAFETY: no region uses it.
        drop(unsafe { Dm::take(dm) });
        Ok(())
    })
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let to = unsafe { Dm::peek(dm)? }.core.words(dm_offset, length)?;
        // SAFETY: `to` was checked; a fault in the program's memory is caught.
        unsafe { guarded::read_raw(host_addr.cast(), to, length) }.map_err(|_| Errno(libc::EFAULT))
    })
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let from = unsafe { Dm::peek(dm)? }.core.words(dm_offset, length)?;
        // SAFETY: `from` was checked, and the program allows its buffer to be overwritten.
        unsafe { guarded::write_raw(host_addr.cast(), from, length) }
            .map_err(|_| Errno(libc::EFAULT))
    })
}

/// Registers device memory. Addresses of such a region start at zero, and the flags must say so.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let (domain, memory) = unsafe { (Pd::get(pd)?, Dm::get(dm)?) };
        let access = Access::from_bits(access).ok_or(Errno::EINVAL)?;
        if !access.contains(Access::ZERO_BASED) {
            return Err(Errno::EINVAL);
        }
        let start = memory.core.range(dm_offset, length)?;
        let init = verbs::MrInit::own(start, length, access);
        // SAFETY: the memory stays as long as the region has a reference to it.
        let region = unsafe { verbs::Mr::register(&domain.core.pd, init)? };
        let ext = MrExt::of(&memory.core);
        Ok(mr::publish(pd, domain, region, ext))
    })
}

/// `ibv_import_dm(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let opened = &unsafe { Context::get(context)? }.opened;
        let core = opened.dms.find(dm_handle).ok_or(Errno(libc::ENOENT))?;
        Ok(publish(context, opened, core))
    })
}

/// `ibv_unimport_dm(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    if !dm.is_null() {
        // SAFETY: the caller guarantees it, and it is no longer used.
        drop(unsafe { Dm::take(dm) });
    }
}
