//! Hosts that attach to a fabric.

mod common;

use common::Fabric;
use rdmux_fabric::client::{Attachment, admin};
use rdmux_fabric::proto::{Described, End, HostPort};
use rdmux_fabric::server::Setup;
use rdmux_fabric::{Config, FabricDir, FabricError};
use rdmux_wire::Guid;

fn attach(fabric: &Fabric, host: &str, guid: u64) -> Result<(Attachment, Guid), FabricError> {
    let (attachment, described) =
        Attachment::open(&fabric.options, &fabric.name, host, Guid(guid))?;
    Ok((attachment, described.node_guid))
}

#[test]
fn hosts_take_free_adapters_and_get_the_same_after_a_restart() {
    let mut fabric = Fabric::up("two");
    let (a, guid_of_a) = attach(&fabric, "a", 0xa).unwrap();
    let (b, guid_of_b) = attach(&fabric, "b", 0xb).unwrap();
    assert_ne!(guid_of_a, guid_of_b);
    let e = attach(&fabric, "c", 0xc).unwrap_err();
    assert_eq!(e.errno(), 19, "{e}");
    let e = attach(&fabric, "other", 0xa).unwrap_err();
    assert!(e.errno() == 17 && e.to_string().contains("--guid"), "{e}");
    drop((a, b));
    fabric.stop();
    fabric.start();
    assert_eq!(attach(&fabric, "b", 0xb).unwrap().1, guid_of_b);
    assert_eq!(attach(&fabric, "a", 0xa).unwrap().1, guid_of_a);
}

#[test]
fn owner_gets_an_adapter_of_another_users_host_if_there_is_no_place_for_a_new_one() {
    let mut fabric = Fabric::up("two");
    let had = [0xa, 0xb].map(|guid| attach(&fabric, "h", guid).unwrap());
    let had = had.map(|(_, adapter)| adapter);
    fabric.stop();
    let dir = FabricDir::existing(&fabric.options.user, &fabric.name).unwrap().unwrap();
    let hosts = dir.secret().with_file_name("hosts");
    let text = std::fs::read_to_string(&hosts).unwrap();
    // As if hosts of another user had had both. The user is the last word of a host's line.
    let of_other = text.lines().map(|line| format!("{} 4001\n", line.rsplit_once(' ').unwrap().0));
    std::fs::write(&hosts, of_other.collect::<String>()).unwrap();
    fabric.start();
    let held = [0xc, 0xd].map(|guid| attach(&fabric, "h", guid).unwrap());
    assert_eq!([held[0].1, held[1].1], had);
    let e = attach(&fabric, "h", 0xe).unwrap_err();
    assert!(e.errno() == libc::ENODEV && e.to_string().contains("all adapters are taken"), "{e}");
}

#[test]
fn host_takes_the_adapter_with_its_guid_or_node_description() {
    let fabric = Fabric::up("switch:4");
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let last = shown.nodes.iter().rfind(|n| !n.is_switch).unwrap();
    let (mut first, _) = attach(&fabric, "x", 0xa).unwrap();
    first.describe("node-7").unwrap();
    first.refresh().unwrap();
    drop(first);
    let (_held, got) = attach(&fabric, "y", last.guid.0).unwrap();
    assert_eq!(got, last.guid, "by its GUID");
    let status = || admin::status(&fabric.options, &fabric.name).unwrap();
    // The fabric has noticed the end of the first host when only the second one is left.
    while status().attached.len() > 1 {
        std::thread::yield_now();
    }
    attach(&fabric, "node-7", 0xb).unwrap();
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    assert_eq!(shown.nodes.iter().filter(|n| n.description == "node-7").count(), 1);
}

#[test]
fn host_without_a_free_adapter_gets_a_new_one_at_a_free_switch_port() {
    let mut fabric = Fabric::up("switch:2");
    let held: Vec<_> = (1..=2).map(|n| attach(&fabric, "h", n).unwrap()).collect();
    let full = attach(&fabric, "c", 0xc).unwrap_err();
    assert!(full.to_string().contains("no port of a switch is free"), "{full}");
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let adapter = shown.nodes.iter().find(|n| !n.is_switch).unwrap();
    let end: End = adapter.id.parse().unwrap();
    let said = admin::unplug(&fabric.options, &fabric.name, &end).unwrap();
    assert!(said.contains("is unplugged from"), "{said}");
    let (_new, guid) = attach(&fabric, "c", 0xc).unwrap();
    assert_eq!(guid, Guid(0xc));
    drop(held);
    fabric.stop();
    fabric.start();
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let new = shown.nodes.iter().find(|n| n.guid == Guid(0xc)).unwrap();
    assert_eq!((new.description.as_str(), shown.links.len()), ("c", 2));
}

#[test]
fn host_whose_adapter_was_taken_gets_a_new_one_at_a_free_switch_port() {
    let fabric = Fabric::up("switch:2");
    let _held: Vec<_> = (1..=2).map(|n| attach(&fabric, "h", n).unwrap()).collect();
    let shown = || admin::show(&fabric.options, &fabric.name).unwrap();
    let adapters: Vec<_> = shown().nodes.into_iter().filter(|n| !n.is_switch).collect();
    let free_a_port = |adapter: usize| {
        let end: End = adapters[adapter].id.parse().unwrap();
        admin::unplug(&fabric.options, &fabric.name, &end).unwrap();
    };
    let leave = |(attachment, _): (Attachment, Guid)| {
        let attached = || admin::status(&fabric.options, &fabric.name).unwrap().attached.len();
        let before = attached();
        drop(attachment);
        while attached() == before {
            std::thread::yield_now();
        }
    };
    free_a_port(0);
    leave(attach(&fabric, "c", 0xc).unwrap());
    let (_other, guid) = attach(&fabric, "d", 0xd).unwrap();
    assert_eq!(guid, Guid(0xc));
    let full = attach(&fabric, "c", 0xc).unwrap_err();
    assert!(full.to_string().contains("no port of a switch is free"), "{full}");
    free_a_port(1);
    let (again, guid) = attach(&fabric, "c", 0xc).unwrap();
    assert!(shown().nodes.iter().filter(|n| n.guid == guid).count() == 1 && guid != Guid(0xc));
    leave((again, guid));
    assert_eq!(attach(&fabric, "c", 0xc).unwrap().1, guid, "the same again");
}

fn attach_port(
    fabric: &Fabric,
    host: &str,
    guid: u64,
    (number, here): (u8, &[u8]),
) -> Result<(Attachment, Described), FabricError> {
    let port = HostPort { number, of: 2, here: here.to_vec() };
    Attachment::open_port(&fabric.options, &fabric.name, host, Guid(guid), &port)
}

#[test]
fn two_port_host_replaces_two_one_port_adapters() {
    let mut fabric = Fabric::up("switch:4");
    let both = |fabric: &Fabric| {
        let [one, two] = [1, 2].map(|n| attach_port(fabric, "a", 0x70, (n, &[1, 2])).unwrap());
        assert_eq!([one.1.node_guid, two.1.node_guid], [Guid(0x70); 2]);
        assert_eq!([one.1.port.guid, two.1.port.guid], [Guid(0x71), Guid(0x72)]);
        assert_eq!([one.1.port.phys_state, two.1.port.phys_state], [5, 5], "both are plugged in");
        [one.0, two.0]
    };
    let held = both(&fabric);
    // Two adapters are left, and those without a cable are not assigned to hosts.
    let others = [0xb, 0xc].map(|n| attach(&fabric, "x", n).unwrap());
    let e = attach(&fabric, "x", 0xd).unwrap_err();
    assert_eq!(e.errno(), libc::ENODEV, "{e}");
    let shown = |fabric: &Fabric| admin::show(&fabric.options, &fabric.name).unwrap();
    let plugged = shown(&fabric).links.len();
    assert_eq!(plugged, 4);
    drop((held, others));
    fabric.stop();
    fabric.start();
    assert_eq!(shown(&fabric).links.len(), plugged);
    both(&fabric);
}

#[test]
fn host_whose_cable_was_taken_is_connected_again_but_not_after_an_operator_unplugs_it() {
    let mut fabric = Fabric::up("switch:1");
    let given = admin::show(&fabric.options, &fabric.name).unwrap();
    let given = given.nodes.iter().find(|node| !node.is_switch).unwrap().guid;
    // Returns the adapter, and whether its port has a cable.
    let come = |fabric: &Fabric, port: HostPort, guid: u64| {
        let come = Attachment::open_port(&fabric.options, &fabric.name, "a", Guid(guid), &port);
        let (held, described) = come.unwrap();
        drop(held);
        while !admin::status(&fabric.options, &fabric.name).unwrap().attached.is_empty() {
            std::thread::yield_now();
        }
        (described.node_guid, described.port.phys_state == 5)
    };
    let one = |fabric: &Fabric| come(fabric, HostPort::only(), 0xa);
    // The host's other port is on another fabric, so it needs an adapter of its own.
    let of_two = |fabric: &Fabric| come(fabric, HostPort { number: 1, of: 2, here: vec![1] }, 0xb0);
    assert_eq!(one(&fabric), (given, true));
    for _ in 0..2 {
        assert_eq!(of_two(&fabric), (Guid(0xb0), true));
        fabric.stop();
        fabric.start();
        assert_eq!(one(&fabric), (given, true));
    }
    let adapter: End = format!("{given}").parse().unwrap();
    admin::unplug(&fabric.options, &fabric.name, &adapter).unwrap();
    fabric.stop();
    fabric.start();
    assert_eq!(one(&fabric), (given, false));
    assert_eq!(of_two(&fabric), (Guid(0xb0), true));
    assert_eq!(one(&fabric), (given, false));
}

#[test]
fn host_keeps_the_cables_that_it_has_if_there_is_no_place_for_its_other_port() {
    let fabric = Fabric::up("switch:2");
    let is_plugged = |number: u8| {
        let (held, described) = attach_port(&fabric, "a", 0x70, (number, &[1, 2])).unwrap();
        assert_eq!(described.node_guid, Guid(0x70));
        (held, described.port.phys_state == 5)
    };
    let both = [1, 2].map(is_plugged);
    assert!(both.iter().all(|(_, is_plugged)| *is_plugged));
    drop(both);
    while !admin::status(&fabric.options, &fabric.name).unwrap().attached.is_empty() {
        std::thread::yield_now();
    }
    let port = HostPort { number: 1, of: 3, here: vec![1] };
    let _other =
        Attachment::open_port(&fabric.options, &fabric.name, "b", Guid(0x90), &port).unwrap();
    let again = [1, 2].map(is_plugged);
    assert_eq!(again.iter().filter(|(_, is_plugged)| *is_plugged).count(), 1);
}

#[test]
fn adapter_of_a_host_with_ports_on_two_fabrics_is_one_node() {
    let fabrics = ["switch:3", "switch:2"].map(Fabric::up);
    let ports = [(1_u8, [1_u8]), (2, [2])];
    let described = fabrics.iter().zip(ports).map(|(fabric, (number, here))| {
        let (held, described) = attach_port(fabric, "a", 0x70, (number, &here)).unwrap();
        let shown = admin::show(&fabric.options, &fabric.name).unwrap();
        let node = shown.nodes.iter().find(|node| node.guid == Guid(0x70)).unwrap();
        assert_eq!(node.ports.len(), 2, "the other port is there, without a cable");
        (held, described)
    });
    let described: Vec<_> = described.collect();
    let facts: Vec<_> = described
        .iter()
        .map(|(_, d)| (d.node_guid, d.port.number, d.port.guid, d.port.phys_state))
        .collect();
    assert_eq!(facts, [(Guid(0x70), 1, Guid(0x71), 5), (Guid(0x70), 2, Guid(0x72), 5)]);
}

#[test]
fn adapters_created_for_departed_hosts_are_replaced_beyond_a_limit() {
    let mut fabric = Fabric::up("switch:3");
    let shown = |fabric: &Fabric| admin::show(&fabric.options, &fabric.name).unwrap();
    let given: Vec<_> = shown(&fabric).nodes.iter().map(|node| node.guid).collect();
    let come = |fabric: &Fabric, guid: u64| {
        let port = HostPort { number: 1, of: 10, here: vec![1] };
        let (held, described) =
            Attachment::open_port(&fabric.options, &fabric.name, "a", Guid(guid), &port).unwrap();
        assert_eq!((described.node_guid, described.port.phys_state), (Guid(guid), 5));
        drop(held);
        let status = || admin::status(&fabric.options, &fabric.name).unwrap();
        while !status().attached.is_empty() {
            std::thread::yield_now();
        }
    };
    let guids = |from: u64| (from..from + 100).map(|n| n << 8);
    guids(1000).for_each(|guid| come(&fabric, guid));
    let nodes = shown(&fabric).nodes.len();
    guids(2000).for_each(|guid| come(&fabric, guid));
    assert_eq!(shown(&fabric).nodes.len(), nodes);
    fabric.stop();
    fabric.start();
    guids(3000).for_each(|guid| come(&fabric, guid));
    // An adapter that another has replaced is made again.
    come(&fabric, 1000 << 8);
    let after = shown(&fabric);
    assert_eq!(after.nodes.len(), nodes);
    assert!(given.iter().all(|guid| after.nodes.iter().any(|node| node.guid == *guid)));
}

#[test]
fn invalid_host_ports_are_einval_and_another_hosts_guid_eexist() {
    let fabric = Fabric::up("switch:4");
    for (number, of, here) in [
        (0, 1, vec![0]),
        (2, 1, vec![2]),
        (1, 2, vec![2]),
        (1, 2, vec![2, 1]),
        (1, 2, vec![1, 1]),
        (1, 11, vec![1]),
        (1, 2, vec![]),
    ] {
        let port = HostPort { number, of, here };
        let e = Attachment::open_port(&fabric.options, &fabric.name, "a", Guid(0x70), &port);
        assert_eq!(e.unwrap_err().errno(), libc::EINVAL, "{port:?}");
    }
    // It would be the GUID of another host's port.
    let _first = attach_port(&fabric, "a", 0x70, (1, &[1, 2])).unwrap();
    let e = attach_port(&fabric, "b", 0x71, (1, &[1, 2])).unwrap_err();
    assert!(e.errno() == libc::EEXIST && e.to_string().contains("--guid"), "{e}");
}

#[test]
fn attach_to_a_simulated_fabric_is_eperm() {
    let setup = Setup { simulate: true, ..common::unmanaged() };
    let fabric = Fabric::with("two", setup, Config::default());
    let e = attach(&fabric, "a", 0xa).unwrap_err();
    assert!(e.errno() == 1 && e.to_string().contains("--simulate"), "{e}");
}

#[test]
fn admin_link_reset_plug_and_unplug_change_the_links() {
    let fabric = Fabric::up("switch:2");
    let (options, name) = (&fabric.options, &fabric.name);
    let shown = || admin::show(options, name).unwrap();
    let id = |is_switch: bool| {
        shown().nodes.iter().find(|n| n.is_switch == is_switch).unwrap().id.clone()
    };
    let (switch, adapter): (End, End) = (id(true).parse().unwrap(), id(false).parse().unwrap());
    let is_up = || shown().links.iter().filter(|link| link.up).count();
    assert_eq!(is_up(), 2);
    admin::link(options, name, false, &adapter, &switch).unwrap();
    assert_eq!(is_up(), 1);
    assert_eq!(admin::status(options, name).unwrap().links_down, 1);
    admin::link(options, name, true, &adapter, &switch).unwrap();
    assert_eq!(is_up(), 2);
    admin::reset(options, name, &switch.node).unwrap();
    let e = admin::reset(options, name, &adapter.node).unwrap_err().to_string();
    assert!(e.contains("is not a switch"), "{e}");
    let taken = End { port: Some(1), ..switch.clone() };
    let e = admin::plug(options, name, &adapter, &taken).unwrap_err().to_string();
    assert!(e.contains("unplug it first"), "{e}");
    let e = admin::unplug(options, name, &switch).unwrap_err().to_string();
    assert!(e.contains("2 cables"), "{e}");
    admin::unplug(options, name, &adapter).unwrap();
    assert_eq!(shown().links.len(), 1);
    admin::plug(options, name, &adapter, &taken).unwrap();
    assert_eq!(is_up(), 2);
    let text = admin::topology(options, name).unwrap();
    assert!(text.contains("switchguid="), "{text}");
}
