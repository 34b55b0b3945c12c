//! The virtual clock: what happens when, in an order that a seed repeats.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// How often something happens, and the event that it is.
pub type Often<E> = (u32, fn() -> E);

/// Events to come. Those of one time happen in the order in which they were put down.
#[derive(Debug)]
pub struct Agenda<E> {
    now: Time,
    next_id: u64,
    events: BTreeMap<(Time, u64), E>,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { now: Time(1), next_id: 0, events: BTreeMap::new() }
    }
}

impl<E> Agenda<E> {
    /// One whose time begins at `now`.
    pub fn beginning_at(now: Time) -> Self {
        Self { now, ..Self::default() }
    }

    /// The present: the time of the event that was taken last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Puts an event down for some time from now.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now.after(delay), event);
    }

    /// Puts an event down for a time; the past counts as now.
    pub fn at(&mut self, time: Time, event: E) {
        self.events.insert((time.max(self.now), self.next_id), event);
        self.next_id += 1;
    }

    /// Puts events down for any times of a span: so many of each kind.
    pub fn scatter(&mut self, span: Duration, happens: &[Often<E>], rng: &mut impl Rng) {
        for (times, event) in happens {
            for _ in 0..*times {
                self.after(span.mul_f64(rng.random_range(0.0..1.0)), event());
            }
        }
    }

    /// Mixes what happens now into a number that differs when it happens at another time.
    pub fn mix(&self, fingerprint: &mut u64, what: u64) {
        *fingerprint = (*fingerprint ^ self.now.0 ^ what << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Takes the next event, and lets time pass until then.
    pub fn next_event(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }

    /// How many events are to come.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing will happen any more.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_first_then_order() {
        let mut a = Agenda::default();
        for (delay, name) in [(5, "c"), (1, "a"), (5, "d"), (1, "b")] {
            a.after(Duration::from_nanos(delay), name);
        }
        let order: Vec<_> = std::iter::from_fn(|| a.next_event()).collect();
        assert_eq!(order, ["a", "b", "c", "d"]);
        assert_eq!(a.now(), Time(6));
        a.at(Time(2), "late");
        assert_eq!((a.next_event(), a.now()), (Some("late"), Time(6)));
    }
}
