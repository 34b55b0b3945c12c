//! Groups: a packet from any port reaches every member once, whatever happens to the subnet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rdmux_subnet::manager::Config;
use rdmux_subnet::{NodeId, PortId};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::SmInfo;
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use crate::net::{Net, Way, config};

const MLID: Lid = Lid(0xc003);

/// Returns the ports that a packet from a port reaches. Panics if it reaches one twice, or loops.
fn reached(net: &Net, from: PortId, mlid: Lid) -> BTreeSet<PortId> {
    let mut reached = BTreeSet::new();
    let mut coming = vec![];
    let first = |node: NodeId, ingress: Option<u8>| {
        let out = net.subnet.routes(node, mlid).into_iter().filter(move |p| Some(*p) != ingress);
        out.map(move |number| PortId::new(node, number)).collect::<Vec<_>>()
    };
    if from.number == 0 {
        coming.extend(first(from.node, Some(0)));
    } else {
        coming.push(from);
    }
    let mut steps = 0;
    while let Some(egress) = coming.pop() {
        steps += 1;
        assert!(steps < 10_000, "packets to {mlid} from {from} go in a circle");
        if egress.number == 0 {
            assert!(reached.insert(egress), "{egress} twice");
            continue;
        }
        let Some(at) = net.subnet.peer(egress) else { continue };
        if net.is_switch(at.node) {
            coming.extend(first(at.node, Some(at.number)));
        } else {
            assert!(reached.insert(at), "{at} twice");
        }
    }
    reached
}

fn assert_reached(net: &Net, mlid: Lid, members: &[PortId]) {
    for &from in members {
        let others: BTreeSet<_> =
            members.iter().copied().filter(|&member| member != from).collect();
        assert_eq!(reached(net, from, mlid), others, "from {from}");
    }
    // No port leads to a part without members.
    for at in net.subnet.ports().map(|view| view.id()).filter(|id| net.is_switch(id.node)) {
        if at.number == 0 || !net.subnet.routes(at.node, mlid).contains(&at.number) {
            continue;
        }
        let far = net.subnet.peer(at).expect("a cable");
        let on = net.subnet.routes(far.node, mlid);
        assert!(members.contains(&far) || on.contains(&far.number) && on.len() > 1, "{at}");
    }
}

fn guids(net: &Net, members: &[PortId]) -> Vec<Guid> {
    members.iter().map(|m| net.subnet.port(*m).expect("a port").guid()).collect()
}

#[test]
fn multicast_reaches_exactly_the_members_as_they_leave_and_join() {
    for shape in ["switch:8", "fattree:40", "torus:3x3x2", "dragonfly:3,1,1"] {
        let mut net = Net::up(shape, config());
        let ends = net.ends();
        let members: Vec<PortId> = ends.iter().copied().step_by(3).collect();
        let list = guids(&net, &members);
        net.with(0, |manager, _, _| manager.set_group(MLID, list));
        assert_reached(&net, MLID, &members);
        // Each member leaves and joins again in turn.
        for gone in 0..members.len() {
            let guid = guids(&net, &members)[gone];
            net.with(0, |manager, _, _| manager.set_member(MLID, guid, None));
            let rest: Vec<_> = members.iter().copied().filter(|m| *m != members[gone]).collect();
            assert_reached(&net, MLID, &rest);
            net.with(0, |manager, _, _| manager.set_member(MLID, guid, Some(true)));
        }
        assert_reached(&net, MLID, &members);
        net.with(0, |manager, _, _| manager.set_group(MLID, []));
        let switches = (0..net.subnet.node_count()).map(|n| NodeId(u32::try_from(n).expect("few")));
        assert!(switches.clone().all(|node| net.subnet.routes(node, MLID).is_empty()), "{shape}");
    }
}

#[test]
fn multicast_tree_of_two_adjacent_adapters_reaches_exactly_them() {
    for shape in ["fattree:40", "torus:4x4x1"] {
        let mut net = Net::up(shape, config());
        let adapters: Vec<_> = net.ends().into_iter().filter(|end| end.number != 0).collect();
        for pair in adapters.windows(2) {
            let list = guids(&net, pair);
            net.with(0, |manager, _, _| manager.set_group(MLID, list));
            assert_reached(&net, MLID, pair);
        }
    }
}

#[test]
fn groups_are_as_before_after_a_switch_is_reset_and_after_a_cable_fails() {
    let mut net = Net::up("torus:4x4x1", config());
    let members: Vec<PortId> = net.ends().into_iter().step_by(2).collect();
    for number in 0..20 {
        let list = guids(&net, &members);
        net.with(0, |manager, _, _| manager.set_group(Lid(0xc000 + 7 * number), list));
    }
    net.change(|subnet, now, inbox| subnet.reset_switch(now, NodeId(6), inbox)).expect("a switch");
    net.pass(Duration::from_secs(60));
    (0..20).for_each(|number| assert_reached(&net, Lid(0xc000 + 7 * number), &members));
    let cable = crate::net::port(5, 1);
    net.change(|subnet, now, inbox| subnet.set_cable(now, cable, false, inbox)).expect("a cable");
    net.pass(Duration::from_secs(60));
    (0..20).for_each(|number| assert_reached(&net, Lid(0xc000 + 7 * number), &members));
}

#[test]
fn a_group_that_exists_before_the_first_sweep_is_there_after_it() {
    let mut net = Net::of("fattree:40");
    let ends: Vec<PortId> = (5..25).map(|node| crate::net::port(node, 1)).collect();
    let list = guids(&net, &ends);
    let at = crate::net::port(0, 0);
    let mut manager = rdmux_subnet::manager::Manager::new(config(), net.now);
    manager.set_group(MLID, list);
    net.managers.push((at, manager));
    net.dead.push(false);
    net.subnet.set_attached(at, true);
    net.settle();
    assert_reached(&net, MLID, &ends);
}

/// After the handover the manager knows the nodes that the sweep has found, but no routes between them.
#[test]
fn group_set_after_an_ignored_handover_waits_for_a_sweep() {
    let mut net = Net::up("torus:3x1x1", Config { priority: 1, ..config() });
    net.pass(Duration::from_secs(60));
    net.meddler = Box::new(|_, way, mad| {
        let smp = Smp::parse(mad).expect("an SMP");
        let is_set = smp.header.method == Method::SET && smp.header.attr_id == SmInfo::ATTR_ID;
        way == Way::ToManager || !is_set
    });
    // The sweep that finds the other manager finds nodes in another order.
    let first = NodeId(0);
    let is_trunk = |at: &PortId| net.subnet.peer(*at).is_some_and(|far| net.is_switch(far.node));
    let cable = (1..=6).map(|n| PortId::new(first, n)).find(is_trunk).expect("a cable");
    net.subnet.set_cable(net.now, cable, false, &mut net.inbox).expect("a cable");
    let members: Vec<_> = net.ends().into_iter().filter(|end| end.number != 0).collect();
    let other = *members.last().expect("an adapter");
    net.start(other, Config { priority: 5, ..config() });
    while net.managers[0].1.status().sweeping {
        net.pass(Duration::from_millis(100));
    }
    assert_eq!(net.managers[0].1.model().end_ports().count(), net.ends().len());
    net.sets = 0;
    let all = guids(&net, &members);
    net.with(0, |manager, _, _| manager.set_group(MLID, all));
    assert_eq!(net.sets, 0);
    net.kill(1);
    net.pass(Duration::from_secs(60));
    assert_reached(&net, MLID, &members);
}

#[test]
fn a_group_of_an_earlier_manager_is_overwritten_when_its_mlid_is_used_again() {
    let mut net = Net::up("fattree:40", config());
    // A LID after the first block of the tables.
    let mlid = Lid(0xc045);
    let adapters: Vec<_> = net.ends().into_iter().filter(|end| end.number != 0).collect();
    let list = guids(&net, &adapters);
    net.with(0, |manager, _, _| manager.set_group(mlid, list));
    net.kill(0);
    net.start(crate::net::port(30, 1), config());
    net.pass(Duration::from_secs(60));
    let list = guids(&net, &adapters[..2]);
    net.with(1, |manager, _, _| manager.set_group(mlid, list));
    assert_reached(&net, mlid, &adapters[..2]);
}

#[test]
fn members_that_only_send_reach_the_others_and_get_nothing() {
    for shape in ["switch:8", "fattree:40", "torus:3x3x2", "dragonfly:3,1,1"] {
        let mut net = Net::up(shape, config());
        let ends = net.ends();
        let receivers: BTreeSet<PortId> = ends.iter().copied().step_by(4).collect();
        let senders: Vec<PortId> = ends.iter().copied().skip(1).step_by(3).collect();
        let senders: Vec<_> = senders.into_iter().filter(|s| !receivers.contains(s)).collect();
        let all: Vec<PortId> = receivers.iter().chain(&senders).copied().collect();
        let list = guids(&net, &all).into_iter().zip(all.iter().map(|p| receivers.contains(p)));
        let list: Vec<_> = list.collect();
        net.with(0, |manager, _, _| manager.set_group_members(MLID, list.clone()));
        for &from in &all {
            let others: BTreeSet<_> = receivers.iter().copied().filter(|r| *r != from).collect();
            assert_eq!(reached(&net, from, MLID), others, "{shape} from {from}");
        }
        // A single receiver while all others send, from every switch of the tree; then no receiver.
        for &one in &receivers {
            let list: Vec<_> =
                guids(&net, &ends).into_iter().zip(ends.iter().map(|p| *p == one)).collect();
            net.with(0, |manager, _, _| manager.set_group_members(MLID, list));
            for &from in ends.iter().filter(|from| **from != one) {
                assert_eq!(reached(&net, from, MLID), BTreeSet::from([one]), "{shape} from {from}");
            }
        }
        let list: Vec<_> = list.iter().filter(|(_, receives)| !receives).copied().collect();
        net.with(0, |manager, _, _| manager.set_group_members(MLID, list));
        let switches = (0..net.subnet.node_count()).map(|n| NodeId(u32::try_from(n).expect("few")));
        assert!(switches.clone().all(|node| net.subnet.routes(node, MLID).is_empty()), "{shape}");
    }
}

#[test]
fn send_only_member_has_a_route_to_the_tree_and_none_back() {
    let mut net = Net::up("fattree:40", config());
    let adapters: Vec<_> = net.ends().into_iter().filter(|end| end.number != 0).collect();
    let (receiver, sender) = (adapters[0], adapters[39]);
    let [a, b] = [receiver, sender].map(|end| net.subnet.port(end).expect("a port").guid());
    net.with(0, |manager, _, _| manager.set_group_members(MLID, [(a, true), (b, false)]));
    let place = net.subnet.peer(sender).expect("a switch");
    assert_ne!(net.subnet.peer(receiver).expect("a switch").node, place.node);
    let up = net.subnet.routes(place.node, MLID);
    assert_eq!(up.len(), 1, "to the tree, not to the sender");
    let above = net.subnet.peer(PortId::new(place.node, up[0])).expect("a switch");
    assert!(!net.subnet.routes(above.node, MLID).contains(&above.number), "no way back");
    assert_eq!(reached(&net, receiver, MLID), BTreeSet::new());
}

#[test]
fn a_sender_reaches_the_only_receiver_from_any_place_in_the_tree() {
    for shape in ["torus:3x3x1", "dragonfly:3,1,1"] {
        let mut net = Net::up(shape, config());
        let ends = net.ends();
        let guids = guids(&net, &ends);
        for (&sender, &from) in guids.iter().zip(&ends) {
            for (&receiver, &to) in guids.iter().zip(&ends).filter(|(_, to)| **to != from) {
                let members = [(sender, false), (receiver, true)];
                net.with(0, |manager, _, _| manager.set_group_members(MLID, members));
                assert_eq!(reached(&net, from, MLID), BTreeSet::from([to]), "{shape} from {from}");
                assert_eq!(reached(&net, to, MLID), BTreeSet::new(), "{shape} from {to}");
            }
        }
    }
}

#[test]
fn group_recreated_before_its_removal_is_set_needs_no_set_in_the_next_sweep() {
    // A LID after the first block of the tables.
    let mlid = Lid(0xc045);
    let sets_of_a_sweep = |net: &mut Net| {
        net.with(0, |manager, now, _| manager.sweep(now));
        net.settle();
        net.manager().status().last.expect("a sweep").sets
    };
    for reset in [false, true] {
        let mut net = Net::up("torus:3x1x1", config());
        let members: Vec<PortId> = net.ends().into_iter().filter(|end| end.number != 0).collect();
        let list = guids(&net, &members[..1]);
        if reset {
            net.with(0, |manager, _, _| manager.set_group(mlid, list.clone()));
        }
        // The group ends, in the first round before any switch is updated.
        net.with(0, |manager, _, _| manager.set_group(mlid, []));
        if reset {
            let last = NodeId(2);
            net.change(|subnet, now, inbox| subnet.reset_switch(now, last, inbox))
                .expect("a switch");
            net.pass(Duration::from_secs(60));
        }
        net.with(0, |manager, _, _| manager.set_group(mlid, list));
        assert_eq!(sets_of_a_sweep(&mut net), 0, "after a reset: {reset}");
    }
}

/// Checks that a packet from any member reaches all other receiving members and no other port.
fn assert_members(net: &Net, members: &BTreeMap<PortId, bool>, when: &str) {
    for &from in members.keys() {
        let others = members.iter().filter(|(port, receives)| **receives && **port != from);
        let others: BTreeSet<PortId> = others.map(|(port, _)| *port).collect();
        assert_eq!(reached(net, from, MLID), others, "from {from}, {when}");
    }
}

/// Returns the cables between switches.
fn trunks(net: &Net) -> Vec<PortId> {
    let all = net.subnet.ports().map(|view| view.id()).filter(|id| net.is_switch(id.node));
    all.filter(|id| net.subnet.peer(*id).is_some_and(|far| net.is_switch(far.node))).collect()
}

#[test]
fn members_that_join_and_leave_at_random_are_reached_by_the_tree_that_is_computed_at_once() {
    const SHAPES: [&str; 4] = ["fattree:40", "torus:4x4x1", "dragonfly:3,1,1", "torus:3x3x2"];
    for seed in 0..60 {
        let shape = SHAPES[usize::try_from(seed).expect("few") % SHAPES.len()];
        let mut net = Net::up(shape, config());
        let (ends, trunks) = (net.ends(), trunks(&net));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |count: usize| rng.next_u32() as usize % count;
        let mut members: BTreeMap<PortId, bool> = BTreeMap::new();
        let mut broken = None;
        for step in 0..120 {
            let when = format!("seed {seed}, step {step}, {shape}");
            // Some changes are made before the manager runs again.
            let changes: Vec<_> =
                (0..=below(3)).map(|_| (ends[below(ends.len())], below(8))).collect();
            for &(end, what) in &changes {
                let guid = net.subnet.port(end).expect("a port").guid();
                let (_, manager) = &mut net.managers[0];
                let receives = (what > 2).then_some(what > 4);
                manager.set_member(MLID, guid, receives);
                members.remove(&end);
                members.extend(receives.map(|receives| (end, receives)));
            }
            net.settle();
            assert_members(&net, &members, &when);
            if below(3) == 0 {
                // The tree of all members needs no further update.
                let all =
                    members.iter().map(|(end, receives)| (guids(&net, &[*end])[0], *receives));
                let (all, sets) = (all.collect::<Vec<_>>(), net.sets);
                net.with(0, |manager, _, _| manager.set_group_members(MLID, all));
                assert_eq!(net.sets, sets, "{when}");
            }
            if below(20) == 0 {
                let cable = broken.take().unwrap_or_else(|| trunks[below(trunks.len())]);
                let up = net.subnet.is_cable_down(cable);
                net.change(|subnet, now, inbox| subnet.set_cable(now, cable, up, inbox))
                    .expect("a cable");
                broken = (!up).then_some(cable);
                net.pass(Duration::from_secs(60));
                assert_members(&net, &members, &when);
            }
        }
    }
}
