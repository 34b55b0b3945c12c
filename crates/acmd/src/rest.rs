//! When a device's sockets are left alone for a moment although something has come.
//!
//! All hosts hear what each asks of all. Where many hosts begin at the same time, to be woken for each request takes them longer than to learn
//! from it, and hosts that share processors keep each other from asking. So after a request that is for others a device rests, as adapters moderate
//! their interrupts: what comes meanwhile is taken at once afterwards. A request for this host waits as long as that, but only
//! while others ask others.

use std::time::{Duration, Instant};

/// How long it rests at first, and at most.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(4));
/// Rests are longer and longer if one follows another so soon.
const SOON: Duration = Duration::from_millis(10);

/// The rests of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rest {
    length: Duration,
    until: Option<Instant>,
    /// It rests.
    is_on: bool,
}

impl Rest {
    /// Datagrams have come at this time, and so many of them were for others only. Whether a rest begins.
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

    /// Whether many hosts ask others at this time.
    pub(crate) fn is_crowded(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until + SOON)
    }

    /// When the rest ends, if the device rests.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.until.filter(|_| self.is_on)
    }

    /// The device is looked at. Whether it rested.
    pub(crate) fn stop(&mut self) -> bool {
        std::mem::take(&mut self.is_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_others_ask_others_and_begin_anew_after_a_pause() {
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
