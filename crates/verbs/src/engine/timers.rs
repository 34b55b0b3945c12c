//! Timers of queue pairs.
//!
//! When a queue pair's timer moves to a later time, its entry stays and is checked again when it expires: a message that is
//! acknowledged in time costs nothing here. When the timer moves to an earlier time, an entry is added. The queue pair remembers that
//! it still has the later one ([`Armed`]), so that it adds no third one for a time after that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use parking_lot::Mutex;
use rdmux_transport::Time;
use rdmux_wire::Qpn;

/// The timers of all queue pairs, earliest first.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Time, Qpn)>>>,
    /// The earliest entry's time, readable without the lock.
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

    /// Returns when the earliest entry expires.
    pub(crate) fn earliest(&self) -> Option<Time> {
        Some(self.earliest.load(Ordering::Acquire)).filter(|t| *t != u64::MAX).map(Time)
    }

    /// Takes an entry that has expired.
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

/// The times of a queue pair's entries, the earliest last.
#[derive(Debug, Default)]
pub(crate) struct Armed(ArrayVec<Time, 4>);

impl Armed {
    /// Returns whether the queue pair needs another entry for this time. The caller must then add it.
    #[inline]
    pub(crate) fn needs(&mut self, at: Time) -> bool {
        let needs = self.0.last().is_none_or(|earliest| at < *earliest);
        if needs {
            self.add(at);
        }
        needs
    }

    fn add(&mut self, at: Time) {
        if self.0.is_full() {
            // The latest entry is dropped here, and ignored when it expires.
            self.0.remove(0);
        }
        self.0.push(at);
    }

    /// Removes an entry that has expired. Returns false if it was dropped before. It need not be the earliest: another thread may have
    /// added one for an earlier time since this one was taken.
    pub(crate) fn came_up(&mut self, at: Time) -> bool {
        let place = self.0.iter().rposition(|known| *known == at);
        place.map(|place| self.0.remove(place)).is_some()
    }
}

/// Decides whether all packets that arrived before a timer expired have been processed. A thread that did not run for some time
/// finds more packets than a round takes, and the timer's answer may be the last of them.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Consecutive rounds that may have left packets.
    left: u32,
}

impl Backlog {
    /// The maximum number of rounds that delay timers: a peer that never stops sending must not stop them.
    const MOST: u32 = 64;

    /// Returns whether timers may run after a round that may have left packets.
    #[inline]
    pub(crate) fn is_taken_in(&mut self, may_have_more: bool) -> bool {
        let wait = may_have_more && self.left < Self::MOST;
        self.left = if wait { self.left + 1 } else { 0 };
        !wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_wait_for_the_receive_backlog_at_most_64_rounds() {
        let mut backlog = Backlog::default();
        assert!(backlog.is_taken_in(false) && backlog.is_taken_in(false));
        assert!(!backlog.is_taken_in(true), "there may be more");
        assert!(backlog.is_taken_in(false));
        let put_off = (0..1000).take_while(|_| !backlog.is_taken_in(true)).count();
        assert_eq!(put_off, 64);
        assert!(!backlog.is_taken_in(true));
    }

    /// The peer has no receive posted: each request must be answered by time L, but receives RNR NAKs until time S, repeatedly.
    #[test]
    fn timer_heap_stays_small_when_a_timer_alternates() {
        let (timers, mut armed) = (Timers::new(), Armed::default());
        let need = |armed: &mut Armed, at: u64| {
            if armed.needs(Time(at)) {
                timers.arm(Time(at), Qpn::new(1));
            }
        };
        let (mut most, mut looked_at) = (0, 0);
        for now in (0..1_000_000).step_by(640) {
            while let Some((at, _)) = timers.take_due(Time(now)) {
                looked_at += u32::from(armed.came_up(at));
            }
            need(&mut armed, now + 67_000);
            need(&mut armed, now + 640);
            most = most.max(timers.heap.lock().len());
        }
        assert_eq!(most, 2);
        assert!(looked_at >= 1_000_000 / 640 - 1, "{looked_at}");
    }

    #[test]
    fn stale_timer_entries_are_ignored() {
        let mut armed = Armed::default();
        for at in (1..=6).rev() {
            assert!(armed.needs(Time(at)) && !armed.needs(Time(at)) && !armed.needs(Time(at + 1)));
        }
        let told = [1, 1, 2, 3, 4, 5, 6].map(|at| armed.came_up(Time(at)));
        assert_eq!(told, [true, false, true, true, true, false, false]);
        assert!(armed.needs(Time(9)));
    }

    /// A thread takes an entry, then waits for the queue pair's lock. Another thread, which read the clock earlier, holds it and
    /// sends.
    #[test]
    fn timer_can_be_armed_after_concurrently_taken_entries() {
        let mut armed = Armed::default();
        assert!(armed.needs(Time(30)) && armed.needs(Time(20)));
        assert!(armed.came_up(Time(30)) && armed.came_up(Time(20)));
        assert!(armed.needs(Time(40)), "there is none that would come up before");
    }

    #[test]
    fn timer_entries_expire_in_order_and_not_early() {
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
