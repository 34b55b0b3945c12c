//! Ids with InfiniBand's own addresses: a GID, a partition and a service ID. They need no address resolution: packets go to the GID.
//!
//! Service IDs that encode ports (IBTA annex A11) share them with IP addresses. All others are in a table of their own. A
//! request finds a native listener before one with an IP address. Its private data belong to the program from byte 0.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::attr::{AddressVector, TransportType};
use rdmux_wire::{Gid, Pkey, ServiceId};

use super::Manager;
use super::entry::{Id, IdState, Owns};
use super::listen::{Ask, Refusal, Target};
use super::route::{by_address, route_along};
use crate::address::{Addr, IbAddr};
use crate::error::{CmError, Command};
use crate::params::Route;
use crate::path::{MadPath, Path};
use crate::ports::{Claim, PortSpace};
use crate::sink::{DevicePort, IdHandle, LocalAddress, OnlyDevice, Resolved, RouteQuery, Sink};

impl Manager {
    /// Binds an id to a local GID, or any, and to the service ID, if one is given or the id needs one.
    pub(super) fn bind_native(
        &mut self,
        id: IdHandle,
        addr: IbAddr,
        privileged: bool,
        command: Command,
    ) -> Result<Addr, CmError> {
        let found = self.get(id, command)?;
        let (ps, reuse) = (found.ps, found.options.reuse_addr);
        let device = if addr.is_any() { None } else { self.native_device(found, &addr) };
        if device.is_none() && !addr.is_any() {
            return Err(CmError::AddrNotAvailable { id, command, addr: addr.into() });
        }
        let (owns, addr) = match self.space_of(id, command, ps, &addr)? {
            Some((space, port)) => {
                let refused =
                    port.filter(|port| self.cm.config.is_privileged(*port) && !privileged);
                if let Some(port) = refused {
                    return Err(CmError::Permission { id, port });
                }
                let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                let ip = if addr.is_any() { any } else { addr.gid.ip() };
                let (af_only, peer, listening) = (false, None, false);
                let claim = Claim { id, ip, af_only, reuse, peer, listening };
                let port = self.claim_port(space, port, claim);
                let port = port.map_err(|error| error.of(id, command, addr.into()))?;
                let sid = ServiceId::from_port(space.code(), port);
                (Owns::Port(space, port), IbAddr { sid, sid_mask: u64::MAX, ..addr })
            }
            None => {
                let rng = &mut self.cm.rng;
                let random = || u64::from(rng.next_u32()) << 32 | u64::from(rng.next_u32());
                let claimed = self.services.claim(id, addr, random);
                (Owns::Service, claimed.map_err(|error| error.of(id, command, addr.into()))?)
            }
        };
        let pkey = device.as_ref().map_or(addr.pkey, |device| device.pkey);
        let bound = Addr::from(IbAddr { pkey, ..addr });
        let found = self.get_mut(id, command)?;
        found.owns = owns;
        found.local = Some(bound);
        found.device = device;
        found.go(IdState::AddrBound);
        Ok(bound)
    }

    fn claim_port(
        &mut self,
        space: PortSpace,
        port: Option<u16>,
        claim: Claim,
    ) -> Result<u16, crate::ports::PortError> {
        if let Some(port) = port {
            return self.port_table(space).claim(port, claim).map(|()| port);
        }
        let random = self.cm.rng.next_u32();
        let range = self.cm.config.ephemeral_ports.clone();
        self.port_table(space).claim_any(&range, random, claim, |_| true)
    }

    /// Returns the port space of a service ID, and the port if one is given; none if the service ID encodes no port. Ids of port spaces
    /// with ports have only such service IDs.
    fn space_of(
        &self,
        id: IdHandle,
        command: Command,
        ps: PortSpace,
        addr: &IbAddr,
    ) -> Result<Option<(PortSpace, Option<u16>)>, CmError> {
        match (ps, addr.ip_service()) {
            (PortSpace::Ib, service) => Ok(service),
            (ps, None) if addr.sid_mask == 0 => Ok(Some((ps, None))),
            (ps, Some((space, port))) if space == ps => Ok(Some((space, port))),
            _ => {
                let what = "the service ID is not in the id's port space";
                Err(CmError::Invalid { id, command, what })
            }
        }
    }

    /// Returns the local port that has a GID and a partition, on a device that the id may use.
    pub(super) fn native_device(&self, id: &Id, addr: &IbAddr) -> Option<LocalAddress> {
        let may = |port: &&DevicePort| may_use(id, port);
        let mut ports = self.device_ports.iter().filter(may);
        ports.find_map(|port| self.address_at(port, addr.gid, addr.pkey))
    }

    /// Returns a GID of a port as a local address: where addresses are GIDs, the address itself.
    fn address_at(&self, port: &DevicePort, gid: Gid, pkey: Pkey) -> Option<LocalAddress> {
        let address = port.address(gid, pkey)?;
        if port.has_lids {
            return Some(address);
        }
        self.address_of(port.device, gid.ip()).cloned()
    }

    /// Resolves native addresses for resolve_addr. The source is the id's GID, or a local one that reaches the destination: on
    /// InfiniBand one with the same subnet prefix, on RoCE the one of the kernel's route. No network query is sent.
    pub(super) fn resolve_native(
        &mut self,
        now: Time,
        id: IdHandle,
        (src, dst): (Option<IbAddr>, IbAddr),
        timeout: Duration,
        privileged: bool,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::ResolveAddr;
        let found = self.get(id, command)?;
        let state = found.state();
        let local = match (state, found.local) {
            (IdState::Idle, _) => src.unwrap_or_else(|| IbAddr::of_port(Gid::ZERO)),
            (IdState::AddrBound, Some(Addr::Ib(local))) => local,
            (IdState::AddrBound, Some(Addr::Ip(_))) => return Err(CmError::Family { id, command }),
            _ => return Err(CmError::State { id, command, state }),
        };
        if dst.is_any() {
            return Err(CmError::AddrNotAvailable { id, command, addr: dst.into() });
        }
        let source = self.native_source(found, &local, &dst);
        let unreachable = CmError::AddrNotAvailable { id, command, addr: dst.into() };
        let Some(source) = source else { return Err(unreachable) };
        if state == IdState::Idle {
            self.hold_native(id, local, privileged, command)?;
        }
        let found = self.ids.get_mut(&id).ok_or(CmError::NoSuchId { id, command })?;
        found.go(IdState::AddrQuery);
        found.peer = Some(dst.into());
        match source {
            Source::Known(device) => {
                let route = self.install_native(id, device, &dst, None);
                let Ok(route) = route else { return Err(self.wrong_state(id, command)) };
                self.address_resolved(id, route, sink);
            }
            Source::Kernel(only) => {
                let query = RouteQuery {
                    dst: SocketAddr::new(dst.gid.ip(), 0),
                    src_hint: None,
                    tos: found.options.tos.unwrap_or(0),
                    only: Some(only),
                    is_gid: true,
                    may_stream: false,
                    port_space: found.ps,
                    timeout,
                };
                self.timers.set(&mut found.deadline, id, now.after(timeout));
                sink.resolve(id, query);
            }
        }
        Ok(())
    }

    /// Claims the service ID in the source address of an id that connects. Without one the id needs none.
    pub(super) fn hold_native(
        &mut self,
        id: IdHandle,
        local: IbAddr,
        privileged: bool,
        command: Command,
    ) -> Result<(), CmError> {
        if local.sid_mask != 0 {
            return self.bind_native(id, local, privileged, command).map(drop);
        }
        let found = self.get_mut(id, command)?;
        found.local = Some(local.into());
        found.go(IdState::AddrBound);
        Ok(())
    }

    /// Returns the source for a destination.
    fn native_source(&self, id: &Id, local: &IbAddr, dst: &IbAddr) -> Option<Source> {
        if !local.is_any() {
            let pkey = if local.pkey.0 == 0 { dst.pkey } else { local.pkey };
            return self.native_device(id, &IbAddr { pkey, ..*local }).map(Source::Known);
        }
        if let Some(own) = self.native_device(id, dst) {
            return Some(Source::Known(own));
        }
        let ports = || self.device_ports.iter().filter(|port| may_use(id, port));
        let in_subnet = ports().filter(|port| port.has_lids && port.lid.0 != 0).find_map(|port| {
            let mut gids = port.gids.iter().filter(|gid| gid.prefix() == dst.gid.prefix());
            gids.find_map(|gid| port.address(*gid, dst.pkey))
        });
        if let Some(device) = in_subnet {
            return Some(Source::Known(device));
        }
        let roce = ports().find(|port| !port.has_lids)?;
        let (device, transport) = (roce.device, roce.transport);
        Some(Source::Kernel(OnlyDevice { device, transport }))
    }

    /// Handles the driver's answer: the local address that the kernel sends from.
    pub(super) fn native_resolved(
        &mut self,
        id: IdHandle,
        dst: &IbAddr,
        answer: Resolved,
    ) -> Result<Route, ()> {
        let device = self.address_of(answer.device, answer.src).ok_or(())?.clone();
        self.install_native(id, device, dst, answer.mtu)
    }

    /// Gives the id its address, its device and its path, as far as the path follows from the addresses.
    fn install_native(
        &mut self,
        id: IdHandle,
        device: LocalAddress,
        dst: &IbAddr,
        mtu: Option<rdmux_wire::Mtu>,
    ) -> Result<Route, ()> {
        let found = self.ids.get(&id).ok_or(())?;
        let Some(Addr::Ib(local)) = found.local else { return Err(()) };
        let local = Addr::from(IbAddr { gid: device.gid, pkey: device.pkey, ..local });
        let (peer, options) = (Addr::from(*dst), found.options);
        let mtu = mtu.map_or(device.mtu, |mtu| mtu.min(device.mtu));
        let path = by_address(&self.cm.config, &device, (local, peer), dst.gid, mtu);
        let class = dst.traffic_class();
        let av = AddressVector { traffic_class: class, ..path.av };
        let path = Path { av, pkey_index: self.pkey_index(&device), ..path };
        let route = route_along(&path, device.device, &options, (local, peer));
        let found = self.ids.get_mut(&id).ok_or(())?;
        found.local = Some(local);
        found.device = Some(device);
        found.path = Some(path);
        found.route = Some(route);
        Ok(route)
    }

    /// Returns the native listener for a request, if there is one.
    pub(super) fn native_target(
        &mut self,
        path: &MadPath,
        ask: &Ask<'_>,
    ) -> Option<Result<Target, Refusal>> {
        let (gid, peer) = ask.gids;
        let by_service = self.services.listener(ask.service_id, gid, ask.pkey);
        let listener = by_service.or_else(|| self.native_listener_of_port(ask.service_id, gid))?;
        let Some(Addr::Ib(at)) = self.ids.get(&listener)?.local else { return None };
        let of_partition = at.pkey.0 & 0x7fff == 0 || (at.pkey.0 ^ ask.pkey.0) & 0x7fff == 0;
        if !of_partition {
            return None;
        }
        let port = self.device_port(path.device, self.asked_port(path, gid));
        let device = port.and_then(|port| self.address_at(port, gid, ask.pkey));
        let invalid = Refusal::Reason(rdmux_wire::cm::RejReason::INVALID_GID, None);
        let Some(device) = device else { return Some(Err(invalid)) };
        let here = IbAddr { pkey: device.pkey, ..IbAddr::new(gid, ask.service_id) };
        let there = IbAddr { gid: peer, pkey: ask.pkey, ..IbAddr::of_port(peer) };
        Some(self.takes(listener, device, (here.into(), there.into()), ask.qp_type))
    }

    /// Returns the listener by GID for the port that a service ID encodes.
    fn native_listener_of_port(&self, sid: ServiceId, gid: Gid) -> Option<IdHandle> {
        let (space, port) = sid.port()?;
        let table = self.ports.get(&PortSpace::from_code(space)?)?;
        table.listener(port, gid.ip())
    }
}

/// The source for a destination.
enum Source {
    Known(LocalAddress),
    /// The kernel's source address, over this device.
    Kernel(OnlyDevice),
}

fn may_use(id: &Id, port: &DevicePort) -> bool {
    port.transport == TransportType::Ib && id.may_use(port.device, port.transport)
}
