//! The port of InfiniBand: an adapter that the host has on a fabric, of which the service knows what the fabric tells it.
//!
//! `adapter` takes the adapter and keeps it, `greetings` has the clients that wait until that is decided, `facts` reads what the
//! fabric says, `lookout` hears of a fabric that comes up, `manager` follows who holds `issmN` open, `data` has the sockets by
//! which queue pairs exchange packets. Datagrams of programs go to the fabric without the service. The connection manager does
//! not know the port.

mod adapter;
mod data;
mod facts;
mod greetings;
mod lookout;
mod manager;

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rdmux_cm::LocalAddress;
use rdmux_verbs::control::{DeviceKind, Limits};
use rdmux_verbs::port::{self, Port};
use rdmux_wire::{Gid, Guid, Qpn};

pub(in crate::service) use self::adapter::Adapter;
pub(in crate::service) use self::greetings::Greeting;
use super::ServicePort;
use crate::names::Config;
use crate::proto::Failure;
use crate::service::clients::ClientId;
use crate::service::core::Core;

/// See the module.
pub(super) struct Ib;

impl Ib {
    /// The kind of device that has such ports.
    const KIND: DeviceKind = DeviceKind::Ib;
}

impl ServicePort for Ib {
    fn describe(&self, core: &Core, kind: DeviceKind) -> Vec<Port> {
        vec![core.adapter.port(kind, core.node_guid)]
    }

    fn node_guid(&self, core: &Core, _kind: DeviceKind) -> Guid {
        core.adapter.node_guid(core.node_guid)
    }

    fn adapter(&self, core: &Core) -> Option<port::Adapter> {
        core.adapter.described().cloned()
    }

    /// None: addresses on InfiniBand are not IP addresses of the host.
    fn addresses(&self, _core: &Core, _kind: DeviceKind) -> Vec<LocalAddress> {
        Vec::new()
    }

    fn configure(&self, _config: &Config, _limits: &Limits, _cm: &mut rdmux_cm::Config) {}

    fn probe(&self, _core: &Core, _src: IpAddr, _dst: IpAddr) -> Result<(), i32> {
        Err(libc::EOPNOTSUPP)
    }

    fn socket(
        &self,
        core: &mut Core,
        client: ClientId,
        _gid_index: u8,
        slot: u16,
        _targets: bool,
    ) -> Result<OwnedFd, Failure> {
        core.ib_socket(client, slot)
    }

    fn attach_multicast(
        &self,
        core: &mut Core,
        _client: ClientId,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, Failure> {
        core.attach_ib_group(qpn, mgid).map(|()| None)
    }

    fn detach_multicast(
        &self,
        core: &mut Core,
        _client: ClientId,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        core.detach_ib_group(qpn, mgid)
    }
}
