//! The part of shared receive queues that queue pairs take receives from.

use std::collections::VecDeque;
use std::sync::Arc;

use rdmux_transport::env::SrqEntry;
use rdmux_transport::wr::{RecvWr, Sge};
use rdmux_wire::Qpn;

use crate::objects::brief::Mutex;
use crate::objects::control::Limits;
use crate::objects::error::VerbsError;
use crate::objects::pd::PdId;
use crate::objects::quota::Permit;
use crate::objects::room;
use crate::objects::unacked::Unacked;
use crate::objects::xrc::queue::XrcQueue;

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Work requests that fit.
    pub max_wr: u32,
    /// Scatter entries of each work request.
    pub max_sge: u32,
    /// The number of receives below which an event is raised, once; 0 for no event.
    pub limit: u32,
}

impl SrqAttr {
    /// Checks the sizes against the limits of a device. `what` names the operation in the error.
    ///
    /// # Errors
    ///
    /// EINVAL when a size is 0 or above the limit.
    pub(crate) fn check(&self, limits: &Limits, what: &'static str) -> Result<(), VerbsError> {
        if self.max_wr == 0 || self.max_wr > limits.max_srq_wr {
            let (n, max) = (self.max_wr, limits.max_srq_wr);
            return Err(VerbsError::invalid(
                what,
                format!("{n} work requests are out of range: 1 to {max}"),
            ));
        }
        if self.max_sge > limits.max_sge {
            let (n, max) = (self.max_sge, limits.max_sge);
            return Err(VerbsError::invalid(
                what,
                format!("{n} scatter entries exceed the device's limit of {max}"),
            ));
        }
        if self.limit > self.max_wr {
            let why = format!("the limit of {} exceeds the size of the queue", self.limit);
            return Err(VerbsError::invalid(what, why));
        }
        Ok(())
    }
}

/// The part of a shared receive queue that queue pairs take from.
#[derive(Debug)]
pub(crate) struct SrqCore {
    pd: PdId,
    context: u64,
    queue: Mutex<Queue>,
    /// The ring of an XRC queue, used instead of `queue`'s own entries.
    xrc: Option<XrcQueue>,
    unacked: Unacked,
    _permit: Permit,
}

/// The queue. Entries are stored flat, with `max_sge` scatter entries each, so that posting allocates nothing.
#[derive(Debug)]
struct Queue {
    attr: SrqAttr,
    entries: VecDeque<SrqEntry>,
    sges: VecDeque<Sge>,
    /// The iWARP queue pairs that wait for a receive, longest first. The first takes the next receive.
    line: VecDeque<Qpn>,
}

impl Queue {
    /// Returns the waiting queue pair that gets the receive posted last.
    fn next_in_line(&self) -> Option<Qpn> {
        self.line.get(self.entries.len().checked_sub(1)?).copied()
    }

    fn take(&mut self, into: &mut [Sge]) -> Option<Taken> {
        let entry = self.entries.pop_front()?;
        for (slot, sge) in into.iter_mut().zip(self.sges.drain(..entry.num_sge)) {
            *slot = sge;
        }
        let below_limit = self.falls_below_limit(self.entries.len());
        Some(Taken { entry, below_limit })
    }

    /// Returns whether the limit event must be raised for `left` remaining receives. It is raised once.
    fn falls_below_limit(&mut self, left: usize) -> bool {
        let below = left < self.attr.limit as usize;
        if below {
            self.attr.limit = 0;
        }
        below
    }
}

/// A receive that was taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) entry: SrqEntry,
    /// Whether the queue has fallen below its limit with this receive, so that the program must get an event.
    pub(crate) below_limit: bool,
}

impl SrqCore {
    /// Creates an empty queue. `what` names the operation in the error.
    ///
    /// # Errors
    ///
    /// ENOMEM when memory cannot be allocated.
    pub(crate) fn new(
        what: &'static str,
        pd: PdId,
        attr: SrqAttr,
        context: u64,
        permit: Permit,
    ) -> Result<Arc<Self>, VerbsError> {
        let (wrs, sges) = (attr.max_wr as usize, attr.max_sge.min(4) as usize);
        room::check(what, wrs * (size_of::<SrqEntry>() + sges * size_of::<Sge>()))?;
        let (entries, sges) = (VecDeque::with_capacity(wrs), VecDeque::with_capacity(wrs * sges));
        let queue = Queue { attr, entries, sges, line: VecDeque::new() };
        Ok(Self::with(pd, queue, None, context, permit))
    }

    /// Creates a queue of an XRC domain, whose receives are in a ring.
    pub(crate) fn for_xrc(
        pd: PdId,
        attr: SrqAttr,
        xrc: XrcQueue,
        context: u64,
        permit: Permit,
    ) -> Arc<Self> {
        let (entries, sges, line) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self::with(pd, Queue { attr, entries, sges, line }, Some(xrc), context, permit)
    }

    fn with(
        pd: PdId,
        queue: Queue,
        xrc: Option<XrcQueue>,
        context: u64,
        permit: Permit,
    ) -> Arc<Self> {
        let (queue, unacked) = (Mutex::new(queue), Unacked::default());
        Arc::new(Self { pd, context, queue, xrc, unacked, _permit: permit })
    }

    /// Posts a receive. Returns the queue pair that waited for it, if any, whose stream must be continued.
    ///
    /// # Errors
    ///
    /// ENOMEM when the queue is full, EINVAL when the list is too long.
    #[inline]
    pub(crate) fn post(&self, wr: &RecvWr<'_>) -> Result<Option<Qpn>, VerbsError> {
        const WHAT: &str = "post to a shared receive queue";
        let mut queue = self.queue.lock();
        if wr.sges.len() > queue.attr.max_sge as usize {
            let max = queue.attr.max_sge;
            return Err(VerbsError::invalid(
                WHAT,
                format!("{} scatter entries exceed the queue's maximum of {max}", wr.sges.len()),
            ));
        }
        if let Some(xrc) = &self.xrc {
            let max_wr = queue.attr.max_wr;
            drop(queue);
            return xrc.post(wr, max_wr).map(|()| None);
        }
        if queue.entries.len() >= queue.attr.max_wr as usize {
            return Err(VerbsError::no_memory(
                WHAT,
                format!("the queue is full: {} receives are posted", queue.attr.max_wr),
            ));
        }
        if queue.entries.try_reserve(1).is_err() || queue.sges.try_reserve(wr.sges.len()).is_err() {
            return Err(VerbsError::no_memory(WHAT, "out of memory"));
        }
        queue.entries.push_back(SrqEntry { wr_id: wr.wr_id, num_sge: wr.sges.len() });
        queue.sges.extend(wr.sges);
        Ok(queue.next_in_line())
    }

    /// Changes the size, the limit, or both.
    ///
    /// # Errors
    ///
    /// EINVAL when more receives are posted than would fit, the limit is above the size, or a queue of an XRC domain
    /// would grow.
    pub(crate) fn modify(
        &self,
        limits: &Limits,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError> {
        const WHAT: &str = "modify a shared receive queue";
        let mut queue = self.queue.lock();
        let mut attr = queue.attr;
        attr.max_wr = max_wr.unwrap_or(attr.max_wr);
        attr.limit = limit.unwrap_or(attr.limit);
        attr.check(limits, WHAT)?;
        if self.xrc.is_some() && attr.max_wr > queue.attr.max_wr {
            return Err(VerbsError::invalid(WHAT, "a queue of an XRC domain cannot grow"));
        }
        let posted = self.xrc.as_ref().map_or(queue.entries.len(), XrcQueue::outstanding);
        if posted > attr.max_wr as usize {
            let why = format!("{posted} receives are posted, more than the new size");
            return Err(VerbsError::invalid(WHAT, why));
        }
        queue.attr = attr;
        Ok(())
    }

    /// Returns the sizes and the limit. The limit is 0 once its event was raised.
    pub(crate) fn attr(&self) -> SrqAttr {
        self.queue.lock().attr
    }

    /// Takes the oldest receive.
    pub(crate) fn pop(&self, into: &mut [Sge]) -> Option<Taken> {
        self.queue.lock().take(into)
    }

    /// Takes the oldest receive like [`pop`](Self::pop), for a queue pair that waits if the queue is empty. Queue pairs that wait
    /// already are served first.
    pub(crate) fn pop_in_turn(&self, qpn: Qpn, into: &mut [Sge]) -> Option<Taken> {
        let mut queue = self.queue.lock();
        if !queue.line.is_empty() {
            let at = queue.line.iter().position(|other| *other == qpn);
            if at.unwrap_or(queue.line.len()) >= queue.entries.len() {
                return None;
            }
            at.and_then(|at| queue.line.remove(at));
        }
        queue.take(into)
    }

    /// Adds a queue pair that waits for a receive. Returns it if a receive was posted meanwhile, so that its stream must be
    /// continued.
    pub(crate) fn join_line(&self, qpn: Qpn) -> Option<Qpn> {
        let mut queue = self.queue.lock();
        let at = queue.line.iter().position(|other| *other == qpn);
        let at = at.unwrap_or_else(|| {
            queue.line.push_back(qpn);
            queue.line.len() - 1
        });
        (at < queue.entries.len()).then_some(qpn)
    }

    /// Removes a queue pair that was called but no longer needs a receive. Returns the queue pair whose turn it is now.
    pub(crate) fn leave_line(&self, qpn: Qpn) -> Option<Qpn> {
        let mut queue = self.queue.lock();
        let at = queue.line.iter().position(|other| *other == qpn)?;
        queue.line.remove(at);
        queue.next_in_line()
    }

    /// Records that a receive which the hub took is complete. Returns whether the queue has fallen below its limit.
    pub(crate) fn completed(&self) -> bool {
        let Some(left) = self.xrc.as_ref().map(XrcQueue::completed) else { return false };
        self.queue.lock().falls_below_limit(left as usize)
    }

    /// Returns the queue's protection domain.
    pub(crate) fn pd(&self) -> PdId {
        self.pd
    }
    /// Returns the value that the creator of the queue set.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }
    /// Returns the ring of receives of a queue of an XRC domain.
    pub(crate) fn xrc(&self) -> Option<&XrcQueue> {
        self.xrc.as_ref()
    }
    /// Returns the count of the queue's events that the program took.
    pub(crate) fn unacked(&self) -> &Unacked {
        &self.unacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::cq::Cq;
    use crate::lab::Lab;
    use crate::objects::quota::Counted;

    #[test]
    fn xrc_queue_shrinks_only_to_its_outstanding_receives() {
        let (device, _control) = Lab::new(false).process("127.77.207.2");
        let cq = Cq::new(&device, 1, None, 0).unwrap();
        let (ring, _fd) = XrcQueue::new(cq.core.clone(), 8, 1).unwrap();
        let attr = SrqAttr { max_wr: 8, max_sge: 1, limit: 0 };
        let permit = device.permit("try", Counted::Srq).unwrap();
        let srq = SrqCore::for_xrc(PdId(1), attr, ring, 0, permit);
        for wr_id in 0..4 {
            srq.post(&RecvWr { wr_id, sges: &[] }).unwrap();
        }
        let shrink = |size| srq.modify(device.limits(), Some(size), None).map_err(|e| e.errno());
        assert_eq!(shrink(3), Err(libc::EINVAL));
        assert_eq!(srq.attr(), attr);
        shrink(4).unwrap();
        srq.completed();
        shrink(3).unwrap();
        assert_eq!(srq.attr().max_wr, 3);
    }
}
