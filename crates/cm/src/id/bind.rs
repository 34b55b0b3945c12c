//! The commands create, bind, migrate and query.

use alloc::boxed::Box;
use core::net::SocketAddr;

use rdmux_transport::attr::QpType;
use rdmux_wire::Psn;

use super::Manager;
use super::entry::{Id, IdInfo, IdState, Owns};
use crate::address::Addr;
use crate::error::{CmError, Command};
use crate::ports::{Claim, PortSpace};
use crate::sink::{ChannelId, IdHandle, OnlyDevice};

impl Manager {
    /// Creates an id (rdma_create_id(3)). `qp_type` is the end of a connection that the id is for: UD in
    /// [`PortSpace::Udp`] and [`PortSpace::IpoIb`], all others in [`PortSpace::Tcp`], any in
    /// [`PortSpace::Ib`]. With XRC, ids of [`QpType::XrcSend`] connect and those of
    /// [`QpType::XrcRecv`] listen. (Linux has XRC in [`PortSpace::Ib`] only; elsewhere it uses RC.)
    ///
    /// # Errors
    /// When the port space does not have the transport, or the channel has too many ids.
    pub fn create_id(
        &mut self,
        channel: ChannelId,
        ps: PortSpace,
        qp_type: QpType,
        context: u64,
    ) -> Result<IdHandle, CmError> {
        self.create_id_on(channel, ps, qp_type, None, context)
    }

    /// Creates an id, as [`create_id`](Self::create_id) does, for one device only. Ids of any device bind to the first that has their
    /// address, listen on all that have it, and connect over the one that the driver chooses.
    ///
    /// # Errors
    /// As for [`create_id`](Self::create_id).
    pub fn create_id_on(
        &mut self,
        channel: ChannelId,
        ps: PortSpace,
        qp_type: QpType,
        only: Option<OnlyDevice>,
        context: u64,
    ) -> Result<IdHandle, CmError> {
        let id = IdHandle(self.last_id + 1);
        self.create_id_as(id, channel, (ps, qp_type), only, context)?;
        self.last_id = id.0;
        Ok(id)
    }

    /// Reserves `count` numbers and returns the first. No id gets one except by [`create_id_as`](Self::create_id_as).
    pub fn reserve_ids(&mut self, count: u32) -> IdHandle {
        let first = IdHandle(self.last_id + 1);
        self.last_id += u64::from(count);
        first
    }

    /// Creates an id, as [`create_id_on`](Self::create_id_on) does, with an unused number from [`reserve_ids`](Self::reserve_ids).
    ///
    /// # Errors
    /// As for [`create_id`](Self::create_id).
    pub fn create_id_as(
        &mut self,
        id: IdHandle,
        channel: ChannelId,
        (ps, qp_type): (PortSpace, QpType),
        only: Option<OnlyDevice>,
        context: u64,
    ) -> Result<(), CmError> {
        let fits = match ps {
            PortSpace::Tcp => qp_type != QpType::Ud,
            PortSpace::Udp | PortSpace::IpoIb => qp_type == QpType::Ud,
            PortSpace::Ib => true,
        };
        if !fits {
            let what = "the port space does not support this transport";
            return Err(CmError::Invalid { id, command: Command::CreateId, what });
        }
        self.room_in(channel)?;
        let psn = Psn::new(self.cm.rng.next_u32());
        let mut new = Id::new(channel, ps, qp_type, context, psn);
        new.only = only;
        self.insert(id, new);
        Ok(())
    }

    /// Checks that the channel may have another id.
    pub(super) fn room_in(&self, channel: ChannelId) -> Result<(), CmError> {
        let max = self.cm.config.max_ids_per_channel;
        if self.ids_in(channel) >= max {
            return Err(CmError::TooManyIds { channel, max });
        }
        Ok(())
    }

    /// Adds an id to the ids and to its channel.
    pub(super) fn insert(&mut self, handle: IdHandle, id: Id) {
        self.channels.entry(id.channel).or_default().insert(handle);
        self.ids.insert(handle, Box::new(id));
    }

    /// Binds an id to an address (rdma_bind_addr(3)): a wildcard or one of the host's, and a port, where 0 takes an ephemeral one; or a GID
    /// and a service ID ([`IbAddr`](crate::IbAddr)). Returns the address with its port. `privileged` allows ports
    /// below [`Config::unprivileged_port_start`](crate::Config::unprivileged_port_start). An IPv4-mapped IPv6 address is taken as IPv4, and
    /// `localhost` as this host.
    ///
    /// # Errors
    /// When the id is bound, the address is not local, or the port is taken.
    pub fn bind(
        &mut self,
        id: IdHandle,
        addr: impl Into<Addr>,
        privileged: bool,
    ) -> Result<Addr, CmError> {
        self.bind_where(id, addr, privileged, |_| true)
    }

    /// Binds an id, as [`bind`](Self::bind) does. Where the driver has TCP, port 0 takes a port for which `free_in_tcp` holds, because
    /// an id that listens for iWARP needs it there too. `free_in_tcp` is not called for an id that can have no iWARP
    /// connections. If none of many candidates is free in TCP, one is taken that is not.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind).
    pub fn bind_where(
        &mut self,
        id: IdHandle,
        addr: impl Into<Addr>,
        privileged: bool,
        free_in_tcp: impl Fn(u16) -> bool,
    ) -> Result<Addr, CmError> {
        self.in_state(id, Command::Bind, IdState::Idle)?;
        let addr = match addr.into() {
            Addr::Ip(addr) => self.meant(addr),
            Addr::Ib(addr) => return self.bind_native(id, addr, privileged, Command::Bind),
        };
        let iwarp = self.get(id, Command::Bind)?.may_have_streams();
        let suits = |port| !iwarp || free_in_tcp(port);
        self.bind_suited(id, addr, None, privileged, Command::Bind, suits)
    }

    /// Binds an idle id, on behalf of `command`.
    pub(super) fn bind_to(
        &mut self,
        id: IdHandle,
        addr: SocketAddr,
        peer: Option<SocketAddr>,
        privileged: bool,
        command: Command,
    ) -> Result<Addr, CmError> {
        self.bind_suited(id, addr, peer, privileged, command, |_| true)
    }

    /// Binds an idle id as [`bind_to`](Self::bind_to) does; port 0 takes a port for which the predicate holds.
    fn bind_suited(
        &mut self,
        id: IdHandle,
        addr: SocketAddr,
        peer: Option<SocketAddr>,
        privileged: bool,
        command: Command,
        suits: impl Fn(u16) -> bool,
    ) -> Result<Addr, CmError> {
        let (ip, port) = (addr.ip(), addr.port());
        let device = self.device_of(self.get(id, command)?, ip).cloned();
        if device.is_none() && !ip.is_unspecified() {
            return Err(CmError::AddrNotAvailable { id, command, addr: addr.into() });
        }
        if self.cm.config.is_privileged(port) && !privileged {
            return Err(CmError::Permission { id, port });
        }
        let v6_only = self.cm.config.bind_v6_only;
        let (ps, options) = self.get(id, command).map(|i| (i.ps, i.options))?;
        let af_only = options.af_only.unwrap_or(ip.is_ipv4() || v6_only);
        let reuse = options.reuse_addr;
        let claim = Claim { id, ip, af_only, reuse, peer, listening: false };
        let port = if port == 0 {
            let random = self.cm.rng.next_u32();
            let range = self.cm.config.ephemeral_ports.clone();
            self.port_table(ps).claim_any(&range, random, claim, suits)
        } else {
            self.port_table(ps).claim(port, claim).map(|()| port)
        };
        let port = port.map_err(|error| error.of(id, command, addr.into()))?;
        // With its scope: a link-local address needs its interface.
        let mut bound = addr;
        bound.set_port(port);
        let bound = Addr::from(bound);
        let found = self.get_mut(id, command)?;
        found.owns = Owns::Port(ps, port);
        found.local = Some(bound);
        found.device = device;
        found.go(IdState::AddrBound);
        Ok(bound)
    }

    /// Moves an id to another channel (rdma_migrate_id(3)), and with a listener its requests not yet
    /// taken. Returns the number of events of the id so far. The driver must move those that are
    /// not read yet.
    ///
    /// # Errors
    /// When there is no such id, or the new channel has too many.
    pub fn migrate(&mut self, id: IdHandle, channel: ChannelId) -> Result<u32, CmError> {
        let old = self.get(id, Command::Migrate)?.channel;
        if old != channel {
            self.room_in(channel)?;
        }
        self.take(id)?;
        let requests = self.get(id, Command::Migrate)?.requests.clone();
        for moved in requests.into_iter().chain([id]) {
            self.leave_channel(old, moved);
            self.channels.entry(channel).or_default().insert(moved);
            self.get_mut(moved, Command::Migrate)?.channel = channel;
        }
        self.get(id, Command::Migrate).map(|found| found.events)
    }

    /// Returns how many ids a channel has.
    pub fn ids_in(&self, channel: ChannelId) -> usize {
        self.channels.get(&channel).map_or(0, |ids| ids.len())
    }

    /// Removes an id from a channel.
    pub(super) fn leave_channel(&mut self, channel: ChannelId, id: IdHandle) {
        if let Some(ids) = self.channels.get_mut(&channel) {
            ids.remove(&id);
            if ids.is_empty() {
                self.channels.remove(&channel);
            }
        }
    }

    /// Returns the state and addresses of an id (rdma_get_local_addr(3) and the like).
    ///
    /// # Errors
    /// When there is no such id.
    pub fn query(&self, id: IdHandle) -> Result<IdInfo, CmError> {
        self.get(id, Command::Query).map(Id::info)
    }
}
