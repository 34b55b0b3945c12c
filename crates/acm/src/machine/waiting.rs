//! Searches that wait for their turn. Those that end before it is theirs are skipped, and do not accumulate.

use alloc::collections::VecDeque;

/// A search: its place, and its transaction ID, so that another one in the same place is not taken for it.
pub(super) type Ticket = (u32, u64);

/// A queue of searches.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: VecDeque<Ticket>,
    waits: usize,
}

impl Waiting {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waits
    }

    pub(super) fn push(&mut self, ticket: Ticket) {
        self.queue.push_back(ticket);
        self.waits += 1;
    }

    /// One that has waited does not wait any more.
    pub(super) fn left(&mut self, waits: impl Fn(&Ticket) -> bool) {
        self.waits = self.waits.saturating_sub(1);
        if self.queue.len() > self.waits * 2 + 16 {
            self.queue.retain(waits);
        }
    }

    /// The one that has waited longest, or with a number to choose by, any. It still counts as one that waits.
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
