//! A lock that a child of `fork(2)` does not find taken for ever by a thread that it does not have.

use std::sync::atomic::{AtomicI32, Ordering};

/// Whose turn it is, by process number; 0 is nobody's.
#[derive(Debug)]
pub(super) struct Turn(AtomicI32);

impl Turn {
    /// Nobody's.
    pub(super) const fn new() -> Self {
        Self(AtomicI32::new(0))
    }

    /// Calls `f`, unless another thread of this process is at it; says what `f` said.
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

/// The number of this process, which a fork changes.
pub(super) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
