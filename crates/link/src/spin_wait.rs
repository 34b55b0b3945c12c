//! Waiting for another thread or process without sleeping for long, and without starving.
//!
//! Waking a sleeping processor takes tens of microseconds, longer than most answers of another process. So a thread that expects
//! one busy-polls briefly ([`look`]) before it sleeps, and yields the processor between polls: on a machine with few processors,
//! the peer may be waiting for this one.
//!
//! Two ways to do that exist. A yield (`sched_yield(2)`) costs less than a microsecond if no other thread is runnable, and is the
//! fastest way to let a peer run. But on Linux a yield forfeits the whole time slice of some milliseconds, however little of it
//! was used (measured on Linux 6.18): among computing threads, a thread that yields after each poll polls once for every slice of
//! each of the others. A short sleep forfeits nothing. So after a yield in which another thread computed, [`yield_or_sleep`]
//! sleeps instead for some time. Threads that only wait for events and handle them quickly also request a short slice
//! ([`ask_for_short_slices`]), so that they run soon after they are woken.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{Timespec, nanosleep};

use crate::sys;

/// Time that [`look`] busy-polls: longer than the host service takes to reply, and too short to show in the CPU usage of a
/// waiting process.
const MOMENT: Duration = Duration::from_micros(100);

/// Busy-polls `ready` for a moment, until it returns true. Returns whether it did.
pub fn look(ready: impl FnMut() -> bool) -> bool {
    look_for(MOMENT, ready)
}

fn look_for(moment: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ready() {
            return true;
        }
        if start.elapsed() > moment {
            return false;
        }
        yield_or_sleep();
    }
}

/// The time above which a yield shows that it let a computing thread run. The peers of a waiting thread answer sooner, or
/// sleep. If other threads of this process wait in the same way, each of them may take as long between its polls.
const SLICE: Duration = Duration::from_micros(500);
/// Time that a thread sleeps instead of yielding. The kernel adds as much (`PR_SET_TIMERSLACK`).
const SLEEP: Duration = Duration::from_micros(50);
/// Time for which a thread sleeps instead of yielding before it tries a yield again.
const BUSY: Duration = Duration::from_millis(20);

/// Lets other threads run: yields, or sleeps briefly if another thread computes.
pub fn yield_or_sleep() {
    // As a direct system call: the C library's sleep is a cancellation point, and polling must not be one.
    let time = Timespec { tv_sec: 0, tv_nsec: SLEEP.subsec_nanos().into() };
    yield_or(|| drop(nanosleep(&time)));
}

/// Yields or sleeps like [`yield_or_sleep`], for callers that have a better way to sleep briefly.
pub fn yield_or(sleeps: impl FnOnce()) {
    thread_local! {
        static POLICY: Cell<YieldPolicy> = const { Cell::new(YieldPolicy { sleeps_until: None }) };
    }
    /// The number of threads of this process that are in this function.
    static WAITING: AtomicU32 = AtomicU32::new(0);
    let others = WAITING.fetch_add(1, Ordering::Relaxed);
    POLICY.with(|policy| {
        let mut now = policy.get();
        now.yield_or_sleep(others, Instant::now, std::thread::yield_now, sleeps);
        policy.set(now);
    });
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// The policy of when a thread yields, and when it sleeps briefly because another thread computes.
#[derive(Clone, Copy, Debug)]
struct YieldPolicy {
    /// The time until which the thread sleeps instead of yielding.
    sleeps_until: Option<Instant>,
}

impl YieldPolicy {
    /// Yields or sleeps. `others` is the number of other threads of this process that wait. Their turns do not mean that a thread
    /// computes; and if hundreds of threads slept so briefly, wakeups would take all the processor time.
    fn yield_or_sleep(
        &mut self,
        others: u32,
        now: impl Fn() -> Instant,
        yields: impl FnOnce(),
        sleeps: impl FnOnce(),
    ) {
        let before = now();
        if self.sleeps_until.is_some_and(|until| before < until) {
            return sleeps();
        }
        yields();
        let after = now();
        let most = SLICE.saturating_mul(others.saturating_add(1));
        self.sleeps_until = (after.duration_since(before) > most).then(|| after + BUSY);
    }
}

/// The slice that a thread that serves others requests: long enough for a round of work.
const SHORT_SLICE: Duration = Duration::from_micros(100);
/// The value that selects the kernel's default slice.
const USUAL_SLICE: Duration = Duration::ZERO;

/// Asks the kernel to schedule the calling thread in short slices: with the same share of the processor, but sooner after a
/// wakeup (Linux 6.12, `sched_setattr(2)` with a `sched_runtime`; ignored by older kernels). For threads whose work other threads
/// wait for.
///
/// # Errors
/// The kernel's error if it forbids this. The thread still works, but runs later if processors are scarce.
pub fn ask_for_short_slices() -> io::Result<()> {
    sys::set_slice(SHORT_SLICE)
}

/// The slices of the calling thread: short ones while it handles small messages, the kernel's default while it moves long ones,
/// which short slices would interrupt.
#[derive(Debug)]
pub struct Slices {
    short: bool,
}

impl Slices {
    /// Selects short slices for the calling thread.
    ///
    /// # Errors
    /// As for [`ask_for_short_slices`].
    pub fn new() -> io::Result<Self> {
        ask_for_short_slices()?;
        Ok(Self { short: true })
    }

    /// Selects short or default slices, unless the thread has them already.
    ///
    /// # Errors
    /// As for [`ask_for_short_slices`].
    pub fn have(&mut self, short: bool) -> io::Result<()> {
        if short != self.short {
            sys::set_slice(if short { SHORT_SLICE } else { USUAL_SLICE })?;
            self.short = short;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_returns_when_the_condition_holds_or_time_is_over() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(look_for(Duration::MAX, third));
        assert_eq!(looks, 3);
        assert!(!look_for(Duration::ZERO, || false));
    }

    /// Yields or sleeps once on a simulated clock; a yield takes the given time. Returns whether it slept instead.
    fn once(policy: &mut YieldPolicy, clock: &Cell<Instant>, takes: Duration) -> bool {
        among(0, policy, clock, takes)
    }

    /// Yields or sleeps like [`once`], while `others` threads wait, too.
    fn among(
        others: u32,
        policy: &mut YieldPolicy,
        clock: &Cell<Instant>,
        takes: Duration,
    ) -> bool {
        let slept = Cell::new(false);
        let yields = || clock.set(clock.get() + takes);
        policy.yield_or_sleep(others, || clock.get(), yields, || slept.set(true));
        slept.get()
    }

    #[test]
    fn spin_wait_yields_while_yields_are_short() {
        let (mut policy, clock) = (YieldPolicy { sleeps_until: None }, Cell::new(Instant::now()));
        for takes in [Duration::ZERO, Duration::from_micros(1), SLICE].repeat(9) {
            assert!(!once(&mut policy, &clock, takes));
        }
    }

    #[test]
    fn spin_wait_yields_while_only_other_waiting_threads_run() {
        let (mut policy, clock) = (YieldPolicy { sleeps_until: None }, Cell::new(Instant::now()));
        let turns = SLICE * 256;
        for _ in 0..9 {
            assert!(!among(255, &mut policy, &clock, turns));
        }
        assert!(!among(254, &mut policy, &clock, turns));
        assert!(among(254, &mut policy, &clock, turns), "one of them computed");
    }

    #[test]
    fn spin_wait_sleeps_after_a_long_yield_and_retries_yielding_later() {
        let (mut policy, clock) = (YieldPolicy { sleeps_until: None }, Cell::new(Instant::now()));
        let long = SLICE * 2;
        assert!(!once(&mut policy, &clock, long));
        assert!(once(&mut policy, &clock, long) && once(&mut policy, &clock, long));
        clock.set(clock.get() + BUSY);
        assert!(!once(&mut policy, &clock, long), "they may be gone");
        assert!(once(&mut policy, &clock, long), "they are not");
        clock.set(clock.get() + BUSY);
        assert!(!once(&mut policy, &clock, Duration::ZERO));
        assert!(!once(&mut policy, &clock, Duration::ZERO), "now they are");
    }

    #[test]
    fn setting_a_short_slice_keeps_the_scheduling_policy() {
        std::thread::spawn(|| {
            let policy = sys::policy().unwrap();
            sys::set_slice(SHORT_SLICE).unwrap();
            assert_eq!(sys::policy().unwrap(), policy);
        })
        .join()
        .unwrap();
    }
}
