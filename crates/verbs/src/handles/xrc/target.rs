//! Targets: XRC receive queue pairs, held by a process through a handle (`ibv_open_qp(3)`).

use std::sync::{Arc, Once};

use rdmux_transport::attr::{AttrMask, QpAttr};
use rdmux_wire::Qpn;

use super::domain::{Use, Xrcd};
use crate::engine::device::Device;
use crate::objects::error::VerbsError;
use crate::objects::unacked::Unacked;
use crate::objects::xrc::ask::unexpected;
use crate::objects::xrc::request::{Hold, XrcReply, XrcRequest};
use crate::objects::xrc::target::TargetCore;

/// A handle on a target, which lives at least as long as the handle. Dropping the handle closes it.
#[derive(Debug)]
pub struct Target {
    core: Arc<TargetCore>,
    domain: Use,
    /// Whether the handle was closed.
    closed: Once,
}

impl Target {
    /// Creates a target in RESET (`ibv_create_qp_ex(3)` with `IBV_QPT_XRC_RECV`). `context` is the caller's own value, which
    /// events carry.
    ///
    /// # Errors
    ///
    /// ENOMEM when the hub has as many targets as it can have, or as the user may have.
    pub fn create(domain: &Xrcd, context: u64) -> Result<Self, VerbsError> {
        let request = XrcRequest::CreateTarget { domain: domain.id(), hold: Hold::Handle };
        match domain.ask(&request, "create an XRC receive queue pair")? {
            XrcReply::Target(qpn) => Ok(Self::held(domain, qpn, context)),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens another handle on an existing target of any process (`ibv_open_qp(3)`).
    ///
    /// # Errors
    ///
    /// EINVAL for a number that is unknown, that is not a target's, or that belongs to another domain.
    pub fn open(domain: &Xrcd, qpn: Qpn, context: u64) -> Result<Self, VerbsError> {
        let request = XrcRequest::HoldTarget { domain: domain.id(), qpn, hold: Hold::Handle };
        domain.ask(&request, "open an XRC receive queue pair")?;
        Ok(Self::held(domain, qpn, context))
    }

    fn held(domain: &Xrcd, qpn: Qpn, context: u64) -> Self {
        let core = Arc::new(TargetCore { qpn, context, unacked: Unacked::default() });
        domain.device().xrc().opened(&core);
        Self { core, domain: domain.in_use(), closed: Once::new() }
    }

    /// Changes attributes and state, for all its holders.
    ///
    /// # Errors
    ///
    /// As for [`Xrcd::modify`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
        self.domain().modify(self.core.qpn, attr, mask)
    }

    /// Returns all attributes of the target.
    ///
    /// # Errors
    ///
    /// The service's error, when it is gone.
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        self.domain().query(self.core.qpn)
    }

    /// Returns the number. Its top bit is 1, and it is not reused soon.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn
    }
    /// Returns the value that the handle was created with.
    pub fn context(&self) -> u64 {
        self.core.context
    }
    /// Returns the domain that it was opened with.
    pub fn domain(&self) -> &Xrcd {
        self.domain.xrcd()
    }
    /// Returns the target's device.
    pub fn device(&self) -> &Arc<Device> {
        self.domain().device()
    }
    /// Acknowledges an asynchronous event about it.
    pub fn ack_async_event(&self) {
        self.core.unacked.ack(1);
    }

    /// Closes the handle permanently, then waits until the events that the program took are acknowledged. The program must
    /// keep the data that the handle's context refers to until this returns, as events name it.
    pub fn quiesce(&self) {
        self.close();
        self.core.unacked.wait();
    }

    fn close(&self) {
        self.closed.call_once(|| {
            let device = self.device();
            let request = XrcRequest::LetGo {
                domain: self.domain().id(),
                qpn: self.core.qpn,
                hold: Hold::Handle,
            };
            // The target ended with the service.
            let _ = device.ask_hub(&request, None, "close an XRC receive queue pair");
            device.xrc().closed(&self.core);
            device.events().withdraw(|e| e.is_about_target(&self.core));
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.close();
    }
}
