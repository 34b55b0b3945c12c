//! Repeated failures: each is logged once, and tried again after a pause that grows.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

/// The failures that have not ended, by what failed.
#[derive(Debug)]
pub(crate) struct Failures<K> {
    all: BTreeMap<K, Failure>,
    /// The first pause after a failure, and the longest.
    pauses: (Duration, Duration),
}

/// The last failure of one thing.
#[derive(Debug)]
struct Failure {
    why: String,
    pause: Duration,
    /// When the pause ends. An attempt before, for another reason, does not make it longer.
    until: Instant,
}

impl<K: Ord> Failures<K> {
    /// Returns no failures, with the first pause after one, and the longest.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { all: BTreeMap::new(), pauses: (first, longest) }
    }

    /// Logs a failure, as a warning only if its text differs from that of the last one. Returns the time of the next attempt, after a pause
    /// that doubles while the text stays the same.
    pub(crate) fn tell(&mut self, now: Instant, what: K, why: &impl Display) -> Instant {
        let (is_new, until) = self.note(now, what, why.to_string());
        let pause = until.saturating_duration_since(now);
        if is_new {
            tracing::warn!("{why}; retrying in {pause:?}, and later at longer intervals");
        } else {
            tracing::debug!("{why}; retrying in {pause:?}");
        }
        until
    }

    /// Records a failure. Returns whether its text is a new one, and the time of the next attempt.
    fn note(&mut self, now: Instant, what: K, why: String) -> (bool, Instant) {
        let (first, longest) = self.pauses;
        match self.all.get_mut(&what) {
            Some(last) if last.why == why => {
                if last.until <= now {
                    last.pause = (last.pause * 2).min(longest);
                    last.until = now + last.pause;
                }
                (false, last.until)
            }
            _ => {
                let until = now + first;
                self.all.insert(what, Failure { why, pause: first, until });
                (true, until)
            }
        }
    }

    /// Forgets the failures of something that succeeded, or is gone.
    pub(crate) fn end(&mut self, what: &K) {
        self.all.remove(what);
    }

    /// Forgets all failures, so that those that continue are logged again.
    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn repeated_failure_is_new_once_and_its_pause_grows_to_a_limit() {
        let mut failures = Failures::new(FIRST, LONGEST);
        let mut now = Instant::now();
        let mut note = |now, what, why: &str| {
            let (is_new, until) = failures.note(now, what, why.to_owned());
            (is_new, until - now)
        };
        assert_eq!(note(now, 1, "full"), (true, FIRST));
        now += FIRST;
        assert_eq!(note(now, 1, "full"), (false, FIRST * 2));
        assert_eq!(note(now, 1, "full"), (false, FIRST * 2), "the pause has not passed");
        assert_eq!(note(now + FIRST, 1, "full"), (false, FIRST), "the rest of the pause");
        assert_eq!(note(now, 2, "full"), (true, FIRST));
        assert_eq!(note(now, 1, "gone"), (true, FIRST));
        for _ in 0..64 {
            now += LONGEST;
            note(now, 1, "gone");
        }
        assert_eq!(note(now + LONGEST, 1, "gone"), (false, LONGEST));
    }

    #[test]
    fn failure_after_a_success_is_new() {
        let (mut failures, now) = (Failures::new(FIRST, LONGEST), Instant::now());
        assert!(failures.note(now, 1, "full".to_owned()).0);
        failures.end(&1);
        assert_eq!(failures.note(now, 1, "full".to_owned()), (true, now + FIRST));
    }
}
