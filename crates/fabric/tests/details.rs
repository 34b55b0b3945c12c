//! Reports of a fabric about itself, its nodes and a host's port, and the requests that it refuses.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use common::{Fabric, Manager};
use rdmux_fabric::client::{Attachment, IsSm, MadFile, admin};
use rdmux_fabric::proto::mad::FRAGMENT;
use rdmux_fabric::proto::{
    AdminRequest, Described, End, FileReply, Greeting, HostPort, NodeRef, PortFacts, PortRef,
    Reply, Role,
};
use rdmux_fabric::server::{FIRST_GUID, Setup};
use rdmux_fabric::{Config, FabricDir, FabricError};
use rdmux_runtime::{connect::connect, socket};
use rdmux_subnet::umad::Registration;
use rdmux_subnet::{PortEvent, Topology};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{Attribute, PhysState, PortInfo, PortState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Gid, Guid, Lid, Pkey};
use serde::de::DeserializeOwned;

/// A switch with adapters at all its ports, one of them with two, and a router.
const MIXED: &str = "\
switchguid=0x100000
Switch 5 \"S-1\" # \"sw\"
[1] \"H-1\"[1]  # \"twin\" lid 0 12xEDR
[2] \"H-1\"[2]  # \"twin\" lid 0 4xFDR10
[3] \"H-2\"[1]  # \"twin\" lid 0 1xSDR
[4] \"R-1\"[1]  # \"router\" lid 0 4xQDR
[5] \"node7\"[1] # \"seven\" lid 0 2xHDR

vendid=0x2c9
devid=0x1003
sysimgguid=0x2000ff
caguid=0x200000
Ca 2 \"H-1\" # \"twin\"

caguid=0x300000
Ca 1 \"H-2\" # \"twin\"

rtguid=0x400000
Rt 1 \"R-1\" # \"router\"

caguid=0x500000
Ca 1 \"node7\" # \"seven\"
";

fn mixed() -> Fabric {
    Fabric::of(Topology::parse(MIXED).unwrap(), common::unmanaged(), Config::default())
}

fn attach(fabric: &Fabric, host: &str, guid: u64) -> Result<(Attachment, Described), FabricError> {
    Attachment::open(&fabric.options, &fabric.name, host, Guid(guid))
}

fn end(text: &str) -> End {
    text.parse().unwrap()
}

/// Changes PortInfo of the manager's own port.
fn change(manager: &mut Manager, change: impl FnOnce(&mut PortInfo)) {
    let Some(Attribute::PortInfo(mut info)) = manager.get(&[], 0x15, 0).attribute() else {
        panic!("no PortInfo");
    };
    (info.port_state, info.port_physical_state) = (PortState::NO_CHANGE, PhysState::NO_CHANGE);
    change(&mut info);
    let mut set = Smp::directed(Method::SET, 0x15, 0, &[]);
    set.set_attribute(&Attribute::PortInfo(info));
    manager.ask(&set);
}

fn counter(fabric: &Fabric, name: &str) -> u64 {
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    status.counters.iter().find(|(n, _)| n == name).unwrap().1
}

#[test]
fn status_counts_nodes_links_active_ports_and_files() {
    let setup = Setup { source: "a file".into(), simulate: true, ..common::unmanaged() };
    let fabric = Fabric::with("switch:3", setup, Config::default());
    let status = || admin::status(&fabric.options, &fabric.name).unwrap();
    let of = status();
    assert_eq!((of.fabric.as_str(), of.source.as_str()), ("default", "a file"));
    assert_eq!((of.pid, of.stays, of.simulated), (std::process::id(), true, true));
    assert_eq!((of.switches, of.adapters, of.links, of.links_down), (1, 3, 3, 0));
    assert_eq!((of.listen, of.attached.len(), of.files.len()), (None, 0, 0));
    assert_eq!(of.active_ports, 0, "port 0 of a switch does not count");
    let id = admin::show(&fabric.options, &fabric.name).unwrap().nodes[1].id.clone();
    let mut manager = fabric.manager(&id, 1);
    for state in [PortState::ARMED, PortState::ACTIVE] {
        change(&mut manager, |info| info.port_state = state);
    }
    let of = status();
    assert_eq!(of.active_ports, 1);
    let [file] = &of.files[..] else { panic!("{of:?}") };
    assert_eq!((file.pid, &file.node, file.port), (std::process::id().cast_signed(), &id, 1));
    assert!(!file.comm.is_empty() && file.dropped == 0, "{file:?}");
    assert_eq!((counter(&fabric, "mads_sent"), counter(&fabric, "mads_received")), (4, 4));
    // An agent that the manager does not have.
    let mut lost = manager.request(&Smp::directed(Method::GET, 0x11, 0, &[]));
    lost.agent = 9;
    manager.file.send_mad(&lost).unwrap();
    let back = manager.file.recv_mad().unwrap();
    assert_eq!((back.agent, back.status), (9, 5));
    manager.get(&[], 0x11, 0);
    assert_eq!((counter(&fabric, "mads_sent"), counter(&fabric, "mads_refused")), (6, 1));
    admin::link(&fabric.options, &fabric.name, false, &end("S-0002000000100000"), &end(&id))
        .unwrap();
    let of = status();
    assert_eq!((of.links, of.links_down, of.active_ports), (3, 1, 0), "of one cable");
    drop(manager);
    while !status().files.is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn attach_with_invalid_name_or_guid_is_einval_and_without_adapter_enodev() {
    let fabric = mixed();
    for (host, guid) in [("a", 0), ("Not a label", 1), ("", 1)] {
        let e = attach(&fabric, host, guid).unwrap_err();
        assert_eq!(e.errno(), 22, "{host:?}: {e}");
    }
    // Three adapters; a router is not one, and no port of the switch is free.
    let held: Vec<_> = (1..=3).map(|n| attach(&fabric, "h", n).unwrap()).collect();
    let e = attach(&fabric, "h", 4).unwrap_err();
    assert!(e.errno() == 19 && e.to_string().contains("no port of a switch is free"), "{e}");
    let e = attach(&fabric, "h", 0x10_0000).unwrap_err();
    assert!(e.errno() == 17 && e.to_string().contains("another node has the GUID"), "{e}");
    let of = admin::status(&fabric.options, &fabric.name).unwrap();
    assert_eq!((of.adapters, of.attached.len()), (3, held.len()));
}

#[test]
fn host_takes_the_node_of_its_name_or_preferably_a_never_used_one() {
    let fabric = mixed();
    let free = || {
        let attached = || admin::status(&fabric.options, &fabric.name).unwrap().attached;
        while !attached().is_empty() {
            std::thread::yield_now();
        }
    };
    let first = attach(&fabric, "node7", 1).unwrap().1.node_guid;
    assert_eq!(first, Guid(0x50_0000), "by the name that the topology has for it");
    free();
    let second = attach(&fabric, "b", 2).unwrap().1.node_guid;
    assert_eq!(second, Guid(0x20_0000));
    free();
    let third = attach(&fabric, "c", 3).unwrap();
    assert_eq!(third.1.node_guid, Guid(0x30_0000), "the others were somebody's");
    let fourth = attach(&fabric, "d", 4).unwrap();
    assert_eq!(fourth.1.node_guid, Guid(0x20_0000), "none is left that was not");
}

#[test]
fn nodes_are_found_by_any_of_their_names_and_an_ambiguous_one_is_an_error() {
    let fabric = mixed();
    let (options, name) = (&fabric.options, &fabric.name);
    let unplug = |text: &str| admin::unplug(options, name, &end(text)).map_err(|e| e.to_string());
    let e = unplug("twin").unwrap_err();
    assert!(e.contains("is ambiguous") && e.contains("H-1") && e.contains("H-2"), "{e}");
    assert!(unplug("nobody").unwrap_err().contains("no node is called"));
    assert!(unplug("0x777").unwrap_err().contains("no node has the GUID"));
    let e = unplug("H-1:3").unwrap_err();
    assert!(e.contains("has no port 3: its ports are 1 to 2"), "{e}");
    // Named by the GUID of a port, and connected again to the first free port.
    assert_eq!(unplug("0x200002:2").unwrap(), "H-1[2] is unplugged from S-1[2]");
    assert!(unplug("H-1:2").unwrap_err().contains("has no cable"));
    let said = admin::plug(options, name, &end("H-1"), &end("S-1:2")).unwrap();
    assert_eq!(said, "H-1[2] is plugged to S-1[2]");
    // Only the links between the two: the switch has others.
    let said = admin::link(options, name, false, &end("S-1"), &end("H-1")).unwrap();
    assert_eq!(said, "S-1[1] - H-1[1] is down\nS-1[2] - H-1[2] is down");
    let e = admin::link(options, name, false, &end("H-1"), &end("H-2")).unwrap_err().to_string();
    assert!(e.contains("no cable connects"), "{e}");
    let up = admin::show(options, name).unwrap().links.iter().filter(|link| link.up).count();
    assert_eq!(up, 3);
    // Named by the host that is attached there.
    let _held = attach(&fabric, "far", 1).unwrap();
    assert_eq!(unplug("far:1").unwrap(), "H-1[1] is unplugged from S-1[1]");
    let shown = admin::show(options, name).unwrap();
    assert_eq!(shown.nodes[1].host.as_deref(), Some("far"));
    assert!(shown.nodes.iter().skip(2).all(|node| node.host.is_none()));
    // One host with two ports is one node; two hosts of this name are ambiguous.
    let both = HostPort { number: 2, of: 2, here: vec![1, 2] };
    let _second = Attachment::open_port(options, name, "far", Guid(1), &both).unwrap();
    assert_eq!(unplug("far:2").unwrap(), "H-1[2] is unplugged from S-1[2]");
    let _others = attach(&fabric, "far", 2).unwrap();
    let e = unplug("far:1").unwrap_err();
    assert!(e.contains("is ambiguous"), "{e}");
    for guid in [0x20_0000, 0x30_0000] {
        assert!(e.contains(&Guid(guid).to_string()), "{e}");
    }
    for port in [0, 3] {
        let e = MadFile::open(options, name, &PortRef { node: NodeRef::Name("H-1".into()), port });
        assert_eq!(e.unwrap_err().errno(), 19, "port {port}");
    }
}

#[test]
fn system_guid_set_by_a_command_is_given_to_attaching_hosts() {
    let fabric = mixed();
    let node = NodeRef::Guid(Guid(0x20_0000));
    let said = admin::set_system_guid(&fabric.options, &fabric.name, &node, Guid(0x77)).unwrap();
    assert!(said.contains("has the system GUID 0x0000000000000077"), "{said}");
    let (_held, described) = attach(&fabric, "a", 7).unwrap();
    assert_eq!((described.node_guid, described.system_guid), (Guid(0x20_0000), Guid(0x77)));
}

#[test]
fn host_gets_the_attributes_and_counters_of_its_adapter_and_port() {
    let fabric = mixed();
    let (mut held, described) = attach(&fabric, "a", 7).unwrap();
    assert_eq!((described.node_guid, described.system_guid), (Guid(0x20_0000), Guid(0x20_00ff)));
    assert_eq!((described.vendor_id, described.device_id), (0x2c9, 0x1003));
    assert_eq!(described.description, "twin");
    let speed = |port: &PortFacts| (port.active_width, port.active_speed);
    assert_eq!(speed(&described.port), (8, 32));
    let (_other, described) = attach(&fabric, "node7", 8).unwrap();
    assert_eq!(speed(&described.port), (16, 64));
    let mut manager = fabric.manager("a", 1);
    change(&mut manager, |info| {
        (info.lid, info.lmc) = (Lid(0x10), 2);
        (info.sm_lid, info.master_smsl) = (Lid(0x20), 3);
        (info.neighbor_mtu, info.subnet_timeout, info.init_type_reply) = (3, 9, 4);
        info.gid_prefix = 0xfec0_0000_0000_0001;
        info.port_state = PortState::ARMED;
    });
    held.refresh().unwrap();
    let port = held.refresh().unwrap().port;
    assert_eq!((port.number, port.guid, port.lid, port.lmc), (1, Guid(0x20_0001), Lid(0x10), 2));
    assert_eq!((port.sm_lid, port.sm_sl, port.state, port.phys_state), (Lid(0x20), 3, 3, 5));
    assert_eq!((port.max_mtu, port.active_mtu, port.subnet_timeout), (5, 3, 9));
    assert_eq!(
        (port.init_type_reply, port.max_vls, port.gid_prefix),
        (4, 4, 0xfec0_0000_0000_0001)
    );
    assert_eq!((port.gids.len(), port.gids[0]), (32, Gid::new(port.gid_prefix, port.guid)));
    assert_eq!((port.gids[1], port.pkeys.len()), (Gid::ZERO, 64));
    assert!(port.pkeys[0] == Pkey::DEFAULT && port.pkeys[1..].iter().all(|key| *key == Pkey(0)));
    assert_ne!(port.capabilities, 0);
    let counted =
        |port: &PortFacts, name: &str| port.counters.iter().find(|c| c.0 == name).unwrap().1;
    manager.get(&[1], 0x11, 0);
    admin::link(&fabric.options, &fabric.name, false, &end("H-1:1"), &end("S-1")).unwrap();
    let port = loop {
        let port = held.refresh().unwrap().port;
        if port.state == 1 {
            break port;
        }
    };
    assert_eq!((counted(&port, "port_xmit_packets"), counted(&port, "port_rcv_packets")), (1, 1));
    assert_eq!((counted(&port, "port_rcv_data"), counted(&port, "link_downed")), (72, 1));
    assert_eq!(port.phys_state, 2);
    assert!(counter(&fabric, "port_events") >= 3);
}

#[test]
fn pending_events_of_a_host_that_does_not_read_are_coalesced_by_kind() {
    const CHANGES: u16 = 6000;
    /// More requests than the fabric serves on a connection before it sends hosts their updates.
    const TURN: u16 = 64;
    let fabric = mixed();
    let (mut held, _) = attach(&fabric, "a", 7).unwrap();
    let mut manager = fabric.manager("a", 1);
    for lid in 1..=CHANGES {
        change(&mut manager, |info| info.lid = Lid(lid));
    }
    let (mut last, mut most_missed) = (0, 0);
    loop {
        let update = held.refresh().unwrap();
        let changed = update.events.iter().filter(|e| **e == PortEvent::LidChange).count();
        assert!(changed <= 1, "{update:?}");
        if changed == 0 && update.port.lid == Lid(CHANGES) {
            break;
        }
        most_missed = most_missed.max(update.port.lid.0.saturating_sub(last));
        last = update.port.lid.0;
    }
    assert!(most_missed > TURN, "nothing waits for it but what its socket holds: {most_missed}");
}

#[test]
fn waiting_is_sm_clients_get_the_port_in_order() {
    let fabric = Fabric::up("two");
    let port = PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 };
    let held = IsSm::set(&fabric.options, &fabric.name, &port, false).unwrap();
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let mut waiting: Vec<_> = std::iter::repeat_with(|| {
        let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
        let greeting = Greeting::new(Role::IsSm { port: port.clone(), wait: true });
        socket::send(socket.as_fd(), &greeting, &[], &mut Vec::new()).unwrap();
        // By the time of a later answer, the earlier message was served.
        counter(&fabric, "mads_sent");
        socket
    })
    .take(3)
    .collect();
    drop(held);
    while !waiting.is_empty() {
        let ready = waiting.iter().position(|socket| socket::is_readable(socket.as_fd()));
        if let Some(ready) = ready {
            assert_eq!(ready, 0, "of those that still wait");
            waiting.remove(ready);
        }
        std::thread::yield_now();
    }
    let again = || IsSm::set(&fabric.options, &fabric.name, &port, false);
    while again().is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn oversized_message_closes_the_connection_and_counts_clients_broke() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
    let mut long = postcard_greeting();
    long.resize(socket::MAX_MESSAGE + 1, 0);
    rustix::net::send(&socket, &long, rustix::net::SendFlags::empty()).unwrap();
    let mut buf = [0; 64];
    assert!(socket::recv_bytes(socket.as_fd(), &mut buf, &mut Vec::new()).is_err(), "closed");
    assert_eq!(counter(&fabric, "clients_broke"), 1);
}

fn postcard_greeting() -> Vec<u8> {
    // A fabric that truncated the message would interpret it as a greeting.
    let (ours, theirs) = socket::pair().unwrap();
    socket::send(ours.as_fd(), &Greeting::new(Role::Admin), &[], &mut Vec::new()).unwrap();
    let mut buf = [0; 64];
    socket::recv_bytes(theirs.as_fd(), &mut buf, &mut Vec::new()).unwrap().to_vec()
}

#[test]
fn mad_file_check_is_answered_after_all_earlier_sends() {
    let fabric = Fabric::up("two");
    let id = admin::show(&fabric.options, &fabric.name).unwrap().nodes[0].id.clone();
    let mut manager = fabric.manager(&id, 1);
    for _ in 0..20 {
        // There is no response, because an adapter forwards nothing.
        let smp = Smp::directed(Method::GET, 0x11, 0, &[1, 1]);
        let requests: Vec<_> = (0..100).map(|_| manager.request(&smp)).collect();
        for request in &requests {
            manager.file.send_mad(request).unwrap();
        }
        let e = manager.file.check(&requests[99]).unwrap_err();
        assert_eq!(e.errno(), 22, "{e}");
    }
}

#[test]
fn lid_change_alone_is_saved_across_a_restart() {
    let mut fabric = Fabric::up("two");
    let id = admin::show(&fabric.options, &fabric.name).unwrap().nodes[0].id.clone();
    change(&mut fabric.manager(&id, 1), |info| info.lid = Lid(0x77));
    fabric.stop();
    fabric.start();
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    assert_eq!(shown.nodes[0].ports[0].lid, Lid(0x77));
}

#[test]
fn mad_file_connection_needs_its_key_and_is_the_only_one() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let greet = |role: Role| {
        let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
        socket::send(socket.as_fd(), &Greeting::new(role), &[], &mut Vec::new()).unwrap();
        socket
    };
    fn answer<T: DeserializeOwned>(socket: &OwnedFd) -> Reply<T> {
        let mut buf = [0; 512];
        let message = socket::recv_bytes(socket.as_fd(), &mut buf, &mut Vec::new()).unwrap();
        socket::decode::<(u32, Reply<T>)>(message).unwrap().1
    }
    let control = greet(Role::OpenFile(PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 }));
    let Ok(FileReply::Opened { file, key }) = answer(&control) else { panic!("not opened") };
    let mut wrong = key;
    wrong[15] ^= 1;
    let refused = |role| answer::<()>(&greet(role)).unwrap_err().errno;
    assert_eq!(refused(Role::Mads { file, key: wrong }), 9);
    assert_eq!(refused(Role::Mads { file: file + 1, key }), 9);
    let mads = greet(Role::Mads { file, key });
    assert_eq!(answer::<()>(&mads), Ok(()));
    assert_eq!(refused(Role::Mads { file, key }), 9, "it has its connection");
    // The end of either connection ends both, and is no violation of the protocol.
    drop(mads);
    let mut buf = [0; 8];
    assert!(socket::recv_bytes(control.as_fd(), &mut buf, &mut Vec::new()).is_err());
    assert_eq!(counter(&fabric, "clients_broke"), 0);

    let control = greet(Role::OpenFile(PortRef { node: NodeRef::Guid(FIRST_GUID), port: 1 }));
    let Ok(FileReply::Opened { file, key }) = answer(&control) else { panic!("not opened") };
    let mads = greet(Role::Mads { file, key });
    assert_eq!(answer::<()>(&mads), Ok(()));
    let long = vec![0; FRAGMENT + 1];
    rustix::net::send(&mads, &long, rustix::net::SendFlags::empty()).unwrap();
    assert!(socket::recv_bytes(control.as_fd(), &mut buf, &mut Vec::new()).is_err());
    assert_eq!(counter(&fabric, "clients_broke"), 1, "no message is as long");
}

#[test]
fn admin_client_that_does_not_read_responses_is_throttled() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let socket = connect(&dir, Duration::from_secs(10)).unwrap().unwrap();
    let greeting = Greeting::new(Role::Admin);
    socket::send(socket.as_fd(), &greeting, &[], &mut Vec::new()).unwrap();
    socket::set_nonblocking(&socket, true).unwrap();
    let ask = || socket::send(socket.as_fd(), &AdminRequest::Show, &[], &mut Vec::new());
    let mut asked = 0;
    while ask().is_ok() {
        asked += 1;
        assert!(asked < 50_000, "the fabric takes all that is asked");
        // The fabric serves pending messages before it serves others.
        if asked % 100 == 0 {
            counter(&fabric, "mads_sent");
        }
    }
}

#[test]
fn trap_is_resent_until_trap_repress() {
    let fabric = Fabric::up("two");
    let (mut held, _) = attach(&fabric, "a", 7).unwrap();
    let mut manager = fabric.manager("a", 1);
    let trap = Registration { class: 1, methods: 1 << Method::TRAP.0, ..common::DIRECTED };
    manager.file.register(&trap).unwrap();
    change(&mut manager, |info| (info.lid, info.sm_lid) = (Lid(3), Lid(3)));
    for state in [PortState::ARMED, PortState::ACTIVE] {
        change(&mut manager, |info| info.port_state = state);
    }
    held.describe("another name").unwrap();
    let traps = [(); 2].map(|()| manager.file.recv_mad().unwrap().data);
    assert_eq!((traps[0][1], traps[0][3]), (1, Method::TRAP.0));
    assert_eq!(traps[0], traps[1]);
}
