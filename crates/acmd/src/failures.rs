//! Repeated failures: each is logged once, and tried again after a pause that grows.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

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
}

impl<K: Ord> Failures<K> {
    /// Returns no failures, with the first pause after one, and the longest.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { all: BTreeMap::new(), pauses: (first, longest) }
    }

    /// Logs a failure, as a warning only if its text differs from that of the last one. Returns the pause until the next attempt, which
    /// doubles while the text stays the same.
    pub(crate) fn tell(&mut self, what: K, why: &impl Display) -> Duration {
        let (is_new, pause) = self.note(what, why.to_string());
        if is_new {
            tracing::warn!("{why}; retrying in {pause:?}, and later at longer intervals");
        } else {
            tracing::debug!("{why}; retrying in {pause:?}");
        }
        pause
    }

    /// Records a failure. Returns whether its text is a new one, and the pause.
    fn note(&mut self, what: K, why: String) -> (bool, Duration) {
        let (first, longest) = self.pauses;
        match self.all.get_mut(&what) {
            Some(last) if last.why == why => {
                last.pause = (last.pause * 2).min(longest);
                (false, last.pause)
            }
            _ => {
                self.all.insert(what, Failure { why, pause: first });
                (true, first)
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
        let mut note = |what, why: &str| failures.note(what, why.to_owned());
        assert_eq!(note(1, "full"), (true, FIRST));
        assert_eq!(note(1, "full"), (false, FIRST * 2));
        assert_eq!(note(2, "full"), (true, FIRST));
        assert_eq!(note(1, "gone"), (true, FIRST));
        let longest = (0..64).map(|_| note(1, "gone")).last();
        assert_eq!(longest, Some((false, LONGEST)));
    }

    #[test]
    fn failure_after_a_success_is_new() {
        let mut failures = Failures::new(FIRST, LONGEST);
        assert!(failures.note(1, "full".to_owned()).0);
        failures.end(&1);
        assert_eq!(failures.note(1, "full".to_owned()), (true, FIRST));
    }
}
