//! Log messages that a peer or another process can cause: a few of a kind, and the number of the others.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Messages of a kind that are logged at once.
const BURST: u32 = 10;
/// After those, the time for which there is one more.
const PERIOD: Duration = Duration::from_secs(10);

/// How many messages of one kind are logged: a token bucket.
#[derive(Debug)]
pub struct Throttle(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// Messages that may be logged now.
    tokens: u32,
    /// What `tokens` was counted up to; none before the first message.
    counted: Option<Instant>,
    /// Messages that were not logged since the last one that was.
    suppressed: u64,
}

impl Throttle {
    /// One that has seen nothing.
    pub const fn new() -> Self {
        Self(Mutex::new(Bucket { tokens: BURST, counted: None, suppressed: 0 }))
    }

    /// Whether a message may be logged now; if so, how many were not since the last one.
    #[cold]
    pub fn admit(&self) -> Option<u64> {
        self.0.lock().admit(Instant::now())
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

impl Bucket {
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let counted = *self.counted.get_or_insert(now);
        let periods = now.saturating_duration_since(counted).as_secs() / PERIOD.as_secs();
        if periods > 0 {
            let more = u32::try_from(periods).unwrap_or(BURST);
            self.tokens = self.tokens.saturating_add(more).min(BURST);
            // What is left of a period counts for the next one, unless the bucket is full.
            let full = self.tokens == BURST;
            self.counted = Some(if full { now } else { counted + PERIOD * more });
        }
        if self.tokens == 0 {
            self.suppressed += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Logs a message as `tracing`'s macro of this name does, unless too many came from this line: `throttled!(warn, "...")`.
/// For everything that a peer or another process can cause as often as it likes.
#[macro_export]
macro_rules! throttled {
    ($level:ident, $($message:tt)+) => {{
        static THROTTLE: $crate::throttle::Throttle = $crate::throttle::Throttle::new();
        if let Some(suppressed) = THROTTLE.admit() {
            if suppressed > 0 {
                ::tracing::$level!("{suppressed} more messages like the next one were suppressed");
            }
            ::tracing::$level!($($message)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_logged_and_then_one_a_period_with_the_number_of_the_others() {
        let mut bucket = Throttle::new().0.into_inner();
        let start = Instant::now();
        let logged = (0..1000).filter(|_| bucket.admit(start).is_some()).count();
        assert_eq!(logged, BURST as usize);
        let later = start + PERIOD * 3 / 2;
        assert_eq!(bucket.admit(later), Some(1000 - u64::from(BURST)));
        assert_eq!(bucket.admit(later), None);
        // The half of a period before counts.
        assert_eq!(bucket.admit(start + PERIOD * 2), Some(1));
        assert_eq!(bucket.admit(start + PERIOD * 2), None);
    }

    #[test]
    fn after_a_long_time_there_is_one_burst_and_no_more() {
        let mut bucket = Throttle::new().0.into_inner();
        let start = Instant::now();
        while bucket.admit(start).is_some() {}
        let later = start + PERIOD * 1000;
        let logged = (0..1000).filter(|_| bucket.admit(later).is_some()).count();
        assert_eq!(logged, BURST as usize);
        // A clock that stands still, or seems to go back, gives nothing away.
        assert_eq!(bucket.admit(start), None);
    }
}
