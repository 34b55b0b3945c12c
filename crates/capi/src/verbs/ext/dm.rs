//! Device memory (`ibv_alloc_dm(3)`): memory that only the device and two copy functions reach. Ours is memory of the
//! process; offsets and lengths go by words of four bytes, as with adapters.
//!
//! It works in a child after a fork as well, where it is a copy of the parent's.

use std::alloc::{self, Layout};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdmux_link::guarded;
use rdmux_transport::attr::Access;
use rdmux_verbs as verbs;

use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, pointer};
use crate::verbs::mr;
use crate::verbs::objects::{Context, Object, Opened, Pd, Use, Users};

/// Bytes of device memory that a context has.
pub(super) const MAX_DM_SIZE: u64 = 1 << 20;

/// Offsets and lengths of copies are multiples of this.
const WORD: u64 = 4;

/// The device memory of a context.
#[derive(Debug, Default)]
pub(crate) struct Dms {
    used: AtomicU64,
    /// By handle, for those who import it.
    by_handle: Mutex<HashMap<u32, Weak<DmCore>>>,
}

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

/// What device memory and its imports share.
#[derive(Debug)]
struct DmCore {
    bytes: NonNull<u8>,
    layout: Layout,
    length: u64,
    /// Memory regions of it.
    users: Users,
    opened: Weak<Opened>,
    handle: u32,
}

// SAFETY: the memory is reached by raw copies only, as memory that a device shares is.
unsafe impl Send for DmCore {}
// SAFETY: as above.
unsafe impl Sync for DmCore {}

impl DmCore {
    fn alloc(opened: &Arc<Opened>, attr: &ibv_alloc_dm_attr) -> Result<Arc<Self>> {
        let length = attr.length as u64;
        if attr.comp_mask != 0 || length == 0 || attr.log_align_req > 20 {
            return Err(Errno::EINVAL);
        }
        let take = |used: u64| used.checked_add(length).filter(|used| *used <= MAX_DM_SIZE);
        let used = &opened.dms.used;
        if used.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
            return Err(Errno::ENOMEM);
        }
        let aligned = Layout::from_size_align(attr.length, 1 << attr.log_align_req.max(6));
        let layout = aligned.map_err(|_| Errno::EINVAL)?.pad_to_align();
        // SAFETY: the size is not 0.
        let bytes = NonNull::new(unsafe { alloc::alloc_zeroed(layout) });
        let Some(bytes) = bytes else {
            used.fetch_sub(length, Ordering::AcqRel);
            return Err(Errno::ENOMEM);
        };
        let (users, handle) = (Users::default(), opened.next_handle());
        let core = Self { bytes, layout, length, users, opened: Arc::downgrade(opened), handle };
        let core = Arc::new(core);
        // What a child of a fork allocates nobody imports, and the table may be locked there for ever.
        if opened.is_ours() {
            opened.dms.by_handle.lock().insert(handle, Arc::downgrade(&core));
        }
        Ok(core)
    }

    /// Where `length` bytes at `offset` lie.
    fn range(&self, offset: u64, length: usize) -> Result<*mut u8> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length);
        if end.is_none() {
            return Err(Errno::EINVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        // SAFETY: within the memory, as was just checked.
        Ok(unsafe { self.bytes.as_ptr().add(offset) })
    }

    /// As [`range`](Self::range), for a copy: whole words only.
    fn words(&self, offset: u64, length: usize) -> Result<*mut u8> {
        if !offset.is_multiple_of(WORD) || !(length as u64).is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        self.range(offset, length)
    }
}

impl Drop for DmCore {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no region of it is left: each keeps it from being freed.
        unsafe { alloc::dealloc(self.bytes.as_ptr(), self.layout) }
        if let Some(opened) = self.opened.upgrade() {
            opened.dms.used.fetch_sub(self.length, Ordering::AcqRel);
            if opened.is_ours() {
                opened.dms.by_handle.lock().remove(&self.handle);
            }
        }
    }
}

/// Gives the program a pointer to device memory.
fn publish(context: *mut ibv_context, opened: &Arc<Opened>, core: Arc<DmCore>) -> *mut ibv_dm {
    let public = ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle: core.handle,
    };
    Box::new(Dm { public: UnsafeCell::new(public), opened: opened.clone(), core }).into_ptr()
}

pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the caller's promises.
        let (opened, attr) = unsafe { (&Context::peek(context)?.opened, attr.as_ref()) };
        let core = DmCore::alloc(opened, attr.ok_or(Errno::EINVAL)?)?;
        Ok(publish(context, opened, core))
    })
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    code(|| {
        // SAFETY: the caller's promise.
        unsafe { Dm::peek(dm)? }.core.users.check_none()?;
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
        // SAFETY: the caller's promise.
        let to = unsafe { Dm::peek(dm)? }.core.words(dm_offset, length)?;
        // SAFETY: `to` was checked; the program's memory may be anything.
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
        // SAFETY: the caller's promise.
        let from = unsafe { Dm::peek(dm)? }.core.words(dm_offset, length)?;
        // SAFETY: `from` was checked, and what the program has there may be overwritten.
        unsafe { guarded::write_raw(host_addr.cast(), from, length) }
            .map_err(|_| Errno(libc::EFAULT))
    })
}

/// A region of device memory counts its addresses from zero, and says so.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the caller's promise.
        let (domain, memory) = unsafe { (Pd::get(pd)?, Dm::get(dm)?) };
        let access = Access::from_bits(access).ok_or(Errno::EINVAL)?;
        if !access.contains(Access::ZERO_BASED) {
            return Err(Errno::EINVAL);
        }
        let start = memory.core.range(dm_offset, length)?;
        let init = verbs::MrInit::own(start, length, access);
        // SAFETY: the memory cannot be freed while the region counts as its user.
        let region = unsafe { verbs::Mr::register(&domain.core.pd, init)? };
        let dm = Some(memory.core.users.add());
        Ok(mr::publish(pd, domain, region, MrExt { _dm: dm }))
    })
}

/// What a memory region is made of beyond memory of the program.
#[derive(Debug, Default)]
pub(crate) struct MrExt {
    /// The device memory.
    _dm: Option<Use>,
}

/// `ibv_import_dm(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the caller's promise.
        let opened = &unsafe { Context::get(context)? }.opened;
        let core = opened.dms.by_handle.lock().get(&dm_handle).and_then(Weak::upgrade);
        Ok(publish(context, opened, core.ok_or(Errno(libc::ENOENT))?))
    })
}

/// `ibv_unimport_dm(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    if !dm.is_null() {
        // SAFETY: the caller's promise, and it is not used any more.
        drop(unsafe { Dm::take(dm) });
    }
}
