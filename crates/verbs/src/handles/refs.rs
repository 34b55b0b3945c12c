//! What events know of the objects that they are about. A reference keeps no object in its device.

use std::sync::Arc;

use rdmux_wire::Qpn;

use crate::objects::cq::CqCore;
use crate::objects::qp::QpIdentity;
use crate::objects::srq::SrqCore;
use crate::objects::xrc::target::TargetCore;

/// What an event knows of a queue pair.
#[derive(Clone, Debug)]
pub struct QpRef(pub(crate) Arc<QpIdentity>);

impl QpRef {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }
    /// The value that its creator gave.
    pub fn context(&self) -> u64 {
        self.0.context
    }
}

/// What an event knows of a completion queue.
#[derive(Clone, Debug)]
pub struct CqRef(pub(crate) Arc<CqCore>);

impl CqRef {
    /// The value that its creator gave.
    pub fn context(&self) -> u64 {
        self.0.context()
    }
    /// Acknowledges `n` events taken from the channel.
    pub fn ack_events(&self, n: u32) {
        self.0.unacked().ack(n);
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.async_unacked().ack(1);
    }
}

/// What an event knows of a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqRef(pub(crate) Arc<SrqCore>);

impl SrqRef {
    /// The value that its creator gave.
    pub fn context(&self) -> u64 {
        self.0.context()
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.unacked().ack(1);
    }
}

/// What an event knows of a handle on an XRC target.
#[derive(Clone, Debug)]
pub struct TargetRef(pub(crate) Arc<TargetCore>);

impl TargetRef {
    /// The target's number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }
    /// The value that the handle was made with.
    pub fn context(&self) -> u64 {
        self.0.context
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.unacked.ack(1);
    }
}
