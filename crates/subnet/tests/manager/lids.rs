//! LIDs are kept, can be configured and read out, and are never assigned twice.

use std::collections::BTreeMap;
use std::time::Duration;

use rdmux_subnet::manager::{Config, ProblemKind};
use rdmux_subnet::topology::{LinkRate, Shape};
use rdmux_subnet::{PortId, Topology};
use rdmux_wire::{Guid, Lid};

use crate::net::{Net, config, port};

fn lids(net: &Net) -> BTreeMap<Guid, Lid> {
    net.ends()
        .iter()
        .map(|end| net.subnet.port(*end).expect("a port"))
        .map(|v| (v.guid(), v.lid()))
        .collect()
}

#[test]
fn configured_guid_to_lid_assignments_are_used() {
    let first = Net::up("fattree:40", config());
    let known = first.managers[0].1.lids().clone();
    assert_eq!(known, lids(&first));
    let moved: BTreeMap<Guid, Lid> = known.iter().map(|(g, lid)| (*g, Lid(lid.0 + 1000))).collect();
    let second = Net::up("fattree:40", Config { lids: moved.clone(), ..config() });
    assert_eq!(lids(&second), moved);
    second.assert_routed();
}

#[test]
fn lids_survive_a_restart_of_everything_by_the_topology() {
    let mut first = Net::up("switch:8", Config { lmc: 1, ..config() });
    first.pass(Duration::from_secs(60));
    let text = first.subnet.topology().to_string();
    let mut second = Net::new(&Topology::parse(&text).expect("what was written"));
    second.start_first(Config { lmc: 1, ..config() });
    assert_eq!(lids(&second), lids(&first));
    second.assert_configured();
    second.assert_routed();
}

#[test]
fn duplicate_lids_of_ports_are_reassigned() {
    let net = Net::up("switch:8", config());
    let mut topology = net.subnet.topology();
    let taken = topology.nodes[3].ports[&1].lid;
    for node in 4..7 {
        topology.nodes[node].ports.get_mut(&1).expect("a port").lid = taken;
    }
    let mut again = Net::new(&topology);
    again.start_first(config());
    again.assert_configured();
    assert_eq!(again.subnet.port(crate::net::port(3, 1)).expect("a port").lid(), taken);
}

#[test]
fn lids_are_aligned_to_their_mask_whatever_ports_had() {
    let mut net = Net::up("switch:8", config());
    net.pass(Duration::from_secs(60));
    let mut again = Net::new(&net.subnet.topology());
    again.start_first(Config { lmc: 3, ..config() });
    again.assert_configured();
    again.assert_routed();
    for end in again.ends().iter().filter(|end| end.number != 0) {
        let view = again.subnet.port(*end).expect("a port");
        assert_eq!((view.lmc(), view.lid().0 % 8), (3, 0));
    }
}

#[test]
fn ports_beyond_the_lid_space_are_reported_and_others_are_managed() {
    // 2^7 LIDs per port: there are 383 such ranges.
    let net = Net::up("fattree:400", Config { lmc: 7, ..config() });
    let last = net.managers[0].1.status().last.expect("a sweep");
    let left = last.problems.iter().filter(|p| p.what == ProblemKind::NoLid).count();
    assert!(left > 0, "{:?}", last.problems);
    assert!(net.ends().iter().filter(|end| end.number != 0).count() > 370);
}

#[test]
fn a_new_switch_gets_none_of_the_lids_of_a_port_that_is_gone() {
    for lmc in 1..=3 {
        let mut net = Net::up("switch:4", Config { lmc, ..config() });
        net.pass(Duration::from_secs(60));
        let before = lids(&net);
        let end = port(2, 1);
        let place = net.change(|s, now, inbox| s.unplug(now, end, inbox)).expect("a cable");
        net.pass(Duration::from_secs(60));
        let shape: Shape = "switch:4".parse().expect("a shape");
        let switch = net.subnet.add(&shape.topology(Guid(0x20_0000)).nodes[0]);
        let plug = |net: &mut Net, one, two| {
            net.change(|s, now, inbox| s.plug(now, one, two, LinkRate::DEFAULT, inbox))
                .expect("free ports");
            net.pass(Duration::from_secs(60));
        };
        plug(&mut net, place, PortId::new(switch, 1));
        plug(&mut net, PortId::new(switch, 2), end);
        net.assert_configured();
        let mut after = lids(&net);
        after.retain(|guid, _| before.contains_key(guid));
        assert_eq!(after, before, "LMC {lmc}");
    }
}
