//! READs and atomics that were accepted: those whose response is still to be sent, and the last few
//! that the peer may request again (IBTA 9.7.5.1.2). There are as many as the requester may have
//! outstanding, so none is discarded before its response has arrived.

use alloc::boxed::Box;
use alloc::vec;

use rdmux_wire::{Psn, Reth, Rkey};

use crate::env::AtomicAnswer;

/// The response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The contents of memory.
    Read {
        /// The address of the first byte.
        va: u64,
        /// The key.
        rkey: Rkey,
        /// The length in bytes.
        len: u32,
        /// The shared receive queue that the request named; XRC only.
        srqn: u32,
    },
    /// The original value from before the atomic.
    Atomic {
        /// The value, in host order.
        original: u64,
    },
    /// The same, but the result of the atomic is not known yet.
    Waiting,
}

/// A request that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    /// The PSN of the request.
    pub(super) first: Psn,
    /// The number of PSNs that the response takes.
    npsn: u32,
    /// The response.
    pub(super) answer: Answer,
    /// The MSN that the response carries.
    pub(super) msn: u32,
    /// Packets of the response: the first of those last requested, the next to send, the end.
    pub(super) begin: u32,
    /// Whether the request has been answered before, to the end of its response.
    pub(super) replayed: bool,
    pub(super) next: u32,
    pub(super) stop: u32,
}

impl Resource {
    /// Creates the entry of a READ, with a response of `npsn` packets.
    pub(super) fn read(first: Psn, npsn: u32, reth: &Reth, srqn: u32, msn: u32) -> Self {
        let answer = Answer::Read { va: reth.va, rkey: reth.rkey, len: reth.dma_len, srqn };
        Self { first, npsn, answer, msn, begin: 0, replayed: false, next: 0, stop: npsn }
    }

    /// Creates the entry of an atomic, with its result if it is known.
    pub(super) fn atomic(first: Psn, answer: AtomicAnswer, msn: u32) -> Self {
        let answer = match answer {
            AtomicAnswer::Now(original) => Answer::Atomic { original },
            AtomicAnswer::Later => Answer::Waiting,
        };
        Self { first, npsn: 1, answer, msn, begin: 0, replayed: false, next: 0, stop: 1 }
    }

    /// Returns the index of the response packet with this PSN, if this request owns the PSN.
    fn index_of(&self, psn: Psn) -> Option<u32> {
        u32::try_from(psn.diff(self.first)).ok().filter(|&index| index < self.npsn)
    }
}

/// The list of requests. Indices run freely and are masked on use.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    slots: Box<[Resource]>,
    mask: u32,
    limit: u32,
    /// The number of valid entries, the newest ones.
    len: u32,
    tail: u32,
    /// The oldest entry whose response is not fully sent; `tail` if there is none.
    emit: u32,
}

/// The error that the agreed number of requests is already waiting for responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Resources {
    /// Allocates room for `limit` requests, keeping the newest that fit.
    pub(crate) fn resize(&mut self, limit: u8) {
        let old = core::mem::take(self);
        self.limit = limit.into();
        if limit == 0 {
            return;
        }
        let n = self.limit.next_power_of_two();
        let empty = Resource::atomic(Psn::new(0), AtomicAnswer::Now(0), 0);
        self.slots = vec![Resource { next: 1, ..empty }; n as usize].into_boxed_slice();
        self.mask = n - 1;
        self.len = old.len.min(self.limit);
        self.tail = old.tail;
        let waiting = old.tail.wrapping_sub(old.emit).min(self.len);
        self.emit = self.tail.wrapping_sub(waiting);
        for back in 1..=self.len {
            let index = self.tail.wrapping_sub(back);
            self.slots[(index & self.mask) as usize] = old.slots[(index & old.mask) as usize];
        }
    }

    /// Discards all requests.
    pub(crate) fn clear(&mut self) {
        (self.len, self.tail, self.emit) = (0, 0, 0);
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn footprint(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// Returns whether a response is waiting to be sent.
    #[inline]
    pub(crate) fn pending(&self) -> bool {
        self.emit != self.tail
    }

    /// Makes room for one more request by discarding the oldest. If its response is still to be
    /// sent, the requester has more requests outstanding than agreed. A repeated response is the
    /// exception: the first has arrived then, or the requester could not have sent this request.
    pub(super) fn make_room(&mut self) -> Result<(), Full> {
        while self.tail.wrapping_sub(self.emit) >= self.limit {
            if !self.pending() || !self.slot(self.emit).replayed {
                return Err(Full);
            }
            self.abandon();
        }
        Ok(())
    }

    /// Records a request.
    pub(super) fn push(&mut self, resource: Resource) -> Result<(), Full> {
        self.make_room()?;
        self.slots[(self.tail & self.mask) as usize] = resource;
        self.tail = self.tail.wrapping_add(1);
        self.len = (self.len + 1).min(self.limit);
        Ok(())
    }

    fn slot(&self, index: u32) -> &Resource {
        &self.slots[(index & self.mask) as usize]
    }

    fn slot_mut(&mut self, index: u32) -> &mut Resource {
        &mut self.slots[(index & self.mask) as usize]
    }

    /// Returns the request whose response must be sent now. Returns none while its result is awaited, since
    /// later responses may not overtake it.
    pub(super) fn current(&self) -> Option<&Resource> {
        let oldest = self.pending().then(|| self.slot(self.emit))?;
        (oldest.answer != Answer::Waiting).then_some(oldest)
    }

    /// Records that the next packet of the current response was sent.
    pub(super) fn sent_one(&mut self) {
        self.slot_mut(self.emit).next += 1;
        while self.current().is_some_and(|r| r.next >= r.stop) {
            self.emit = self.emit.wrapping_add(1);
        }
    }

    /// Abandons the rest of the current response.
    pub(super) fn abandon(&mut self) {
        let slot = self.slot_mut(self.emit);
        slot.next = slot.stop.saturating_sub(1);
        self.sent_one();
    }

    /// Answers a READ again, or the part of it that a retried request names. Any other request is
    /// dropped (IBTA 9.7.4.1.5).
    pub(super) fn replay_read(&mut self, psn: Psn, reth: &Reth, to: u32, mtu: u32) {
        let Some((index, from)) = self.find(psn) else { return };
        let slot = self.slot_mut(index);
        let Answer::Read { va, rkey, len, srqn } = slot.answer else { return };
        let skipped = from * mtu;
        let npsn = reth.dma_len.div_ceil(mtu).max(1);
        let same_start =
            (reth.rkey, to) == (rkey, srqn) && reth.va == va.wrapping_add(u64::from(skipped));
        if !same_start || npsn > slot.npsn - from || reth.dma_len > len - skipped {
            return;
        }
        let to_the_end = reth.dma_len == len - skipped;
        if !to_the_end && !reth.dma_len.is_multiple_of(mtu) {
            return;
        }
        slot.replayed |= slot.next >= slot.npsn;
        (slot.begin, slot.next, slot.stop) = (from, from, from + npsn);
        self.rewind(index);
    }

    /// Answers an atomic again, without carrying it out again. One whose result is awaited keeps waiting.
    pub(super) fn replay_atomic(&mut self, psn: Psn) {
        let Some((index, _)) = self.find(psn) else { return };
        let slot = self.slot_mut(index);
        if matches!(slot.answer, Answer::Atomic { .. }) {
            slot.next = 0;
            slot.replayed = true;
            self.rewind(index);
        }
    }

    /// Records the result of the waiting atomic with this PSN, if any.
    pub(super) fn answer(&mut self, psn: Psn, original: u64) {
        if let Some(index) = self.find_waiting(psn) {
            self.slot_mut(index).answer = Answer::Atomic { original };
        }
    }

    /// Discards the waiting atomic with this PSN and all requests after it. Returns false if there is none.
    pub(super) fn give_up(&mut self, psn: Psn) -> bool {
        let Some(index) = self.find_waiting(psn) else { return false };
        self.len -= self.tail.wrapping_sub(index);
        self.tail = index;
        true
    }

    fn find_waiting(&self, psn: Psn) -> Option<u32> {
        let (index, _) = self.find(psn)?;
        (self.slot(index).answer == Answer::Waiting).then_some(index)
    }

    fn find(&self, psn: Psn) -> Option<(u32, u32)> {
        (1..=self.len).find_map(|back| {
            let index = self.tail.wrapping_sub(back);
            self.slot(index).index_of(psn).map(|packet| (index, packet))
        })
    }

    fn rewind(&mut self, index: u32) {
        let waiting = self.tail.wrapping_sub(self.emit);
        if self.tail.wrapping_sub(index) > waiting {
            self.emit = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRQN: u32 = 6;

    fn reth(va: u64, dma_len: u32) -> Reth {
        Reth { va, rkey: Rkey(7), dma_len }
    }

    fn with_reads(limit: u8, count: u32) -> Resources {
        let mut list = Resources::default();
        list.resize(limit);
        for i in 0..count {
            let first = Psn::new(i * 10);
            list.push(Resource::read(first, 10, &reth(u64::from(i) << 20, 10_000), SRQN, i))
                .unwrap();
            for _ in 0..10 {
                list.sent_one();
            }
        }
        list
    }

    #[test]
    fn responder_resources_hold_no_more_than_max_dest_rd_atomic() {
        let mut list = Resources::default();
        let one = Resource::atomic(Psn::new(1), AtomicAnswer::Now(5), 1);
        assert_eq!(list.push(one), Err(Full));
        list.resize(3);
        for _ in 0..3 {
            list.push(one).unwrap();
        }
        assert_eq!(list.push(one), Err(Full));
        list.sent_one();
        list.push(one).unwrap();
    }

    #[test]
    fn duplicate_read_replays_the_requested_part_and_oldest_is_evicted() {
        let mut list = with_reads(2, 3);
        list.replay_read(Psn::new(3), &reth(3 * 1024, 1024), SRQN, 1024);
        assert!(!list.pending(), "the first of three is forgotten");
        list.replay_read(Psn::new(13), &reth((1 << 20) + 3 * 1024, 2048), SRQN, 1024);
        let part = list.current().unwrap();
        assert_eq!((part.begin, part.next, part.stop), (3, 3, 5));
        list.sent_one();
        list.sent_one();
        assert!(!list.pending());
        list.replay_read(Psn::new(27), &reth((2 << 20) + 7 * 1024, 10_000 - 7 * 1024), SRQN, 1024);
        assert_eq!(list.current().unwrap().stop, 10);
    }

    #[test]
    fn duplicate_read_differing_from_the_original_is_not_replayed() {
        let mut list = with_reads(2, 2);
        for (psn, bad) in [
            (13, reth((1 << 20) + 2 * 1024, 1024)),
            (13, reth((1 << 20) + 3 * 1024, 8 * 1024)),
            (13, reth((1 << 20) + 3 * 1024, 100)),
            (13, Reth { rkey: Rkey(8), ..reth((1 << 20) + 3 * 1024, 1024) }),
            (99, reth(0, 1024)),
        ] {
            list.replay_read(Psn::new(psn), &bad, SRQN, 1024);
            assert!(!list.pending(), "{bad:?}");
        }
        let again = reth((1 << 20) + 3 * 1024, 1024);
        list.replay_read(Psn::new(13), &again, SRQN + 1, 1024);
        assert!(!list.pending(), "another shared receive queue");
        list.replay_atomic(Psn::new(13));
        assert!(!list.pending(), "a READ is no atomic");
    }

    #[test]
    fn response_counts_as_replayed_only_once_it_was_sent_to_its_end() {
        let mut list = Resources::default();
        list.resize(1);
        list.push(Resource::read(Psn::new(0), 10, &reth(0, 10_000), SRQN, 0)).unwrap();
        let again = |list: &mut Resources, from: u32, len: u32, sends: u32| {
            list.replay_read(Psn::new(from), &reth(u64::from(from) * 1024, len), SRQN, 1024);
            let replayed = list.current().unwrap().replayed;
            (0..sends).for_each(|_| list.sent_one());
            replayed
        };
        assert!(!again(&mut list, 0, 10_000, 3));
        assert!(!again(&mut list, 0, 2048, 2), "sent as far as its third packet");
        assert!(!again(&mut list, 0, 10_000, 10), "the part was sent whole");
        assert!(again(&mut list, 0, 2048, 2));
        assert!(again(&mut list, 0, 10_000, 1), "also after a part");
        assert!(again(&mut list, 0, 10_000, 1), "also if a later one was not sent whole");
    }

    /// A network may duplicate a request long after its response arrived.
    #[test]
    fn replayed_response_is_evicted_by_a_new_request() {
        let mut list = with_reads(2, 2);
        list.replay_read(Psn::new(0), &reth(0, 10_000), SRQN, 1024);
        assert!(list.pending());
        list.push(Resource::atomic(Psn::new(20), AtomicAnswer::Now(0), 0)).unwrap();
        let next = list.current().unwrap();
        assert_eq!((next.first, next.answer), (Psn::new(20), Answer::Atomic { original: 0 }));
    }

    #[test]
    fn shrinking_responder_resources_keeps_the_newest() {
        let mut list = with_reads(4, 4);
        list.resize(1);
        list.replay_read(Psn::new(20), &reth(2 << 20, 10_000), SRQN, 1024);
        assert!(!list.pending());
        list.replay_read(Psn::new(30), &reth(3 << 20, 10_000), SRQN, 1024);
        assert!(list.pending());
    }
}
