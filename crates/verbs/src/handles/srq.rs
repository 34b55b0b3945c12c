//! Shared receive queues (`ibv_create_srq(3)`).

use std::collections::VecDeque;
use std::sync::Arc;

use rdmux_transport::env::SrqEntry;
use rdmux_transport::wr::{RecvWr, Sge};
use rdmux_wire::Qpn;

use crate::handles::cq::Cq;
use crate::handles::device::Device;
use crate::handles::event::Raised;
use crate::handles::pd::Pd;
use crate::handles::xrc::Xrcd;
use crate::handles::xrc::queue::XrcQueue;
use crate::objects::brief::{Mutex, MutexGuard};
use crate::objects::error::VerbsError;
use crate::objects::quota::{Counted, Permit};
use crate::objects::room;
use crate::objects::unacked::Unacked;

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Work requests that fit.
    pub max_wr: u32,
    /// Scatter entries of each.
    pub max_sge: u32,
    /// Below how many an event is raised, once; 0 is never.
    pub limit: u32,
}

/// A shared receive queue: receives that any of its queue pairs may take.
#[derive(Clone, Debug)]
pub struct Srq(pub(crate) Arc<SrqCore>);

#[derive(Debug)]
pub(crate) struct SrqCore {
    device: Arc<Device>,
    pd: Pd,
    context: u64,
    queue: Mutex<Queue>,
    /// In place of entries of its own.
    xrc: Option<XrcQueue>,
    unacked: Unacked,
    _permit: Permit,
}

/// Entries lie flat: `max_sge` scatter entries each, so that posting allocates nothing.
#[derive(Debug)]
struct Queue {
    attr: SrqAttr,
    entries: VecDeque<SrqEntry>,
    sges: VecDeque<Sge>,
    /// Queue pairs of iWARP that wait for a receive, the longest first: the first takes the first.
    line: VecDeque<Qpn>,
}

impl Srq {
    /// Makes a queue.
    ///
    /// # Errors
    ///
    /// EINVAL when a size is 0 or above the device's limit, ENOMEM when there are as many queues as the device allows, or
    /// no memory can be had.
    pub fn new(pd: &Pd, attr: SrqAttr, context: u64) -> Result<Self, VerbsError> {
        const WHAT: &str = "create a shared receive queue";
        check(pd.device(), WHAT, &attr)?;
        let (wrs, sges) = (attr.max_wr as usize, attr.max_sge.min(4) as usize);
        let permit = pd.device().permit(WHAT, Counted::Srq)?;
        room::check(WHAT, wrs * (size_of::<SrqEntry>() + sges * size_of::<Sge>()))?;
        let (entries, sges) = (VecDeque::with_capacity(wrs), VecDeque::with_capacity(wrs * sges));
        let line = VecDeque::new();
        Ok(Self::with(pd, Queue { attr, entries, sges, line }, None, context, permit))
    }

    /// Makes a queue of an XRC domain (`ibv_create_srq_ex(3)`), whose receives complete in `cq`. Targets of
    /// the domain deliver to it, by its [`number`](Self::number).
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), EINVAL when an object belongs to another device, and the service's, when
    /// it is gone or has no number left.
    pub fn for_xrc(
        pd: &Pd,
        domain: &Xrcd,
        cq: &Cq,
        attr: SrqAttr,
        context: u64,
    ) -> Result<Self, VerbsError> {
        const WHAT: &str = "create an XRC shared receive queue";
        check(pd.device(), WHAT, &attr)?;
        let permit = pd.device().permit(WHAT, Counted::Srq)?;
        let xrc = XrcQueue::new(pd, domain, cq, &attr)?;
        let srqn = xrc.number();
        let (entries, sges, line) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let queue = Queue { attr, entries, sges, line };
        let srq = Self::with(pd, queue, Some(xrc), context, permit);
        pd.device().xrc().add_srq(srqn, &srq.0);
        Ok(srq)
    }

    fn with(pd: &Pd, queue: Queue, xrc: Option<XrcQueue>, context: u64, permit: Permit) -> Self {
        Self(Arc::new(SrqCore {
            device: pd.device().clone(),
            pd: pd.clone(),
            context,
            queue: Mutex::new(queue),
            xrc,
            unacked: Unacked::default(),
            _permit: permit,
        }))
    }

    /// The number that senders name it by (`ibv_get_srq_num(3)`); only a queue of an XRC domain has one.
    pub fn number(&self) -> Option<u32> {
        self.0.xrc.as_ref().map(XrcQueue::number)
    }
    /// Its XRC domain.
    pub fn domain(&self) -> Option<&Xrcd> {
        self.0.xrc.as_ref().map(XrcQueue::domain)
    }
    /// Where the receives of a queue of an XRC domain complete.
    pub fn cq(&self) -> Option<&Cq> {
        self.0.xrc.as_ref().map(XrcQueue::cq)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// ENOMEM when the queue is full, EINVAL when the list is too long.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        const WHAT: &str = "post to a shared receive queue";
        let mut queue = self.0.queue.lock();
        if wr.sges.len() > queue.attr.max_sge as usize {
            let max = queue.attr.max_sge;
            return Err(VerbsError::invalid(WHAT, format!("{} entries; {max} fit", wr.sges.len())));
        }
        if let Some(xrc) = &self.0.xrc {
            let attr = queue.attr;
            drop(queue);
            return xrc.post(wr, &attr);
        }
        if queue.entries.len() >= queue.attr.max_wr as usize {
            return Err(VerbsError::no_memory(
                WHAT,
                format!("all {} are posted", queue.attr.max_wr),
            ));
        }
        if queue.entries.try_reserve(1).is_err() || queue.sges.try_reserve(wr.sges.len()).is_err() {
            return Err(VerbsError::no_memory(WHAT, "no memory can be had"));
        }
        queue.entries.push_back(SrqEntry { wr_id: wr.wr_id, num_sge: wr.sges.len() });
        queue.sges.extend(wr.sges);
        if !queue.line.is_empty() {
            let next = queue.next_in_line();
            drop(queue);
            self.0.call(next);
        }
        Ok(())
    }

    /// Changes the size, the limit, or both (`ibv_modify_srq(3)`).
    ///
    /// # Errors
    ///
    /// EINVAL when more receives are posted than would fit, the limit is above the size, or a queue of an
    /// XRC domain is to grow.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), VerbsError> {
        const WHAT: &str = "modify a shared receive queue";
        let mut queue = self.0.queue.lock();
        let mut attr = queue.attr;
        attr.max_wr = max_wr.unwrap_or(attr.max_wr);
        attr.limit = limit.unwrap_or(attr.limit);
        check(&self.0.device, WHAT, &attr)?;
        if self.0.xrc.is_some() && attr.max_wr > queue.attr.max_wr {
            return Err(VerbsError::invalid(WHAT, "a queue of an XRC domain does not grow"));
        }
        if queue.entries.len() > attr.max_wr as usize {
            return Err(VerbsError::invalid(WHAT, format!("{} are posted", queue.entries.len())));
        }
        queue.attr = attr;
        Ok(())
    }

    /// Sizes and limit; the limit is 0 once its event was raised.
    pub fn attr(&self) -> SrqAttr {
        self.0.queue.lock().attr
    }
    /// The caller's own value.
    pub fn context(&self) -> u64 {
        self.0.context
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }
    /// Acknowledges an asynchronous event about this queue.
    pub fn ack_async_event(&self) {
        self.0.unacked.ack(1);
    }
    /// Withdraws events not yet taken and waits until those taken are acknowledged.
    pub fn quiesce(&self) {
        self.0.device.events().withdraw(|e| e.is_about_srq(&self.0));
        self.0.unacked.wait();
    }
}

impl PartialEq for Srq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Srq {}

fn check(device: &Device, what: &'static str, attr: &SrqAttr) -> Result<(), VerbsError> {
    let limits = device.limits();
    if attr.max_wr == 0 || attr.max_wr > limits.max_srq_wr {
        let (n, max) = (attr.max_wr, limits.max_srq_wr);
        return Err(VerbsError::invalid(what, format!("{n} work requests; 1 to {max} fit")));
    }
    if attr.max_sge > limits.max_sge {
        let (n, max) = (attr.max_sge, limits.max_sge);
        return Err(VerbsError::invalid(what, format!("{n} scatter entries; {max} fit")));
    }
    if attr.limit > attr.max_wr {
        return Err(VerbsError::invalid(what, format!("a limit of {} is never met", attr.limit)));
    }
    Ok(())
}

impl Queue {
    /// The queue pair that the receive is for which is the last of those posted.
    fn next_in_line(&self) -> Option<Qpn> {
        self.line.get(self.entries.len().checked_sub(1)?).copied()
    }
}

impl SrqCore {
    /// Takes the oldest receive; raises the limit event when the queue falls below its limit.
    pub(crate) fn pop(self: &Arc<Self>, into: &mut [Sge]) -> Option<SrqEntry> {
        self.take(self.queue.lock(), into)
    }

    /// As [`pop`](Self::pop), for a queue pair that waits if there is none: not before those that wait already.
    pub(crate) fn pop_in_turn(self: &Arc<Self>, qpn: Qpn, into: &mut [Sge]) -> Option<SrqEntry> {
        let mut queue = self.queue.lock();
        if !queue.line.is_empty() {
            let at = queue.line.iter().position(|other| *other == qpn);
            if at.unwrap_or(queue.line.len()) >= queue.entries.len() {
                return None;
            }
            at.and_then(|at| queue.line.remove(at));
        }
        self.take(queue, into)
    }

    /// A queue pair waits for a receive.
    pub(crate) fn join_line(self: &Arc<Self>, qpn: Qpn) {
        let mut queue = self.queue.lock();
        let at = queue.line.iter().position(|other| *other == qpn);
        let at = at.unwrap_or_else(|| {
            queue.line.push_back(qpn);
            queue.line.len() - 1
        });
        // One may have been posted meanwhile.
        let called = (at < queue.entries.len()).then_some(qpn);
        drop(queue);
        self.call(called);
    }

    /// A queue pair that was called has no need of a receive any more: the next one has its turn.
    pub(crate) fn leave_line(self: &Arc<Self>, qpn: Qpn) {
        let mut queue = self.queue.lock();
        let Some(at) = queue.line.iter().position(|other| *other == qpn) else { return };
        queue.line.remove(at);
        let next = queue.next_in_line();
        drop(queue);
        self.call(next);
    }

    /// Has the engine go on with a queue pair's stream.
    fn call(self: &Arc<Self>, qpn: Option<Qpn>) {
        if let Some(qpn) = qpn {
            self.device.engine().resume_stream(qpn, Arc::downgrade(self));
        }
    }

    fn take(
        self: &Arc<Self>,
        mut queue: MutexGuard<'_, Queue>,
        into: &mut [Sge],
    ) -> Option<SrqEntry> {
        let entry = queue.entries.pop_front()?;
        for (slot, sge) in into.iter_mut().zip(queue.sges.drain(..entry.num_sge)) {
            *slot = sge;
        }
        if (queue.entries.len()) < queue.attr.limit as usize {
            queue.attr.limit = 0;
            drop(queue);
            self.device.raise(Raised::SrqLimit(Arc::downgrade(self)));
        }
        Some(entry)
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }
    pub(crate) fn xrc(&self) -> Option<&XrcQueue> {
        self.xrc.as_ref()
    }

    /// A receive that the hub took is complete.
    pub(crate) fn completed(self: &Arc<Self>) {
        let Some(left) = self.xrc.as_ref().map(XrcQueue::completed) else { return };
        let mut queue = self.queue.lock();
        if left < queue.attr.limit {
            queue.attr.limit = 0;
            drop(queue);
            self.device.raise(Raised::SrqLimit(Arc::downgrade(self)));
        }
    }

    pub(crate) fn unacked(&self) -> &Unacked {
        &self.unacked
    }
}

impl Drop for SrqCore {
    fn drop(&mut self) {
        if let Some(xrc) = &self.xrc {
            self.device.xrc().remove_srq(xrc.number());
        }
    }
}
