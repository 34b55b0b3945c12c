//! Targets: XRC receive queue pairs, as a process holds them by handle (`ibv_open_qp(3)`).

use std::sync::Arc;

use rdmux_transport::attr::{AttrMask, QpAttr};
use rdmux_wire::Qpn;

use super::domain::{Use, Xrcd};
use crate::handles::device::Device;
use crate::objects::error::VerbsError;
use crate::objects::unacked::Unacked;
use crate::objects::xrc::ask::unexpected;
use crate::objects::xrc::request::{Hold, XrcReply, XrcRequest};

/// A handle on a target, which lives at least as long. Let go when dropped.
#[derive(Debug)]
pub struct Target(Arc<TargetCore>);

/// What an event knows of a handle.
#[derive(Clone, Debug)]
pub struct TargetRef(pub(crate) Arc<TargetCore>);

#[derive(Debug)]
pub(crate) struct TargetCore {
    pub(crate) qpn: Qpn,
    domain: Use,
    context: u64,
    unacked: Unacked,
}

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

impl TargetCore {
    pub(crate) fn unacked(&self) -> &Unacked {
        &self.unacked
    }
}

impl Target {
    /// Creates a target in RESET (`ibv_create_qp_ex(3)` with `IBV_QPT_XRC_RECV`). `context` is the caller's
    /// own, and comes back in events.
    ///
    /// # Errors
    ///
    /// ENOMEM when there are as many targets as there can be.
    pub fn create(domain: &Xrcd, context: u64) -> Result<Self, VerbsError> {
        let request = XrcRequest::CreateTarget { domain: domain.id(), hold: Hold::Handle };
        match domain.ask(&request, "create an XRC receive queue pair")? {
            XrcReply::Target(qpn) => Ok(Self::held(domain, qpn, context)),
            other => Err(unexpected(&other)),
        }
    }

    /// A further handle on a target that exists, of whichever process (`ibv_open_qp(3)`).
    ///
    /// # Errors
    ///
    /// EINVAL for a number that is unknown, of something else, or of another domain.
    pub fn open(domain: &Xrcd, qpn: Qpn, context: u64) -> Result<Self, VerbsError> {
        let request = XrcRequest::HoldTarget { domain: domain.id(), qpn, hold: Hold::Handle };
        domain.ask(&request, "open an XRC receive queue pair")?;
        Ok(Self::held(domain, qpn, context))
    }

    fn held(domain: &Xrcd, qpn: Qpn, context: u64) -> Self {
        let (domain, unacked) = (domain.in_use(), Unacked::default());
        let core = Arc::new(TargetCore { qpn, domain, context, unacked });
        core.domain.xrcd().device().xrc().opened(&core);
        Self(core)
    }

    /// Changes attributes and state, for everybody who holds it.
    ///
    /// # Errors
    ///
    /// As for [`Xrcd::modify`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        self.domain().modify(self.0.qpn, attr, mask)
    }

    /// All attributes.
    ///
    /// # Errors
    ///
    /// The service's, when it is gone.
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        self.domain().query(self.0.qpn)
    }

    /// The number. Its top bit is 1, and it does not come back soon.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }
    /// The value that the handle was made with.
    pub fn context(&self) -> u64 {
        self.0.context
    }
    /// The domain that it was made with.
    pub fn domain(&self) -> &Xrcd {
        self.0.domain.xrcd()
    }
    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        self.domain().device()
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.0.unacked.ack(1);
    }

    /// Lets go of the handle, and then waits until the events that the program took are acknowledged.
    pub fn destroy(self) {
        let core = self.0.clone();
        drop(self);
        core.unacked.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let device = self.device().clone();
        let request =
            XrcRequest::LetGo { domain: self.domain().id(), qpn: self.0.qpn, hold: Hold::Handle };
        // Where the service is gone, so is the target.
        let _ = device.ask_hub(&request, None, "let go of an XRC receive queue pair");
        device.xrc().closed(&self.0);
        device.events().withdraw(|e| e.is_about_target(&self.0));
    }
}
