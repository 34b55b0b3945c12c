//! Device memory: the amount that a context has, and the allocated parts.

use std::alloc::{self, Layout};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::generation::Generation;
use super::users::{Use, Users};
use crate::abi::verbs::ibv_alloc_dm_attr;
use crate::boundary::{Errno, Result};

/// The size of a context's device memory.
pub(crate) const MAX_DM_SIZE: u64 = 1 << 20;

/// Offsets and lengths of copies are multiples of this.
const WORD: u64 = 4;

/// The device memory of a context.
#[derive(Debug)]
pub(crate) struct Dms {
    generation: Generation,
    used: AtomicU64,
    /// Allocations by handle, for imports.
    by_handle: Mutex<HashMap<u32, Weak<DmCore>>>,
}

impl Default for Dms {
    fn default() -> Self {
        let (used, by_handle) = (AtomicU64::new(0), Mutex::default());
        Self { generation: Generation::current(), used, by_handle }
    }
}

impl Dms {
    /// Returns the memory with this handle.
    pub(crate) fn find(&self, handle: u32) -> Option<Arc<DmCore>> {
        self.by_handle.lock().get(&handle).and_then(Weak::upgrade)
    }
}

/// The state that device memory and its imports share.
#[derive(Debug)]
pub(crate) struct DmCore {
    bytes: NonNull<u8>,
    layout: Layout,
    length: u64,
    /// Memory regions of it.
    users: Users,
    dms: Arc<Dms>,
    handle: u32,
    /// Whether the memory is never freed, because a process that was stopped during a copy may still write to it.
    kept: AtomicBool,
}

// SAFETY: the memory is accessed by raw copies only, like memory that a device shares.
unsafe impl Send for DmCore {}
// SAFETY: as above.
unsafe impl Sync for DmCore {}

impl DmCore {
    /// Allocates memory, all zero, and a handle for it.
    ///
    /// # Errors
    /// EINVAL for invalid sizes, ENOMEM when the context has no more.
    pub(crate) fn alloc(
        dms: &Arc<Dms>,
        next_handle: impl FnOnce() -> u32,
        attr: &ibv_alloc_dm_attr,
    ) -> Result<Arc<Self>> {
        let length = attr.length as u64;
        if attr.comp_mask != 0 || length == 0 || attr.log_align_req > 20 {
            return Err(Errno::EINVAL);
        }
        let take = |used: u64| used.checked_add(length).filter(|used| *used <= MAX_DM_SIZE);
        let used = &dms.used;
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
        let (users, handle) = (Users::default(), next_handle());
        let (dms_of, kept) = (dms.clone(), AtomicBool::new(false));
        let core = Arc::new(Self { bytes, layout, length, users, dms: dms_of, handle, kept });
        // Allocations in a child of a fork are never imported, and the table may be locked there for ever.
        if dms.generation.is_current() {
            dms.by_handle.lock().insert(handle, Arc::downgrade(&core));
        }
        Ok(core)
    }

    /// Returns the handle for imports.
    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    /// Returns the count of memory regions of it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// Returns the address of `length` bytes at `offset`.
    pub(crate) fn range(&self, offset: u64, length: usize) -> Result<*mut u8> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length);
        if end.is_none() {
            return Err(Errno::EINVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        // SAFETY: within the memory, as was just checked.
        Ok(unsafe { self.bytes.as_ptr().add(offset) })
    }

    /// Returns the address as [`range`](Self::range) does, for a copy of whole words only.
    pub(crate) fn words(&self, offset: u64, length: usize) -> Result<*mut u8> {
        if !offset.is_multiple_of(WORD) || !(length as u64).is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        self.range(offset, length)
    }
}

impl Drop for DmCore {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            // SAFETY: allocated with this layout; no region of it is left, because each has a reference, and each has ended.
            unsafe { alloc::dealloc(self.bytes.as_ptr(), self.layout) }
        }
        self.dms.used.fetch_sub(self.length, Ordering::AcqRel);
        if self.dms.generation.is_current() {
            self.dms.by_handle.lock().remove(&self.handle);
        }
    }
}

/// The memory of a region that is not the program's.
#[derive(Debug, Default)]
pub(crate) struct MrExt {
    /// The device memory, which lives as long as its last region: an import can end earlier.
    dm: Option<(Use, Arc<DmCore>)>,
}

impl MrExt {
    /// Returns the state of a region of device memory, which counts as a user of the memory.
    pub(crate) fn of(dm: &Arc<DmCore>) -> Self {
        Self { dm: Some((dm.users.add(), dm.clone())) }
    }

    /// Keeps device memory for ever, because the region has ended, but not every copy from or to it.
    pub(crate) fn keep(&self) {
        if let Some((_, dm)) = &self.dm {
            dm.kept.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the region is of device memory.
    pub(crate) fn is_of_dm(&self) -> bool {
        self.dm.is_some()
    }
}
