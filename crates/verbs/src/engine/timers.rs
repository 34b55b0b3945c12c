//! Which queue pair wants to be woken when.
//!
//! A queue pair has at most one entry. When its timer moves to a later time the entry stays and is
//! looked at again when it comes up: a message that is acknowledged in time costs nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rdmux_transport::Time;
use rdmux_wire::Qpn;

#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Time, Qpn)>>>,
    /// The earliest entry's time, so that looking costs no lock.
    earliest: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Mutex::default(), earliest: AtomicU64::new(u64::MAX) }
    }

    /// Adds an entry. Returns whether it is now the earliest, so that a sleeper must be woken.
    pub(crate) fn arm(&self, at: Time, qpn: Qpn) -> bool {
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, qpn)));
        let before = self.earliest.load(Ordering::Relaxed);
        self.note_earliest(&heap);
        at.0 < before
    }

    /// When the earliest entry comes up.
    pub(crate) fn earliest(&self) -> Option<Time> {
        Some(self.earliest.load(Ordering::Acquire)).filter(|t| *t != u64::MAX).map(Time)
    }

    /// Takes an entry that has come up.
    pub(crate) fn take_due(&self, now: Time) -> Option<(Time, Qpn)> {
        if self.earliest.load(Ordering::Acquire) > now.0 {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let entry = if due { heap.pop().map(|Reverse(e)| e) } else { None };
        self.note_earliest(&heap);
        entry
    }

    fn note_earliest(&self, heap: &BinaryHeap<Reverse<(Time, Qpn)>>) {
        let at = heap.peek().map_or(u64::MAX, |Reverse((at, _))| at.0);
        self.earliest.store(at, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_up_in_order_and_not_before() {
        let timers = Timers::new();
        assert!(timers.arm(Time(30), Qpn::new(3)));
        assert!(timers.arm(Time(10), Qpn::new(1)));
        assert!(!timers.arm(Time(20), Qpn::new(2)));
        assert_eq!(timers.earliest(), Some(Time(10)));
        assert_eq!(timers.take_due(Time(9)), None);
        assert_eq!(timers.take_due(Time(25)), Some((Time(10), Qpn::new(1))));
        assert_eq!(timers.take_due(Time(25)), Some((Time(20), Qpn::new(2))));
        assert_eq!(timers.take_due(Time(25)), None);
        assert_eq!(timers.earliest(), Some(Time(30)));
    }
}
