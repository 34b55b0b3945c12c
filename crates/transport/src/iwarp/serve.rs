//! The queue of the peer's READs and atomics whose response is still to be sent, in the order of
//! arrival. Its maximum length is the limit that the two ends agreed on (IRD).

use alloc::collections::VecDeque;

use rdmux_wire::{Rkey, Stag};

/// A response to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The contents of local memory.
    Read {
        /// The peer's memory that receives them.
        sink: Stag,
        /// The address of the first byte there.
        to: u64,
        /// The key.
        rkey: Rkey,
        /// The address of the first byte here.
        va: u64,
        /// Bytes.
        len: u32,
        /// Number of bytes already put into frames.
        done: u32,
    },
    /// The original value from before an atomic.
    Atomic {
        /// The identifier that the peer's request contains.
        id: u32,
        /// The value.
        original: u64,
    },
}

/// The queue of pending responses.
#[derive(Debug, Default)]
pub(super) struct Serving {
    queue: VecDeque<Answer>,
    limit: usize,
}

impl Serving {
    pub(super) fn new(ird: u16) -> Self {
        let limit = usize::from(ird);
        Self { queue: VecDeque::with_capacity(limit), limit }
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= self.limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Appends a response. The queue was checked for room when the request began, and nothing is
    /// appended in between. Returns false if it is full nevertheless.
    pub(super) fn push(&mut self, answer: Answer) -> bool {
        let has_room = !self.is_full();
        if has_room {
            self.queue.push_back(answer);
        }
        has_room
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut Answer> {
        self.queue.front_mut()
    }

    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Returns the number of allocated bytes.
    pub(super) fn footprint(&self) -> usize {
        self.queue.capacity() * size_of::<Answer>()
    }
}
