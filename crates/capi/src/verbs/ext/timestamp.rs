//! The device's clock: nanoseconds of `CLOCK_MONOTONIC`, in which completions tell their time.

use rustix::time::{ClockId, clock_gettime};

/// How fast it ticks, as `hca_core_clock` tells it.
pub(super) const KILOHERTZ: u64 = 1_000_000;

/// What it shows.
pub(super) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// A time of the device in nanoseconds since 1970, by where the two clocks are now.
pub(super) fn wall_clock(time: u64) -> u64 {
    nanoseconds(ClockId::Realtime).wrapping_sub(now().wrapping_sub(time))
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
