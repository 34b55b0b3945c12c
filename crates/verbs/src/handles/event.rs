//! Asynchronous events (`ibv_get_async_event(3)`).

use rdmux_transport::env::QpEvent;
use rdmux_wire::Qpn;

use crate::handles::refs::{CqRef, QpRef, SrqRef, TargetRef};
use crate::objects::event::Raised;
use crate::objects::port::PortEvent;
use crate::objects::unacked::Unacked;

/// The kind of an asynchronous event: what happened to the device or to an object.
#[derive(Clone, Debug)]
pub enum AsyncEventKind {
    /// An event of a queue pair.
    Qp(QpRef, QpEvent),
    /// A completion queue overflowed; it and the queue pairs that use it are broken.
    CqError(CqRef),
    /// A shared receive queue fell below its limit.
    SrqLimit(SrqRef),
    /// An event of an XRC target, for one handle on it.
    Target(TargetRef, QpEvent),
    /// An event of an XRC target that this process is registered for.
    XrcQp(Qpn, QpEvent),
    /// An event of the port with this number.
    Port(u8, PortEvent),
    /// The host service is gone, so the device has failed.
    DeviceFatal,
}

/// An event that the program took. Dropping it acknowledges it; until then the object that it is about cannot be destroyed.
#[derive(Debug)]
pub struct AsyncEvent {
    kind: AsyncEventKind,
    /// Whether the caller acknowledges the event by other means.
    acknowledged: bool,
}

impl AsyncEvent {
    /// Returns what happened.
    pub fn kind(&self) -> &AsyncEventKind {
        &self.kind
    }

    /// Returns what happened. The caller acknowledges the event later, by the object's `ack_async_event`.
    pub fn acknowledge_later(mut self) -> AsyncEventKind {
        self.acknowledged = true;
        self.kind.clone()
    }

    fn unacked(&self) -> Option<&Unacked> {
        match &self.kind {
            AsyncEventKind::Qp(qp, _) => Some(&qp.0.unacked),
            AsyncEventKind::CqError(cq) => Some(cq.0.async_unacked()),
            AsyncEventKind::SrqLimit(srq) => Some(srq.0.unacked()),
            AsyncEventKind::Target(target, _) => Some(&target.0.unacked),
            AsyncEventKind::XrcQp(..) | AsyncEventKind::Port(..) | AsyncEventKind::DeviceFatal => {
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

impl AsyncEvent {
    /// Converts a raised event to the program's form. Returns none if the event's object is gone.
    pub(crate) fn of(raised: Raised) -> Option<Self> {
        let kind = match raised {
            Raised::Qp(qp, event) => AsyncEventKind::Qp(QpRef(qp.upgrade()?), event),
            Raised::CqError(cq) => AsyncEventKind::CqError(CqRef(cq.upgrade()?)),
            Raised::SrqLimit(srq) => AsyncEventKind::SrqLimit(SrqRef(srq.upgrade()?)),
            Raised::Target(target, event) => {
                AsyncEventKind::Target(TargetRef(target.upgrade()?), event)
            }
            Raised::XrcQp(qpn, event) => AsyncEventKind::XrcQp(qpn, event),
            Raised::Port(number, event) => AsyncEventKind::Port(number, event),
            Raised::DeviceFatal => AsyncEventKind::DeviceFatal,
        };
        let event = Self { kind, acknowledged: false };
        if let Some(unacked) = event.unacked() {
            unacked.delivered();
        }
        Some(event)
    }
}
