//! Programs that manage a subnet: the functions of an open management interface.

mod common;

use std::thread;

use common::{DIRECTED, Fabric, Manager};
use rdmux_fabric::client::{Attachment, IsSm, MadFile, Received, admin};
use rdmux_fabric::proto::{HostPort, NodeRef, PortRef};
use rdmux_fabric::server::FIRST_GUID;
use rdmux_fabric::{Config, FabricError};
use rdmux_subnet::umad::{Registration, UserMad};
use rdmux_subnet::{PortEvent, Topology};
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sm::{
    Attribute, LinkDownDefault, NodeInfo, PhysState, PortInfo, PortState, SmInfo, SmState,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

const NODE_INFO: u16 = 0x11;
const PORT_INFO: u16 = 0x15;

/// Assigns a LID to a port, without changing its state.
fn set_lid(manager: &mut common::Manager, route: &[u8], port: u8, lid: Lid) {
    let mut info = port_info(&manager.get(route, PORT_INFO, port.into()));
    (info.lid, info.sm_lid) = (lid, lid);
    (info.port_state, info.port_physical_state) = (PortState(0), PhysState(0));
    info.link_down_default_state = LinkDownDefault(0);
    let mut set = Smp::directed(Method::SET, PORT_INFO, port.into(), route);
    set.set_attribute(&Attribute::PortInfo(info));
    assert_eq!(port_info(&manager.ask(&set)).lid, lid);
}

fn node_info(smp: &Smp) -> NodeInfo {
    match smp.attribute() {
        Some(Attribute::NodeInfo(info)) => info,
        other => panic!("{other:?}"),
    }
}

fn port_info(smp: &Smp) -> PortInfo {
    match smp.attribute() {
        Some(Attribute::PortInfo(info)) => info,
        other => panic!("{other:?}"),
    }
}

/// Returns the name of the n-th node.
fn id(fabric: &Fabric, n: usize) -> String {
    admin::show(&fabric.options, &fabric.name).unwrap().nodes[n].id.clone()
}

#[test]
fn two_adapters_back_to_back_are_found_by_directed_routes() {
    let fabric = Fabric::up("two");
    let mut manager = fabric.manager(&id(&fabric, 0), 1);
    let own = node_info(&manager.get(&[], NODE_INFO, 0));
    assert_eq!((own.node_guid, own.num_ports), (FIRST_GUID, 1));
    let peer = node_info(&manager.get(&[1], NODE_INFO, 0));
    assert_ne!(peer.node_guid, own.node_guid);
    assert_eq!(peer.local_port_num, 1);
}

#[test]
fn every_node_of_a_switch_is_found() {
    let fabric = Fabric::up("switch:8");
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let adapter = shown.nodes.iter().find(|n| !n.is_switch).unwrap();
    let mut manager = fabric.manager(&adapter.id, 1);
    let switch = node_info(&manager.get(&[1], NODE_INFO, 0));
    assert_eq!(switch.num_ports, 8);
    let mut found: Vec<Guid> =
        (1..=8).map(|port| node_info(&manager.get(&[1, port], NODE_INFO, 0)).node_guid).collect();
    found.sort();
    let mut all: Vec<_> = shown.nodes.iter().filter(|n| !n.is_switch).map(|n| n.guid).collect();
    all.sort();
    assert_eq!(found, all);
}

#[test]
fn lid_set_by_an_sm_is_a_lid_change_event_and_survives_a_restart() {
    let mut fabric = Fabric::up("two");
    let host = Guid(0x0200_0000_0000_0002);
    let (mut attachment, described) =
        Attachment::open(&fabric.options, &fabric.name, "a", host).unwrap();
    assert_eq!((described.node_guid, described.port.lid), (FIRST_GUID, Lid(0)));
    let mut manager = fabric.manager("a", 1);
    set_lid(&mut manager, &[], 1, Lid(0x17));
    let told = attachment.refresh().unwrap();
    assert!(told.events.contains(&PortEvent::LidChange), "{told:?}");
    assert_eq!(told.port.lid, Lid(0x17));
    fabric.stop();
    assert!(matches!(attachment.refresh(), Err(FabricError::Gone { .. })));
    assert!(matches!(manager.file.recv_mad(), Err(FabricError::Gone { .. })));
    fabric.start();
    let (_, described) = Attachment::open(&fabric.options, &fabric.name, "a", host).unwrap();
    assert_eq!((described.node_guid, described.port.lid), (FIRST_GUID, Lid(0x17)));
    assert_eq!(described.port.state, 2, "Init");
}

#[test]
fn mad_request_without_response_is_returned_etimedout_after_retries() {
    let fabric = Fabric::up("two");
    let mut manager = fabric.manager(&id(&fabric, 0), 1);
    // An adapter forwards nothing.
    let smp = Smp::directed(Method::GET, NODE_INFO, 0, &[1, 1]);
    let mut request = manager.request(&smp);
    (request.timeout_ms, request.retries) = (1, 2);
    manager.file.send_mad(&request).unwrap();
    let back = manager.file.recv_mad().unwrap();
    assert_eq!((back.status, back.data.len()), (110, 24));
}

#[test]
fn check_of_a_request_with_an_outstanding_tid_is_einval() {
    let fabric = Fabric::up("two");
    let mut manager = fabric.manager(&id(&fabric, 0), 1);
    let request = manager.request(&Smp::directed(Method::GET, NODE_INFO, 0, &[1, 1]));
    manager.file.check(&request).unwrap();
    manager.file.send_mad(&request).unwrap();
    let e = manager.file.check(&request).unwrap_err();
    assert_eq!(e.errno(), 22, "{e}");
    manager.file.unregister(manager.agent).unwrap();
    assert_eq!(manager.file.check(&request).unwrap_err().errno(), 5);
    assert_eq!(manager.file.unregister(manager.agent).unwrap_err().errno(), 22);
}

#[test]
fn mad_record_longer_than_the_buffer_stays_readable() {
    let fabric = Fabric::up("two");
    let mut manager = fabric.manager(&id(&fabric, 0), 1);
    let request = manager.request(&Smp::directed(Method::GET, NODE_INFO, 0, &[]));
    manager.file.send_mad(&request).unwrap();
    manager.file.wait().unwrap();
    let mut buf = [0; 400];
    assert_eq!(manager.file.read(&mut buf[..100]).unwrap(), Received::TooLong(320));
    assert_eq!(buf[16..20], 320_u32.to_le_bytes());
    assert_eq!(manager.file.read(&mut buf).unwrap(), Received::Whole(320));
    assert_eq!(manager.file.read(&mut buf).unwrap(), Received::Nothing);
}

#[test]
fn receive_queue_of_a_slow_mad_file_is_bounded_and_others_are_served() {
    let fabric = Fabric::up("two");
    let name = id(&fabric, 0);
    let mut lazy = fabric.manager(&name, 1);
    for _ in 0..60_000 {
        let mut request = lazy.request(&Smp::directed(Method::GET, NODE_INFO, 0, &[]));
        request.timeout_ms = 60_000;
        lazy.file.send_mad(&request).unwrap();
    }
    let mut other = fabric.manager(&name, 1);
    assert_eq!(node_info(&other.get(&[], NODE_INFO, 0)).node_guid, FIRST_GUID);
    // Datagrams that were sent before a request are handled before its answer.
    lazy.file.unregister(lazy.agent).unwrap();
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let file = status.files.iter().find(|file| file.waiting.0 > 0).unwrap();
    assert!(file.waiting.1 <= 17 << 20, "{file:?}");
    assert!(file.dropped > 0, "{file:?}");
    let dropped = status.counters.iter().find(|(name, _)| name == "mads_dropped").unwrap().1;
    assert_eq!((dropped, file.waiting.1), (file.dropped, file.waiting.0 * (64 + 256)));
    // Queued records are not lost.
    assert_eq!(lazy.file.recv_mad().unwrap().data.len(), 256);
}

#[test]
fn overlapping_mad_registration_is_einval_until_the_first_file_is_closed() {
    let fabric = Fabric::up("two");
    let name = id(&fabric, 0);
    let (one, other) = (fabric.manager(&name, 1), fabric.manager(&name, 1));
    let owner = Registration { methods: 1 << 1, ..DIRECTED };
    one.file.register(&owner).unwrap();
    assert_eq!(other.file.register(&owner).unwrap_err().errno(), 22);
    drop(one);
    // The fabric notices that soon.
    while other.file.register(&owner).is_err() {
        thread::yield_now();
    }
}

#[test]
fn is_sm_is_set_as_long_as_somebody_holds_it() {
    let fabric = Fabric::up("two");
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let is_sm = || {
        let shown = admin::show(&fabric.options, &fabric.name).unwrap();
        shown.nodes[0].ports[0].is_sm
    };
    let held = IsSm::set(&fabric.options, &fabric.name, &port, false).unwrap();
    assert!(is_sm());
    let e = IsSm::set(&fabric.options, &fabric.name, &port, false).unwrap_err();
    assert_eq!(e.errno(), 11, "{e}");
    let (options, name) = (fabric.options.clone(), fabric.name.clone());
    let wanted = port.clone();
    let waiting = thread::spawn(move || IsSm::set(&options, &name, &wanted, true).unwrap());
    drop(held);
    let next = waiting.join().unwrap();
    assert!(is_sm());
    drop(next);
    while is_sm() {
        thread::yield_now();
    }
}

/// Returns the response of another manager, or of its port's agent, to a HANDOVER.
fn hand_over(manager: &mut Manager) -> UserMad {
    let info = SmInfo { priority: 3, state: SmState::MASTER, ..SmInfo::default() };
    let mut smp = Smp::directed(Method::SET, SmInfo::ATTR_ID, SmInfo::HANDOVER, &[1]);
    smp.set_attribute(&Attribute::SmInfo(info));
    let request = manager.request(&smp);
    manager.file.send_mad(&request).unwrap();
    request
}

#[test]
fn handover_reaches_a_manager_as_long_as_it_lives_and_else_the_agent() {
    let fabric = Fabric::up("two");
    let mut one = fabric.manager(&id(&fabric, 0), 1);
    let peer = PortRef { node: NodeRef::Name(id(&fabric, 1)), port: 1 };
    let other = MadFile::open(&fabric.options, &fabric.name, &peer).unwrap();
    let methods = 1 << Method::GET.0 | 1 << Method::SET.0;
    let agent = other.register(&Registration { methods, ..DIRECTED }).unwrap();
    let refused = |one: &mut Manager| {
        hand_over(one);
        let answer = Smp::parse(&one.file.recv_mad().unwrap().data).unwrap();
        (answer.header.method, answer.header.status & 0x7fff)
    };
    let unsupported = (Method::GET_RESP, status::UNSUPPORTED_METHOD_ATTRIBUTE);
    assert_eq!(refused(&mut one), unsupported, "nobody has set IsSM");

    // The manager may still be discovering: it gets the message in any state.
    let held = IsSm::set(&fabric.options, &fabric.name, &peer, false).unwrap();
    hand_over(&mut one);
    let heard = other.recv_mad().unwrap();
    let mut smp = Smp::parse(&heard.data).unwrap();
    assert_eq!(
        (heard.agent, smp.header.method, smp.header.attr_mod),
        (agent, Method::SET, SmInfo::HANDOVER)
    );
    assert_eq!((smp.hop_pointer(), smp.hop_count()), (2, 1));
    smp.header.method = Method::GET_RESP;
    smp.set_returning(true);
    let answer = UserMad { timeout_ms: 0, data: smp.to_bytes().to_vec(), ..heard };
    other.send_mad(&answer).unwrap();
    let acknowledged = Smp::parse(&one.file.recv_mad().unwrap().data).unwrap();
    assert_eq!((acknowledged.hop_pointer(), acknowledged.header.status), (0, 0x8000));
    assert_eq!(acknowledged.attribute(), smp.attribute());

    drop(held);
    // The fabric soon notices that the process is gone.
    while admin::show(&fabric.options, &fabric.name).unwrap().nodes[1].ports[0].is_sm {
        thread::yield_now();
    }
    assert_eq!(refused(&mut one), unsupported, "it is gone");
}

#[test]
fn unsendable_mad_request_is_returned_with_its_errno() {
    let fabric = Fabric::up("two");
    let mut manager = fabric.manager(&id(&fabric, 0), 1);
    let mut request = manager.request(&Smp::directed(Method::GET, NODE_INFO, 0, &[]));
    request.agent = 31;
    manager.file.send_mad(&request).unwrap();
    let back = manager.file.recv_mad().unwrap();
    assert_eq!((back.agent, back.status, back.data), (31, 5, request.data[..24].to_vec()));
    // Without an expected response, nothing is returned.
    request.timeout_ms = 0;
    manager.file.send_mad(&request).unwrap();
    request.data = vec![0; 64 << 20];
    assert_eq!(manager.file.send_mad(&request).unwrap_err().errno(), 12);
    manager.get(&[], NODE_INFO, 0);
    assert_eq!(manager.file.try_recv_mad().unwrap(), None);
}

#[test]
fn mad_file_of_an_external_switch_port_or_unknown_node_is_enodev() {
    let fabric = Fabric::up("switch:2");
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let switch = shown.nodes.iter().find(|n| n.is_switch).unwrap();
    let open = |node: NodeRef, port| {
        MadFile::open(&fabric.options, &fabric.name, &PortRef { node, port }).map(drop)
    };
    open(NodeRef::Guid(switch.guid), 0).unwrap();
    for (node, port) in [
        (NodeRef::Guid(switch.guid), 1),
        (NodeRef::Guid(Guid(1)), 1),
        (NodeRef::Name("nobody".into()), 1),
    ] {
        let e = open(node, port).unwrap_err();
        assert_eq!(e.errno(), 19, "{e}");
    }
}

/// An adapter with two ports, connected to a switch.
const TWO_PORTS: &str = "\
switchguid=0x100000
Switch 2 \"S-1\" # \"sw\"
[1] \"H-1\"[1]
[2] \"H-1\"[2]

caguid=0x200000
Ca 2 \"H-1\" # \"two ports\"
[1] \"S-1\"[1]
[2] \"S-1\"[2]
";

fn two_ports() -> Fabric {
    let topology = Topology::parse(TWO_PORTS).unwrap();
    Fabric::of(topology, common::unmanaged(), Config::default())
}

#[test]
fn two_port_host_has_one_adapter_and_separate_events_per_port() {
    let fabric = two_ports();
    let host = Guid(0x0200_0000_0000_0002);
    let open = |number| {
        let port = HostPort { number, of: 2, here: vec![1, 2] };
        Attachment::open_port(&fabric.options, &fabric.name, "a", host, &port)
    };
    // The order does not matter.
    let (mut second, described) = open(2).unwrap();
    assert_eq!((described.node_guid, described.port.number), (Guid(0x20_0000), 2));
    assert_eq!(described.port.guid, Guid(0x20_0002));
    let (mut first, described) = open(1).unwrap();
    assert_eq!((described.node_guid, described.port.guid), (Guid(0x20_0000), Guid(0x20_0001)));
    for number in [1, 2] {
        let e = open(number).unwrap_err();
        assert!(e.errno() == libc::EEXIST && e.to_string().contains("attached already"), "{e}");
    }
    let mut manager = fabric.manager("a", 2);
    set_lid(&mut manager, &[], 2, Lid(0x33));
    let told = second.refresh().unwrap();
    assert!(told.events.contains(&PortEvent::LidChange), "{told:?}");
    assert_eq!((told.port.number, told.port.lid), (2, Lid(0x33)));
    let told = first.refresh().unwrap();
    assert_eq!((told.events.len(), told.port.number, told.port.lid), (0, 1, Lid(0)));
    // One port is released, the other stays.
    drop(second);
    while open(2).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(first.refresh().unwrap().port.number, 1);
    let attached = admin::status(&fabric.options, &fabric.name).unwrap().attached;
    assert!(attached.iter().any(|held| (held.port, held.host.as_str()) == (1, "a")));
}

#[test]
fn host_with_one_port_has_the_first_of_an_adapter_with_two() {
    let fabric = two_ports();
    let (_held, described) = Attachment::open(&fabric.options, &fabric.name, "a", Guid(7)).unwrap();
    assert_eq!((described.node_guid, described.port.number), (Guid(0x20_0000), 1));
    let port = HostPort { number: 2, of: 2, here: vec![1, 2] };
    let other = Attachment::open_port(&fabric.options, &fabric.name, "b", Guid(8), &port);
    assert_eq!(other.unwrap_err().errno(), libc::ENODEV, "an adapter is one host's");
}

#[test]
fn port_without_a_cable_has_its_lid_after_a_restart() {
    let mut fabric = two_ports();
    let mut manager = fabric.manager("H-1", 2);
    set_lid(&mut manager, &[], 2, Lid(0x44));
    admin::unplug(&fabric.options, &fabric.name, &"H-1:2".parse().unwrap()).unwrap();
    fabric.stop();
    fabric.start();
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let lids: Vec<_> = shown.nodes[1].ports.iter().map(|p| p.lid).collect();
    assert_eq!((lids, shown.links.len()), (vec![Lid(0), Lid(0x44)], 1));
}
