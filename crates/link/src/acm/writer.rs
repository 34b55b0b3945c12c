//! The writer of a table.

use std::io;
use std::os::fd::OwnedFd;

use super::{
    Content, Entry, FIRST_EPOCH, FIRST_SLOTS, Key, MAGIC, MAX_SLOTS, SLOT, Sought, USED, WINDOW,
    WORDS, at, bytes, content, parsed, window,
};
use crate::shared::{Mapping, Ordering, fence};

/// The table of a service, of which only this process can change anything. Its lease ends when it is dropped.
#[derive(Debug)]
pub struct PathTable {
    fd: OwnedFd,
    map: Mapping,
    /// How many slots there are.
    slots: usize,
    seed: u64,
    epoch: u64,
    /// What is in each slot that is in use, where a window's lie together.
    held: Vec<Held>,
}

/// What is in a slot; zeros if nothing, or nothing of this epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    hash: u64,
    expiry: u64,
}

impl PathTable {
    /// A new one without entries and without a lease, of at least so many slots (a power of two from [`WINDOW`] to [`MAX_SLOTS`]).
    /// `seed` is any random number.
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

    /// The descriptor, to hand over. Those who have it can only read.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Has readers use the table until then, unless it is renewed again. It is to be called at least twice in each lease.
    pub fn renew(&mut self, until: u64) {
        self.map.word(at::LEASE).store(until, Ordering::Release);
    }

    /// Invalidates all entries at once.
    pub fn flush(&mut self) {
        self.epoch += 1;
        self.held.fill(Held::default());
        self.map.word(at::EPOCH).store(self.epoch, Ordering::Release);
    }

    /// Writes what a key resolves to, in place of what was there. `now` says which entries have expired. Returns false if that
    /// displaced another key's entry that still held, as it does only where all slots are in use.
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

    /// A slot where a new key may lie: without an entry, or with one that has expired.
    fn free(&self, hash: u64, now: u64) -> Option<usize> {
        window(hash, self.held.len()).find(|slot| self.held[number(*slot)].expiry <= now)
    }

    /// Has twice as many slots in use, with the same entries but those that have expired. Readers that come meanwhile may find none.
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

    /// Withdraws what a key resolves to. Returns whether there was an entry.
    pub fn remove(&mut self, key: &Key) -> bool {
        let slot = self.slot_of(&Sought::new(key, self.seed));
        if let Some(slot) = slot {
            self.write(slot, Held::default(), &[0; WORDS]);
        }
        slot.is_some()
    }

    /// Withdraws all entries for which `keep` does not say otherwise; what has expired goes, too. Takes as long as there are slots in use.
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

    /// The slot that has a key, also if that has expired.
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
        // A reader that sees any of these words sees, too, that the sequence number is odd, or a later one.
        fence(Ordering::Release);
        self.map.word(slot + at::HASH).store(held.hash, Ordering::Relaxed);
        self.held[number(slot)] = held;
        for i in USED {
            self.map.word(slot + at::CONTENT + 8 * i).store(content[i], Ordering::Relaxed);
        }
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// The number of the slot at an offset.
fn number(slot: usize) -> usize {
    (slot - at::FIRST) / SLOT
}

impl Drop for PathTable {
    fn drop(&mut self) {
        self.renew(0);
    }
}
