//! A lock that is never held in a child of `fork(2)` by a thread that exists only in the parent.

use std::sync::atomic::{AtomicI32, Ordering};

/// The process ID of the holder's process; 0 if the lock is free.
#[derive(Debug)]
pub(super) struct Turn(AtomicI32);

impl Turn {
    /// Creates a free lock.
    pub(super) const fn new() -> Self {
        Self(AtomicI32::new(0))
    }

    /// Calls `f` and returns its result, unless another thread of this process holds the lock.
    pub(super) fn take<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        let own = own_pid();
        let holder = self.0.load(Ordering::Relaxed);
        let taken = holder != own
            && self.0.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok();
        taken.then(|| {
            let result = f();
            self.0.store(0, Ordering::Release);
            result
        })
    }
}

/// Returns the ID of this process, which a fork changes.
pub(super) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
