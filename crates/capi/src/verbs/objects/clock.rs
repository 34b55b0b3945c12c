//! The device's clock: nanoseconds of `CLOCK_MONOTONIC`, which completions have as their timestamps.

use rustix::time::{ClockId, clock_gettime};

/// Its frequency, as `hca_core_clock` reports it.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// Returns the current time of the device's clock.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The offset of the wall clock from the device's clock. It is measured once per context and then constant, so that timestamps of
/// completions keep their order and distances even if the wall clock is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    offset: u64,
}

impl WallClock {
    /// Measures the offset by reading both clocks. The thread may be preempted between the reads, so of several attempts
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

    /// Converts a time of the device to nanoseconds since 1970.
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
