//! Waiting for another thread or process without sleeping for long, and without starving.
//!
//! Waking a processor that sleeps takes tens of microseconds, longer than most answers of another process take to come.
//! So a thread that expects one [`look`]s for a moment before it sleeps, and gives up the processor between looks: on a
//! machine with few processors the peer may be waiting for this one.
//!
//! There are two ways to give it up. To yield (`sched_yield(2)`) costs less than a microsecond where nobody else wants
//! the processor, and is the fastest way to a peer that does. But Linux takes a yield as forfeiting the time slice, some
//! milliseconds, whatever was used of it (measured on Linux 6.18): among threads that compute a thread that yields after
//! each look gets a look for every slice of each of the others. A short sleep forfeits nothing. So after a yield in which
//! another thread computed, [`yield_or_sleep`] sleeps instead, for some time. Threads that only wait for events and serve
//! them quickly ask for a short slice too ([`ask_for_short_slices`]), so that they come soon after they are woken.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{Timespec, nanosleep};

use crate::sys;

/// How long. Longer than an answer of the host service takes, and too short to be seen in the
/// accounts of a process that waits.
const MOMENT: Duration = Duration::from_micros(100);

/// Asks `ready` again and again for a moment, until it says so. Returns whether it did.
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

/// A yield that took longer met a thread that computes. The peers that one waits for answer sooner, or sleep. Where
/// other threads of this process wait in the same way, each of them may take as long between its looks.
const SLICE: Duration = Duration::from_micros(500);
/// How long a thread sleeps in place of a yield, to which the kernel adds as much (`PR_SET_TIMERSLACK`).
const SLEEP: Duration = Duration::from_micros(50);
/// For how long it does so before it tries a yield again.
const BUSY: Duration = Duration::from_millis(20);

/// Lets other threads have the processor: yields, or sleeps for a moment where another thread computes.
pub fn yield_or_sleep() {
    // By a system call of its own: the C library's sleep is a cancellation point, and polling is none.
    let time = Timespec { tv_sec: 0, tv_nsec: SLEEP.subsec_nanos().into() };
    yield_or(|| drop(nanosleep(&time)));
}

/// As [`yield_or_sleep`], for who has a better way to sleep for a moment.
pub fn yield_or(sleeps: impl FnOnce()) {
    thread_local! {
        static POLICY: Cell<YieldPolicy> = const { Cell::new(YieldPolicy { sleeps_until: None }) };
    }
    /// Threads of this process that are in here.
    static WAITING: AtomicU32 = AtomicU32::new(0);
    let others = WAITING.fetch_add(1, Ordering::Relaxed);
    POLICY.with(|policy| {
        let mut now = policy.get();
        now.yield_or_sleep(others, Instant::now, std::thread::yield_now, sleeps);
        policy.set(now);
    });
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// When a thread yields, and when it sleeps for a moment because another thread computes.
#[derive(Clone, Copy, Debug)]
struct YieldPolicy {
    /// It sleeps until then.
    sleeps_until: Option<Instant>,
}

impl YieldPolicy {
    /// `others` threads of this process wait, too. Their turns are no sign of a thread that computes, and if hundreds of
    /// threads slept for so short a time each, they would spend the processor on being woken.
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

/// The slice that a thread asks for which serves others: long enough for a round of work.
const SHORT_SLICE: Duration = Duration::from_micros(100);
/// The slice that stands for the system's own.
const USUAL_SLICE: Duration = Duration::ZERO;

/// Asks the kernel to give the calling thread the processor in short slices: no more of it than before, but sooner when it
/// is woken (Linux 6.12, `sched_setattr(2)` with a `sched_runtime`; an older one takes no notice). For threads whose work
/// others wait for.
///
/// # Errors
/// Where the kernel forbids it. The thread works as well, only later where processors are scarce.
pub fn ask_for_short_slices() -> io::Result<()> {
    sys::set_slice(SHORT_SLICE)
}

/// The slices that the calling thread has: short ones while it serves messages that are quickly served, the system's own
/// while it moves long ones, in the middle of which it would be interrupted.
#[derive(Debug)]
pub struct Slices {
    short: bool,
}

impl Slices {
    /// Asks for short ones, for the calling thread.
    ///
    /// # Errors
    /// As [`ask_for_short_slices`].
    pub fn new() -> io::Result<Self> {
        ask_for_short_slices()?;
        Ok(Self { short: true })
    }

    /// Asks for short ones or for the system's own, unless the thread has them.
    ///
    /// # Errors
    /// As [`ask_for_short_slices`].
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
    fn looks_until_it_is_there_or_gives_up() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(look_for(Duration::MAX, third));
        assert_eq!(looks, 3);
        assert!(!look_for(Duration::ZERO, || false));
    }

    /// Yields or sleeps once on a clock of its own; a yield takes so long. Returns whether it slept instead.
    fn once(policy: &mut YieldPolicy, clock: &Cell<Instant>, takes: Duration) -> bool {
        among(0, policy, clock, takes)
    }

    /// The same where `others` threads wait, too.
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
    fn yields_as_long_as_nobody_computes_meanwhile() {
        let (mut policy, clock) = (YieldPolicy { sleeps_until: None }, Cell::new(Instant::now()));
        for takes in [Duration::ZERO, Duration::from_micros(1), SLICE].repeat(9) {
            assert!(!once(&mut policy, &clock, takes));
        }
    }

    #[test]
    fn yields_as_long_as_only_other_threads_that_wait_take_their_turns() {
        let (mut policy, clock) = (YieldPolicy { sleeps_until: None }, Cell::new(Instant::now()));
        let turns = SLICE * 256;
        for _ in 0..9 {
            assert!(!among(255, &mut policy, &clock, turns));
        }
        assert!(!among(254, &mut policy, &clock, turns));
        assert!(among(254, &mut policy, &clock, turns), "one of them computed");
    }

    #[test]
    fn sleeps_after_a_yield_in_which_somebody_computed_and_tries_again_later() {
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
    fn short_slices_are_asked_for_without_changing_the_policy() {
        std::thread::spawn(|| {
            let policy = sys::policy().unwrap();
            sys::set_slice(SHORT_SLICE).unwrap();
            assert_eq!(sys::policy().unwrap(), policy);
        })
        .join()
        .unwrap();
    }
}
