//! Memory regions (`ibv_reg_mr(3)`): memory that queue pairs may access, and peers as far as the rights allow.

use std::ops::Range;
use std::sync::Arc;

use rdmux_link::guarded;
use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::Sge;
use rdmux_wire::{Lkey, Rkey};

use crate::engine::device::Device;
use crate::handles::pd::Pd;
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;
use crate::objects::memory::{self, Space};
pub use crate::objects::mr::MrInit;
use crate::objects::quota;
use crate::objects::region::Region;

/// The changes that [`Mr::reregister`] makes. A field that is none stays as it was.
#[derive(Debug, Default)]
pub struct MrChange {
    /// The new range: address, length, and the address of its first byte in work requests. None keeps the present one.
    pub range: Option<(u64, u64, u64)>,
    /// The new protection domain. None keeps the present one.
    pub pd: Option<Pd>,
    /// The new access rights. None keeps the present ones.
    pub access: Option<Access>,
}

/// A memory region (`ibv_reg_mr(3)`). Dropping it deregisters it: work that still names its key completes with a protection error,
/// and the memory is accessed no more, with the exception that [`withdraw`](Self::withdraw) describes.
#[derive(Debug)]
pub struct Mr {
    device: Arc<Device>,
    pd: Pd,
    init: MrInit,
    key: u32,
    /// Cleared when the region is deregistered: another region may have its key since.
    registered: bool,
}

impl Mr {
    /// Registers memory.
    ///
    /// With [`Access::ON_DEMAND`] it need not be mapped yet, and may be the whole address space:
    /// address 0, length 2^64 - 1.
    ///
    /// # Errors
    ///
    /// EINVAL for invalid rights or an invalid range, EFAULT for memory that is not mapped, ENOMEM when there are as many regions as
    /// the device allows.
    ///
    /// # Safety
    ///
    /// Until the region is dropped, and after that in the case that [`withdraw`](Self::withdraw) describes, peers and the engine may
    /// read and write the range at any time, as the rights allow. The program must not hold references that this breaks (`&[u8]` to
    /// bytes that peers may write, `&mut [u8]` to bytes that they may read), nor reuse the addresses for other memory.
    #[expect(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn register(pd: &Pd, init: MrInit) -> Result<Self, VerbsError> {
        Self::insert(pd, init.check()?)
    }

    /// Creates a region without memory (`ibv_alloc_null_mr(3)`): of any length, it reads as zeros and discards writes. Only the
    /// owner may use it.
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many regions as the device allows.
    pub fn null(pd: &Pd) -> Result<Self, VerbsError> {
        let (length, access) = (u64::MAX, Access::LOCAL_WRITE);
        Self::insert(pd, MrInit { addr: 0, length, iova: 0, access, space: Space::Null })
    }

    fn insert(pd: &Pd, init: MrInit) -> Result<Self, VerbsError> {
        guarded::protect();
        let device = pd.device().clone();
        let limit = device.limits().max_mr;
        let region = Region::new(init.clone(), pd.id());
        let mirror = device.xrc().mirror(&device);
        let key = device
            .regions()
            .write()
            .insert(region, limit)
            .ok_or_else(|| quota::full("register memory", "memory regions", "max_mr", limit))?;
        if let Err(error) = mirror.add(key) {
            device.regions().write().remove(key);
            return Err(error);
        }
        drop(mirror);
        Counters(device.counters()).add(Counter::MrsOpen, 1);
        Ok(Self { device, pd: pd.clone(), init, key, registered: true })
    }

    /// Changes a region in place (`ibv_rereg_mr(3)`). Its key stays, and peers that have it access the region as changed.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register), EBUSY while windows are bound to it, and EINVAL once it is
    /// deregistered; the region then stays as it was.
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register), for the new range.
    #[expect(unsafe_code, reason = "the promise about the memory is the caller's")]
    pub unsafe fn reregister(&mut self, change: MrChange) -> Result<(), VerbsError> {
        const WHAT: &str = "reregister memory";
        if !self.registered {
            return Err(VerbsError::invalid(WHAT, "the region was deregistered"));
        }
        let mut init = self.init.clone();
        if matches!(init.space, Space::Null) {
            return Err(VerbsError::invalid(WHAT, "a null memory region cannot change"));
        }
        if let Some((addr, length, iova)) = change.range {
            (init.addr, init.length, init.iova) = (addr, length, iova);
        }
        if let Some(access) = change.access {
            init.access = access;
        }
        let init = init.check()?;
        let pd = change.pd.unwrap_or_else(|| self.pd.clone());
        if !Arc::ptr_eq(pd.device(), &self.device) {
            return Err(VerbsError::invalid(
                WHAT,
                "the protection domain belongs to another device",
            ));
        }
        let region = Region::new(init.clone(), pd.id());
        let mirror = self.device.xrc().mirror(&self.device);
        let replaced = self.device.regions().write().replace(self.key, region);
        let before = replaced.map_err(|still| VerbsError::still_bound(WHAT, still.0))?;
        self.device.reaches().wait_for_copies();
        let mirrored = mirror.add(self.key);
        if let (Err(_), Some(before)) = (&mirrored, before) {
            // Fails only if a window was bound meanwhile: the region then stays changed, although the caller gets an error.
            let _ = self.device.regions().write().replace(self.key, before);
            self.device.reaches().wait_for_copies();
        }
        drop(mirror);
        self.device.engine().forget_memory();
        mirrored?;
        (self.init, self.pd) = (init, pd);
        Ok(())
    }

    /// Deregisters the region, unless memory windows are bound to it (`ibv_dereg_mr(3)`). Its keys are invalid afterwards. Dropping
    /// it deregisters it in any case, and bound windows then grant no access. Returns true if no access can happen any more, and
    /// false in the case that [`withdraw`](Self::withdraw) describes.
    ///
    /// # Errors
    ///
    /// EBUSY while windows are bound; the region stays as it was.
    pub fn deregister(&mut self) -> Result<bool, VerbsError> {
        if !self.registered {
            return Ok(true);
        }
        let mirror = self.device.xrc().mirror(&self.device);
        let mut regions = self.device.regions().write();
        match regions.windows_of(self.key) {
            0 => _ = regions.remove(self.key),
            n => return Err(VerbsError::still_bound("deregister memory", n)),
        }
        drop(regions);
        self.registered = false;
        let ended = self.device.reaches().wait_for_copies();
        mirror.remove(self.key);
        drop(mirror);
        self.device.engine().forget_memory();
        Ok(ended)
    }

    /// Deregisters as dropping the region does. Returns true if no access can happen any more. Returns false if a process of this
    /// host was stopped (SIGSTOP) in the middle of a copy from or to this device's memory, and did not end the copy within three
    /// seconds. If it continues, that copy may still happen, and the memory must not be reused.
    #[must_use = "memory that is still used must not be freed"]
    pub fn withdraw(mut self) -> bool {
        self.remove()
    }

    /// Deregisters the region. Returns whether no access can happen any more.
    fn remove(&mut self) -> bool {
        let mirror = self.device.xrc().mirror(&self.device);
        if !self.registered || !self.device.regions().write().remove(self.key) {
            return true;
        }
        self.registered = false;
        let ended = self.device.reaches().wait_for_copies();
        mirror.remove(self.key);
        drop(mirror);
        self.device.engine().forget_memory();
        ended
    }

    /// Returns the key that names this region in gather and scatter lists.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }
    /// Returns the key that peers need.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }
    /// Returns the addresses of the region's bytes in work requests.
    pub fn range(&self) -> Range<u64> {
        self.init.iova..self.init.iova + self.init.length
    }
    /// Returns the parameters of its registration.
    pub fn init(&self) -> &MrInit {
        &self.init
    }
    /// Returns the region's protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.remove();
        Counters(self.device.counters()).sub(Counter::MrsOpen, 1);
    }
}

/// The expected use of a range of memory (`ibv_advise_mr(3)`); the values of `ibv_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Advice {
    /// The range will be read.
    Prefetch = 0,
    /// The range will be written.
    PrefetchWrite = 1,
    /// The range will be read, and pages that are not present need not be faulted in.
    PrefetchNoFault = 2,
}

/// Accepts advice about memory of on-demand paging regions. The engine accesses memory by its address, so nothing is prepared: only
/// the list is checked.
///
/// # Errors
///
/// As the kernel's drivers: ENOENT for a key that names no region, EPERM for one of another domain or that is not writable, EINVAL
/// for one without [`Access::ON_DEMAND`], EFAULT for bytes outside the region or that are not mapped.
pub fn advise(pd: &Pd, advice: Advice, sges: &[Sge]) -> Result<(), VerbsError> {
    let fail = |sge: &Sge, why: &str, errno| {
        let why = format!("{} bytes at {:#x}, key {}: {why}", sge.length, sge.addr, sge.lkey);
        Err(VerbsError::memory("prefetch", why, errno))
    };
    let write = if advice == Advice::PrefetchWrite { Access::LOCAL_WRITE } else { Access::empty() };
    let regions = pd.device().regions().read();
    for sge in sges {
        let find = |access| regions.local(pd.id(), sge.lkey, sge.addr, sge.length.into(), access);
        let at = match find(write) {
            Ok(at) => at,
            Err(fault @ AccessFault::Key) => return fail(sge, &fault.to_string(), libc::ENOENT),
            Err(fault @ AccessFault::Bounds) => return fail(sge, &fault.to_string(), libc::EFAULT),
            Err(fault) => return fail(sge, &fault.to_string(), libc::EPERM),
        };
        if find(Access::ON_DEMAND).is_err() {
            return fail(sge, "not registered for on-demand paging", libc::EINVAL);
        }
        if advice != Advice::PrefetchNoFault
            && matches!(at.space, Space::Own)
            && !memory::is_mapped(at.addr, sge.length.into())
        {
            return fail(sge, "not mapped", libc::EFAULT);
        }
    }
    Ok(())
}
