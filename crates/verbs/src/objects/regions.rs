//! The table that every access to memory is checked against: regions and the windows into them.
//!
//! The key of an entry is its index in the table, shifted by 8, and 8 bits that change whenever the index is reused, so that a
//! stale key does not match a new entry. Those of a window also change when it is bound. A region's local and remote key are the
//! same number, as in most adapters.
//!
//! A thread that changes the table locks it exclusively: an access that was permitted has ended before the key that permitted it
//! is revoked.

use std::sync::Arc;

use rdmux_link::{Board, board};
use rdmux_transport::attr::Access;
use rdmux_transport::env::AccessFault;
use rdmux_transport::wr::{MwBind, Sge};
use rdmux_wire::{Lkey, Qpn, Rkey};

use crate::objects::cached_region::CachedRegion;
use crate::objects::memory::Space;
use crate::objects::mr::MrInit;
use crate::objects::mw::{MwType, Window};
use crate::objects::pd::PdId;
use crate::objects::region::{Asker, Located, REMOTE, Region};
use crate::objects::xrc::request::RegionRow;

/// The error of removing or changing a region while this many windows are bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillBound(pub(crate) u32);

/// All regions and windows of a device.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    regions: u32,
    windows: u32,
    /// The number of registrations so far.
    serial: u64,
    /// The number of windows that are bound to one queue pair (type 2), usually zero.
    of_qps: u32,
    /// The board on which regions are published, if they are.
    board: Option<Arc<Board>>,
}

/// One index of the table.
#[derive(Debug, Default)]
struct Slot {
    /// The low 8 bits of the last key of this index.
    generation: u8,
    entry: Option<Entry>,
}

/// A region or a window.
#[derive(Debug)]
enum Entry {
    Region(Region),
    Window(Window),
}

impl Slot {
    fn has(&self, key: u32) -> bool {
        u32::from(self.generation) == key & 0xff
    }
}

impl Regions {
    /// Creates an empty table. Its regions are published on `board`, if given. Windows are not: peers use them through the ring.
    pub(crate) fn new(board: Option<Arc<Board>>) -> Self {
        Self { board, ..Self::default() }
    }

    /// Publishes a region as it is now, or withdraws it if it no longer exists. Peers may still use it as it was: see
    /// [`Reaches::wait_for_copies`](crate::objects::reach::Reaches::wait_for_copies).
    fn publish(&self, key: u32) {
        let Some(board) = &self.board else { return };
        match self.region(key).ok().and_then(Region::row).filter(|row| !row.null) {
            Some(RegionRow { addr, length, iova, access, pd, .. }) => {
                let access = access.bits();
                board.show_region(&board::RegionRow { key, pd, access, addr, length, iova });
            }
            None => _ = board.hide_region(key),
        }
    }

    #[inline]
    fn slot(&self, key: u32) -> Option<&Slot> {
        self.slots.get((key >> 8) as usize).filter(|slot| slot.has(key))
    }

    #[inline]
    fn region(&self, key: u32) -> Result<&Region, AccessFault> {
        match self.slot(key) {
            Some(Slot { entry: Some(Entry::Region(region)), .. }) => Ok(region),
            _ => Err(AccessFault::Key),
        }
    }

    fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        match self.slots.get_mut((key >> 8) as usize).filter(|slot| slot.has(key)) {
            Some(Slot { entry: Some(Entry::Region(region)), .. }) => Some(region),
            _ => None,
        }
    }

    /// Locates `len` bytes at `addr` for the owner.
    #[inline]
    pub(crate) fn local(
        &self,
        pd: PdId,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Located<'_>, AccessFault> {
        let region = self.region(lkey.0)?;
        if region.pd != pd {
            return Err(AccessFault::Domain);
        }
        region.locate(addr, len, access)
    }

    /// Returns the range that the owner has under a key with these rights, for caching. Returns an empty entry for memory of
    /// another process, or if it is not under its own addresses.
    pub(crate) fn cached(&self, pd: PdId, lkey: Lkey, rights: Access) -> CachedRegion {
        let region = self.region(lkey.0).ok().filter(|region| region.pd == pd);
        match region.map(Region::init) {
            Some(MrInit { addr, length, iova, access, space: Space::Own })
                if addr == iova && access.contains(rights) =>
            {
                CachedRegion::new(pd, lkey, *addr, *length)
            }
            _ => CachedRegion::default(),
        }
    }

    /// Locates `len` bytes at `va` for the peer of a queue pair.
    #[inline]
    pub(crate) fn remote(
        &self,
        who: Asker,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<Located<'_>, AccessFault> {
        let slot = self.slot(rkey.0).ok_or(AccessFault::Key)?;
        match &slot.entry {
            Some(Entry::Region(region)) if region.is_open_to_peers() => {
                if region.pd != who.pd {
                    return Err(AccessFault::Domain);
                }
                region.locate(va, len, access)
            }
            Some(Entry::Window(window)) => {
                let (region, addr) = window.locate(who, va, len, access)?;
                self.region(region)?.locate(addr, len, Access::empty())
            }
            _ => Err(AccessFault::Key),
        }
    }

    /// Returns all regions that the XRC hub can mirror, with their keys.
    pub(crate) fn rows(&self) -> Vec<(u32, RegionRow)> {
        let row = |(index, slot): (usize, &Slot)| {
            let Some(Entry::Region(region)) = &slot.entry else { return None };
            let key = u32::try_from(index).ok()? << 8 | u32::from(slot.generation);
            Some((key, region.row()?))
        };
        self.slots.iter().enumerate().filter_map(row).collect()
    }

    /// Returns the region of a key, if the XRC hub can mirror it.
    pub(crate) fn row(&self, key: u32) -> Option<RegionRow> {
        self.region(key).ok()?.row()
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

    /// Invalidates a key for peers: that of a region, if it grants them any access, until the region is registered anew; that of
    /// a type 2 window, until it is bound again (IBTA 10.6.7.2.6). Returns the serial number of a region's registration.
    pub(crate) fn invalidate(
        &mut self,
        who: Asker,
        rkey: Rkey,
    ) -> Result<Option<u64>, AccessFault> {
        let slot = self.slots.get_mut((rkey.0 >> 8) as usize).filter(|slot| slot.has(rkey.0));
        match slot.and_then(|slot| slot.entry.as_mut()) {
            Some(Entry::Region(region)) => {
                if region.pd != who.pd {
                    return Err(AccessFault::Domain);
                }
                if !region.access().intersects(REMOTE) {
                    return Err(AccessFault::Rights);
                }
                region.close_to_peers();
                let serial = region.serial;
                self.publish(rkey.0);
                Ok(Some(serial))
            }
            Some(Entry::Window(window)) => {
                window.check_invalidate(who)?;
                self.unbind(rkey.0 >> 8);
                Ok(None)
            }
            None => Err(AccessFault::Key),
        }
    }

    /// Binds a window, or unbinds one of type 1.
    pub(crate) fn bind(&mut self, who: Asker, bind: &MwBind) -> Result<(), AccessFault> {
        let index = bind.rkey.0 >> 8;
        let Some(Slot { entry: Some(Entry::Window(window)), .. }) = self.slots.get(index as usize)
        else {
            return Err(AccessFault::Key);
        };
        let range = window.check_bind(who, bind)?;
        if range.is_some() {
            window.check_region(self.region(bind.lkey.0)?, bind)?;
        }
        self.unbind(index);
        let slot = &mut self.slots[index as usize];
        slot.generation = (bind.rkey.0 & 0xff) as u8;
        let Some(Entry::Window(window)) = &mut slot.entry else { return Err(AccessFault::Key) };
        self.of_qps += u32::from(range.is_some() && window.kind() == MwType::Two);
        window.set(range);
        if range.is_some()
            && let Some(region) = self.region_mut(bind.lkey.0)
        {
            region.windows += 1;
        }
        Ok(())
    }

    /// Unbinds the windows that are bound to a queue pair, which is being destroyed.
    pub(crate) fn unbind_qp(&mut self, qpn: Qpn) {
        let mut index = 0;
        while self.of_qps != 0 && (index as usize) < self.slots.len() {
            if let Some(Entry::Window(window)) = &self.slots[index as usize].entry
                && window.is_of(qpn)
            {
                self.unbind(index);
            }
            index += 1;
        }
    }

    /// Unbinds the windows that are bound to a region, whose key will be reused.
    fn unbind_region(&mut self, key: u32) {
        let mut index = 0;
        while self.windows_of(key) != 0 && (index as usize) < self.slots.len() {
            if let Some(Entry::Window(window)) = &self.slots[index as usize].entry
                && window.is_into(key)
            {
                self.unbind(index);
            }
            index += 1;
        }
    }

    /// Unbinds the window with this index, if it is bound.
    fn unbind(&mut self, index: u32) {
        let Some(Slot { entry: Some(Entry::Window(window)), .. }) =
            self.slots.get_mut(index as usize)
        else {
            return;
        };
        let Some(bound) = window.take() else { return };
        self.of_qps -= u32::from(window.kind() == MwType::Two);
        if let Some(region) = self.region_mut(bound.region) {
            region.windows -= 1;
        }
    }

    /// Returns how many windows are bound to a region.
    pub(crate) fn windows_of(&self, key: u32) -> u32 {
        self.region(key).map_or(0, |region| region.windows)
    }

    /// Inserts a region and returns its key, unless there are `limit` already.
    pub(crate) fn insert(&mut self, region: Region, limit: u32) -> Option<u32> {
        let region = self.number(region);
        let key = (self.regions < limit).then(|| self.put(Entry::Region(region)))??;
        self.regions += 1;
        self.publish(key);
        Some(key)
    }

    /// Inserts an unbound window and returns its key, unless there are `limit` already.
    pub(crate) fn insert_window(&mut self, window: Window, limit: u32) -> Option<u32> {
        let key = (self.windows < limit).then(|| self.put(Entry::Window(window)))??;
        self.windows += 1;
        Some(key)
    }

    fn put(&mut self, entry: Entry) -> Option<u32> {
        self.slots.try_reserve(2).ok()?;
        if self.slots.is_empty() {
            // Index 0 is never used: programs interpret a key of 0 as none.
            self.slots.push(Slot::default());
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|i| *i < 1 << 24)?;
                self.slots.push(Slot::default());
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.entry = Some(entry);
        Some(index << 8 | u32::from(slot.generation))
    }

    /// Replaces a region and returns the old one, unless windows are bound to it. The key stays.
    pub(crate) fn replace(&mut self, key: u32, by: Region) -> Result<Option<Region>, StillBound> {
        match self.windows_of(key) {
            0 => {}
            n => return Err(StillBound(n)),
        }
        let by = self.number(by);
        let before = self.slots[(key >> 8) as usize].entry.replace(Entry::Region(by));
        self.publish(key);
        Ok(match before {
            Some(Entry::Region(before)) => Some(before),
            _ => None,
        })
    }

    fn number(&mut self, mut region: Region) -> Region {
        self.serial += 1;
        region.serial = self.serial;
        region
    }

    /// Removes a region and unbinds its windows. Returns whether it existed.
    pub(crate) fn remove(&mut self, key: u32) -> bool {
        let there = self.region(key).is_ok();
        if there {
            self.unbind_region(key);
            self.regions -= 1;
            self.clear(key >> 8);
            self.publish(key);
        }
        there
    }

    /// Removes a window, whatever its present key.
    pub(crate) fn remove_window(&mut self, index: u32) {
        self.unbind(index);
        self.windows -= 1;
        self.clear(index);
    }

    fn clear(&mut self, index: u32) {
        self.slots[index as usize].entry = None;
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests;
