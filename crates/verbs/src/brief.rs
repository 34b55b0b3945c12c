//! The lock of what is mostly held for some hundred nanoseconds, by few threads: a queue pair, a ring, a completion queue.
//!
//! To let go of it is a store, where other locks must look whether somebody sleeps in front of them, and so wait until
//! the other processors have seen all that was written before: for a small message that would take as long as the rest.
//! A thread that finds it taken yields or sleeps for a moment, and tries again: also while a long WRITE is copied.

use rdmux_link::patience;

/// What is between two attempts.
#[derive(Debug)]
pub(crate) enum YieldOrSleep {}

impl spin::RelaxStrategy for YieldOrSleep {
    #[inline]
    fn relax() {
        // The holder may be waiting for this very processor.
        patience::yield_or_sleep();
    }
}

/// See the module.
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, YieldOrSleep>;
/// While it lives, the lock is held.
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
