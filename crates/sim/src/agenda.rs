//! The virtual clock: events in an order that a seed reproduces.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// A number of occurrences, and the event.
pub type Often<E> = (u32, fn() -> E);

/// Pending events. Events of the same time occur in the order of their scheduling.
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
    /// Creates an agenda whose time begins at `now`.
    pub fn beginning_at(now: Time) -> Self {
        Self { now, ..Self::default() }
    }

    /// Returns the present: the time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event after a delay.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now.after(delay), event);
    }

    /// Schedules an event at a time; the past counts as now.
    pub fn at(&mut self, time: Time, event: E) {
        self.events.insert((time.max(self.now), self.next_id), event);
        self.next_id += 1;
    }

    /// Schedules a number of events of each kind at random times of a span.
    pub fn scatter(&mut self, span: Duration, happens: &[Often<E>], rng: &mut impl Rng) {
        for (times, event) in happens {
            for _ in 0..*times {
                self.after(span.mul_f64(rng.random_range(0.0..1.0)), event());
            }
        }
    }

    /// Mixes a value and the present time into a fingerprint.
    pub fn mix(&self, fingerprint: &mut u64, what: u64) {
        *fingerprint = (*fingerprint ^ self.now.0 ^ what << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Takes the next event, and advances time to it.
    pub fn next_event(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }

    /// Returns the number of pending events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether no events are pending.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agenda_orders_events_by_time_then_insertion() {
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
