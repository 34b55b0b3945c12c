//! The links that a queue pair sends through, behind the one trait that a further link is to have.

use std::sync::Arc;

use rdmux_link::udp::PushError;
use rdmux_link::{Frame, Link, LinkCaps, LinkError, TxBatch};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::Psn;

use super::lend::Loans;
use super::path::{Endpoint, Route};
use super::ring::RingTx;
use crate::engine::device::Device;

/// The largest path MTU.
const MAX_MTU: u32 = 4096;

/// What a socket can do.
pub(crate) const UDP_CAPS: LinkCaps =
    LinkCaps { max_payload: MAX_MTU, lossless: false, by_reference: false, acks_along: false };

/// To one destination by UDP, gathered with other packets of the same queue pair.
pub(crate) struct UdpOut<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) route: &'a Route,
    pub(crate) batch: &'a mut TxBatch,
    /// The socket that the batch is gathered for.
    pub(crate) gathered: &'a mut Option<Arc<Endpoint>>,
    /// What of it the queue pair has lent; none of one whose packets nobody acknowledges.
    pub(crate) loans: Option<&'a mut Loans>,
}

impl Link for UdpOut<'_> {
    fn caps(&self) -> LinkCaps {
        UDP_CAPS
    }

    /// Gathers a packet, and sends what was gathered before when the two do not go together.
    fn push(&mut self, frame: &Frame<'_>) -> Result<(), LinkError> {
        let port = &self.route.port;
        if self.gathered.as_ref().is_none_or(|e| !Arc::ptr_eq(e, port)) {
            self.flush()?;
            *self.gathered = Some(port.clone());
        }
        loop {
            match self.batch.push(&port.udp, &self.route.to, frame) {
                Ok(()) => break,
                Err(PushError::Full) => {
                    super::send::flush(self.device, port, self.batch, self.loans.as_deref_mut());
                }
                Err(PushError::Unmapped(fault)) => return Err(fault.into()),
                Err(PushError::TooLarge { len }) => {
                    return Err(LinkError::TooLarge { len, max: TxBatch::MAX_PACKET });
                }
            }
        }
        if let Some(loans) = &mut self.loans {
            loans.note(frame.header, self.batch.len() == 1);
        }
        let src = port.udp.local_addr();
        self.device.engine().capture().sent(src, &self.route.to, frame);
        Ok(())
    }

    /// Sends what was gathered. What the socket does not take is lost, as on any wire: the transport
    /// notices.
    fn flush(&mut self) -> Result<(), LinkError> {
        if let Some(endpoint) = self.gathered.take() {
            super::send::flush(self.device, &endpoint, self.batch, self.loans.as_deref_mut());
        }
        Ok(())
    }
}

/// To a process of this host.
pub(crate) struct RingOut<'a> {
    pub(crate) device: &'a Arc<Device>,
    pub(crate) ring: &'a RingTx,
    pub(crate) av: &'a AddressVector,
    /// The acknowledgement that goes along.
    pub(crate) ack: Option<Psn>,
}

impl Link for RingOut<'_> {
    fn caps(&self) -> LinkCaps {
        super::ring::CAPS
    }

    fn push(&mut self, frame: &Frame<'_>) -> Result<(), LinkError> {
        self.ring.send(self.device, self.av, frame, self.ack)
    }

    /// A record is the peer's as soon as it is pushed.
    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
}
