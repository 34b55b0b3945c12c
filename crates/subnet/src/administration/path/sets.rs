//! A set-associative cache: each look-up touches one cache line.
//!
//! A client may choose keys that collide. Keys of one set evict each other and are recomputed.

use alloc::boxed::Box;
use alloc::vec;
use core::cell::Cell;

/// Keys per set: with 16 bytes each, a cache line of 64 bytes.
const WAYS: usize = 4;

/// Values by nonzero keys.
#[derive(Debug, Default)]
pub(super) struct Sets<T: Copy>(Box<[Set<T>]>);

/// The entries of one set, newest first.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Set<T: Copy>([Cell<(u64, T)>; WAYS]);

impl<T: Copy + Default> Sets<T> {
    /// Clears the cache and makes room for this many keys.
    pub(super) fn clear(&mut self, keys: usize) {
        let sets = keys.div_ceil(WAYS).next_power_of_two();
        let empty = Set([(); WAYS].map(|()| Cell::new((0, T::default()))));
        if self.0.len() == sets {
            self.0.fill(empty);
        } else {
            self.0 = vec![empty; sets].into();
        }
    }

    /// Returns the value of a key; calls `find` if it is not cached. A failed `find` is not cached.
    #[inline]
    pub(super) fn get(&self, key: u64, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let Some(Set(entries)) = self.0.get(self.place_of(key)).filter(|_| key != 0) else {
            return find();
        };
        if let Some(entry) = entries.iter().map(Cell::get).find(|entry| entry.0 == key) {
            return Some(entry.1);
        }
        let value = find()?;
        let mut carried = (key, value);
        for entry in entries {
            carried = entry.replace(carried);
        }
        Some(value)
    }

    fn place_of(&self, key: u64) -> usize {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The size is a power of two, or 0 before `clear`.
        let mask = self.0.len().wrapping_sub(1) as u64;
        usize::try_from(mixed >> 32 & mask).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_key_is_computed_once_until_clear() {
        let mut sets = Sets::default();
        let finds = Cell::new(0);
        let get = |sets: &Sets<u32>, key: u64| {
            let found = sets.get(key, || {
                finds.set(finds.get() + 1);
                u32::try_from(key).ok().map(|key| key + 7)
            });
            assert_eq!(found, u32::try_from(key).ok().map(|key| key + 7));
            finds.get()
        };
        assert_eq!((get(&sets, 1), get(&sets, 1)), (1, 2), "nothing is kept before it is cleared");
        sets.clear(1);
        assert_eq!((get(&sets, 1), get(&sets, 1)), (3, 3));
        assert_eq!((get(&sets, 0), get(&sets, 0)), (4, 5), "there is no key 0");
        assert_eq!((get(&sets, u64::MAX), get(&sets, u64::MAX)), (6, 7), "what there is not");
        sets.clear(1);
        assert_eq!(get(&sets, 1), 8);
    }

    #[test]
    fn full_cache_set_evicts_its_oldest_key() {
        let mut sets = Sets::default();
        sets.clear(WAYS);
        let known = |sets: &Sets<u64>, key: u64| sets.get(key, || None).is_some();
        for key in 1..=5 {
            sets.get(key, || Some(key));
        }
        assert_eq!([1, 2, 3, 4, 5].map(|key| known(&sets, key)), [false, true, true, true, true]);
    }

    #[test]
    fn cache_set_of_small_values_is_one_64_byte_cache_line() {
        assert_eq!(size_of::<Set<(u32, u8, u8, u8)>>(), 64);
    }
}
