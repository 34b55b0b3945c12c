//! Time as seen by the state machines: an argument, never read from a clock.

use core::time::Duration;

/// Nanoseconds on a monotonic clock of the driver's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// A time later than all others, for a timer that does not run.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns this time plus `d`, saturating.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
    /// Returns the time elapsed since `earlier`, or zero if that is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
