//! The ports of InfiniBand: those of a host's adapter on one fabric or two. The service learns their properties from the fabric.
//!
//! `adapter` attaches a port of the adapter and keeps it, `adapters` has all of them, `greetings` has the clients that wait until that is
//! decided, `facts` parses the fabric's updates, `lookout` watches for a fabric that comes up, `manager` tracks which processes hold
//! `issmN` open, `data` has the sockets by which queue pairs exchange packets.
//!
//! Each port connects on its own: `gsi` carries the connection manager's datagrams, `interface` finds the port that has an IP address,
//! `peers` resolves paths and `groups` joins multicast groups, both through `sa`, which queries subnet administration. Programs' management
//! datagrams go to the fabric without the service.

mod adapter;
mod adapters;
mod data;
mod facts;
mod greetings;
mod groups;
mod gsi;
mod interface;
mod lookout;
mod manager;
mod peers;
mod sa;
mod services;

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rdmux_cm::{DevicePort, IdHandle, JoinQuery, LocalAddress, MadPath, PathQuery, RouteQuery};
use rdmux_verbs::control::{DeviceKind, Limits};
use rdmux_verbs::port::{self, Port};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Gid, Guid, Mtu, Pkey, Qkey, Qpn};

pub(in crate::service) use self::adapters::{Adapters, PortAt};
pub(in crate::service) use self::data::MAX_MEMBERS;
pub(in crate::service) use self::greetings::Greeting;
pub(in crate::service) use self::sa::MAX_QUERIES;
use super::{ServicePort, SocketWanted};
use crate::names::Config;
use crate::proto::Failure;
use crate::service::clients::ClientId;
use crate::service::core::Core;

/// The operations for InfiniBand ports.
pub(super) struct Ib;

impl Ib {
    /// The kind of device that has such ports.
    const KIND: DeviceKind = DeviceKind::Ib;
}

impl ServicePort for Ib {
    fn describe(&self, core: &Core, kind: DeviceKind) -> Vec<Port> {
        let mut ports = core.adapter.ports(kind, core.node_guid);
        // The host's addresses lead to each port. A query for the device's addresses uses the first.
        if let Some(first) = ports.first_mut() {
            first.addresses = core.addresses.gids();
        }
        ports
    }

    fn node_guid(&self, core: &Core, _kind: DeviceKind) -> Guid {
        core.adapter.node_guid(core.node_guid)
    }

    fn adapter(&self, core: &Core) -> Option<port::Adapter> {
        core.adapter.described().cloned()
    }

    /// Returns all of the host's addresses: each leads to every port, active ones first.
    fn addresses(&self, core: &Core, kind: DeviceKind) -> Vec<LocalAddress> {
        let node_guid = self.node_guid(core, kind);
        let at_port = |at: PortAt| {
            let (gid, port) = (
                core.adapter[at].port_gid(core.node_guid),
                core.adapter[at].device_port(core.node_guid),
            );
            let mtu = core.adapter[at].attr().map_or(Mtu::M256, |attr| attr.active_mtu);
            let pkey = port.pkeys.first().copied().unwrap_or(Pkey::DEFAULT);
            let (port_num, ipoib_qkey) = (at.number(), core.interface_qkey(at));
            let leads = move |address: LocalAddress| LocalAddress {
                port_num,
                gid,
                sgid_index: 0,
                pkey,
                ipoib_qkey,
                mtu,
                has_lids: true,
                ..address
            };
            core.addresses.for_cm(kind, node_guid).into_iter().map(leads)
        };
        core.adapter.preferred().into_iter().flat_map(at_port).collect()
    }

    fn max_ports(&self) -> u8 {
        port::MAX_PORTS
    }

    /// Returns the ports, those with a link first: an id that leaves the port open uses one of these.
    fn device_ports(&self, core: &Core, _kind: DeviceKind) -> Vec<DevicePort> {
        let device_port = |at: PortAt| core.adapter[at].device_port(core.node_guid);
        core.adapter.preferred().into_iter().map(device_port).collect()
    }

    /// Adds nothing to the parameters of RoCE, whose queue pairs are the same.
    fn configure(&self, _config: &Config, _limits: &Limits, _cm: &mut rdmux_cm::Config) {}

    fn find_peer(&self, core: &mut Core, id: IdHandle, _kind: DeviceKind, query: &RouteQuery) {
        core.find_ib_peer(id, query);
    }

    fn find_path(&self, core: &mut Core, id: IdHandle, query: &PathQuery) {
        core.find_ib_path(id, query);
    }

    fn cancel_path(&self, core: &mut Core, id: IdHandle, attempt: u32) {
        for adapter in core.adapter.iter_mut() {
            adapter.sa.cancel_path(id, attempt);
        }
    }

    fn join_for_id(&self, core: &mut Core, id: IdHandle, query: JoinQuery) {
        core.join_ib_for_id(id, query);
    }

    fn leave_for_id(&self, core: &mut Core, id: IdHandle, query: &JoinQuery) {
        core.leave_ib_for_id(id, query);
    }

    fn send_mad(&self, core: &mut Core, path: &MadPath, qkey: Qkey, mad: &[u8; MAD_LEN]) {
        core.send_from_gsi(path, qkey, mad);
    }

    fn probe(&self, _core: &Core, _src: IpAddr, _dst: IpAddr) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }

    fn socket(
        &self,
        core: &mut Core,
        client: ClientId,
        wanted: &SocketWanted,
    ) -> Result<OwnedFd, Failure> {
        let at = core.adapter.at(wanted.port).ok_or_else(|| no_port(wanted.port))?;
        core.ib_socket(client, at, wanted)
    }

    fn attach_multicast(
        &self,
        core: &mut Core,
        client: ClientId,
        port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, Failure> {
        let at = core.adapter.at(port).ok_or_else(|| no_port(port))?;
        core.attach_ib_group(at, client, qpn, mgid)
    }

    fn detach_multicast(
        &self,
        core: &mut Core,
        client: ClientId,
        port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        let at = core.adapter.at(port).ok_or_else(|| no_port(port))?;
        core.detach_ib_group(at, client, qpn, mgid)
    }
}

fn no_port(port: u8) -> Failure {
    Failure::new(libc::EINVAL, format!("the device has no port {port}"))
}
