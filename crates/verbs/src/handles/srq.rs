//! Shared receive queues (`ibv_create_srq(3)`).

use std::os::fd::AsFd;
use std::sync::Arc;

use rdmux_transport::wr::RecvWr;
use rdmux_wire::Qpn;

use crate::engine::device::Device;
use crate::handles::cq::Cq;
use crate::handles::pd::Pd;
use crate::handles::refs::SrqRef;
use crate::handles::xrc::domain::{Use, Xrcd};
use crate::objects::error::VerbsError;
use crate::objects::quota::Counted;
pub use crate::objects::srq::SrqAttr;
use crate::objects::srq::SrqCore;
use crate::objects::xrc::ask::unexpected;
use crate::objects::xrc::queue::XrcQueue;
use crate::objects::xrc::request::{XrcReply, XrcRequest};

/// A shared receive queue: receives that any of its queue pairs may take.
#[derive(Clone, Debug)]
pub struct Srq {
    /// Dropped first, so that the hub is informed while the queue still exists.
    in_domain: Option<Arc<InDomain>>,
    pub(crate) core: Arc<SrqCore>,
    pd: Pd,
}

/// The XRC domain that a queue is part of, and the completion queue of its receives.
#[derive(Debug)]
struct InDomain {
    srqn: u32,
    domain: Use,
    cq: Cq,
}

impl Srq {
    /// Creates a queue.
    ///
    /// # Errors
    ///
    /// EINVAL when a size is 0 or above the device's limit, ENOMEM when there are as many queues as the device allows, or memory
    /// cannot be allocated.
    pub fn new(pd: &Pd, attr: SrqAttr, context: u64) -> Result<Self, VerbsError> {
        const WHAT: &str = "create a shared receive queue";
        attr.check(pd.device().limits(), WHAT)?;
        let permit = pd.device().permit(WHAT, Counted::Srq)?;
        let core = SrqCore::new(WHAT, pd.id(), attr, context, permit)?;
        Ok(Self { in_domain: None, core, pd: pd.clone() })
    }

    /// Creates a queue of an XRC domain (`ibv_create_srq_ex(3)`), whose receives complete in `cq`. Targets of the domain deliver
    /// to it, by its [`number`](Self::number).
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), EINVAL when an object belongs to another device, ENOMEM when the user may have no more such
    /// queues, and the service's error, when it is gone or has no number left.
    pub fn for_xrc(
        pd: &Pd,
        domain: &Xrcd,
        cq: &Cq,
        attr: SrqAttr,
        context: u64,
    ) -> Result<Self, VerbsError> {
        const WHAT: &str = "create an XRC shared receive queue";
        let device = pd.device();
        attr.check(device.limits(), WHAT)?;
        let permit = device.permit(WHAT, Counted::Srq)?;
        if !Arc::ptr_eq(device, domain.device()) || !Arc::ptr_eq(device, cq.device()) {
            return Err(VerbsError::invalid(
                WHAT,
                "the XRC domain or completion queue belongs to another device",
            ));
        }
        device.join_hub()?;
        let (queue, fd) = XrcQueue::new(cq.core.clone(), attr.max_wr, attr.max_sge)
            .map_err(VerbsError::os(WHAT))?;
        let request =
            XrcRequest::CreateSrq { domain: domain.id(), pd: pd.id().0, max_sge: attr.max_sge };
        let reply = device.ask_hub(&request, Some(fd.as_fd()), WHAT)?;
        let XrcReply::Srq(srqn) = reply else { return Err(unexpected(&reply)) };
        let in_domain = InDomain::new(srqn, domain, cq);
        let core = SrqCore::for_xrc(pd.id(), attr, queue, context, permit);
        device.xrc().add_srq(srqn, &core);
        Ok(Self { in_domain: Some(Arc::new(in_domain)), core, pd: pd.clone() })
    }

    /// Returns the number by which senders name it (`ibv_get_srq_num(3)`). Only a queue of an XRC domain has one.
    pub fn number(&self) -> Option<u32> {
        self.in_domain.as_ref().map(|within| within.srqn)
    }
    /// Returns the queue's XRC domain, if any.
    pub fn domain(&self) -> Option<&Xrcd> {
        self.in_domain.as_ref().map(|within| within.domain.xrcd())
    }
    /// Returns the completion queue for the receives of a queue of an XRC domain.
    pub fn cq(&self) -> Option<&Cq> {
        self.in_domain.as_ref().map(|within| &within.cq)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// ENOMEM when the queue is full, EINVAL when the list is too long.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if let Some(qpn) = self.core.post(wr)? {
            self.call(qpn);
        }
        Ok(())
    }

    /// Makes the engine continue the stream of a queue pair that waited for a receive.
    #[cold]
    fn call(&self, qpn: Qpn) {
        self.device().engine().resume_stream(qpn, Arc::downgrade(&self.core));
    }

    /// Changes the size, the limit, or both (`ibv_modify_srq(3)`).
    ///
    /// # Errors
    ///
    /// EINVAL when more receives are posted than would fit, the limit is above the size, or a queue of an XRC domain
    /// would grow.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), VerbsError> {
        self.core.modify(self.device().limits(), max_wr, limit)
    }

    /// Returns the sizes and the limit. The limit is 0 once its event was raised.
    pub fn attr(&self) -> SrqAttr {
        self.core.attr()
    }
    /// Returns the caller's own value.
    pub fn context(&self) -> u64 {
        self.core.context()
    }
    /// Returns the queue's protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
    fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }
    /// Acknowledges an asynchronous event about this queue.
    pub fn ack_async_event(&self) {
        self.core.unacked().ack(1);
    }
    /// Withdraws events not yet taken and waits until taken ones are acknowledged. No event can follow.
    pub fn quiesce(&self) {
        if let Some(domain) = &self.in_domain {
            let device = self.device();
            device.xrc().remove_srq(domain.srqn);
            // Wait out a round that found the queue before.
            device.engine().inbound(|_| ());
        }
        self.device().events().withdraw(|e| e.is_about_srq(&self.core));
        self.core.unacked().wait();
    }
}

impl PartialEq for Srq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}
impl Eq for Srq {}

impl PartialEq<Srq> for SrqRef {
    fn eq(&self, other: &Srq) -> bool {
        Arc::ptr_eq(&self.0, &other.core)
    }
}

impl InDomain {
    fn new(srqn: u32, domain: &Xrcd, cq: &Cq) -> Self {
        cq.core.add_user();
        Self { srqn, domain: domain.in_use(), cq: cq.clone() }
    }
}

impl Drop for InDomain {
    fn drop(&mut self) {
        let device = self.domain.xrcd().device();
        device.xrc().remove_srq(self.srqn);
        let request = XrcRequest::DestroySrq { srqn: self.srqn };
        // The queue ended with the service.
        let _ = device.ask_hub(&request, None, "destroy an XRC shared receive queue");
        self.cq.core.remove_user();
    }
}
