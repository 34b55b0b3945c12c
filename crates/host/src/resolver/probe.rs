//! An id that resolves addresses and paths and never connects: the connection manager resolves for all ids.

use std::sync::Arc;
use std::time::Duration;

use rdmux_cm::{Addr, Event, EventKind, IdHandle, PathData, PortSpace, Route};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::DeviceKind;

use super::ResolveError;
use crate::client::{EventChannel, HostClient};
use crate::error::HostError;

/// Time that resolving an address, a path and a list of services may take each, as in rdma_create_ep(3).
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// An id that resolves addresses and paths and never connects. It has a channel of its own, which is destroyed with it.
pub(super) struct Probe {
    client: Arc<HostClient>,
    channel: EventChannel,
    id: IdHandle,
}

impl Probe {
    pub(super) fn new(
        client: &Arc<HostClient>,
        space: PortSpace,
        qp_type: QpType,
        only: Option<DeviceKind>,
    ) -> Result<Self, ResolveError> {
        let channel = EventChannel::open(client)?;
        let id = client.create_id_on(&channel, space, qp_type, only, 0)?;
        Ok(Self { client: Arc::clone(client), channel, id })
    }

    /// Resolves the device and local address that lead to a peer, and the peer's GID.
    pub(super) fn address(&self, src: Option<Addr>, dst: Addr) -> Result<Route, ResolveError> {
        self.client.resolve_addr(self.id, src, dst, TIMEOUT)?;
        self.route(EventKind::AddrResolved)
    }

    /// Resolves the device and local address where a given path begins, and the path in the connection manager's form. No query is sent. An
    /// error leaves the id as it was.
    pub(super) fn along(
        &self,
        src: Option<Addr>,
        dst: Addr,
        path: PathData,
    ) -> Result<Route, ResolveError> {
        self.client.resolve_along(self.id, src, dst, &[path])?;
        self.route(EventKind::RouteResolved)
    }

    /// Resolves the path to the peer.
    pub(super) fn path(&self) -> Result<Route, ResolveError> {
        self.client.resolve_route(self.id, TIMEOUT)?;
        self.route(EventKind::RouteResolved)
    }

    fn route(&self, kind: EventKind) -> Result<Route, ResolveError> {
        let event = self.event(kind)?;
        let without = || self.failed(kind, libc::EPROTO);
        event.route.map(|route| *route).ok_or_else(without)
    }

    /// Waits for the next event, which must be of this kind.
    pub(super) fn event(&self, kind: EventKind) -> Result<Event, ResolveError> {
        match self.channel.get_event()? {
            Some(event) if event.kind == kind && event.status == 0 => Ok(event),
            Some(event) => Err(self.failed(kind, event.status.abs())),
            None => Err(self.failed(kind, libc::EAGAIN)),
        }
    }

    fn failed(&self, kind: EventKind, errno: i32) -> ResolveError {
        let what = format!("resolve the address: no event {}", kind.name());
        let why = std::io::Error::from_raw_os_error(errno).to_string();
        HostError::Refused { what, why, errno }.into()
    }

    pub(super) fn id(&self) -> IdHandle {
        self.id
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // The service, and with it the id, may be gone.
        let _ = self.client.destroy_id_soon(self.id);
    }
}
