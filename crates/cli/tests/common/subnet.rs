//! Actions of a subnet manager.

use rdmux_fabric::client::{ConnectOptions, MadFile};
use rdmux_fabric::proto::{NodeRef, PortRef};
use rdmux_fabric::server::FIRST_GUID;
use rdmux_fabric::{Config, FabricName};
use rdmux_runtime::UserDir;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{Attribute, PhysState, PortInfo, PortState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, Qpn};

use super::Net;

/// Returns the n-th node's GUID: a shape assigns them in steps of 256. The first node is the switch.
pub(crate) fn guid(n: u64) -> Guid {
    Guid(FIRST_GUID.0 + (n << 8))
}

/// Assigns a LID to an adapter's port, as a manager at that port does.
pub(crate) fn set_lid(net: &Net, adapter: Guid, lid: u16) {
    change_port(net, adapter, |info| (info.lid, info.sm_lid) = (Lid(lid), Lid(lid)));
}

/// Opens the management interface of an adapter's port.
pub(crate) fn open_mads(net: &Net, adapter: Guid) -> MadFile {
    let user = UserDir::at(net.path()).unwrap();
    let config = Config::default();
    let options = ConnectOptions { user, config, embedded: false, program: None };
    let port = PortRef { node: NodeRef::Guid(adapter), port: 1 };
    MadFile::open(&options, &FabricName::default(), &port).unwrap()
}

/// Changes the PortInfo of an adapter's port, as a manager does.
pub(crate) fn change_port(net: &Net, adapter: Guid, change: impl FnOnce(&mut PortInfo)) {
    let file = open_mads(net, adapter);
    let agent = Registration { class: 0x81, class_version: 1, ..Registration::default() };
    let agent = file.register(&agent).unwrap();
    let ask = |smp: Smp| {
        let address = UserAddress { lid: Lid(0xffff), qpn: Qpn::QP0, ..UserAddress::default() };
        let (status, timeout_ms, retries) = (0, 60_000, 0);
        let data = smp.to_bytes().to_vec();
        file.send_mad(&UserMad { agent, status, timeout_ms, retries, address, data }).unwrap();
        Smp::parse(&file.recv_mad().unwrap().data).unwrap()
    };
    let answer = ask(Smp::directed(Method::GET, 0x15, 1, &[]));
    let Some(Attribute::PortInfo(mut info)) = answer.attribute() else { panic!("{answer:?}") };
    change(&mut info);
    (info.port_state, info.port_physical_state) = (PortState(0), PhysState(0));
    let mut set = Smp::directed(Method::SET, 0x15, 1, &[]);
    set.header.tid = 2;
    set.set_attribute(&Attribute::PortInfo(info));
    assert_eq!(ask(set).header.status & 0x7fff, 0);
}
