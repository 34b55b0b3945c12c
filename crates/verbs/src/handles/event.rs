//! Asynchronous events (`ibv_get_async_event(3)`).

use std::sync::{Arc, Weak};

use rdmux_transport::env::QpEvent;
use rdmux_wire::Qpn;

use crate::engine::qp::{QpCore, QpRef};
use crate::handles::cq::{Cq, CqCore};
use crate::handles::srq::{Srq, SrqCore};
use crate::handles::xrc::target::{TargetCore, TargetRef};
use crate::objects::unacked::Unacked;

/// Something that happened to the device or to an object.
#[derive(Clone, Debug)]
pub enum AsyncEventKind {
    /// On a queue pair.
    Qp(QpRef, QpEvent),
    /// A completion queue overflowed; it and the queue pairs that use it are broken.
    CqError(Cq),
    /// A shared receive queue fell below its limit.
    SrqLimit(Srq),
    /// On an XRC target, to one of the handles on it.
    Target(TargetRef, QpEvent),
    /// On an XRC target that this process is registered for.
    XrcQp(Qpn, QpEvent),
    /// The GID table changed.
    GidChange,
    /// The host service is gone, and the device with it.
    DeviceFatal,
}

/// An event that the program took. Dropping it acknowledges it; the object that it is about cannot
/// be destroyed before.
#[derive(Debug)]
pub struct AsyncEvent {
    kind: AsyncEventKind,
    /// Whether that is done elsewhere.
    acknowledged: bool,
}

impl AsyncEvent {
    /// What happened.
    pub fn kind(&self) -> &AsyncEventKind {
        &self.kind
    }

    /// What happened. The caller acknowledges it, by the object's `ack_async_event`.
    pub fn acknowledge_later(mut self) -> AsyncEventKind {
        self.acknowledged = true;
        self.kind.clone()
    }

    fn unacked(&self) -> Option<&Unacked> {
        match &self.kind {
            AsyncEventKind::Qp(qp, _) => Some(qp.0.unacked()),
            AsyncEventKind::CqError(cq) => Some(cq.0.async_unacked()),
            AsyncEventKind::SrqLimit(srq) => Some(srq.0.unacked()),
            AsyncEventKind::Target(target, _) => Some(target.0.unacked()),
            AsyncEventKind::XrcQp(..) | AsyncEventKind::GidChange | AsyncEventKind::DeviceFatal => {
                None
            }
        }
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        if !self.acknowledged
            && let Some(unacked) = self.unacked()
        {
            unacked.ack(1);
        }
    }
}

/// An event on its way to the program. Does not keep its object alive.
#[derive(Debug)]
pub(crate) enum Raised {
    Qp(Weak<QpCore>, QpEvent),
    CqError(Weak<CqCore>),
    SrqLimit(Weak<SrqCore>),
    Target(Weak<TargetCore>, QpEvent),
    XrcQp(Qpn, QpEvent),
    GidChange,
    DeviceFatal,
}

impl Raised {
    /// Hands the event to the program, unless its object is gone.
    pub(crate) fn take(self) -> Option<AsyncEvent> {
        let kind = match self {
            Self::Qp(qp, event) => AsyncEventKind::Qp(QpRef(qp.upgrade()?), event),
            Self::CqError(cq) => AsyncEventKind::CqError(Cq(cq.upgrade()?)),
            Self::SrqLimit(srq) => AsyncEventKind::SrqLimit(Srq(srq.upgrade()?)),
            Self::Target(target, event) => {
                AsyncEventKind::Target(TargetRef(target.upgrade()?), event)
            }
            Self::XrcQp(qpn, event) => AsyncEventKind::XrcQp(qpn, event),
            Self::GidChange => AsyncEventKind::GidChange,
            Self::DeviceFatal => AsyncEventKind::DeviceFatal,
        };
        let event = AsyncEvent { kind, acknowledged: false };
        if let Some(unacked) = event.unacked() {
            unacked.delivered();
        }
        Some(event)
    }

    pub(crate) fn is_about_qp(&self, core: &Arc<QpCore>) -> bool {
        matches!(self, Self::Qp(qp, _) if qp.as_ptr() == Arc::as_ptr(core))
    }
    pub(crate) fn is_about_cq(&self, core: &Arc<CqCore>) -> bool {
        matches!(self, Self::CqError(cq) if cq.as_ptr() == Arc::as_ptr(core))
    }
    /// Whether it is for who is registered for an XRC target.
    pub(crate) fn is_about_xrc_qp(&self, qpn: Qpn) -> bool {
        matches!(self, Self::XrcQp(q, _) if *q == qpn)
    }
    pub(crate) fn is_about_target(&self, core: &Arc<TargetCore>) -> bool {
        matches!(self, Self::Target(target, _) if target.as_ptr() == Arc::as_ptr(core))
    }
    pub(crate) fn is_about_srq(&self, core: &Arc<SrqCore>) -> bool {
        matches!(self, Self::SrqLimit(srq) if srq.as_ptr() == Arc::as_ptr(core))
    }
}
