//! The requests that have no answer yet, by number, by deadline, and in the order in which they are to be asked.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use rdmux_wire::acm::client::Bytes;

/// The longest that anything can take.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Requests.
#[derive(Debug, Default)]
pub(super) struct Table {
    pending: HashMap<u64, Pending>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Those that are on no connection; some of them may be gone.
    waiting: VecDeque<u64>,
    last: u64,
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) request: Bytes,
    pub(super) timeout: Duration,
    deadline: Instant,
    /// How often a connection was closed on it.
    closed: u8,
}

impl Table {
    pub(super) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn add(&mut self, id: u64, request: Bytes, timeout: Duration) {
        let deadline = Instant::now() + timeout.min(FOREVER);
        self.deadlines.insert((deadline, id));
        self.pending.insert(id, Pending { request, timeout, deadline, closed: 0 });
        self.waiting.push_back(id);
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Ends one.
    pub(super) fn remove(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        self.deadlines.remove(&(pending.deadline, id));
        Some(pending)
    }

    /// Whether one is to be asked.
    pub(super) fn is_waiting(&mut self) -> bool {
        while self.waiting.front().is_some_and(|id| !self.pending.contains_key(id)) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }

    /// The next one to be asked. It stays here until it is answered.
    pub(super) fn take(&mut self) -> Option<(u64, &Pending)> {
        while let Some(id) = self.waiting.pop_front() {
            if self.pending.contains_key(&id) {
                return self.pending.get(&id).map(|pending| (id, pending));
            }
        }
        None
    }

    /// Has one asked again. Not the second time that `counts`.
    pub(super) fn again(&mut self, id: u64, counts: bool) -> bool {
        let Some(pending) = self.pending.get_mut(&id) else { return true };
        pending.closed += u8::from(counts);
        if pending.closed > 1 {
            return false;
        }
        self.waiting.push_back(id);
        true
    }

    /// Ends one whose time is over.
    pub(super) fn expired(&mut self, now: Instant) -> Option<(u64, Pending)> {
        let (_, id) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        self.remove(id).map(|pending| (id, pending))
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
