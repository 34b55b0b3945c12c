//! The receive queue: a ring like the send queue's. With a shared receive queue there is only one slot, for a receive taken
//! from it. An XRC initiator receives nothing and has no slot. The ring is allocated when the first receive is posted.

use alloc::boxed::Box;
use alloc::vec;

use crate::attr::QpType;
use crate::env::Env;
use crate::error::PostError;
use crate::qp::QpInit;
use crate::wr::{RecvWr, Sge};

/// Scatter entries of the slot for a shared receive queue's work request when the capabilities name no number.
const DEFAULT_SRQ_SGES: u32 = 32;

/// An entry of the receive queue.
#[derive(Clone, Copy, Debug, Default)]
struct RecvWqe {
    wr_id: u64,
    /// Total bytes of the scatter list.
    len: u64,
    num_sge: u32,
}

/// The receive queue. The receive for the message in progress stays at the head until it is finished.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    sges: Box<[Sge]>,
    mask: u32,
    /// The maximum number of entries: 0 before the ring is allocated, then `max_wr`.
    limit: u32,
    max_wr: u32,
    max_sge: u32,
    head: u32,
    tail: u32,
    shared: bool,
    /// Whether the entry at the head is in use for a message.
    active: bool,
}

impl RecvQueue {
    pub(crate) fn new(init: &QpInit) -> Self {
        let (slots, max_sge) = Self::sizes(init);
        let shared = Self::shares(init);
        let mut queue = Self {
            wqes: Box::default(),
            sges: Box::default(),
            mask: slots.wrapping_sub(1),
            limit: 0,
            max_wr: init.caps.max_recv_wr,
            max_sge,
            head: 0,
            tail: 0,
            shared,
            active: false,
        };
        if shared {
            queue.make_slots(slots as usize);
        }
        queue
    }

    fn make_slots(&mut self, slots: usize) {
        self.wqes = vec![RecvWqe::default(); slots].into_boxed_slice();
        self.sges = vec![Sge::default(); slots * self.max_sge as usize].into_boxed_slice();
    }

    /// Allocates the ring of a queue that never held anything. Any other queue is full.
    #[cold]
    fn make_room(&mut self) -> Result<(), PostError> {
        if self.limit == self.max_wr {
            return Err(PostError::Full(self.max_wr));
        }
        self.make_slots(self.mask.wrapping_add(1) as usize);
        self.limit = self.max_wr;
        Ok(())
    }

    /// Returns whether receives come from a shared receive queue: the queue pair's, or those that the peer names.
    fn shares(init: &QpInit) -> bool {
        init.has_srq || init.qp_type == QpType::XrcRecv
    }

    /// Returns the number of slots, and of scatter entries per slot.
    fn sizes(init: &QpInit) -> (u32, u32) {
        match (init.qp_type, Self::shares(init), init.caps.max_recv_sge) {
            (QpType::XrcSend, ..) => (0, 0),
            (_, true, 0) => (1, DEFAULT_SRQ_SGES),
            (_, true, n) => (1, n),
            (_, false, n) => (init.caps.max_recv_wr.max(1).next_power_of_two(), n),
        }
    }

    /// Returns how many bytes the queue will allocate, or `usize::MAX` if that overflows.
    pub(crate) fn size_for(init: &QpInit) -> usize {
        let (slots, max_sge) = Self::sizes(init);
        let entry = (max_sge as usize).saturating_mul(size_of::<Sge>()) + size_of::<RecvWqe>();
        (slots as usize).saturating_mul(entry)
    }

    /// Discards every entry.
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail, self.active) = (0, 0, false);
    }

    /// Returns the number of allocated bytes.
    pub(crate) fn footprint(&self) -> usize {
        size_of_val(&*self.wqes) + size_of_val(&*self.sges)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Queues a work request.
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.shared {
            return Err(PostError::SharedReceiveQueue);
        }
        if self.tail.wrapping_sub(self.head) >= self.limit {
            self.make_room()?;
        }
        if wr.sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        let slot = (self.tail & self.mask) as usize;
        let start = slot * self.max_sge as usize;
        self.sges[start..start + wr.sges.len()].copy_from_slice(wr.sges);
        self.wqes[slot] = entry(wr.wr_id, wr.sges);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Takes the next receive for a message, unless one is in use already. Returns false if the queue is empty.
    #[inline]
    pub(crate) fn take<E: Env>(&mut self, env: &mut E) -> bool {
        if self.active {
            return true;
        }
        if self.shared {
            let Some(srq) = env.pop_srq(&mut self.sges) else { return false };
            let n = srq.num_sge.min(self.sges.len());
            self.wqes[0] = entry(srq.wr_id, &self.sges[..n]);
            self.active = true;
        } else {
            self.active = self.head != self.tail;
        }
        self.active
    }

    /// Returns whether a receive is in use.
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// Returns the scatter list of the receive in use.
    #[inline]
    pub(crate) fn sges(&self) -> &[Sge] {
        let slot = (self.head & self.mask) as usize;
        let start = slot * self.max_sge as usize;
        let num_sge = self.wqes.get(slot).map_or(0, |wqe| wqe.num_sge as usize);
        self.sges.get(start..start + num_sge).unwrap_or_default()
    }

    /// Returns the total length of that list in bytes.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.wqes.get((self.head & self.mask) as usize).map_or(0, |wqe| wqe.len)
    }

    /// Releases the receive in use, or drops the oldest. Returns its `wr_id`.
    #[inline]
    pub(crate) fn finish(&mut self) -> u64 {
        let wr_id = self.wqes.get((self.head & self.mask) as usize).map_or(0, |wqe| wqe.wr_id);
        self.active = false;
        if !self.shared {
            self.head = self.head.wrapping_add(1);
        }
        wr_id
    }

    /// Returns whether there is nothing to flush.
    pub(crate) fn is_empty(&self) -> bool {
        !self.active && self.head == self.tail
    }
}

fn entry(wr_id: u64, sges: &[Sge]) -> RecvWqe {
    RecvWqe {
        wr_id,
        len: sges.iter().map(|s| u64::from(s.length)).sum(),
        num_sge: u32::try_from(sges.len()).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::{Lkey, Qpn};

    use super::*;
    use crate::attr::QpCaps;

    #[test]
    fn receive_queue_is_allocated_by_the_first_posted_receive() {
        let caps = QpCaps { max_recv_wr: 3, max_recv_sge: 2, ..QpCaps::default() };
        let init = QpInit {
            qpn: Qpn::default(),
            qp_type: QpType::Rc,
            caps,
            sq_sig_all: false,
            has_srq: false,
        };
        let mut queue = RecvQueue::new(&init);
        assert_eq!((queue.footprint(), queue.room(), queue.sges().len()), (0, 0, 0));
        let sges = [Sge { addr: 7, length: 9, lkey: Lkey(1) }; 2];
        for wr_id in 1..=3 {
            queue.post(&RecvWr { wr_id, sges: &sges }).unwrap();
        }
        assert_eq!(queue.post(&RecvWr { wr_id: 4, sges: &[] }), Err(PostError::Full(3)));
        assert_eq!((queue.room(), queue.sges()), (18, &sges[..]));
        assert_eq!(queue.finish(), 1);
        assert_eq!(queue.footprint(), RecvQueue::size_for(&init));
        let none = QpInit { caps: QpCaps { max_recv_wr: 0, ..caps }, ..init };
        let refused = RecvQueue::new(&none).post(&RecvWr { wr_id: 1, sges: &[] });
        assert_eq!(refused, Err(PostError::Full(0)));
    }
}
