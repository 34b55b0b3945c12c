//! The lock of what is mostly held for some hundred nanoseconds, by few threads: a queue pair, a ring, a completion queue.
//!
//! To let go of it is a store, where other locks must look whether somebody sleeps in front of them, and so wait until
//! the other processors have seen all that was written before: for a small message that would take as long as the rest.
//! A thread that finds it taken yields or sleeps for a moment, and tries again: also while a long WRITE is copied.
//!
//! Such a lock is not fair. Who lets go of it only to take it again, as a round does that receives a stream, leaves a
//! gap that a thread which looks now and then does not find for milliseconds. So who has waited for long says so, and
//! who takes the same lock again and again lets it in between ([`Mutex::let_in`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdmux_link::patience;
use rustix::thread::futex;

/// While it lives, the lock is held.
pub(crate) type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

/// For how long a thread tries by itself before it wants to be let in.
const PATIENCE: Duration = Duration::from_micros(50);
/// How long it sleeps where nobody lets it in: the holder does not know of it, or is busy.
const SLEEP: Duration = Duration::from_micros(50);
/// How long one who lets others in waits for one of them to come. A thread that was woken has a processor by then, unless
/// there are far more threads than processors.
const WELCOME: Duration = Duration::from_micros(200);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    lock: spin::mutex::SpinMutex<T>,
    /// How many threads want to be let in.
    waiting: AtomicU32,
    /// How often somebody was let in. Who waits sleeps until it changes.
    turns: AtomicU32,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        let lock = spin::mutex::SpinMutex::new(value);
        Self { lock, waiting: AtomicU32::new(0), turns: AtomicU32::new(0) }
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

    /// Whether a thread has waited for long. For who holds the lock for many steps, and could let go of it after each.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Lets a thread have its turn that has waited for long, if there is one. For who has just let go of the lock, and will
    /// soon take it again; it may hold other locks, since it does not wait for long.
    #[inline]
    pub(crate) fn let_in(&self) {
        if self.is_wanted() {
            self.welcome();
        }
    }

    #[cold]
    #[inline(never)]
    fn welcome(&self) {
        let before = self.waiting.load(Ordering::Relaxed);
        let since = Instant::now();
        self.turns.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.turns, futex::Flags::PRIVATE, 1);
        while !self.lock.is_locked()
            && self.waiting.load(Ordering::Relaxed) >= before
            && since.elapsed() < WELCOME
        {
            std::thread::yield_now();
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> MutexGuard<'_, T> {
        let since = Instant::now();
        let mut slept = false;
        while !slept && since.elapsed() < PATIENCE {
            patience::yield_or(|| slept = true);
            if let Some(guard) = self.lock.try_lock() {
                return guard;
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = loop {
            let turn = self.turns.load(Ordering::Acquire);
            if let Some(guard) = self.lock.try_lock() {
                break guard;
            }
            patience::yield_or(|| self.sleep(turn));
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Sleeps for a moment, or until somebody is let in after this turn.
    fn sleep(&self, turn: u32) {
        let moment = futex::Timespec::try_from(SLEEP).ok();
        // Woken, too late or interrupted: it tries again in any case.
        let _ = futex::wait(&self.turns, futex::Flags::PRIVATE, turn, moment.as_ref());
    }
}

/// Lets others in when it is dropped: the last field of who holds the lock.
#[derive(Debug)]
pub(crate) struct LetIn<'a, T>(pub(crate) &'a Mutex<T>);

impl<T> Drop for LetIn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.let_in();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    impl<T> Mutex<T> {
        /// How often somebody was let in.
        pub(crate) fn turns(&self) -> u32 {
            self.turns.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn who_has_waited_for_long_is_let_in() {
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            let held = mutex.lock();
            let waiter = scope.spawn(|| *mutex.lock() += 1);
            while !mutex.is_wanted() {
                thread::yield_now();
            }
            drop(held);
            mutex.let_in();
            assert_eq!(mutex.turns(), 1, "it is woken");
            // It has the lock, or had it, or has no processor yet.
            while !waiter.is_finished() {
                drop(mutex.lock());
                mutex.let_in();
            }
        });
        assert_eq!(*mutex.lock(), 1);
        assert!(!mutex.is_wanted());
    }

    #[test]
    fn nobody_is_let_in_where_nobody_waits() {
        let mutex = Mutex::new(());
        drop(mutex.lock());
        mutex.let_in();
        assert_eq!(mutex.turns(), 0);
    }

    #[test]
    fn who_lets_in_does_not_wait_for_one_that_does_not_come() {
        let mutex = Mutex::new(());
        mutex.waiting.fetch_add(1, Ordering::Relaxed);
        mutex.let_in();
        assert_eq!(mutex.turns(), 1);
    }

    #[test]
    fn threads_take_turns_and_lose_nothing() {
        const THREADS: usize = 4;
        const EACH: usize = 2000;
        let mutex = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        *mutex.lock() += 1;
                        mutex.let_in();
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), THREADS * EACH);
    }
}
