//! Routes: shortest paths, no channel dependency cycles, and balance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdmux_subnet::manager::{Config, RoutingEngine};
use rdmux_subnet::{NodeId, PortId};
use rdmux_wire::Lid;

use crate::net::{Net, config};

/// Returns the least number of switches that a packet crosses from a port to each other node.
fn shortest(net: &Net, from: PortId) -> BTreeMap<NodeId, usize> {
    let mut hops = BTreeMap::from([(from.node, usize::from(from.number == 0))]);
    let mut next = VecDeque::from([from.node]);
    while let Some(node) = next.pop_front() {
        if !net.is_switch(node) && node != from.node {
            continue;
        }
        for number in 1..=u8::MAX {
            let Some(far) = net.subnet.peer(PortId::new(node, number)) else {
                if net.subnet.port(PortId::new(node, number)).is_none() {
                    break;
                }
                continue;
            };
            let more = usize::from(net.is_switch(far.node));
            if !hops.contains_key(&far.node) {
                hops.insert(far.node, hops[&node] + more);
                next.push_back(far.node);
            }
        }
    }
    hops
}

#[test]
fn minhop_routes_have_the_least_number_of_hops() {
    for shape in ["switch:8", "fattree:40", "torus:3x3x2", "dragonfly:3,1,1"] {
        let net = Net::up(shape, config());
        let ends = net.ends();
        for &from in &ends {
            let least = shortest(&net, from);
            for &to in ends.iter().filter(|&&to| to != from) {
                let lid = net.subnet.port(to).expect("a port").lid();
                assert_eq!(net.hops(from, lid), Some(least[&to.node]), "{shape}: {from} to {to}");
            }
        }
    }
}

/// A directed channel, named by its egress port.
type Channel = PortId;

/// Returns the channel dependencies of the routes between all adapters: the channels that are requested while one is held.
fn dependencies(net: &Net) -> BTreeMap<Channel, BTreeSet<Channel>> {
    let adapters: Vec<_> = net.ends().into_iter().filter(|end| end.number != 0).collect();
    let mut all: BTreeMap<Channel, BTreeSet<Channel>> = BTreeMap::new();
    for &from in &adapters {
        for &to in adapters.iter().filter(|&&to| to != from) {
            let lid = net.subnet.port(to).expect("a port").lid();
            let (mut held, mut at) = (from, net.subnet.peer(from).expect("a cable"));
            while net.is_switch(at.node) {
                let egress = PortId::new(at.node, net.subnet.routes(at.node, lid)[0]);
                all.entry(held).or_default().insert(egress);
                (held, at) = (egress, net.subnet.peer(egress).expect("a cable"));
            }
        }
    }
    all
}

/// Returns whether channel dependencies have a cycle.
fn has_cycle(all: &BTreeMap<Channel, BTreeSet<Channel>>) -> bool {
    // Remove channels on which none waits, until none is left or all wait.
    let mut waits: BTreeMap<Channel, usize> = BTreeMap::new();
    for targets in all.values() {
        targets.iter().for_each(|target| *waits.entry(*target).or_default() += 1);
    }
    let mut free: Vec<Channel> = all.keys().filter(|c| !waits.contains_key(c)).copied().collect();
    let mut taken = 0;
    while let Some(channel) = free.pop() {
        taken += 1;
        for target in all.get(&channel).into_iter().flatten() {
            let left = waits.get_mut(target).expect("counted");
            *left -= 1;
            if *left == 0 {
                free.push(*target);
            }
        }
    }
    let channels: BTreeSet<_> = all.keys().chain(all.values().flatten()).collect();
    taken < channels.len()
}

#[test]
fn updn_has_no_cycle_of_channels() {
    let updn = || Config { routing: RoutingEngine::Updn, ..config() };
    for shape in ["fattree:40", "torus:4x4x1", "torus:3x3x2", "dragonfly:3,1,1", "fattree:120"] {
        assert!(!has_cycle(&dependencies(&Net::up(shape, updn()))), "{shape}");
    }
    // The test can detect a cycle: shortest paths in a torus have one.
    assert!(has_cycle(&dependencies(&Net::up("torus:5x5x1", config()))));
}

/// Returns how many LIDs of adapters leave each switch by each port to another switch.
fn loads(net: &Net) -> BTreeMap<NodeId, Vec<usize>> {
    let mut all: BTreeMap<NodeId, BTreeMap<u8, usize>> = BTreeMap::new();
    for end in net.ends().iter().filter(|end| end.number != 0) {
        let lid = net.subnet.port(*end).expect("a port").lid();
        for switch in net.ends().iter().filter(|end| end.number == 0) {
            let egress = net.subnet.routes(switch.node, lid)[0];
            let far = net.subnet.peer(PortId::new(switch.node, egress)).expect("a cable");
            if net.is_switch(far.node) {
                *all.entry(switch.node).or_default().entry(egress).or_default() += 1;
            }
        }
    }
    all.into_iter().map(|(node, ports)| (node, ports.into_values().collect())).collect()
}

#[test]
fn lids_are_spread_over_equally_good_ports() {
    for routing in [RoutingEngine::Minhop, RoutingEngine::Updn] {
        let net = Net::up("fattree:648", Config { routing, ..config() });
        for (node, ports) in loads(&net) {
            let (least, most) = (ports.iter().min(), ports.iter().max());
            let (least, most) = (*least.expect("a port"), *most.expect("a port"));
            assert!(most - least <= 2, "{routing} {node}: {ports:?}");
        }
    }
}

#[test]
fn lmc_lids_of_one_port_are_routed_over_different_egress_ports() {
    let net = Net::up("fattree:40", Config { lmc: 2, ..config() });
    net.assert_configured();
    net.assert_routed();
    let adapters: Vec<_> = net.ends().into_iter().filter(|end| end.number != 0).collect();
    let (from, to) = (adapters[0], *adapters.last().expect("many"));
    let view = net.subnet.port(to).expect("a port");
    assert_eq!(view.lmc(), 2);
    let leaf = net.subnet.peer(from).expect("a cable").node;
    let ways: BTreeSet<_> =
        (view.lid().0..view.lid().0 + 4).map(|lid| net.subnet.routes(leaf, Lid(lid))[0]).collect();
    assert!(ways.len() >= 4, "{ways:?}");
}
