//! Queues of searches. Those that end before their turn are skipped, and do not accumulate.

use alloc::collections::VecDeque;

/// A search: its index, and its transaction ID, which distinguishes it from a later one at the same index.
pub(super) type Ticket = (u32, u64);

/// A queue of searches.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: VecDeque<Ticket>,
    waits: usize,
}

impl Waiting {
    /// Returns the number of queued searches.
    pub(super) fn len(&self) -> usize {
        self.waits
    }

    pub(super) fn push(&mut self, ticket: Ticket) {
        self.queue.push_back(ticket);
        self.waits += 1;
    }

    /// Removes one queued search.
    pub(super) fn left(&mut self, waits: impl Fn(&Ticket) -> bool) {
        self.waits = self.waits.saturating_sub(1);
        if self.queue.len() > self.waits * 2 + 16 {
            self.queue.retain(waits);
        }
    }

    /// Removes and returns the search that has waited longest, or any, chosen by a number. It still counts
    /// as queued.
    pub(super) fn take(
        &mut self,
        any: Option<u64>,
        waits: impl Fn(&Ticket) -> bool,
    ) -> Option<Ticket> {
        if let Some(any) = any {
            let len = u64::try_from(self.queue.len()).unwrap_or(u64::MAX);
            let at = usize::try_from(any % len.max(1)).unwrap_or(0);
            if let Some(ticket) = self.queue.get(at).copied().filter(|ticket| waits(ticket)) {
                self.queue.swap_remove_back(at);
                return Some(ticket);
            }
        }
        loop {
            let ticket = self.queue.pop_front()?;
            if waits(&ticket) {
                return Some(ticket);
            }
        }
    }
}
