//! READs and atomics of the peer that wait for their response to be sent, in the order of their arrival.
//! There are at most as many as the two ends agreed on (IRD).

use alloc::collections::VecDeque;

use rdmux_wire::{Rkey, Stag};

/// What is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Memory of ours.
    Read {
        /// Where the peer wants it.
        sink: Stag,
        /// The address of its first byte there.
        to: u64,
        /// The key.
        rkey: Rkey,
        /// The address of its first byte here.
        va: u64,
        /// Bytes.
        len: u32,
        /// Those of which frames were made.
        done: u32,
    },
    /// What was there before an atomic.
    Atomic {
        /// The number that the peer gave it.
        id: u32,
        /// The value.
        original: u64,
    },
}

/// See the module.
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

    /// Takes a request in. It was found not to be full when the request began, and nothing else comes
    /// in between; should it be full all the same, false.
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

    /// Bytes allocated.
    pub(super) fn footprint(&self) -> usize {
        self.queue.capacity() * size_of::<Answer>()
    }
}
