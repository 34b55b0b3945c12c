//! The command resolve_route, which finds the path to a peer whose address is resolved.
//!
//! ```text
//!   resolve_route --> Sink::query_path      the driver looks up the path, or knows it
//!        RouteQuery                             |
//!            |  <--- handle_path: a path -------+---> ROUTE_RESOLVED
//!            |  <--- handle_path: an errno -----+---> ROUTE_ERROR, and the program may try again
//!            |  <--- timeout                 ---> cancel_path, ROUTE_ERROR with -ETIMEDOUT
//!            |  <--- destroy, device removal   ---> cancel_path
//!
//!   a request is redirected without a LID (`messages`): the same query, and no event
//!
//!   set_paths (`supplied`): the program has the path already, no query is sent ---> ROUTE_RESOLVED
//! ```

use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Gid, Lid, Mtu, ServiceId};

use super::entry::{Id, IdState, Options};
use super::{EventBody, Manager, flow_label};
use crate::address::Addr;
use crate::config::Config;
use crate::error::{CmError, Command, errno};
use crate::event::EventKind;
use crate::params::Route;
use crate::path::{Path, PathQuery, Paths};
use crate::ports::PortSpace;
use crate::sink::{IdHandle, LocalAddress, Sink};

impl Manager {
    /// Resolves the path (rdma_resolve_route(3)) by a query to the driver. ROUTE_RESOLVED or ROUTE_ERROR follows within
    /// `timeout`. After ROUTE_ERROR the program may try again.
    ///
    /// # Errors
    /// When the address is not resolved, or the route already is or is being resolved.
    pub fn resolve_route(
        &mut self,
        now: Time,
        id: IdHandle,
        timeout: Duration,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::ResolveRoute;
        self.in_state(id, command, IdState::AddrResolved)?;
        let found = self.ids.get_mut(&id).ok_or(CmError::NoSuchId { id, command })?;
        let Some((path, Route { src, dst, device, .. })) = found.path.zip(found.route) else {
            return Err(self.wrong_state(id, command));
        };
        found.go(IdState::RouteQuery);
        found.path_query = found.path_query.wrapping_add(1);
        let traffic_class = found.options.tos.unwrap_or(path.av.traffic_class);
        let query = PathQuery {
            attempt: found.path_query,
            device,
            src,
            dst,
            service_id: service_of(found.ps, &dst),
            by_address: Path { av: AddressVector { traffic_class, ..path.av }, ..path },
            timeout,
        };
        self.timers.set(&mut found.deadline, id, now.after(timeout));
        sink.query_path(id, query);
        Ok(())
    }

    /// Handles the driver's answer to [`Sink::query_path`]: the path, or a positive errno (`ETIMEDOUT` when there was no
    /// answer, `EINVAL` when subnet administration refused, as in Linux). An answer to a query that is
    /// over is ignored.
    pub fn handle_path(
        &mut self,
        now: Time,
        id: IdHandle,
        attempt: u32,
        answer: Result<Path, i32>,
        sink: &mut impl Sink,
    ) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        if found.open_path_query() != Some(attempt) {
            return;
        }
        self.timers.clear(&mut found.deadline, id);
        if found.redirection.is_some() {
            return self.way_found(now, id, answer.ok(), sink);
        }
        let path = match answer {
            Ok(path) => path,
            Err(errno) => return self.no_path(id, errno, sink),
        };
        self.install(id, path.into(), sink);
    }

    /// Gives the id these paths.
    pub(super) fn install(&mut self, id: IdHandle, paths: Paths, sink: &mut impl Sink) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        let path = paths.primary;
        let mtu = found.device.as_ref().map_or(path.mtu, |device| path.mtu.min(device.mtu));
        found.path = Some(Path { mtu, ..path.normal() });
        (found.alternate, found.cm_path) = (paths.alternate, paths.cm);
        found.go(IdState::RouteResolved);
        let route = self.refresh_route(id).map(|(_, route)| route);
        let negotiated = self.datagrams_resolved(id);
        let body = EventBody::new(EventKind::RouteResolved);
        self.emit(id, EventBody { route, negotiated, ..body }, sink);
    }

    /// Handles the timeout of a path query.
    pub(super) fn path_timeout(&mut self, id: IdHandle, sink: &mut impl Sink) {
        self.cancel_path(id, sink);
        self.no_path(id, errno::ETIMEDOUT, sink);
    }

    /// Cancels the id's path query, if it has one.
    pub(super) fn cancel_path(&mut self, id: IdHandle, sink: &mut impl Sink) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        if let Some(attempt) = found.open_path_query() {
            self.timers.clear(&mut found.deadline, id);
            found.redirection = None;
            sink.cancel_path(id, attempt);
        }
    }

    fn no_path(&mut self, id: IdHandle, errno: i32, sink: &mut impl Sink) {
        if let Some(found) = self.ids.get_mut(&id) {
            found.go(IdState::AddrResolved);
        }
        self.emit(id, EventBody::failed(EventKind::RouteError, -errno.abs()), sink);
    }

    /// Recomputes the id's route from its path and its current options, and returns both.
    pub(super) fn refresh_route(&mut self, id: IdHandle) -> Option<(Path, Route)> {
        let found: &mut Id = self.ids.get_mut(&id)?;
        let (path, old) = found.path.zip(found.route)?;
        let route = route_along(&path, old.device, &found.options, (old.src, old.dst));
        found.route = Some(route);
        Some((path, route))
    }
}

impl Id {
    /// Returns the path query that is not answered yet.
    fn open_path_query(&self) -> Option<u32> {
        let is_open = self.state() == IdState::RouteQuery || self.redirection.is_some();
        is_open.then_some(self.path_query)
    }
}

/// Returns the service that an id of a port space contacts at a peer's address.
pub(super) fn service_of(ps: PortSpace, dst: &Addr) -> ServiceId {
    match dst {
        Addr::Ip(addr) => ServiceId::from_port(ps.code(), addr.port()),
        Addr::Ib(addr) => addr.sid,
    }
}

/// Returns the path from `src`, an address of `device`, to `dst`, whose GID is `dgid`, as far as the addresses determine it:
/// completely where addresses are GIDs, and only the ends on InfiniBand.
pub(super) fn by_address(
    config: &Config,
    device: &LocalAddress,
    (src, dst): (Addr, Addr),
    dgid: Gid,
    mtu: Mtu,
) -> Path {
    let ends = AddressVector {
        dgid,
        sgid_index: device.sgid_index,
        port_num: device.port_num,
        ..AddressVector::default()
    };
    let (flow_label, hop_limit) = (flow_label(&src, &dst), config.hop_limit);
    let routed = AddressVector { is_global: true, flow_label, hop_limit, ..ends };
    Path {
        local: device.gid,
        slid: Lid(0),
        back_lid: Lid(0),
        av: if device.has_lids { ends } else { routed },
        pkey: device.pkey,
        pkey_index: 0,
        mtu,
        packet_lifetime: config.packet_lifetime,
    }
}

/// Returns the route that a program sees for a path. Its options override the path's values.
pub(super) fn route_along(
    path: &Path,
    device: u32,
    options: &Options,
    (src, dst): (Addr, Addr),
) -> Route {
    let traffic_class = options.tos.unwrap_or(path.av.traffic_class);
    let lifetime = options.ack_timeout.filter(|&code| code > 0);
    Route {
        src,
        dst,
        device,
        sgid: path.local,
        slid: path.slid,
        av: AddressVector { traffic_class, ..path.av },
        mtu: path.mtu,
        pkey: path.pkey,
        pkey_index: path.pkey_index,
        packet_lifetime: lifetime.map_or(path.packet_lifetime, |code| code - 1),
    }
}

/// Returns the route from `src`, an address of `device` that is a GID, to `dst`, the peer of a request.
pub(super) fn route_of(
    config: &Config,
    device: &LocalAddress,
    options: &Options,
    ends: (Addr, Addr),
    mtu: Mtu,
) -> Route {
    let path = by_address(config, device, ends, Gid::from(ends.1.ip()), mtu);
    route_along(&path, device.device, options, ends)
}
