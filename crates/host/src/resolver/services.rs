//! Looks up services at subnet administration (ServiceRecord, IBTA 15.2.5.14).

use rdmux_cm::{Addr, EventKind, EventParam, IbAddr, PortSpace};
use rdmux_transport::attr::QpType;
use rdmux_wire::Gid;

use super::probe::{Probe, TIMEOUT};
use super::{Answer, ResolveError, Resolver, gid};
use crate::names::ServiceKey;

impl Resolver {
    /// Returns subnet administration's services of a name or ID, queried from the InfiniBand port with this GID (`RAI_SA`).
    /// They are in [`PortSpace::Ib`], without paths.
    ///
    /// # Errors
    /// [`ResolveError::NoService`] if none exists. Other errors when no port has the GID, or no answer arrives within 2
    /// s.
    pub fn services(&self, from: Gid, service: &ServiceKey) -> Result<Vec<Answer>, ResolveError> {
        let probe = Probe::new(&self.client, PortSpace::Ib, QpType::Rc, self.only)?;
        self.client.bind_addr(probe.id(), IbAddr::of_port(from))?;
        self.client.resolve_service(probe.id(), service, TIMEOUT)?;
        let event = probe.event(EventKind::AddrinfoResolved)?;
        let EventParam::Services(found) = event.param else {
            return Err(ResolveError::NoService { what: service.to_string() });
        };
        Ok(found.into_iter().map(|to| at(from, to)).collect())
    }
}

/// Returns the answer for a service that was found from a port.
fn at(from: Gid, to: IbAddr) -> Answer {
    let src = IbAddr { pkey: to.pkey, ..gid::port_at(from, PortSpace::Ib, 0) };
    Answer {
        port_space: Some(PortSpace::Ib),
        src: Some(Addr::from(src)),
        dst: Some(to.into()),
        ..Answer::default()
    }
}
