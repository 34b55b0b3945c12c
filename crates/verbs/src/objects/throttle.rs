//! Rate limiting of log messages that a peer or another process can cause: logs a few of a kind, and the number of suppressed
//! ones.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The number of messages of a kind that are logged at once.
const BURST: u32 = 10;
/// The interval after which another message is logged.
const PERIOD: Duration = Duration::from_secs(10);

/// A limit on the log messages of one kind: a token bucket.
#[derive(Debug)]
pub struct Throttle(Mutex<Bucket>);

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    /// The number of messages that may be logged now.
    tokens: u32,
    /// The time up to which `tokens` has been counted; none before the first message.
    counted: Option<Instant>,
    /// The number of messages suppressed since the last one that was logged.
    suppressed: u64,
}

impl Throttle {
    /// Creates a limit with a full bucket.
    pub const fn new() -> Self {
        Self(Mutex::new(Bucket { tokens: BURST, counted: None, suppressed: 0 }))
    }

    /// Checks whether a message may be logged now. If so, returns how many were suppressed since the last one.
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
            // The rest of a period counts towards the next one, unless the bucket is full.
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

/// Logs a message as `tracing`'s macro of this name does, unless this line logged too many: `throttled!(warn, "...")`. For all
/// messages that a peer or another process can cause at will.
#[macro_export]
macro_rules! throttled {
    ($level:ident, $($message:tt)+) => {{
        static THROTTLE: $crate::throttle::Throttle = $crate::throttle::Throttle::new();
        if let Some(suppressed) = THROTTLE.admit() {
            if suppressed > 0 {
                ::tracing::$level!("{suppressed} messages like the next one were suppressed");
            }
            ::tracing::$level!($($message)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_admits_a_burst_then_one_per_period_with_the_suppressed_count() {
        let mut bucket = Throttle::new().0.into_inner();
        let start = Instant::now();
        let logged = (0..1000).filter(|_| bucket.admit(start).is_some()).count();
        assert_eq!(logged, BURST as usize);
        let later = start + PERIOD * 3 / 2;
        assert_eq!(bucket.admit(later), Some(1000 - u64::from(BURST)));
        assert_eq!(bucket.admit(later), None);
        // The half period from before counts.
        assert_eq!(bucket.admit(start + PERIOD * 2), Some(1));
        assert_eq!(bucket.admit(start + PERIOD * 2), None);
    }

    #[test]
    fn throttle_admits_no_more_than_one_burst_after_a_long_pause() {
        let mut bucket = Throttle::new().0.into_inner();
        let start = Instant::now();
        while bucket.admit(start).is_some() {}
        let later = start + PERIOD * 1000;
        let logged = (0..1000).filter(|_| bucket.admit(later).is_some()).count();
        assert_eq!(logged, BURST as usize);
        // A clock that stops, or seems to go back, adds no tokens.
        assert_eq!(bucket.admit(start), None);
    }
}
