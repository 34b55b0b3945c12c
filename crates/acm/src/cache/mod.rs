//! The addresses that an endpoint has cached: 44 bytes each, plus about 7 in the index.
//!
//! Entries are contiguous, those from files first. When the cache is full, a clock hand passes over the others and evicts expired
//! entries, then those that no program has requested since its last pass. Addresses learned from remote endpoints evict only those that
//! no program requested.

mod key;
mod paths;

use alloc::vec::Vec;

use hashbrown::HashTable;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Guid, Lid, Qpn};

pub(crate) use self::key::Hashed;
use self::key::{Key, Names};
use self::paths::{PathId, Paths};

/// Quarters of a second since the machine's start.
pub(crate) type Ticks = u32;

/// The expiry of entries that do not expire.
pub(crate) const FOREVER: Ticks = Ticks::MAX;

/// A number that no entry has.
const NO_ENTRY: usize = u32::MAX as usize;

/// The capacity that is kept when there are few entries.
const KEPT: usize = 64;

/// Number of entries that the hand checks before a remote endpoint's address is dropped instead of learned.
const STRANGERS_LOOKS: usize = 64;

mod flag {
    /// A program has requested the entry.
    pub(super) const USED: u8 = 1;
    /// No endpoint has the address.
    pub(super) const NEGATIVE: u8 = 2;
    /// The entry is published in a cache of the driver's, which programs read.
    pub(super) const PUBLISHED: u8 = 8;
    /// The published entry expires before this one.
    pub(super) const OUTDATED: u8 = 32;
    /// The path is that of the group.
    pub(super) const BY_GROUP: u8 = 16;
}

/// The group of an entry without one.
const NO_GROUP: u8 = u8::MAX;

/// The path of an entry without one.
const NO_PATH: PathId = PathId(u16::MAX);

/// The cache entry of an address.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    group: u8,
    flags: u8,
    lid: Lid,
    path: PathId,
    qpn: [u8; 3],
    guid: [u32; 2],
    until: Ticks,
    path_until: Ticks,
}

/// The endpoint that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The holder's GID.
    pub(crate) gid: Gid,
    /// The holder's LID.
    pub(crate) lid: Lid,
    /// The endpoint's queue pair; 0 if it is unknown.
    pub(crate) qpn: Qpn,
    /// The best common group, as an index into the local endpoint's groups.
    pub(crate) group: Option<u8>,
}

/// The known part of the path to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Unknown.
    None,
    /// The path is that of the holder's group.
    Group,
    /// The path is this one.
    Path(PathRecord),
}

/// The source of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A local program or a file.
    Us,
    /// A remote endpoint.
    Stranger,
}

/// The addresses that an endpoint has cached.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: Vec<Entry>,
    /// The number of entries from files, which come first and are not evicted.
    loaded: usize,
    index: HashTable<u32>,
    names: Names,
    paths: Paths,
    seed: [u8; 16],
    /// The subnet prefix of entries without a known path.
    pub(crate) prefix: u64,
    /// The position of the hand, counted from the first entry that may be evicted.
    hand: usize,
    /// The maximum number of entries.
    pub(crate) max: usize,
}

impl Cache {
    pub(crate) fn new(seed: [u8; 16], max: usize) -> Self {
        Self {
            entries: Vec::new(),
            loaded: 0,
            index: HashTable::new(),
            names: Names::default(),
            paths: Paths::default(),
            seed,
            prefix: Gid::DEFAULT_PREFIX,
            hand: 0,
            max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns an address with its hash, for the other methods.
    pub(crate) fn hashed<'a>(&self, address: &'a Address) -> Hashed<'a> {
        Hashed::new(address, &self.seed)
    }

    /// Returns the index of an address's entry.
    pub(crate) fn find(&self, address: &Hashed<'_>) -> Option<usize> {
        let is = |at: &u32| self.entries[*at as usize].key.is(address, &self.names);
        self.index.find(address.hash, is).map(|at| *at as usize)
    }

    pub(crate) fn address(&self, at: usize) -> Address {
        self.entries[at].key.address(&self.names)
    }

    pub(crate) fn holder(&self, at: usize) -> Holder {
        let entry = &self.entries[at];
        let guid = guid_of(entry);
        let prefix = match entry.path {
            NO_PATH => self.prefix,
            path => self.paths.get(path, guid, entry.lid).dgid.prefix(),
        };
        let [a, b, c] = entry.qpn;
        Holder {
            gid: Gid::new(prefix, guid),
            lid: entry.lid,
            qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])),
            group: Some(entry.group).filter(|group| *group != NO_GROUP),
        }
    }

    /// Returns the path to an address, as far as it has not expired.
    pub(crate) fn way(&self, at: usize, now: Ticks) -> Way {
        let entry = &self.entries[at];
        match entry.path {
            _ if entry.flags & flag::BY_GROUP != 0 => Way::Group,
            NO_PATH => Way::None,
            _ if entry.path_until <= now => Way::None,
            path => Way::Path(self.paths.get(path, guid_of(entry), entry.lid)),
        }
    }

    /// Returns when the address expires, and when its path does.
    pub(crate) fn ends(&self, at: usize) -> (Ticks, Ticks) {
        let entry = &self.entries[at];
        let by_path = entry.path != NO_PATH && entry.flags & flag::BY_GROUP == 0;
        (entry.until, if by_path { entry.path_until } else { entry.until })
    }

    pub(crate) fn is_expired(&self, at: usize, now: Ticks) -> bool {
        self.entries[at].until <= now
    }

    fn has(&self, at: usize, flag: u8) -> bool {
        self.entries[at].flags & flag != 0
    }

    fn set(&mut self, at: usize, flag: u8, on: bool) {
        let flags = &mut self.entries[at].flags;
        *flags = if on { *flags | flag } else { *flags & !flag };
    }

    /// Returns whether the entry means that no endpoint has the address.
    pub(crate) fn is_negative(&self, at: usize) -> bool {
        self.has(at, flag::NEGATIVE)
    }

    pub(crate) fn is_loaded(&self, at: usize) -> bool {
        at < self.loaded
    }

    /// Marks an entry as loaded from a file. Returns its new index: it swaps places with the first entry that is not from a
    /// file.
    pub(crate) fn set_loaded(&mut self, at: usize) -> usize {
        if self.is_loaded(at) {
            return at;
        }
        let to = self.loaded;
        self.swap(at, to);
        self.loaded += 1;
        to
    }

    /// Returns whether the entry is in the memory that clients read.
    pub(crate) fn is_published(&self, at: usize) -> bool {
        self.has(at, flag::PUBLISHED)
    }

    pub(crate) fn set_published(&mut self, at: usize, on: bool) {
        self.set(at, flag::PUBLISHED, on);
        self.set(at, flag::OUTDATED, false);
    }

    /// Returns whether the entry is published with its current expiry.
    pub(crate) fn is_up_to_date(&self, at: usize) -> bool {
        self.has(at, flag::PUBLISHED) && !self.has(at, flag::OUTDATED)
    }

    /// Marks an entry as published with an earlier expiry.
    pub(crate) fn set_outdated(&mut self, at: usize) {
        self.set(at, flag::OUTDATED, true);
    }

    /// Returns whether a program has requested the entry recently.
    pub(crate) fn is_used(&self, at: usize) -> bool {
        self.has(at, flag::USED)
    }

    /// Marks an entry as requested by a program.
    pub(crate) fn set_used(&mut self, at: usize) {
        self.set(at, flag::USED, true);
    }

    /// Clears the mark of every entry that a program has requested it.
    pub(crate) fn clear_used(&mut self) {
        for entry in &mut self.entries {
            entry.flags &= !flag::USED;
        }
    }

    /// Stores the holder of an address and the expiry. An existing entry is updated, and keeps its path if the holder is the same. None if
    /// the cache is full: call [`make_room`](Self::make_room) first.
    pub(crate) fn put(
        &mut self,
        address: &Hashed<'_>,
        holder: &Holder,
        until: Ticks,
    ) -> Option<usize> {
        let at = self.entry(address)?;
        let before = self.holder(at);
        if self.is_negative(at) || (before.gid, before.lid) != (holder.gid, holder.lid) {
            self.set_way(at, &Way::None, 0);
        }
        let [_, a, b, c] = holder.qpn.get().to_be_bytes();
        let entry = &mut self.entries[at];
        entry.flags &= !flag::NEGATIVE;
        entry.guid = halves(holder.gid.guid());
        entry.lid = holder.lid;
        entry.qpn = [a, b, c];
        entry.group = holder.group.unwrap_or(NO_GROUP);
        entry.until = until;
        Some(at)
    }

    /// Stores that no endpoint has an address, and the expiry.
    pub(crate) fn put_negative(&mut self, address: &Hashed<'_>, until: Ticks) {
        let Some(at) = self.entry(address) else { return };
        self.set_way(at, &Way::None, 0);
        let entry = &mut self.entries[at];
        entry.flags = entry.flags & flag::USED | flag::NEGATIVE;
        entry.guid = [0; 2];
        entry.lid = Lid::NONE;
        entry.until = until;
    }

    /// Stores the path to an address and its expiry. Returns false if the cache has too many different paths.
    pub(crate) fn set_way(&mut self, at: usize, way: &Way, until: Ticks) -> bool {
        let before = self.entries[at].path;
        let path = match way {
            Way::Path(path) => self.paths.add(path),
            _ => Some(NO_PATH),
        };
        if before != NO_PATH {
            self.paths.remove(before);
        }
        self.set(at, flag::BY_GROUP, *way == Way::Group);
        let entry = &mut self.entries[at];
        entry.path = path.unwrap_or(NO_PATH);
        entry.path_until = until;
        if let (Way::Path(new), Some(_)) = (way, path) {
            entry.lid = new.dlid;
            entry.guid = halves(new.dgid.guid());
        }
        path.is_some()
    }

    /// Returns the entry of an address, or a new one if it has none and the cache has room.
    fn entry(&mut self, address: &Hashed<'_>) -> Option<usize> {
        if let Some(at) = self.find(address) {
            return Some(at);
        }
        if self.entries.len() >= self.max {
            return None;
        }
        let key = Key::new(address, &mut self.names);
        let at = u32::try_from(self.entries.len()).ok()?;
        let (names, entries, seed) = (&self.names, &self.entries, &self.seed);
        self.index
            .insert_unique(address.hash, at, |at| entries[*at as usize].key.hash(names, seed));
        self.entries.push(Entry {
            key,
            group: NO_GROUP,
            flags: 0,
            lid: Lid::NONE,
            path: NO_PATH,
            qpn: [0; 3],
            guid: [0; 2],
            until: 0,
            path_until: 0,
        });
        Some(at as usize)
    }

    /// Removes an entry. The last entry takes its place. If it was loaded from a file, the last entry from a file takes its place, and the
    /// last entry that one's.
    pub(crate) fn remove(&mut self, mut at: usize) {
        if self.is_loaded(at) {
            self.loaded -= 1;
            self.swap(at, self.loaded);
            at = self.loaded;
        }
        self.set_way(at, &Way::None, 0);
        self.unlink(at);
        let key = self.entries[at].key;
        key.free(&mut self.names);
        let last = self.entries.len() - 1;
        if at != last {
            self.renumber(self.hash(last), last, at);
        }
        self.entries.swap_remove(at);
        let capacity = self.entries.capacity();
        if capacity > KEPT && self.entries.len() < capacity / 4 {
            self.shrink();
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        let (first, second) = (self.hash(a), self.hash(b));
        // Through a number that no entry has, because their hashes may lead to both.
        self.renumber(first, a, NO_ENTRY);
        self.renumber(second, b, a);
        self.renumber(first, NO_ENTRY, b);
        self.entries.swap(a, b);
    }

    fn hash(&self, at: usize) -> u64 {
        self.entries[at].key.hash(&self.names, &self.seed)
    }

    /// Changes the number that the index has for an entry of this hash.
    fn renumber(&mut self, hash: u64, from: usize, to: usize) {
        if let Some(number) = self.index.find_mut(hash, |number| *number as usize == from) {
            *number = u32::try_from(to).unwrap_or(u32::MAX);
        }
    }

    fn unlink(&mut self, at: usize) {
        if let Ok(entry) = self.index.find_entry(self.hash(at), |i| *i as usize == at) {
            entry.remove();
        }
    }

    fn shrink(&mut self) {
        self.entries.shrink_to(self.entries.len() * 2);
        let (names, entries, seed) = (&self.names, &self.entries, &self.seed);
        let hash = |at: &u32| entries[*at as usize].key.hash(names, seed);
        self.index.shrink_to(entries.len() * 2, hash);
    }

    /// Removes a group of the endpoint. Entries that use its path lose the path, and are withdrawn if they are published.
    pub(crate) fn drop_group(&mut self, group: u8, withdraw: impl FnMut(&Address)) {
        self.withdraw_group(group, withdraw);
        for entry in self.entries.iter_mut().filter(|entry| entry.group == group) {
            entry.group = NO_GROUP;
            entry.flags &= !flag::BY_GROUP;
        }
    }

    /// Withdraws the published entries that use the path of a group. They keep the path.
    pub(crate) fn withdraw_group(&mut self, group: u8, mut withdraw: impl FnMut(&Address)) {
        let uses = flag::BY_GROUP | flag::PUBLISHED;
        let published = |entry: &&mut Entry| entry.group == group && entry.flags & uses == uses;
        for entry in self.entries.iter_mut().filter(published) {
            withdraw(&entry.key.address(&self.names));
            entry.flags &= !(flag::PUBLISHED | flag::OUTDATED);
        }
    }

    /// Finds an entry to evict when the cache is full. `Ok(None)` if the cache has room, an error if no checked entry may be
    /// evicted.
    pub(crate) fn victim(&mut self, by: By, now: Ticks) -> Result<Option<usize>, ()> {
        if self.entries.len() < self.max {
            return Ok(None);
        }
        let others = self.entries.len() - self.loaded;
        let looks = match by {
            By::Stranger => STRANGERS_LOOKS.min(others),
            By::Us => others * 2,
        };
        for _ in 0..looks {
            self.hand = (self.hand + 1) % others;
            let at = self.loaded + self.hand;
            let entry = &mut self.entries[at];
            if entry.until <= now || entry.flags & flag::USED == 0 {
                return Ok(Some(at));
            }
            if by == By::Us {
                entry.flags &= !flag::USED;
            }
        }
        Err(())
    }

    /// Returns approximately how many bytes are used on the heap.
    pub(crate) fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Entry>();
        entries + self.index.allocation_size() + self.names.bytes() + self.paths.bytes()
    }
}

fn guid_of(entry: &Entry) -> Guid {
    let [high, low] = entry.guid;
    Guid(u64::from(high) << 32 | u64::from(low))
}

/// Returns a GUID in two halves, so that an entry needs no alignment of 8.
fn halves(guid: Guid) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = guid.0.to_be_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests;
