//! Backoff from a service that does not answer, which bounds the total time that it costs a process.

use std::time::{Duration, Instant};

/// Unanswered requests in a row after which a service is backed off from.
const SILENT: u32 = 2;
/// The first backoff. It doubles up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(80);

/// The state of the backoff.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Requests in a row that were not answered in time.
    unanswered: u32,
    /// Time at which the service may be queried again.
    until: Option<Instant>,
}

impl Silence {
    /// Returns whether the service must not be queried at `now`.
    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Resets the backoff: the service answered, even if negatively.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Counts a request that timed out.
    pub(super) fn unanswered(&mut self, now: Instant) {
        self.unanswered = self.unanswered.saturating_add(1);
        if self.unanswered >= SILENT {
            let doublings = (self.unanswered - SILENT).min(4);
            let pause = (SHORTEST * (1 << doublings)).min(LONGEST);
            self.until = now.checked_add(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_service_is_left_alone_for_longer_each_time_until_it_answers() {
        let start = Instant::now();
        let mut silence = Silence::default();
        silence.unanswered(start);
        assert!(!silence.is_on(start));
        for pause in [5, 10, 20, 40, 80, 80] {
            silence.unanswered(start);
            assert!(silence.is_on(start + Duration::from_secs(pause) - Duration::from_millis(1)));
            assert!(!silence.is_on(start + Duration::from_secs(pause)));
        }
        silence.answered();
        assert!(!silence.is_on(start));
        silence.unanswered(start);
        assert!(!silence.is_on(start));
    }
}
