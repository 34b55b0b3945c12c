//! The count of events about an object that the program has not acknowledged.

use parking_lot::{Condvar, Mutex};

/// The number of events that the program took and has not acknowledged yet. Destroying the object waits until it is zero.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    count: Mutex<u32>,
    zero: Condvar,
}

impl Unacked {
    /// Counts an event that the program took.
    pub(crate) fn delivered(&self) {
        *self.count.lock() += 1;
    }
    /// Acknowledges `n` events.
    pub(crate) fn ack(&self, n: u32) {
        let mut count = self.count.lock();
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.zero.notify_all();
        }
    }
    /// Waits until all events are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        self.zero.wait_while(&mut count, |c| *c != 0);
    }
}
