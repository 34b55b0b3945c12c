//! Ports: the part of the service that differs between kinds of devices, one file for each kind.
//!
//! The rest of the service gets a kind's [`ServicePort`] from [`of`] and does not know the kinds. RoCE's port is UDP sockets on
//! the host's addresses with QP1 behind them, iWARP's is TCP connections until queue pairs get them, and InfiniBand's is an
//! adapter on a fabric.

pub(super) mod ib;
pub(super) mod iwarp;
pub(super) mod roce;

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rdmux_cm::{DevicePort, IdHandle, JoinQuery, LocalAddress, MadPath, PathQuery, RouteQuery};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::{DeviceKind, Limits};
use rdmux_verbs::kind;
use rdmux_verbs::port::{Adapter, Port};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qkey, Qpn};

use super::clients::ClientId;
use super::core::Core;
use super::counters::Count;
use crate::names::Config;
use crate::proto::Failure;

/// The service's operations for the ports of a kind of device. The defaults are for ports that run over IP.
pub(super) trait ServicePort: Sync {
    /// Returns the ports as processes see them.
    fn describe(&self, core: &Core, kind: DeviceKind) -> Vec<Port> {
        vec![Port::over_ip(kind, self.node_guid(core, kind), core.addresses.gids())]
    }

    /// Returns the GUID of the device's node. Those of different kinds differ in the last digits.
    fn node_guid(&self, core: &Core, kind: DeviceKind) -> Guid {
        Guid(core.node_guid.0 ^ kind as u64)
    }

    /// Returns the adapter of the device, if it is known.
    fn adapter(&self, _core: &Core) -> Option<Adapter> {
        None
    }

    /// Returns the most ports that such a device has.
    fn max_ports(&self) -> u8 {
        1
    }

    /// Returns the addresses of the ports for the connection manager.
    fn addresses(&self, core: &Core, kind: DeviceKind) -> Vec<LocalAddress> {
        core.addresses.for_cm(kind, self.node_guid(core, kind))
    }

    /// Returns the ports in the connection manager's form.
    fn device_ports(&self, core: &Core, kind: DeviceKind) -> Vec<DevicePort> {
        let gids = core.addresses.gids().iter().map(|entry| entry.gid).collect();
        vec![DevicePort {
            device: kind as u32,
            port_num: 1,
            transport: kind.transport_type(),
            node_guid: self.node_guid(core, kind),
            mtu: Mtu::M4096,
            has_lids: false,
            lid: Lid(0),
            lmc: 0,
            gids,
            pkeys: vec![Pkey::DEFAULT],
        }]
    }

    /// Sets the connection manager's parameters for connections over the ports.
    fn configure(&self, config: &Config, limits: &Limits, cm: &mut rdmux_cm::Config);

    /// Answers the connection manager's path query, now or later. Between IP addresses the path follows from them.
    fn find_path(&self, core: &mut Core, id: IdHandle, query: &PathQuery) {
        core.path_found(id, query, Ok(query.by_address));
    }

    /// Cancels a path query.
    fn cancel_path(&self, _core: &mut Core, _id: IdHandle, _attempt: u32) {}

    /// Checks whether another host of this machine is up, which neighbour discovery cannot determine. If not, fails
    /// with an errno.
    fn probe(&self, core: &Core, src: IpAddr, dst: IpAddr) -> Result<(), i32>;

    /// Returns the socket on which the queue pairs of a client's slot exchange packets at an address of a port.
    fn socket(
        &self,
        _core: &mut Core,
        _client: ClientId,
        _wanted: &SocketWanted,
    ) -> Result<OwnedFd, Failure> {
        Err(Failure::new(libc::EOPNOTSUPP, "devices of this kind send and receive no packets"))
    }

    /// Attaches a queue pair to a group at a port. Returns the socket that receives it, if any, for a process's first
    /// queue pair.
    fn attach_multicast(
        &self,
        core: &mut Core,
        client: ClientId,
        _port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, Failure> {
        core.attach_multicast(client, qpn, mgid)
    }

    /// Detaches a queue pair from a group.
    fn detach_multicast(
        &self,
        core: &mut Core,
        client: ClientId,
        _port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        core.detach_multicast(client, qpn, mgid)
    }

    /// Resolves the peer of an id, and the local address and GID from which it is reached, now or later.
    fn find_peer(&self, core: &mut Core, id: IdHandle, kind: DeviceKind, query: &RouteQuery) {
        core.find_peer_over_ip(id, kind, query);
    }

    /// Joins a group for an id, now or later.
    fn join_for_id(&self, core: &mut Core, id: IdHandle, query: JoinQuery) {
        core.join_for_id_over_ip(id, query);
    }

    /// Leaves a group for an id.
    fn leave_for_id(&self, core: &mut Core, id: IdHandle, query: &JoinQuery) {
        core.leave_for_id_over_ip(id, query);
    }

    /// Sends a management datagram from QP1. A failure loses the datagram, as on any network.
    fn send_mad(&self, core: &mut Core, _path: &MadPath, _qkey: Qkey, _mad: &[u8; MAD_LEN]) {
        core.counts.add(Count::TxErrors);
    }
}

/// A client's request for a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketWanted {
    /// The port.
    pub(super) port: u8,
    /// An index of its GID table.
    pub(super) gid_index: u8,
    /// A slot of the client's.
    pub(super) slot: u16,
    /// Whether the socket also receives packets for XRC targets.
    pub(super) targets: bool,
}

/// Returns the operations for the ports of a kind.
pub(super) fn of(kind: DeviceKind) -> &'static dyn ServicePort {
    match kind {
        DeviceKind::Roce => &roce::Roce,
        DeviceKind::Iwarp => &iwarp::Iwarp,
        DeviceKind::Ib => &ib::Ib,
    }
}

/// A port of one of the host's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortId {
    /// The device.
    pub(super) device: DeviceKind,
    /// The port's number, from 1.
    pub(super) number: u8,
}

/// The port of the RoCE device.
const ROCE: PortId = PortId { device: DeviceKind::Roce, number: 1 };

impl PortId {
    /// Returns the ports whose QP1 is the service's, and open to programs.
    pub(super) fn with_qp1() -> impl Iterator<Item = Self> {
        Self::with_cm().filter(|port| port.device.has_qp1_of_host())
    }

    /// Returns the ports where the connection manager has datagrams: as many as a device may have.
    pub(super) fn with_cm() -> impl Iterator<Item = Self> {
        let rows = kind::rows().iter().filter(|row| row.services.include(QpType::Ud));
        let numbers = |kind| 1..=of(kind).max_ports();
        rows.flat_map(move |row| numbers(row.kind).map(|number| Self { device: row.kind, number }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_with_datagrams_have_a_qp1_at_port_1() {
        assert_eq!(PortId::with_qp1().collect::<Vec<_>>(), [ROCE]);
    }

    #[test]
    fn each_kind_configures_its_own_connections() {
        let limits = |n| Limits {
            max_rd_atomic: n,
            max_init_rd_atomic: n + 1,
            ..Limits::of(DeviceKind::Roce)
        };
        let mut cm = rdmux_cm::Config::default();
        of(DeviceKind::Roce).configure(&Config::default(), &limits(5), &mut cm);
        of(DeviceKind::Iwarp).configure(&Config::default(), &limits(7), &mut cm);
        assert_eq!((cm.max_rd_atomic, cm.max_init_rd_atomic), (5, 6));
        assert_eq!((cm.iwarp.max_ird, cm.iwarp.max_ord), (7, 8));
    }
}
