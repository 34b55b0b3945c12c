//! A lock for data that few threads share and that is mostly locked for some hundred nanoseconds: a queue pair, a ring, a
//! completion queue.
//!
//! It is released with a plain store-release. Other locks need an atomic read-modify-write to see whether a thread sleeps, which
//! for a small message would take as long as everything else. A thread that finds the lock held yields or sleeps briefly, and
//! tries again, even while a long WRITE is copied.
//!
//! Such a lock is not fair. A thread that releases it only to acquire it again, such as a round that receives a stream, can
//! starve for milliseconds a thread that sleeps between its attempts. So a thread that has waited for 50 us counts itself as a
//! waiter, and a thread that acquires the same lock repeatedly yields to waiters ([`Mutex::yield_to_waiters`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdmux_link::spin_wait;
use rustix::thread::futex;

/// The guard that holds the lock while it lives.
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

/// Time that a thread tries before it counts itself as a waiter.
const TRIES_FOR: Duration = Duration::from_micros(50);
/// Time that a waiter sleeps between attempts unless it is woken.
const SLEEP: Duration = Duration::from_micros(50);
/// Time that a thread that yields to waiters waits for one of them to acquire the lock. A woken waiter has a processor by then,
/// unless there are far more threads than processors.
const HANDOVER: Duration = Duration::from_micros(200);

/// The lock; see the module.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    lock: spin::mutex::SpinMutex<T>,
    /// The number of threads that have waited for long and still wait.
    waiters: AtomicU32,
    /// The number of handovers of the lock: the futex that waiters sleep on.
    handovers: AtomicU32,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        let lock = spin::mutex::SpinMutex::new(value);
        Self { lock, waiters: AtomicU32::new(0), handovers: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.lock.try_lock().unwrap_or_else(|| self.wait())
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.lock.try_lock()
    }

    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }

    /// Returns whether a thread has waited for long. A holder that works in steps may release the lock between two of them.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// Wakes a thread that has waited for long, if any, and waits at most 200 us until it has acquired the lock. For a thread
    /// that has released the lock and will acquire it again soon.
    #[inline]
    pub(crate) fn yield_to_waiters(&self) {
        if self.has_waiters() {
            self.hand_over();
        }
    }

    #[cold]
    #[inline(never)]
    fn hand_over(&self) {
        let before = self.waiters.load(Ordering::Relaxed);
        let since = Instant::now();
        self.handovers.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.handovers, futex::Flags::PRIVATE, 1);
        while !self.lock.is_locked()
            && self.waiters.load(Ordering::Relaxed) >= before
            && since.elapsed() < HANDOVER
        {
            std::thread::yield_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> MutexGuard<'_, T> {
        let since = Instant::now();
        let mut slept = false;
        while !slept && since.elapsed() < TRIES_FOR {
            spin_wait::yield_or(|| slept = true);
            if let Some(guard) = self.lock.try_lock() {
                return guard;
            }
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let guard = loop {
            let handovers = self.handovers.load(Ordering::Acquire);
            if let Some(guard) = self.lock.try_lock() {
                break guard;
            }
            spin_wait::yield_or(|| self.sleep(handovers));
        };
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Sleeps for [`SLEEP`], or until the lock is handed over.
    fn sleep(&self, handovers: u32) {
        let moment = futex::Timespec::try_from(SLEEP).ok();
        // Woken, timed out or interrupted: the caller tries again in any case.
        let _ = futex::wait(&self.handovers, futex::Flags::PRIVATE, handovers, moment.as_ref());
    }
}

/// Yields to waiters when it is dropped. To be declared as the field after the guard.
#[derive(Debug)]
pub(crate) struct YieldToWaiters<'a, T>(pub(crate) &'a Mutex<T>);

impl<T> Drop for YieldToWaiters<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.yield_to_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    impl<T> Mutex<T> {
        /// Returns how often the lock was handed over.
        pub(crate) fn handovers(&self) -> u32 {
            self.handovers.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn yield_to_waiters_wakes_a_blocked_waiter() {
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            let held = mutex.lock();
            let waiter = scope.spawn(|| *mutex.lock() += 1);
            while !mutex.has_waiters() {
                thread::yield_now();
            }
            // A second waiter that never acquires the lock, so that there is one even if the first was quick.
            mutex.waiters.fetch_add(1, Ordering::Relaxed);
            drop(held);
            mutex.yield_to_waiters();
            mutex.waiters.fetch_sub(1, Ordering::Relaxed);
            assert_eq!(mutex.handovers(), 1, "the waiter is woken");
            // The waiter has the lock, had it, or has no processor yet.
            while !waiter.is_finished() {
                drop(mutex.lock());
                mutex.yield_to_waiters();
            }
        });
        assert_eq!(*mutex.lock(), 1);
        assert!(!mutex.has_waiters());
    }

    #[test]
    fn yield_without_waiters_hands_nothing_over() {
        let mutex = Mutex::new(());
        drop(mutex.lock());
        mutex.yield_to_waiters();
        assert_eq!(mutex.handovers(), 0);
    }

    #[test]
    fn yield_to_a_waiter_that_never_locks_returns() {
        let mutex = Mutex::new(());
        mutex.waiters.fetch_add(1, Ordering::Relaxed);
        mutex.yield_to_waiters();
        assert_eq!(mutex.handovers(), 1);
    }

    #[test]
    fn mutex_excludes_threads_that_yield() {
        const THREADS: usize = 4;
        const EACH: usize = 2000;
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *mutex.lock() += 1;
                        mutex.yield_to_waiters();
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), THREADS * EACH);
    }
}
