//! The lock of what is mostly held for some hundred nanoseconds, by few threads: a queue pair, a ring, a completion queue.
//!
//! To let go of it is a store, where other locks must look whether somebody sleeps in front of them, and so wait until
//! the other processors have seen all that was written before: for a small message that would take as long as the rest.
//! Who finds it taken gives way, and tries again: also while a long WRITE is copied, which is as good a time for others
//! as any.

use rdmux_link::patience;

/// What is between two attempts.
#[derive(Debug)]
pub(crate) enum GiveWay {}

impl spin::RelaxStrategy for GiveWay {
    #[inline]
    fn relax() {
        // The holder may be waiting for this very processor.
        patience::give_way();
    }
}

/// See the module.
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, GiveWay>;
/// While it lives, the lock is held.
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
