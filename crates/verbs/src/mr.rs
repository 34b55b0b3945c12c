//! Memory regions and the table that every access is checked against.
//!
//! The key of a region is its index in the table, shifted by 8, and 8 bits that change with every
//! registration at that index, so that a key of the past does not open a region of the present. The
//! local and the remote key are the same number, as in most adapters.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::Sge;
use rdmux_wire::{Lkey, Rkey};

use crate::counters::{Counter, Counters};
use crate::device::Device;
use crate::error::VerbsError;
use crate::memory::Space;
use crate::pd::{Pd, PdId};

/// One region as the table has it.
#[derive(Debug)]
pub(crate) struct Region {
    key: u32,
    pd: PdId,
    /// Where its bytes lie in `space`.
    addr: u64,
    length: u64,
    /// What its first byte is called in work requests.
    iova: u64,
    access: Access,
    space: Space,
    /// Cleared when the key is invalidated: peers are refused then, the owner is not.
    remote: AtomicBool,
}

impl Region {
    /// Where `len` bytes at `iova` lie, if the region holds them all and grants `access`.
    fn locate(&self, iova: u64, len: u64, access: Access) -> Result<u64, AccessFault> {
        let offset = iova.checked_sub(self.iova).ok_or(AccessFault::Bounds)?;
        let end = offset.checked_add(len).ok_or(AccessFault::Bounds)?;
        if end > self.length {
            return Err(AccessFault::Bounds);
        }
        if !self.access.contains(access) {
            return Err(AccessFault::Rights);
        }
        Ok(self.addr + offset)
    }
}

/// A checked range of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located<'a> {
    pub(crate) space: &'a Space,
    pub(crate) addr: u64,
}

/// All regions of a device.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    region: Option<Region>,
}

impl Regions {
    fn find(&self, key: u32) -> Result<&Region, AccessFault> {
        let slot = self.slots.get((key >> 8) as usize).ok_or(AccessFault::Key)?;
        slot.region.as_ref().filter(|r| r.key == key).ok_or(AccessFault::Key)
    }

    /// Finds `len` bytes at `addr` for the owner.
    pub(crate) fn local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Located<'_>, AccessFault> {
        let region = self.find(lkey.0)?;
        if region.pd != pd {
            return Err(AccessFault::Domain);
        }
        let addr = region.locate(addr, len, access)?;
        Ok(Located { space: &region.space, addr })
    }

    /// Finds `len` bytes at `va` for a peer.
    pub(crate) fn remote(
        &self,
        pd: PdId,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<Located<'_>, AccessFault> {
        let region = self.find(rkey.0)?;
        if !region.remote.load(Ordering::Acquire) {
            return Err(AccessFault::Key);
        }
        if region.pd != pd {
            return Err(AccessFault::Domain);
        }
        let addr = region.locate(va, len, access)?;
        Ok(Located { space: &region.space, addr })
    }

    /// Checks every entry of a list.
    pub(crate) fn check_list(
        &self,
        pd: PdId,
        sges: &[Sge],
        access: Access,
    ) -> Result<(), AccessFault> {
        sges.iter()
            .filter(|s| s.length != 0)
            .try_for_each(|s| self.local(pd, s.lkey, s.addr, s.length.into(), access).map(drop))
    }

    /// Takes a remote key back. A region that grants peers nothing has none to take.
    pub(crate) fn invalidate(&self, pd: PdId, rkey: Rkey) -> Result<(), AccessFault> {
        let region = self.find(rkey.0)?;
        if region.pd != pd {
            return Err(AccessFault::Domain);
        }
        if !region.access.intersects(REMOTE) {
            return Err(AccessFault::Rights);
        }
        region.remote.store(false, Ordering::Release);
        Ok(())
    }

    /// Puts a region in and returns its key.
    fn insert(&mut self, region: impl FnOnce(u32) -> Region, limit: u32) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|i| *i < limit)?;
                self.slots.push(Slot::default());
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let key = (index << 8) | u32::from(slot.generation);
        slot.region = Some(region(key));
        Some(key)
    }

    fn remove(&mut self, key: u32) {
        let index = key >> 8;
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.region.as_ref().is_some_and(|r| r.key == key)
        {
            slot.region = None;
            self.free.push(index);
        }
    }
}

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// What can be registered as a region.
#[derive(Clone, Debug)]
pub struct MrInit {
    /// Where the bytes lie in `space`.
    pub addr: u64,
    /// How many.
    pub length: u64,
    /// What the first byte is called in work requests; most often `addr`. With
    /// [`Access::ZERO_BASED`] it is taken as 0.
    pub iova: u64,
    /// Who may do what.
    pub access: Access,
    /// Whose memory it is.
    pub space: Space,
}

impl MrInit {
    /// A range of this process's memory, called by its own address.
    pub fn own(addr: *const u8, length: usize, access: Access) -> Self {
        let addr = addr.expose_provenance() as u64;
        Self { addr, length: length as u64, iova: addr, access, space: Space::Own }
    }

    fn check(mut self) -> Result<Self, VerbsError> {
        if self.access.contains(Access::ZERO_BASED) {
            self.iova = 0;
        }
        let needs_write = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if self.access.intersects(needs_write) && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::invalid(
                "register memory",
                "remote write and atomic access need local write access too",
            ));
        }
        let fits = |start: u64| start.checked_add(self.length).is_some();
        if !fits(self.addr) || !fits(self.iova) {
            return Err(VerbsError::invalid("register memory", "the range wraps around"));
        }
        Ok(self)
    }

    fn region(self, key: u32, pd: PdId) -> Region {
        let Self { addr, length, iova, access, space } = self;
        Region { key, pd, addr, length, iova, access, space, remote: AtomicBool::new(true) }
    }
}

/// What [`Mr::reregister`] changes; what is none stays.
#[derive(Debug, Default)]
pub struct MrChange {
    /// Another range: address, length, and what its first byte is called.
    pub range: Option<(u64, u64, u64)>,
    /// Another protection domain.
    pub pd: Option<Pd>,
    /// Other rights.
    pub access: Option<Access>,
}

/// A memory region (`ibv_reg_mr(3)`). Deregistered when dropped: work that still names its key then
/// completes with a protection error, and no access happens any more.
#[derive(Debug)]
pub struct Mr {
    device: Arc<Device>,
    pd: Pd,
    init: MrInit,
    key: u32,
}

impl Mr {
    /// Registers memory.
    ///
    /// # Errors
    ///
    /// EINVAL for rights or a range that make no sense, ENOMEM when the table is full.
    ///
    /// # Safety
    ///
    /// The range must stay mapped, and writable if `access` lets anybody write, until the region is
    /// dropped. Peers and the engine may read and write it at any time, as the rights say: the
    /// program must not hold references that this breaks (`&[u8]` to bytes that peers may write,
    /// `&mut [u8]` to bytes that they may read).
    #[expect(unsafe_code, reason = "the promise that the memory stays is the caller's")]
    pub unsafe fn register(pd: &Pd, init: MrInit) -> Result<Self, VerbsError> {
        let init = init.check()?;
        let device = pd.device().clone();
        let limit = device.limits().max_mr;
        let (id, to_insert) = (pd.id(), init.clone());
        let key =
            device.regions().write().insert(|key| to_insert.region(key, id), limit).ok_or_else(
                || VerbsError::no_memory("register memory", "the region table is full"),
            )?;
        Counters(device.counters()).add(Counter::MrsOpen, 1);
        Ok(Self { device, pd: pd.clone(), init, key })
    }

    /// Changes a region in place (`ibv_rereg_mr(3)`); its key changes.
    ///
    /// # Errors
    ///
    /// EINVAL as for [`register`](Self::register); the region then stays as it was.
    ///
    /// # Safety
    ///
    /// As for [`register`](Self::register), for the new range.
    #[expect(unsafe_code, reason = "the promise that the memory stays is the caller's")]
    pub unsafe fn reregister(&mut self, change: MrChange) -> Result<(), VerbsError> {
        let mut init = self.init.clone();
        if let Some((addr, length, iova)) = change.range {
            (init.addr, init.length, init.iova) = (addr, length, iova);
        }
        if let Some(access) = change.access {
            init.access = access;
        }
        let init = init.check()?;
        let pd = change.pd.unwrap_or_else(|| self.pd.clone());
        if !Arc::ptr_eq(pd.device(), &self.device) {
            return Err(VerbsError::invalid("reregister memory", "the domain is another device's"));
        }
        let (id, to_insert) = (pd.id(), init.clone());
        let mut regions = self.device.regions().write();
        regions.remove(self.key);
        // The slot just freed is the next one taken, so this cannot meet the limit.
        if let Some(key) = regions.insert(|key| to_insert.region(key, id), u32::MAX >> 8) {
            (self.key, self.init, self.pd) = (key, init, pd);
        }
        Ok(())
    }

    /// The key that names this region in gather and scatter lists.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }
    /// The key that peers need.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }
    /// What the region's bytes are called in work requests.
    pub fn range(&self) -> Range<u64> {
        self.init.iova..self.init.iova + self.init.length
    }
    /// What it was registered with.
    pub fn init(&self) -> &MrInit {
        &self.init
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.device.regions().write().remove(self.key);
        Counters(self.device.counters()).sub(Counter::MrsOpen, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(access: Access) -> (Regions, u32) {
        let init = MrInit { addr: 0x1000, length: 64, iova: 0x10, access, space: Space::Own };
        let mut regions = Regions::default();
        let key = regions.insert(|key| init.check().unwrap().region(key, PdId(1)), 8).unwrap();
        (regions, key)
    }

    fn at(r: &Regions, key: u32, va: u64, len: u64, access: Access) -> Result<u64, AccessFault> {
        r.remote(PdId(1), Rkey(key), va, len, access).map(|l| l.addr)
    }

    #[test]
    fn bounds_rights_domain_and_key_are_checked() {
        let (r, key) = region(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        assert_eq!(at(&r, key, 0x10, 64, Access::REMOTE_WRITE), Ok(0x1000));
        assert_eq!(at(&r, key, 0x50, 0, Access::REMOTE_WRITE), Ok(0x1040));
        assert_eq!(at(&r, key, 0x11, 64, Access::REMOTE_WRITE), Err(AccessFault::Bounds));
        assert_eq!(at(&r, key, 0xf, 1, Access::REMOTE_WRITE), Err(AccessFault::Bounds));
        assert_eq!(at(&r, key, u64::MAX, 2, Access::REMOTE_WRITE), Err(AccessFault::Bounds));
        assert_eq!(at(&r, key, 0x10, u64::MAX, Access::REMOTE_WRITE), Err(AccessFault::Bounds));
        assert_eq!(at(&r, key, 0x10, 1, Access::REMOTE_READ), Err(AccessFault::Rights));
        assert_eq!(at(&r, key ^ 1, 0x10, 1, Access::REMOTE_WRITE), Err(AccessFault::Key));
        assert_eq!(at(&r, u32::MAX, 0x10, 1, Access::REMOTE_WRITE), Err(AccessFault::Key));
        let other = r.remote(PdId(2), Rkey(key), 0x10, 1, Access::REMOTE_WRITE).map(drop);
        assert_eq!(other, Err(AccessFault::Domain));
    }

    #[test]
    fn a_key_of_the_past_opens_nothing() {
        let (mut r, key) = region(Access::REMOTE_READ);
        r.remove(key);
        assert_eq!(at(&r, key, 0x10, 1, Access::REMOTE_READ), Err(AccessFault::Key));
        let init = MrInit {
            addr: 0x2000,
            length: 64,
            iova: 0x10,
            access: Access::REMOTE_READ,
            space: Space::Own,
        };
        let again = r.insert(|key| init.region(key, PdId(1)), 8).unwrap();
        assert_ne!(again, key);
        assert_eq!(again >> 8, key >> 8);
        assert_eq!(at(&r, key, 0x10, 1, Access::REMOTE_READ), Err(AccessFault::Key));
        assert_eq!(at(&r, again, 0x10, 1, Access::REMOTE_READ), Ok(0x2000));
    }

    #[test]
    fn an_invalidated_key_still_serves_the_owner() {
        let (r, key) = region(Access::REMOTE_READ);
        r.invalidate(PdId(1), Rkey(key)).unwrap();
        assert_eq!(at(&r, key, 0x10, 1, Access::REMOTE_READ), Err(AccessFault::Key));
        assert!(r.local(PdId(1), Lkey(key), 0x10, 64, Access::empty()).is_ok());
    }

    #[test]
    fn remote_write_needs_local_write() {
        let init =
            MrInit { addr: 0, length: 1, iova: 0, access: Access::REMOTE_WRITE, space: Space::Own };
        assert!(init.check().is_err());
    }
}
