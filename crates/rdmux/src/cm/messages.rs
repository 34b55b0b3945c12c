//! Messages of InfiniBand's connection manager beyond those of a plain connection.

use rdmux_cm::{Courtesy, PathData, Redirect, Refusal};
use rdmux_transport::attr::{QpState, QpType};
use rdmux_wire::cm::{RejReason, SidrStatus};

use super::core::advance;
use super::id::Id;
use crate::error::{Attempt, Result};

impl Id {
    /// Rejects a CONNECT_REQUEST with any reason and additional information. The peer of a connection gets Rejected with
    /// that reason; the peer of a datagram id gets Unreachable with a status.
    ///
    /// # Errors
    /// When no request is pending, or a field is too long.
    pub fn reject_with(&self, refusal: Refusal) -> Result<()> {
        let core = self.core();
        core.context.client().reject_with(core.handle, refusal).on(&**core, "reject")
    }

    /// Redirects the peer of a CONNECT_REQUEST to the service of the same number at another port. If the peer's connection
    /// manager is rdmux and can reach that port, it follows without involving its program.
    ///
    /// # Errors
    /// As for [`reject_with`](Self::reject_with).
    pub fn redirect(&self, to: &Redirect, private_data: &[u8]) -> Result<()> {
        let qp_type = self.core().lock().negotiated.map(|negotiated| negotiated.qp_type);
        let reason = if qp_type == Some(QpType::Ud) {
            SidrStatus::REDIRECT.0.into()
        } else {
            RejReason::PORT_CM_REDIRECT.0
        };
        let (info, private_data) = (to.to_info().to_vec(), private_data.to_vec());
        self.reject_with(Refusal { reason, info, private_data })
    }

    /// Sends an MRA for a ConnectRequest, a ConnectResponse or an AlternateRequest: the peer waits for 4.096 us *
    /// 2^`service_timeout` before it retransmits.
    ///
    /// # Errors
    /// When no message is pending, the code exceeds 31, or there are more than 222 bytes of private data.
    pub fn ask_for_time(&self, service_timeout: u8, private_data: &[u8]) -> Result<()> {
        let core = self.core();
        let asked = core.context.client().ask_for_time(core.handle, service_timeout, private_data);
        asked.on(&**core, "ask the peer for time")
    }

    /// Sets the private data of a message that another call sends: RTU before [`connect`](Self::connect), DREQ and DREP
    /// before [`disconnect`](Self::disconnect).
    ///
    /// # Errors
    /// When the private data are longer than [`Courtesy::room`].
    pub fn set_private_data(&self, of: Courtesy, private_data: &[u8]) -> Result<()> {
        let core = self.core();
        let set = core.context.client().set_private_data(core.handle, of, private_data);
        set.on(&**core, "set private data")
    }

    /// Requests the peer to load an alternate path for a connection that this side initiated, given as one or two records with
    /// [`PathData::ALTERNATE`]. The outcome is an event AlternateResponse. If its status is 0, the attached queue pair has the
    /// path, and is armed once the packets of both ends have shown that they are ready.
    ///
    /// # Errors
    /// When the id is not connected or is the passive side, when the last such request is still unanswered, or when the records do not
    /// make a path.
    pub fn load_alternate(&self, records: &[PathData], private_data: &[u8]) -> Result<()> {
        let core = self.core();
        let asked = core.context.client().load_alternate(core.handle, records, private_data);
        asked.on(&**core, "load an alternate path")
    }

    /// Accepts the path of an AlternateRequest. The attached queue pair loads it before the peer is notified.
    ///
    /// # Errors
    /// When no such request is pending, or the queue pair cannot load the path. The request may then still be refused.
    pub fn accept_alternate(&self, private_data: &[u8]) -> Result<()> {
        let core = self.core();
        let (qp, negotiated) = {
            let state = core.lock();
            (state.qp.clone(), state.negotiated)
        };
        if let (Some(qp), Some(negotiated)) = (qp, negotiated) {
            advance(&qp, &negotiated, &[QpState::Rts])?;
        }
        self.answer(Refusal { private_data: private_data.to_vec(), ..Refusal::default() })
    }

    /// Refuses an AlternateRequest; the reason is an [`AprStatus`](super::AprStatus).
    ///
    /// # Errors
    /// When no such request is pending, or a field is too long.
    pub fn refuse_alternate(&self, refusal: Refusal) -> Result<()> {
        self.answer(refusal)
    }

    fn answer(&self, answer: Refusal) -> Result<()> {
        let core = self.core();
        let answered = core.context.client().answer_alternate(core.handle, answer);
        answered.on(&**core, "answer an alternate path")
    }

    /// Reports that the queue pair has migrated ([`QpEvent::PathMig`](crate::QpEvent)): the connection manager's messages now
    /// use the queue pair's current path.
    ///
    /// # Errors
    /// When the connection has no alternate path.
    pub fn notify_migrated(&self) -> Result<()> {
        let core = self.core();
        core.context.client().migrated(core.handle).on(&**core, "follow a migration")
    }
}
