//! When a thread whose polls find nothing yields to others.
//!
//! On a machine with few processors the peer that it waits for may itself be waiting for this one. So after some time
//! without anything it yields (`sched_yield(2)`) now and then: at every look at the clock as long as others take their
//! turn then, and ever more seldom where nobody does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdmux_transport::Time;

/// How long a thread finds nothing before it first yields, unless [`VARIABLE`] says otherwise.
const USUAL: Duration = Duration::from_micros(50);
/// The variable of the environment that says so, in microseconds.
const VARIABLE: &str = "RDMUX_PATIENCE";
/// A yield that took no longer found nobody who waited.
const NOBODY: Duration = Duration::from_micros(2);
/// The longest time between yields that found nobody.
const SELDOM: Duration = Duration::from_micros(500);
/// The first time between them.
const SOON: Duration = Duration::from_micros(4);

/// See the module. Shared by the threads that poll a device, which may be wrong about each other by a yield.
#[derive(Debug)]
pub(crate) struct SpinTime {
    usual: Duration,
    /// Not before this time, in nanoseconds.
    next: AtomicU64,
    /// How long the next yield is put off if it finds nobody.
    interval: AtomicU64,
}

impl SpinTime {
    /// With what the environment of the process says.
    pub(crate) fn new() -> Self {
        Self::of(Self::of_environment().unwrap_or_else(|why| {
            tracing::warn!("{why}; {USUAL:?} it is");
            USUAL
        }))
    }

    /// What the environment says.
    ///
    /// # Errors
    /// When it is no number of microseconds.
    pub(crate) fn of_environment() -> Result<Duration, String> {
        let Ok(text) = std::env::var(VARIABLE) else { return Ok(USUAL) };
        parse(&text).ok_or_else(|| format!("{VARIABLE}={text:?} is no number of microseconds"))
    }

    fn of(usual: Duration) -> Self {
        Self { usual, next: AtomicU64::new(0), interval: AtomicU64::new(0) }
    }

    /// Whether a thread that found nothing since `found` yields now.
    pub(crate) fn is_over(&self, now: Time, found: Time) -> bool {
        now.since(found) > self.usual && now.0 >= self.next.load(Ordering::Relaxed)
    }

    /// It yielded from one time to the other.
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
    fn yields_after_some_time_and_more_seldom_where_nobody_waits() {
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
    fn yields_at_once_again_while_others_take_their_turn() {
        let spin_time = SpinTime::of(USUAL);
        (0..9).for_each(|_| spin_time.yielded(Time(0), Time(US)));
        assert!(!spin_time.is_over(Time(100 * US), Time(0)));
        spin_time.yielded(Time(600 * US), Time(700 * US));
        assert!(spin_time.is_over(Time(700 * US), Time(0)));
        assert!(!spin_time.is_over(Time(700 * US), Time(660 * US)), "something was found since");
    }

    #[test]
    fn microseconds_and_nothing_else() {
        assert_eq!(parse("0"), Some(Duration::ZERO));
        assert_eq!(parse(" 250 "), Some(Duration::from_micros(250)));
        assert_eq!(parse("50us"), None);
        assert_eq!(parse(""), None);
    }
}
