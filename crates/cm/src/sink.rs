//! The interface to the driver: the operations that the machine requests, and its names for ids and devices.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use alloc::vec::Vec;

use rdmux_transport::attr::TransportType;
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qkey};

use crate::event::Event;
use crate::group::GroupWish;
use crate::iw::StreamWish;
use crate::path::{MadPath, PathQuery};
use crate::ports::PortSpace;

/// The number of an id; unique in a [`Manager`](crate::Manager) and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IdHandle(pub u64);

impl core::fmt::Display for IdHandle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "id {}", self.0)
    }
}

/// The driver's name for an event channel. It must not be used again for another channel
/// before [`Manager::channel_gone`](crate::Manager::channel_gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ChannelId(pub u64);

/// A local address for connections, and the device behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The device's number, of the driver's choice; returned in [`Route`](crate::Route).
    pub device: u32,
    /// The transport of the device.
    pub transport: TransportType,
    /// The device's port, from 1.
    pub port_num: u8,
    /// The GID for packets to the address: its own on RoCE, where an address is a GID; the port's on InfiniBand.
    pub gid: Gid,
    /// Index of that GID in the port's GID table.
    pub sgid_index: u8,
    /// The partition that the address is in.
    pub pkey: Pkey,
    /// The Q_Key of datagrams in [`PortSpace::IpoIb`]: on InfiniBand that of the broadcast group (RFC 4391 4).
    pub ipoib_qkey: Qkey,
    /// The node GUID, which CM messages carry as CA GUID.
    pub node_guid: Guid,
    /// The largest path MTU that the port supports.
    pub mtu: Mtu,
    /// Whether paths have LIDs, as on InfiniBand: then an address is no GID, and the peer's GID must be looked up.
    pub has_lids: bool,
}

impl LocalAddress {
    /// Returns an address that is a GID of port 1 of a device (its number and its transport): the first one, in the default partition.
    pub fn over_ip(ip: IpAddr, device: (u32, TransportType), node_guid: Guid, mtu: Mtu) -> Self {
        Self {
            ip,
            device: device.0,
            transport: device.1,
            port_num: 1,
            gid: ip.into(),
            sgid_index: 0,
            pkey: Pkey::DEFAULT,
            ipoib_qkey: Qkey::RDMA_UDP,
            node_guid,
            mtu,
            has_lids: false,
        }
    }
}

/// A port of one of this host's devices, with its current tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePort {
    /// The device's number, as in [`LocalAddress`].
    pub device: u32,
    /// The port's number, from 1.
    pub port_num: u8,
    /// The transport of the device.
    pub transport: TransportType,
    /// The node GUID, which CM messages carry as CA GUID.
    pub node_guid: Guid,
    /// The largest path MTU that the port supports.
    pub mtu: Mtu,
    /// Whether paths have LIDs, as on InfiniBand.
    pub has_lids: bool,
    /// The base LID; 0 where there are no LIDs.
    pub lid: Lid,
    /// How many low bits of the LID are path bits.
    pub lmc: u8,
    /// The GID table; zero in an empty entry.
    pub gids: Vec<Gid>,
    /// The P_Key table; zero in an empty entry.
    pub pkeys: Vec<Pkey>,
}

impl DevicePort {
    /// Returns the port's address by one of its GIDs, in a partition, or in its first one if `pkey` names none. None if the port does not
    /// have them.
    pub fn address(&self, gid: Gid, pkey: Pkey) -> Option<LocalAddress> {
        let sgid_index = self.gid_index(gid)?;
        let wanted = if pkey.0 & 0x7fff == 0 { *self.pkeys.first()? } else { pkey };
        let pkey = *self.pkeys.get(usize::from(self.pkey_index(wanted)?))?;
        let device = (self.device, self.transport);
        let address = LocalAddress::over_ip(gid.ip(), device, self.node_guid, self.mtu);
        let (port_num, has_lids) = (self.port_num, self.has_lids);
        Some(LocalAddress { port_num, gid, sgid_index, pkey, has_lids, ..address })
    }

    /// Returns the index of a partition's key: that of a full member if the port has both (IBTA 10.9.1.1).
    pub fn pkey_index(&self, pkey: Pkey) -> Option<u16> {
        let same = |key: &Pkey| key.0 != 0 && (key.0 ^ pkey.0) & 0x7fff == 0;
        let mut found = self.pkeys.iter().enumerate().filter(|(_, key)| same(key));
        let full = found.clone().find(|(_, key)| key.0 & 0x8000 != 0);
        full.or_else(|| found.next()).and_then(|(at, _)| u16::try_from(at).ok())
    }

    /// Returns the index of a GID.
    pub fn gid_index(&self, gid: Gid) -> Option<u8> {
        let at = self.gids.iter().position(|own| *own == gid && !gid.is_zero())?;
        u8::try_from(at).ok()
    }

    /// Returns the path bits of a LID of the port.
    pub fn path_bits(&self, lid: Lid) -> Option<u8> {
        let mask = (1u16 << self.lmc.min(7)) - 1;
        let is_own = self.lid.0 != 0 && lid.0 & !mask == self.lid.0;
        u8::try_from(lid.0 & mask).ok().filter(|_| is_own)
    }
}

/// The device to which an id is restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OnlyDevice {
    /// Its number, as in [`LocalAddress`].
    pub device: u32,
    /// Its transport.
    pub transport: TransportType,
}

/// A query that the driver answers with
/// [`Manager::handle_resolved`](crate::Manager::handle_resolved) or
/// [`Manager::handle_resolve_failed`](crate::Manager::handle_resolve_failed), once, or not at all after
/// [`Sink::cancel_resolve`]. The next query of an id cancels earlier ones, which must not be answered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The destination.
    pub dst: SocketAddr,
    /// The source address, if the program gave one.
    pub src_hint: Option<IpAddr>,
    /// Type of service.
    pub tos: u8,
    /// The device to which the id is restricted, if any.
    pub only: Option<OnlyDevice>,
    /// Whether the address is meant as a GID: then only the source is wanted, and the destination is not looked up.
    pub is_gid: bool,
    /// Whether the connection may be iWARP's.
    pub may_stream: bool,
    /// The port space of the service at `dst`.
    pub port_space: PortSpace,
    /// The time after which the state machine gives up by itself and ignores the answer.
    pub timeout: Duration,
}

/// The answer to a [`RouteQuery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The kernel's source address; it must be one of
    /// [`Manager::set_addresses`](crate::Manager::set_addresses).
    pub src: IpAddr,
    /// The device, one of those that have this address.
    pub device: u32,
    /// Its port.
    pub port_num: u8,
    /// The peer's GID: its address where addresses are GIDs.
    pub dgid: Gid,
    /// The path MTU, if it is known to be less than the port's.
    pub mtu: Option<Mtu>,
}

impl RouteQuery {
    /// Returns the answer where addresses are GIDs: from `src`, over port 1 of `device` unless the id is restricted to another one.
    pub fn over_ip(&self, src: IpAddr, device: u32) -> Resolved {
        let device = self.only.map_or(device, |only| only.device);
        Resolved { src, device, port_num: 1, dgid: self.dst.ip().into(), mtu: None }
    }
}

/// A query to join a multicast group; the driver answers with
/// [`Manager::handle_joined`](crate::Manager::handle_joined).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinQuery {
    /// The device of the local address.
    pub device: u32,
    /// Its port.
    pub port_num: u8,
    /// The port space of the id, which on InfiniBand determines how the group's address becomes a GID.
    pub port_space: PortSpace,
    /// The local address.
    pub local: IpAddr,
    /// The id's context of the membership.
    pub context: u64,
    /// The group and the kind of membership. An IP network needs no membership report for a member that only sends.
    pub wish: GroupWish,
}

/// The operations that the driver does for the machine. Calls are made from within the machine's own methods. They
/// must not block, and they cannot call back.
pub trait Sink {
    /// Sends a management datagram from QP1. A datagram may be lost; the machine retries.
    fn send_mad(&mut self, path: &MadPath, mad: &[u8; 256]);
    /// Passes an event to the process that owns the channel.
    fn event(&mut self, channel: ChannelId, event: Event);
    /// Queries the route to an address.
    fn resolve(&mut self, id: IdHandle, query: RouteQuery);
    /// Cancels a query for a route that was not answered, because of its timeout or because the id or its device is gone. A
    /// late answer is ignored. A driver that answers at once has nothing to do here.
    fn cancel_resolve(&mut self, _id: IdHandle) {}
    /// Queries the path to a peer whose address is resolved. A driver for RoCE and iWARP answers at
    /// once, with [`PathQuery::by_address`].
    fn query_path(&mut self, id: IdHandle, query: PathQuery);
    /// Cancels a path query that was not answered, because of its timeout or because the id or its device is gone. A late
    /// answer is ignored. A driver that answers at once has nothing to do here.
    fn cancel_path(&mut self, _id: IdHandle, _attempt: u32) {}
    /// Joins a multicast group at the network for `id`. Each join is left once.
    fn join_multicast(&mut self, id: IdHandle, query: JoinQuery);
    /// Leaves a group that was joined, or cancels a join that is not answered yet.
    fn leave_multicast(&mut self, id: IdHandle, query: JoinQuery);
    /// Performs an operation on a TCP connection. Never called for a driver without addresses of iWARP
    /// devices.
    fn stream(&mut self, _wish: StreamWish) {}
}
