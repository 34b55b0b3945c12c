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

/// Says whether what arrived before a timer was due has been taken in. A thread that did not run for some time finds more
/// than a round takes, and the answer that a timer waits for may be the last of it.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Rounds in a row that took as much as a round takes.
    full: u32,
}

impl Backlog {
    /// So many rounds put timers off at most: a peer that never stops sending must not stop them.
    const MOST: u32 = 64;

    /// After a round that took in so many of at most `most` messages: whether timers may run.
    #[inline]
    pub(crate) fn is_taken_in(&mut self, received: usize, most: usize) -> bool {
        let more = received >= most && self.full < Self::MOST;
        self.full = if more { self.full + 1 } else { 0 };
        !more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_wait_for_what_has_arrived_but_not_for_ever() {
        let mut backlog = Backlog::default();
        assert!(backlog.is_taken_in(0, 8) && backlog.is_taken_in(7, 8));
        assert!(!backlog.is_taken_in(8, 8), "there may be more");
        assert!(backlog.is_taken_in(3, 8));
        let put_off = (0..1000).take_while(|_| !backlog.is_taken_in(8, 8)).count();
        assert_eq!(put_off, 64);
        assert!(!backlog.is_taken_in(8, 8));
    }

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
