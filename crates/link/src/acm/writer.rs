//! The writer of a table.

use std::io;
use std::os::fd::OwnedFd;

use super::{
    Content, Entry, FIRST_EPOCH, Key, MAGIC, MAX_SLOTS, SLOT, USED, WINDOW, WORDS, at, bytes,
    content, parsed, window, word,
};
use crate::shared::{Mapping, Ordering, fence};

/// The table of a service, of which only this process can change anything. Its lease ends when it is dropped.
#[derive(Debug)]
pub struct PathTable {
    fd: OwnedFd,
    map: Mapping,
    slots: usize,
    seed: u64,
    epoch: u64,
}

/// What a slot has to do with a key, the best to write it to first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// It has the same key.
    Same,
    /// It has nothing that holds.
    Free,
    /// It has another key, until then.
    Other(u64),
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
        map.word(0).store(MAGIC, Ordering::Release);
        Ok(Self { fd, map, slots, seed, epoch: FIRST_EPOCH })
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
        self.map.word(at::EPOCH).store(self.epoch, Ordering::Release);
    }

    /// Writes what a key resolves to, in place of what was there. `now` says which entries have expired. Returns false if that
    /// displaced another key's entry that still held.
    pub fn put(&mut self, key: &Key, entry: &Entry, now: u64) -> bool {
        let hash = key.hash(self.seed);
        let slots = window(hash, self.slots).map(|slot| (self.use_of(slot, hash, key, now), slot));
        let Some((used, slot)) = slots.min() else { return false };
        self.write(slot, hash, &content(key, entry, self.epoch));
        !matches!(used, Use::Other(_))
    }

    /// Withdraws what a key resolves to. Returns whether there was an entry.
    pub fn remove(&mut self, key: &Key) -> bool {
        let hash = key.hash(self.seed);
        let same = |slot: &usize| self.use_of(*slot, hash, key, 0) == Use::Same;
        let slot = window(hash, self.slots).find(same);
        if let Some(slot) = slot {
            self.write(slot, 0, &[0; WORDS]);
        }
        slot.is_some()
    }

    /// Withdraws all entries for which `gone` says so; what has expired goes, too. Takes as long as the table is large.
    pub fn retain(&mut self, now: u64, mut keep: impl FnMut(&Key, &Entry) -> bool) {
        for slot in (0..self.slots).map(|slot| at::FIRST + slot * SLOT) {
            if self.map.word(slot + at::HASH).load(Ordering::Relaxed) == 0 {
                continue;
            }
            let holds = self.held(slot, now).is_some_and(|(key, entry)| keep(&key, &entry));
            if !holds {
                self.write(slot, 0, &[0; WORDS]);
            }
        }
    }

    /// What a slot has that holds.
    fn held(&self, slot: usize, now: u64) -> Option<(Key, Entry)> {
        let mut content: Content = [0; WORDS];
        for i in USED {
            content[i] = self.map.word(slot + at::CONTENT + 8 * i).load(Ordering::Relaxed);
        }
        let holds = content[word::EPOCH] == self.epoch && content[word::EXPIRY] > now;
        holds.then(|| parsed(&content)).flatten()
    }

    fn use_of(&self, slot: usize, hash: u64, key: &Key, now: u64) -> Use {
        let content = |i| self.map.word(slot + at::CONTENT + 8 * i).load(Ordering::Relaxed);
        match self.map.word(slot + at::HASH).load(Ordering::Relaxed) {
            0 => return Use::Free,
            // As nearly always: it is not read as a whole.
            other if other != hash => {
                let (epoch, expiry) = (content(word::EPOCH), content(word::EXPIRY));
                let holds = epoch == self.epoch && expiry > now;
                return if holds { Use::Other(expiry) } else { Use::Free };
            }
            _ => {}
        }
        match self.held(slot, now) {
            Some((held, _)) if held == *key => Use::Same,
            Some((_, entry)) => Use::Other(entry.expiry),
            None => Use::Free,
        }
    }

    fn write(&mut self, slot: usize, hash: u64, content: &Content) {
        let sequence = self.map.word(slot + at::SEQUENCE);
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees any of these words sees, too, that the sequence number is odd, or a later one.
        fence(Ordering::Release);
        self.map.word(slot + at::HASH).store(hash, Ordering::Relaxed);
        for i in USED {
            self.map.word(slot + at::CONTENT + 8 * i).store(content[i], Ordering::Relaxed);
        }
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

impl Drop for PathTable {
    fn drop(&mut self) {
        self.renew(0);
    }
}
