//! Deadlines in one ordered structure: the earliest is found without a search.

use alloc::collections::BTreeSet;

use crate::Time;

/// A set of deadlines, at most one for each key. The owner of a key keeps its deadline in a
/// [`Deadline`], so that moving it costs no search.
#[derive(Debug)]
pub struct Timers<K> {
    order: BTreeSet<(Time, K)>,
}

/// A key's place in a [`Timers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline(Option<Time>);

impl Deadline {
    /// When it is due, or was, if it was set.
    pub const fn at(self) -> Option<Time> {
        self.0
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// No deadlines.
    pub const fn new() -> Self {
        Self { order: BTreeSet::new() }
    }
    /// Sets the deadline of `key`, which is kept in `slot`, to `at`.
    pub fn set(&mut self, slot: &mut Deadline, key: K, at: Time) {
        self.clear(slot, key);
        slot.0 = Some(at);
        self.order.insert((at, key));
    }
    /// Takes the deadline of `key` away, if it has one.
    pub fn clear(&mut self, slot: &mut Deadline, key: K) {
        if let Some(at) = slot.0.take() {
            self.order.remove(&(at, key));
        }
    }
    /// The earliest deadline.
    pub fn next(&self) -> Option<Time> {
        self.order.first().map(|&(at, _)| at)
    }
    /// The keys whose deadlines are not after `now`.
    pub fn due(&self, now: Time) -> impl Iterator<Item = K> + '_ {
        self.order.iter().take_while(move |&&(at, _)| at <= now).map(|&(_, key)| key)
    }
    /// Takes the key whose deadline is the earliest, if that is not after `now`.
    pub fn pop_due(&mut self, now: Time) -> Option<K> {
        let first = self.order.first().filter(|&&(at, _)| at <= now).copied()?;
        self.order.remove(&first);
        Some(first.1)
    }
    /// How many deadlines are set.
    pub fn len(&self) -> usize {
        self.order.len()
    }
    /// Whether none is set.
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
    fn a_moved_deadline_leaves_nothing_behind() {
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
