//! References from events to the objects that they are about. A reference does not keep its object in the device.

use std::sync::Arc;

use rdmux_wire::Qpn;

use crate::objects::cq::CqCore;
use crate::objects::qp::QpIdentity;
use crate::objects::srq::SrqCore;
use crate::objects::xrc::target::TargetCore;

/// An event's reference to a queue pair.
#[derive(Clone, Debug)]
pub struct QpRef(pub(crate) Arc<QpIdentity>);

impl QpRef {
    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }
    /// Returns the value that the creator of the object set.
    pub fn context(&self) -> u64 {
        self.0.context
    }
}

/// An event's reference to a completion queue.
#[derive(Clone, Debug)]
pub struct CqRef(pub(crate) Arc<CqCore>);

impl CqRef {
    /// Returns the value that the creator of the object set.
    pub fn context(&self) -> u64 {
        self.0.context()
    }
    /// Acknowledges `n` events that were taken from the channel.
    pub fn ack_events(&self, n: u32) {
        self.0.unacked().ack(n);
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.async_unacked().ack(1);
    }
}

/// An event's reference to a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqRef(pub(crate) Arc<SrqCore>);

impl SrqRef {
    /// Returns the value that the creator of the object set.
    pub fn context(&self) -> u64 {
        self.0.context()
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.unacked().ack(1);
    }
}

/// An event's reference to a handle on an XRC target.
#[derive(Clone, Debug)]
pub struct TargetRef(pub(crate) Arc<TargetCore>);

impl TargetRef {
    /// Returns the target's number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }
    /// Returns the value that the handle was created with.
    pub fn context(&self) -> u64 {
        self.0.context
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.unacked.ack(1);
    }
}
