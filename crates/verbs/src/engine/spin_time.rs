//! The spin time: how long a thread polls without finding work before it yields.
//!
//! On a machine with few processors, the peer that the thread waits for may itself wait for its processor. So after some time
//! without work the thread yields (`sched_yield(2)`) repeatedly: whenever it reads the clock, as long as other threads run then,
//! and ever more rarely if none does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdmux_transport::Time;

/// Time that a thread polls without finding work before it first yields, unless [`VARIABLE`] sets another.
const USUAL: Duration = Duration::from_micros(50);
/// The environment variable that sets the spin time, in microseconds.
const VARIABLE: &str = "RDMUX_PATIENCE";
/// A yield that took no longer than this found no other thread to run.
const NOBODY: Duration = Duration::from_micros(2);
/// The longest time between yields that found no other thread.
const SELDOM: Duration = Duration::from_micros(500);
/// The first time between such yields.
const SOON: Duration = Duration::from_micros(4);

/// The spin time of a device; see the module. Shared by the threads that poll the device, without synchronization: one may yield
/// once too often or too rarely.
#[derive(Debug)]
pub(crate) struct SpinTime {
    usual: Duration,
    /// The earliest time of the next yield, in nanoseconds.
    next: AtomicU64,
    /// Time between a yield that found no other thread and the next.
    interval: AtomicU64,
}

impl SpinTime {
    /// Creates it with the value from the process's environment.
    pub(crate) fn new() -> Self {
        Self::of(Self::of_environment().unwrap_or_else(|why| {
            tracing::warn!("{why}; using {USUAL:?}");
            USUAL
        }))
    }

    /// Reads the environment.
    ///
    /// # Errors
    /// An error when it is not a number of microseconds.
    pub(crate) fn of_environment() -> Result<Duration, String> {
        let Ok(text) = std::env::var(VARIABLE) else { return Ok(USUAL) };
        parse(&text).ok_or_else(|| format!("{VARIABLE}={text:?} is not a number of microseconds"))
    }

    fn of(usual: Duration) -> Self {
        Self { usual, next: AtomicU64::new(0), interval: AtomicU64::new(0) }
    }

    /// Returns whether a thread that has found nothing since `found` yields now.
    pub(crate) fn is_over(&self, now: Time, found: Time) -> bool {
        now.since(found) > self.usual && now.0 >= self.next.load(Ordering::Relaxed)
    }

    /// Records a yield that lasted from one time to the other.
    pub(crate) fn yielded(&self, from: Time, to: Time) {
        let interval = if to.since(from) > NOBODY {
            0
        } else {
            let before = Duration::from_nanos(self.interval.load(Ordering::Relaxed));
            let longer = (before * 2).clamp(SOON, SELDOM).as_nanos();
            u64::try_from(longer).unwrap_or(u64::MAX)
        };
        self.interval.store(interval, Ordering::Relaxed);
        self.next.store(to.0.saturating_add(interval), Ordering::Relaxed);
    }
}

fn parse(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    #[test]
    fn poller_yields_after_spin_time_with_growing_intervals() {
        let spin_time = SpinTime::of(USUAL);
        let (found, mut now) = (Time(0), Time(50 * US));
        assert!(!spin_time.is_over(now, found));
        now.0 += 1;
        let mut gaps = Vec::new();
        for _ in 0..12 {
            assert!(spin_time.is_over(now, found));
            let after = Time(now.0 + US);
            spin_time.yielded(now, after);
            let next =
                (after.0..).step_by(100).find(|t| spin_time.is_over(Time(*t), found)).unwrap();
            gaps.push((next - after.0).div_ceil(US));
            now = Time(next);
        }
        assert_eq!(gaps[..4], [4, 8, 16, 32]);
        assert_eq!(gaps.last(), Some(&500));
    }

    #[test]
    fn long_yield_resets_the_yield_interval() {
        let spin_time = SpinTime::of(USUAL);
        (0..9).for_each(|_| spin_time.yielded(Time(0), Time(US)));
        assert!(!spin_time.is_over(Time(100 * US), Time(0)));
        spin_time.yielded(Time(600 * US), Time(700 * US));
        assert!(spin_time.is_over(Time(700 * US), Time(0)));
        assert!(!spin_time.is_over(Time(700 * US), Time(660 * US)), "something was found since");
    }

    #[test]
    fn spin_time_is_parsed_as_microseconds_only() {
        assert_eq!(parse("0"), Some(Duration::ZERO));
        assert_eq!(parse(" 250 "), Some(Duration::from_micros(250)));
        assert_eq!(parse("50us"), None);
        assert_eq!(parse(""), None);
    }
}
