//! The device's clock: nanoseconds of `CLOCK_MONOTONIC`, in which completions tell their time.

use rustix::time::{ClockId, clock_gettime};

/// How fast it ticks, as `hca_core_clock` tells it.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// What it shows.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// How far the wall clock is ahead of the device's. It is found once for each context and then stays, so that times of
/// completions keep their order and their distances, whatever is done to the system's clock meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    offset: u64,
}

impl WallClock {
    /// By where the two clocks are now. A thread may lose the processor between the looks at them: of several attempts
    /// the one that took the least time counts.
    pub(crate) fn find() -> Self {
        const ATTEMPTS: usize = 8;
        let attempt = || {
            let (before, wall, after) = (now(), nanoseconds(ClockId::Realtime), now());
            let took = after.saturating_sub(before);
            (took, wall.wrapping_sub(before + took / 2))
        };
        let (_, offset) = (1..ATTEMPTS).map(|_| attempt()).fold(attempt(), Ord::min);
        Self { offset }
    }

    /// A time of the device in nanoseconds since 1970.
    pub(crate) fn at(self, time: u64) -> u64 {
        time.wrapping_add(self.offset)
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_time_of_the_device_is_later_on_the_wall_by_as_much() {
        let clock = WallClock::find();
        let start = now();
        for i in 0..10_000 {
            assert_eq!(clock.at(start + i) - clock.at(start), i);
        }
        let (before, wall) = (nanoseconds(ClockId::Realtime), clock.at(now()));
        // The attempts of `find` cannot all have been interrupted for a second.
        assert!(wall.abs_diff(before) < 1_000_000_000_000, "{wall} where it is {before}");
    }
}
