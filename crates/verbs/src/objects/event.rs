//! Asynchronous events that are queued for the program.

use std::sync::{Arc, Weak};

use rdmux_transport::env::QpEvent;
use rdmux_wire::Qpn;

use crate::objects::cq::CqCore;
use crate::objects::port::PortEvent;
use crate::objects::qp::QpIdentity;
use crate::objects::srq::SrqCore;
use crate::objects::xrc::target::TargetCore;

/// An event that is queued for the program. Does not keep its object alive.
#[derive(Debug)]
pub(crate) enum Raised {
    Qp(Weak<QpIdentity>, QpEvent),
    CqError(Weak<CqCore>),
    SrqLimit(Weak<SrqCore>),
    Target(Weak<TargetCore>, QpEvent),
    XrcQp(Qpn, QpEvent),
    /// An event of the port with this number.
    Port(u8, PortEvent),
    DeviceFatal,
}

impl Raised {
    pub(crate) fn is_about_qp(&self, identity: &Arc<QpIdentity>) -> bool {
        matches!(self, Self::Qp(qp, _) if qp.as_ptr() == Arc::as_ptr(identity))
    }
    pub(crate) fn is_about_cq(&self, core: &Arc<CqCore>) -> bool {
        matches!(self, Self::CqError(cq) if cq.as_ptr() == Arc::as_ptr(core))
    }
    /// Returns whether the event is for processes that are registered for an XRC target.
    pub(crate) fn is_about_xrc_qp(&self, qpn: Qpn) -> bool {
        matches!(self, Self::XrcQp(q, _) if *q == qpn)
    }
    /// Returns whether this is the given event of the port with this number.
    pub(crate) fn is_about_port(&self, number: u8, event: PortEvent) -> bool {
        matches!(self, Self::Port(n, e) if (*n, *e) == (number, event))
    }
    pub(crate) fn is_about_target(&self, core: &Arc<TargetCore>) -> bool {
        matches!(self, Self::Target(target, _) if target.as_ptr() == Arc::as_ptr(core))
    }
    pub(crate) fn is_about_srq(&self, core: &Arc<SrqCore>) -> bool {
        matches!(self, Self::SrqLimit(srq) if srq.as_ptr() == Arc::as_ptr(core))
    }
}
