//! The command resolve_addr, which finds the local address and device for a destination.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::{AckTimeout, Psn, Qkey, Qpn};

use super::entry::IdState;
use super::route::{by_address, route_along};
use super::{EventBody, Manager, normalised};
use crate::address::Addr;
use crate::config::Config;
use crate::error::{CmError, Command, errno};
use crate::event::EventKind;
use crate::params::{Negotiated, Route};
use crate::sink::{IdHandle, LocalAddress, OnlyDevice, Resolved, RouteQuery, Sink};

/// Returns the wildcard of the family of `ip`.
const fn any(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

impl Manager {
    /// Finds the local address and device for `dst` (rdma_resolve_addr(3)); binds to `src` first
    /// if the id is not bound. A wildcard `dst` means this host, as `localhost` does. ADDR_RESOLVED or ADDR_ERROR
    /// follows within `timeout`. `privileged` allows any source port.
    ///
    /// # Errors
    /// When the id is past this state, the addresses differ in family, or the id cannot be bound.
    #[expect(clippy::too_many_arguments, reason = "the verb's own, plus time and sink")]
    pub fn resolve_addr(
        &mut self,
        now: Time,
        id: IdHandle,
        src: Option<Addr>,
        dst: Addr,
        timeout: Duration,
        privileged: bool,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::ResolveAddr;
        let (src, dst) = match (src, dst) {
            (None, Addr::Ip(dst)) => (None, dst),
            (Some(Addr::Ip(src)), Addr::Ip(dst)) => (Some(src), dst),
            (None, Addr::Ib(dst)) => {
                return self.resolve_native(now, id, (None, dst), timeout, privileged, sink);
            }
            (Some(Addr::Ib(src)), Addr::Ib(dst)) => {
                return self.resolve_native(now, id, (Some(src), dst), timeout, privileged, sink);
            }
            _ => return Err(CmError::Family { id, command }),
        };
        let (src, dst) = (src.map(|src| self.meant(src)), self.meant(dst));
        let found = self.get(id, command)?;
        let state = found.state();
        let local = match state {
            IdState::Idle => src.unwrap_or_else(|| SocketAddr::new(any(dst.ip()), 0)),
            _ => match found.local {
                Some(Addr::Ip(local)) if state == IdState::AddrBound => local,
                Some(Addr::Ib(_)) if state == IdState::AddrBound => {
                    return Err(CmError::Family { id, command });
                }
                _ => return Err(CmError::State { id, command, state }),
            },
        };
        if local.is_ipv4() != dst.is_ipv4() {
            return Err(CmError::Family { id, command });
        }
        let dst = self.host_for(local.ip(), dst).ok_or(CmError::AddrNotAvailable {
            id,
            command,
            addr: dst.into(),
        })?;
        if state == IdState::Idle {
            self.bind_to(id, local, Some(dst), privileged, command)?;
        }
        let found = self.ids.get_mut(&id).ok_or(CmError::NoSuchId { id, command })?;
        found.go(IdState::AddrQuery);
        found.peer = Some(dst.into());
        let src_hint = Some(local.ip()).filter(|ip| !ip.is_unspecified());
        let bound = found.device.as_ref();
        let bound = bound.map(|d| OnlyDevice { device: d.device, transport: d.transport });
        let (tos, only) = (found.options.tos.unwrap_or(0), bound.or(found.only));
        let (port_space, may_stream) = (found.ps, found.may_have_streams());
        let query =
            RouteQuery { dst, src_hint, tos, only, may_stream, port_space, is_gid: false, timeout };
        self.timers.set(&mut found.deadline, id, now.after(timeout));
        sink.resolve(id, query);
        Ok(())
    }

    /// Returns the host that a destination means: for a wildcard, this host.
    fn host_for(&self, local: IpAddr, dst: SocketAddr) -> Option<SocketAddr> {
        if !dst.ip().is_unspecified() {
            return Some(dst);
        }
        let ip = if local.is_unspecified() { self.first_address(dst.ip())? } else { local };
        Some(SocketAddr::new(ip, dst.port()))
    }

    /// Handles the driver's answer to [`Sink::resolve`]. Late answers are ignored.
    pub fn handle_resolved(
        &mut self,
        now: Time,
        id: IdHandle,
        answer: Resolved,
        sink: &mut impl Sink,
    ) {
        let _ = now;
        if !self.awaits_answer(id) {
            return;
        }
        let outcome = self.resolved(id, answer);
        self.end_query(id);
        match outcome {
            Ok(route) => self.address_resolved(id, route, sink),
            Err(()) => self.resolve_failed(id, errno::ENODEV, sink),
        }
    }

    /// Reports that the id has its address, device and peer.
    pub(super) fn address_resolved(&mut self, id: IdHandle, route: Route, sink: &mut impl Sink) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        found.go(IdState::AddrResolved);
        let negotiated = self.datagrams_resolved(id);
        let body = EventBody::new(EventKind::AddrResolved);
        self.emit(id, EventBody { route: Some(route), negotiated, ..body }, sink);
    }

    /// Returns the attributes for the queue pair of a datagram id. Datagrams negotiate nothing.
    pub(super) fn datagrams_resolved(&mut self, id: IdHandle) -> Option<Negotiated> {
        let found = self.ids.get_mut(&id).filter(|found| found.qp_type == QpType::Ud)?;
        let route = found.route?;
        let negotiated = Negotiated { qkey: found.qkey(), ..datagram(&self.cm.config, &route) };
        found.negotiated = Some(negotiated);
        Some(negotiated)
    }

    /// Handles the driver's failure answer to [`Sink::resolve`]; `errno` is positive.
    pub fn handle_resolve_failed(
        &mut self,
        now: Time,
        id: IdHandle,
        errno: i32,
        sink: &mut impl Sink,
    ) {
        let _ = now;
        if self.awaits_answer(id) {
            self.end_query(id);
            self.resolve_failed(id, errno, sink);
        }
    }

    /// Returns whether a query awaits an answer.
    fn awaits_answer(&self, id: IdHandle) -> bool {
        self.ids.get(&id).is_some_and(|found| found.state() == IdState::AddrQuery)
    }

    fn end_query(&mut self, id: IdHandle) {
        if let Some(found) = self.ids.get_mut(&id) {
            self.timers.clear(&mut found.deadline, id);
        }
    }

    /// Handles the timeout of the query.
    pub(super) fn resolve_timeout(&mut self, id: IdHandle, sink: &mut impl Sink) {
        self.end_query(id);
        sink.cancel_resolve(id);
        self.resolve_failed(id, errno::ETIMEDOUT, sink);
    }

    fn resolve_failed(&mut self, id: IdHandle, errno: i32, sink: &mut impl Sink) {
        if let Some(found) = self.ids.get_mut(&id) {
            found.go(IdState::AddrBound);
        }
        self.emit(id, EventBody::failed(EventKind::AddrError, -errno.abs()), sink);
    }

    /// Returns the index of the partition of an address.
    pub(super) fn pkey_index(&self, of: &LocalAddress) -> u16 {
        let port = self.device_port(of.device, of.port_num);
        port.and_then(|port| port.pkey_index(of.pkey)).unwrap_or(0)
    }

    /// Gives the id its address, device and path.
    fn resolved(&mut self, id: IdHandle, answer: Resolved) -> Result<Route, ()> {
        let found = self.ids.get(&id).ok_or(())?;
        let (local, peer) = match found.local.zip(found.peer).ok_or(())? {
            (Addr::Ip(local), Addr::Ip(peer)) => (local, peer),
            (Addr::Ib(_), Addr::Ib(peer)) => return self.native_resolved(id, &peer, answer),
            _ => return Err(()),
        };
        let answered = normalised(SocketAddr::new(answer.src, 0)).ip();
        let ip = if local.ip().is_unspecified() { answered } else { local.ip() };
        let device = self.address_at_port(answer.device, answer.port_num, ip).ok_or(())?.clone();
        if !found.may_use(device.device, device.transport) {
            return Err(());
        }
        if ip.is_ipv4() != peer.is_ipv4() {
            return Err(());
        }
        // An address that the program gave keeps its scope.
        let local = if local.ip() == ip { local } else { SocketAddr::new(ip, local.port()) };
        let mtu = answer.mtu.map_or(device.mtu, |mtu| mtu.min(device.mtu));
        let options = found.options;
        let ps = found.ps;
        let mut path =
            by_address(&self.cm.config, &device, (local.into(), peer.into()), answer.dgid, mtu);
        path.pkey_index = self.pkey_index(&device);
        let route = route_along(&path, device.device, &options, (local.into(), peer.into()));
        self.port_table(ps).set_ip(local.port(), id, ip);
        let found = self.ids.get_mut(&id).ok_or(())?;
        found.local = Some(local.into());
        found.device = Some(device);
        found.path = Some(path);
        found.route = Some(route);
        Ok(route)
    }
}

/// Returns the attributes for a UD queue pair. Datagrams negotiate nothing.
pub(super) fn datagram(config: &Config, route: &Route) -> Negotiated {
    Negotiated {
        qp_type: QpType::Ud,
        transport: TransportType::Ib,
        av: route.av,
        path_mtu: route.mtu,
        pkey_index: route.pkey_index,
        qkey: Qkey::RDMA_UDP,
        dest_qpn: Qpn::default(),
        rq_psn: Psn::default(),
        sq_psn: Psn::default(),
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: config.min_rnr_timer,
        timeout: AckTimeout::default(),
        retry_cnt: 0,
        rnr_retry: 0,
        srq: false,
        alternate: None,
        reloads: false,
    }
}
