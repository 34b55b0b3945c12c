//! The writer's side of a table.

use std::io;
use std::os::fd::OwnedFd;

use super::{
    Content, Entry, FIRST_EPOCH, FIRST_SLOTS, Key, MAGIC, MAX_SLOTS, SLOT, Sought, USED, WINDOW,
    WORDS, at, bytes, content, parsed, window,
};
use crate::shared::{Mapping, Ordering, fence};

/// The table of a service, which only this process can change. Dropping it ends its lease.
#[derive(Debug)]
pub struct PathTable {
    fd: OwnedFd,
    map: Mapping,
    /// The number of slots.
    slots: usize,
    seed: u64,
    epoch: u64,
    /// The contents of the slots in use, compactly, so that a window is contiguous in memory.
    held: Vec<Held>,
}

/// The content of a slot; zeros if it has no entry of this epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    hash: u64,
    expiry: u64,
}

impl PathTable {
    /// Creates a table without entries and without a lease, with at least this many slots (a power of two from [`WINDOW`] to
    /// [`MAX_SLOTS`]). `seed` is any random number.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create(slots: usize, seed: u64) -> io::Result<Self> {
        let slots = slots.clamp(WINDOW, MAX_SLOTS).next_power_of_two();
        let (fd, map) = Mapping::create_readable("rdmux-paths", bytes(slots))?;
        map.word(at::SLOTS).store(slots as u64, Ordering::Relaxed);
        map.word(at::SEED).store(seed, Ordering::Relaxed);
        map.word(at::EPOCH).store(FIRST_EPOCH, Ordering::Relaxed);
        let held = vec![Held::default(); slots.min(FIRST_SLOTS)];
        map.word(at::IN_USE).store(held.len() as u64, Ordering::Relaxed);
        map.word(0).store(MAGIC, Ordering::Release);
        Ok(Self { fd, map, slots, seed, epoch: FIRST_EPOCH, held })
    }

    /// Returns the descriptor, to be passed to clients. They can only read.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Permits readers to use the table until this time, unless it is renewed again. To be called at least twice in each lease.
    pub fn renew(&mut self, until: u64) {
        self.map.word(at::LEASE).store(until, Ordering::Release);
    }

    /// Invalidates all entries at once.
    pub fn flush(&mut self) {
        self.epoch += 1;
        self.held.fill(Held::default());
        self.map.word(at::EPOCH).store(self.epoch, Ordering::Release);
    }

    /// Writes the entry of a key, replacing an earlier one. `now` determines which entries have expired. Returns false if that evicted
    /// another key's valid entry, which happens only when all slots are in use.
    pub fn put(&mut self, key: &Key, entry: &Entry, now: u64) -> bool {
        let key = &Sought::new(key, self.seed);
        let hash = key.hash;
        let mut free = self.slot_of(key).or_else(|| self.free(hash, now));
        while free.is_none() && self.held.len() < self.slots {
            self.grow(now);
            free = self.free(hash, now);
        }
        let expiry = |slot: &usize| self.held[number(*slot)].expiry;
        let first = || window(hash, self.held.len()).min_by_key(expiry).unwrap_or(at::FIRST);
        let slot = free.unwrap_or_else(first);
        self.write(slot, Held { hash, expiry: entry.expiry }, &content(key, entry, self.epoch));
        free.is_some()
    }

    /// Finds a slot for a new key: without an entry, or with an expired one.
    fn free(&self, hash: u64, now: u64) -> Option<usize> {
        window(hash, self.held.len()).find(|slot| self.held[number(*slot)].expiry <= now)
    }

    /// Doubles the number of slots in use and keeps the entries that have not expired. Readers may find no entries meanwhile.
    fn grow(&mut self, now: u64) {
        let all: Vec<_> = (self.slots_in_use())
            .filter(|slot| self.held[number(*slot)].expiry > now)
            .filter_map(|slot| self.read(slot))
            .collect();
        self.epoch += 1;
        self.held = vec![Held::default(); self.held.len() * 2];
        self.map.word(at::IN_USE).store(self.held.len() as u64, Ordering::Relaxed);
        for (key, entry) in all {
            self.put(&key, &entry, now);
        }
        self.map.word(at::EPOCH).store(self.epoch, Ordering::Release);
    }

    /// Removes the entry of a key. Returns whether there was one.
    pub fn remove(&mut self, key: &Key) -> bool {
        let slot = self.slot_of(&Sought::new(key, self.seed));
        if let Some(slot) = slot {
            self.write(slot, Held::default(), &[0; WORDS]);
        }
        slot.is_some()
    }

    /// Removes expired entries, and all for which `keep` returns false. Takes time proportional to the number of slots in use.
    pub fn retain(&mut self, now: u64, mut keep: impl FnMut(&Key, &Entry) -> bool) {
        for slot in self.slots_in_use() {
            let Held { hash, expiry } = self.held[number(slot)];
            if hash == 0 {
                continue;
            }
            let held = (expiry > now).then(|| self.read(slot)).flatten();
            if !held.is_some_and(|(key, entry)| keep(&key, &entry)) {
                self.write(slot, Held::default(), &[0; WORDS]);
            }
        }
    }

    /// Returns the slot that has a key, even if its entry has expired.
    fn slot_of(&self, key: &Sought) -> Option<usize> {
        let has = |slot: &usize| {
            self.held[number(*slot)].hash == key.hash && key.is_in(&self.content(*slot))
        };
        window(key.hash, self.held.len()).find(has)
    }

    fn slots_in_use(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.held.len()).map(|slot| at::FIRST + slot * SLOT)
    }

    fn read(&self, slot: usize) -> Option<(Key, Entry)> {
        parsed(&self.content(slot))
    }

    fn content(&self, slot: usize) -> Content {
        let mut content: Content = [0; WORDS];
        for i in USED {
            content[i] = self.map.word(slot + at::CONTENT + 8 * i).load(Ordering::Relaxed);
        }
        content
    }

    fn write(&mut self, slot: usize, held: Held, content: &Content) {
        let sequence = self.map.word(slot + at::SEQUENCE);
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees any of these words also sees that the sequence number is odd, or a later one.
        fence(Ordering::Release);
        self.map.word(slot + at::HASH).store(held.hash, Ordering::Relaxed);
        self.held[number(slot)] = held;
        for i in USED {
            self.map.word(slot + at::CONTENT + 8 * i).store(content[i], Ordering::Relaxed);
        }
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// Returns the number of the slot at an offset.
fn number(slot: usize) -> usize {
    (slot - at::FIRST) / SLOT
}

impl Drop for PathTable {
    fn drop(&mut self) {
        self.renew(0);
    }
}
