//! Moderation of a device's wakeups: its sockets are ignored for a moment although datagrams have arrived.
//!
//! Every host receives each multicast request. Where many hosts start at the same time, a wakeup for each request takes them longer than
//! learning from it, and hosts that share processors keep each other from sending. So after a request for other hosts a device rests, as
//! adapters moderate their interrupts: datagrams that arrive meanwhile are handled together afterwards. A request for this host waits as
//! long as that, but only while other hosts exchange requests.

use std::time::{Duration, Instant};

/// The duration of a rest: at first, and at most.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(4));
/// Rests grow longer if one follows another within this time.
const SOON: Duration = Duration::from_millis(10);

/// The rests of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rest {
    length: Duration,
    until: Option<Instant>,
    /// Whether the device rests.
    is_on: bool,
}

impl Rest {
    /// Records that datagrams have arrived, and how many of them were only for other hosts. Returns whether a rest
    /// begins.
    pub(crate) fn begin(&mut self, now: Instant, others: u32) -> bool {
        if others == 0 || self.is_on {
            return false;
        }
        let is_soon = self.until.is_some_and(|until| now.duration_since(until) < SOON);
        self.length = if is_soon { (self.length * 2).min(REST.1) } else { REST.0 };
        self.until = Some(now + self.length);
        self.is_on = true;
        true
    }

    /// Returns whether many hosts send requests at this time.
    pub(crate) fn is_crowded(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until + SOON)
    }

    /// Returns when the rest ends, if the device rests.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.until.filter(|_| self.is_on)
    }

    /// Ends a rest, because the device is driven. Returns whether it rested.
    pub(crate) fn stop(&mut self) -> bool {
        std::mem::take(&mut self.is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_interval_doubles_up_to_a_limit_and_resets_after_a_pause() {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        assert!(!rest.begin(now, 0) && rest.end().is_none(), "nothing was for others");
        let mut lengths = Vec::new();
        for _ in 0..4 {
            assert!(rest.begin(now, 1) && !rest.begin(now, 9), "it rests already");
            let end = rest.end().unwrap();
            lengths.push((end - now).as_millis());
            now = end + SOON / 2;
            assert!(rest.stop() && !rest.stop() && rest.end().is_none());
        }
        assert_eq!(lengths, [1, 2, 4, 4]);
        now += SOON;
        assert!(rest.begin(now, 1));
        assert_eq!(rest.end(), Some(now + REST.0));
    }
}
