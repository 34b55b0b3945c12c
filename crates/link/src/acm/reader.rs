//! The clients' side of a table.

use std::io;
use std::os::fd::AsFd;

use super::{
    Content, Entry, Key, MAGIC, MAX_LEASE, MAX_SLOTS, SLOT, Sought, USED, WINDOW, WORDS, at, bytes,
    parsed, window, word,
};
use crate::shared::{Ordering, ReadMapping, fence, size};

/// Returns whether a slot's entry is valid in an epoch, at some time.
fn holds(content: &Content, epoch: u64, now: u64) -> bool {
    content[word::EPOCH] == epoch && content[word::EXPIRY] > now
}

/// The maximum number of times that a slot that changes during the read is read again.
const TRIES: usize = size(16, 1);

/// A table that another process writes.
#[derive(Debug)]
pub struct PathCache {
    map: ReadMapping,
    slots: usize,
    seed: u64,
}

impl PathCache {
    /// Maps the table of a service, which is not trusted.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than a table; `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "not a table of paths, or of another version",
            )
        };
        let head = ReadMapping::map(&fd, at::FIRST)?;
        if head.load(0, Ordering::Acquire) != MAGIC {
            return Err(bad());
        }
        let slots = usize::try_from(head.load(at::SLOTS, Ordering::Relaxed)).map_err(|_| bad())?;
        if !slots.is_power_of_two() || !(WINDOW..=MAX_SLOTS).contains(&slots) {
            return Err(bad());
        }
        let seed = head.load(at::SEED, Ordering::Relaxed);
        Ok(Self { map: ReadMapping::map(&fd, bytes(slots))?, slots, seed })
    }

    /// Returns whether the table's writer is alive, according to its lease. Without a lease no entry is found. An expired lease may be
    /// renewed; but if the writer is gone, another table has replaced this one.
    #[inline]
    pub fn is_leased(&self, now: u64) -> bool {
        let lease = self.map.load(at::LEASE, Ordering::Acquire);
        lease > now && lease - now <= MAX_LEASE
    }

    /// Returns the entry of a key, if the table has it and it is valid.
    pub fn get(&self, key: &Key, now: u64) -> Option<Entry> {
        if !self.is_leased(now) {
            return None;
        }
        // The epoch is read before the entry: after a flush in between, the entry may be an older one. It is also read before the number of
        // slots in use: entries of this epoch are in the slots of that number, or the writer has moved to the next epoch.
        let epoch = self.epoch();
        let slots = self.in_use();
        let key = Sought::new(key, self.seed);
        let has_hash = |slot: &usize| self.map.load(slot + at::HASH, Ordering::Relaxed) == key.hash;
        let mut found =
            window(key.hash, slots).filter(has_hash).filter_map(|slot| self.content(slot));
        let content = found.find(|content| key.is_in(content) && holds(content, epoch, now))?;
        parsed(&content).map(|(_, entry)| entry)
    }

    /// Passes all valid entries to `show`. Entries that are written meanwhile may be missed.
    pub fn each(&self, now: u64, mut show: impl FnMut(&Key, &Entry)) {
        if !self.is_leased(now) {
            return;
        }
        let epoch = self.epoch();
        for slot in (0..self.in_use()).map(|slot| at::FIRST + slot * SLOT) {
            if self.map.load(slot + at::HASH, Ordering::Relaxed) != 0
                && let Some((key, entry)) = self.read(slot, epoch, now)
            {
                show(&key, &entry);
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.map.load(at::EPOCH, Ordering::Acquire)
    }

    /// Returns how many slots are in use: a power of two, and at most the number of slots, even if the writer stored more.
    pub(super) fn in_use(&self) -> usize {
        let said = usize::try_from(self.map.load(at::IN_USE, Ordering::Relaxed)).unwrap_or(0);
        if said.is_power_of_two() { said.min(self.slots) } else { self.slots }
    }

    /// Returns the entry of a slot, if it was read consistently and is valid.
    fn read(&self, slot: usize, epoch: u64, now: u64) -> Option<(Key, Entry)> {
        let content = self.content(slot).filter(|content| holds(content, epoch, now))?;
        parsed(&content)
    }

    fn content(&self, slot: usize) -> Option<Content> {
        let sequence = |order| self.map.load(slot + at::SEQUENCE, order);
        for _ in 0..TRIES {
            let before = sequence(Ordering::Acquire);
            let mut content: Content = [0; WORDS];
            if before.is_multiple_of(2) {
                for i in USED {
                    content[i] = self.map.load(slot + at::CONTENT + 8 * i, Ordering::Relaxed);
                }
                fence(Ordering::Acquire);
                if sequence(Ordering::Relaxed) == before {
                    return Some(content);
                }
            }
            std::hint::spin_loop();
        }
        None
    }
}
