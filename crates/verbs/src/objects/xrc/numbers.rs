//! The numbers of targets and of XRC shared receive queues. Bit 23 is set; then follow nine bits of generation, which advance with
//! each allocation, then fourteen bits of index. So a number is reused only after 512 allocations of its index. An index is reused
//! only after all others have been used, and the one that has been free for longest first. The generation of an index starts at random:
//! a late packet for an object of an earlier service rarely matches anything.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Bit 23: set in the numbers of all objects that belong to no process.
pub(crate) const TOP: u32 = 1 << 23;
/// Bits of the index.
const INDEX_BITS: u32 = 14;
/// Bits of the generation.
const GENERATION_BITS: u32 = 9;
/// The maximum number of numbers in use at a time. One less than the number of indexes: all ones is the multicast QPN.
pub(crate) const MOST: usize = (1 << INDEX_BITS) - 1;

/// Numbers of one kind.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The next generation, by index.
    generations: Vec<u16>,
    free: VecDeque<u16>,
    /// The random seed for the first generation of each index: different in each service.
    first: RandomState,
}

impl Numbers {
    /// Allocates a number that was not in use recently. Returns none when all are in use.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = match u16::try_from(self.generations.len()) {
            Ok(fresh) if usize::from(fresh) < MOST => {
                self.generations.push(self.first_generation(fresh));
                fresh
            }
            _ => self.free.pop_front()?,
        };
        let next = &mut self.generations[usize::from(index)];
        let generation = u32::from(*next);
        *next = (*next + 1) % (1 << GENERATION_BITS);
        Some(TOP | generation << INDEX_BITS | u32::from(index))
    }

    fn first_generation(&self, index: u16) -> u16 {
        (self.first.hash_one(index) % (1 << GENERATION_BITS)) as u16
    }

    /// Frees a number.
    pub(crate) fn give_back(&mut self, number: u32) {
        if let Ok(index) = u16::try_from(index_of(number)) {
            self.free.push_back(index);
        }
    }
}

/// Returns the index in a number.
pub(crate) fn index_of(number: u32) -> usize {
    (number & ((1 << INDEX_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// X8: bit 23 is set, and the same index gives different numbers for several hundred rounds.
    #[test]
    fn x8_a_number_returns_only_after_hundreds_of_allocations_of_its_slot() {
        let mut numbers = Numbers::default();
        let mut last = std::iter::from_fn(|| numbers.take()).last().unwrap();
        let mut seen = HashSet::from([last]);
        for _ in 1..1 << GENERATION_BITS {
            numbers.give_back(last);
            let number = numbers.take().unwrap();
            let next = TOP | ((last + (1 << INDEX_BITS)) % TOP);
            assert_eq!(number, next, "all others are in use, and the upper bits advance");
            assert!(seen.insert(number));
            last = number;
        }
        numbers.give_back(last);
        assert!(!seen.insert(numbers.take().unwrap()), "then it begins anew");
    }

    #[test]
    fn freed_xrc_index_is_reused_only_after_all_others_and_the_longest_free_first() {
        let mut numbers = Numbers::default();
        let indexes: Vec<usize> = (0..2 * MOST)
            .map(|_| {
                let number = numbers.take().unwrap();
                numbers.give_back(number);
                index_of(number)
            })
            .collect();
        assert_eq!(indexes[..MOST].iter().collect::<HashSet<_>>().len(), MOST);
        assert_eq!(indexes[..MOST], indexes[MOST..]);
    }

    #[test]
    fn xrc_numbers_differ_between_service_starts() {
        let take = || {
            let mut numbers = Numbers::default();
            (0..8).map(|_| numbers.take().unwrap()).collect::<Vec<_>>()
        };
        assert_ne!(take(), take());
    }

    #[test]
    fn xrc_number_allocation_fails_only_when_all_are_in_use() {
        let mut numbers = Numbers::default();
        let all: HashSet<u32> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(all.len(), MOST);
        let one = *all.iter().next().unwrap();
        numbers.give_back(one);
        let again = numbers.take().unwrap();
        assert_eq!(index_of(again), index_of(one));
        assert_ne!(again, one);
        assert!(numbers.take().is_none());
    }
}
