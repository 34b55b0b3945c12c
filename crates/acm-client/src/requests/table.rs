//! The unanswered requests, by number, by deadline, and in the order of sending.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use rdmux_wire::acm::client::Bytes;

/// The maximum duration.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The unanswered requests.
#[derive(Debug, Default)]
pub(super) struct Table {
    pending: HashMap<u64, Pending>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// The requests on no connection; some may be removed by now.
    waiting: VecDeque<u64>,
    last: u64,
}

/// An unanswered request.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) request: Bytes,
    pub(super) timeout: Duration,
    deadline: Instant,
    /// Number of times that the request's connection was closed.
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

    /// Removes a request.
    pub(super) fn remove(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        self.deadlines.remove(&(pending.deadline, id));
        Some(pending)
    }

    /// Returns whether a request is waiting to be sent.
    pub(super) fn is_waiting(&mut self) -> bool {
        while self.waiting.front().is_some_and(|id| !self.pending.contains_key(id)) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }

    /// Returns the next request to send. It stays in the table until it is answered.
    pub(super) fn take(&mut self) -> Option<(u64, &Pending)> {
        while let Some(id) = self.waiting.pop_front() {
            if self.pending.contains_key(&id) {
                return self.pending.get(&id).map(|pending| (id, pending));
            }
        }
        None
    }

    /// Queues a request again. Returns false the second time that `counts` is set.
    pub(super) fn again(&mut self, id: u64, counts: bool) -> bool {
        let Some(pending) = self.pending.get_mut(&id) else { return true };
        pending.closed += u8::from(counts);
        if pending.closed > 1 {
            return false;
        }
        self.waiting.push_back(id);
        true
    }

    /// Removes and returns a request whose deadline has passed.
    pub(super) fn expired(&mut self, now: Instant) -> Option<(u64, Pending)> {
        let (_, id) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        self.remove(id).map(|pending| (id, pending))
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
