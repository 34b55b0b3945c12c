//! An ordered set of deadlines, which finds the earliest without a search.

use alloc::collections::BTreeSet;

use crate::Time;

/// A set of deadlines, at most one for each key. The owner of a key stores its deadline in a
/// [`Deadline`], so that moving it needs no search.
#[derive(Debug)]
pub struct Timers<K> {
    order: BTreeSet<(Time, K)>,
}

/// The stored deadline of a key in a [`Timers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Time>);

impl Deadline {
    /// Returns the deadline, which may have passed, if one was set.
    pub const fn at(self) -> Option<Time> {
        self.0
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self { order: BTreeSet::new() }
    }
    /// Sets the deadline of `key`, which is stored in `slot`, to `at`.
    pub fn set(&mut self, slot: &mut Deadline, key: K, at: Time) {
        self.clear(slot, key);
        slot.0 = Some(at);
        self.order.insert((at, key));
    }
    /// Removes the deadline of `key`, if it has one.
    pub fn clear(&mut self, slot: &mut Deadline, key: K) {
        if let Some(at) = slot.0.take() {
            self.order.remove(&(at, key));
        }
    }
    /// Returns the earliest deadline.
    pub fn next(&self) -> Option<Time> {
        self.order.first().map(|&(at, _)| at)
    }
    /// Returns the keys whose deadlines are not after `now`.
    pub fn due(&self, now: Time) -> impl Iterator<Item = K> + '_ {
        self.order.iter().take_while(move |&&(at, _)| at <= now).map(|&(_, key)| key)
    }
    /// Removes and returns the key with the earliest deadline, if that is not after `now`.
    pub fn pop_due(&mut self, now: Time) -> Option<K> {
        let first = self.order.first().filter(|&&(at, _)| at <= now).copied()?;
        self.order.remove(&first);
        Some(first.1)
    }
    /// Returns how many deadlines are set.
    pub fn len(&self) -> usize {
        self.order.len()
    }
    /// Returns whether no deadline is set.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl<K: Ord + Copy> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_or_cleared_deadline_leaves_no_stale_entry() {
        let mut timers = Timers::new();
        let mut a = Deadline::default();
        let mut b = Deadline::default();
        timers.set(&mut a, 1, Time(10));
        timers.set(&mut b, 2, Time(5));
        timers.set(&mut a, 1, Time(3));
        assert_eq!((timers.next(), timers.len()), (Some(Time(3)), 2));
        assert_eq!((timers.pop_due(Time(2)), timers.pop_due(Time(4))), (None, Some(1)));
        timers.clear(&mut a, 1);
        timers.set(&mut a, 1, Time(9));
        assert_eq!((timers.pop_due(Time(5)), timers.pop_due(Time(5))), (Some(2), None));
        timers.clear(&mut b, 2);
        timers.clear(&mut a, 1);
        assert!(timers.is_empty());
    }
}
