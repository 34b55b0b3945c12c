//! Cables, switches and adapters that appear, disappear and change places.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use rdmux_subnet::manager::Event;
use rdmux_subnet::topology::LinkRate;
use rdmux_subnet::{NodeId, PortId, Subnet, Time};
use rdmux_wire::Lid;
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::{LinearForwardingTable, PortState};

use crate::net::{Net, Way, config, port};

/// Long enough for a manager to handle any change on its own.
const QUIET: Duration = Duration::from_secs(60);

#[test]
fn adapter_that_is_unplugged_and_plugged_elsewhere_keeps_its_lid() {
    let mut net = Net::up("fattree:40", config());
    net.pass(QUIET);
    let adapter = net.ends().into_iter().rfind(|end| end.number != 0).expect("one");
    let lid = net.subnet.port(adapter).expect("a port").lid();
    let guid = net.subnet.port(adapter).expect("a port").guid();
    net.out.events.clear();
    let place =
        net.change(|subnet, now, inbox| subnet.unplug(now, adapter, inbox)).expect("a cable");
    net.pass(QUIET);
    assert!(net.out.events.contains(&(0, Event::PortGone(guid))));
    assert_eq!(net.manager().model().by_port_guid(guid), None);
    let free =
        (1..=36).map(|n| PortId::new(place.node, n)).rfind(|p| net.subnet.peer(*p).is_none());
    let free = free.expect("a free port");
    assert_ne!(free, place);
    net.change(|subnet, now, inbox| {
        subnet.plug(now, adapter, free, LinkRate::DEFAULT, inbox).expect("a free port");
    });
    net.pass(QUIET);
    assert!(net.out.events.contains(&(0, Event::PortAppeared(guid))));
    assert_eq!(net.subnet.port(adapter).expect("a port").lid(), lid);
    net.assert_configured();
    net.assert_routed();
}

#[test]
fn reset_switch_gets_its_configuration_and_forwarding_table_again() {
    let mut net = Net::up("fattree:40", config());
    net.pass(QUIET);
    let switch = NodeId(2);
    let before = net.subnet.linear_table(switch);
    net.change(|subnet, now, inbox| subnet.reset_switch(now, switch, inbox)).expect("a switch");
    net.pass(QUIET);
    assert_eq!(net.subnet.linear_table(switch), before);
    net.assert_configured();
    net.assert_routed();
}

#[test]
fn reset_of_the_sms_own_switch_is_repaired() {
    let mut net = Net::up("torus:3x3x1", config());
    net.pass(QUIET);
    net.change(|subnet, now, inbox| subnet.reset_switch(now, NodeId(0), inbox)).expect("a switch");
    net.pass(QUIET);
    net.assert_configured();
    net.assert_routed();
}

#[test]
fn cables_that_change_places_at_any_moment_of_a_sweep_are_found() {
    for moment in 0.. {
        let mut net = Net::of("torus:3x1x1");
        let (a, b) = (net_adapter(&net, 0), net_adapter(&net, 1));
        let (mut count, told) = (0, std::rc::Rc::new(std::cell::Cell::new(false)));
        let swapped = std::rc::Rc::clone(&told);
        net.meddler = Box::new(move |subnet, _, _| {
            count += 1;
            if count == moment + 1 {
                let now = rdmux_subnet::Time::ZERO;
                let far = [a, b].map(|end| subnet.unplug(now, end, &mut ()).expect("a cable"));
                for (end, far) in [(a, far[1]), (b, far[0])] {
                    subnet.plug(now, end, far, LinkRate::DEFAULT, &mut ()).expect("free");
                }
                swapped.set(true);
            }
            true
        });
        net.start_first(config());
        net.pass(Duration::from_secs(300));
        if !told.get() {
            assert!(moment > 100, "a sweep has more datagrams");
            break;
        }
        net.assert_configured();
        net.assert_routed();
    }
}

/// Returns two cables between switches, with four switches at their ends.
fn two_cables(net: &Net) -> [PortId; 2] {
    let far = |id: &PortId| net.subnet.peer(*id).filter(|far| net.is_switch(far.node));
    let all = net.subnet.ports().map(|view| view.id()).filter(|id| net.is_switch(id.node));
    let cables: Vec<(PortId, PortId)> = all.filter_map(|id| Some((id, far(&id)?))).collect();
    let apart = |a: &(PortId, PortId), b: &(PortId, PortId)| {
        BTreeSet::from([a.0.node, a.1.node, b.0.node, b.1.node]).len() == 4
    };
    let pair = cables.iter().find_map(|a| Some([a.0, cables.iter().find(|b| apart(a, b))?.0]));
    pair.expect("two cables that have no switch in common")
}

/// Swaps the far ends of two ports' cables.
fn swap(subnet: &mut Subnet, [a, b]: [PortId; 2]) {
    let far = [a, b].map(|end| subnet.unplug(Time::ZERO, end, &mut ()).expect("a cable"));
    for (end, far) in [(a, far[1]), (b, far[0])] {
        subnet.plug(Time::ZERO, end, far, LinkRate::DEFAULT, &mut ()).expect("free");
    }
}

#[test]
fn tables_missent_during_a_brief_cable_swap_are_set_again() {
    for (shape, step, length) in
        [("torus:4x1x1", 5, 2), ("torus:4x1x1", 5, 12), ("fattree:40", 21, 40)]
    {
        let ended = (0..).step_by(step).find(|&moment| !survives_swap(shape, moment, length));
        assert!(ended > Some(100), "a sweep has more datagrams");
    }
}

/// Swaps cables at a moment of a first sweep, and back again. Returns false if the sweeps ended before.
fn survives_swap(shape: &str, moment: usize, length: usize) -> bool {
    let mut net = Net::of(shape);
    let cables = two_cables(&net);
    let (mut count, done) = (0, Rc::new(Cell::new(0)));
    let swaps = Rc::clone(&done);
    net.meddler = Box::new(move |subnet, _, _| {
        count += 1;
        if count == moment + 1 || count == moment + 1 + length {
            swap(subnet, cables);
            swaps.set(swaps.get() + 1);
        }
        true
    });
    net.start_first(config());
    net.pass(Duration::from_secs(300));
    net.assert_configured();
    net.assert_routed();
    done.get() > 0
}

/// Counts the Sets of forwarding tables from now on.
fn count_tables(net: &mut Net) -> Rc<Cell<usize>> {
    let count = Rc::new(Cell::new(0));
    let sets = Rc::clone(&count);
    net.meddler = Box::new(move |_, way, mad| {
        let is_set = MadHeader::parse(&mad[..]).is_ok_and(|header| {
            header.method == Method::SET && header.attr_id == LinearForwardingTable::ATTR_ID
        });
        sets.set(sets.get() + usize::from(way == Way::ToSubnet && is_set));
        true
    });
    count
}

/// Takes a cable down and up again at once.
fn flap(net: &mut Net, cable: PortId) {
    net.change(|subnet, now, inbox| {
        subnet.set_cable(now, cable, false, inbox).expect("a cable");
        subnet.set_cable(now, cable, true, inbox).expect("a cable");
    });
}

#[test]
fn flapping_link_without_missent_tables_causes_no_table_sets() {
    let mut net = Net::up("fattree:40", config());
    let [cable, _] = two_cables(&net);
    let adapter = net.ends().into_iter().rfind(|end| end.number != 0).expect("one");
    let sets = count_tables(&mut net);
    flap(&mut net, adapter);
    net.pass(Duration::from_secs(1));
    assert_eq!(sets.get(), 0, "no route leads through an adapter");
    // A light sweep has queried the adapter's switch since the tables were set, so that later changes cannot affect them.
    net.pass(QUIET);
    flap(&mut net, cable);
    net.pass(QUIET);
    assert_eq!(sets.get(), 0, "a light sweep has found nothing in between");
    net.assert_configured();
}

#[test]
fn a_switch_that_is_reset_at_any_moment_of_a_sweep_gets_everything_again() {
    for (moment, twice) in (0..).step_by(2).flat_map(|moment| [(moment, false), (moment, true)]) {
        let mut net = Net::up("fattree:40", config());
        net.pass(QUIET);
        let (before, start) = (net.subnet.linear_table(NodeId(2)), net.now);
        let (mut count, done) = (0, Rc::new(Cell::new(false)));
        let reset = Rc::clone(&done);
        net.meddler = Box::new(move |subnet, _, _| {
            count += 1;
            if count == moment + 1 {
                subnet.reset_switch(start, NodeId(2), &mut ()).expect("a switch");
                reset.set(true);
            }
            true
        });
        if twice {
            net.change(|subnet, now, inbox| subnet.reset_switch(now, NodeId(2), inbox))
                .expect("a switch");
        } else {
            net.with(0, |manager, now, _| manager.sweep(now));
        }
        net.pass(QUIET);
        assert_eq!(net.subnet.linear_table(NodeId(2)), before, "moment {moment}, twice: {twice}");
        net.assert_configured();
        net.assert_routed();
        if !done.get() {
            assert!(moment > 100, "a sweep has more datagrams");
            break;
        }
    }
}

fn net_adapter(net: &Net, index: usize) -> PortId {
    let ports = net.subnet.ports().map(|view| view.id());
    ports.filter(|id| id.number == 1 && !net.is_switch(id.node)).nth(index).expect("an adapter")
}

#[test]
fn routes_avoid_a_failed_cable_and_return_when_it_is_restored() {
    let mut net = Net::up("torus:4x4x1", config());
    net.pass(QUIET);
    let cable = port(5, 1);
    assert!(net.is_switch(net.subnet.peer(cable).expect("a cable").node));
    net.change(|subnet, now, inbox| subnet.set_cable(now, cable, false, inbox)).expect("a cable");
    net.pass(QUIET);
    net.assert_configured();
    net.assert_routed();
    net.change(|subnet, now, inbox| subnet.set_cable(now, cable, true, inbox)).expect("a cable");
    net.pass(QUIET);
    assert_eq!(net.subnet.port(cable).expect("a port").state(), PortState::ACTIVE);
    net.assert_configured();
    net.assert_routed();
}

#[test]
fn the_managers_own_cable_without_a_switch_is_noticed_by_a_light_sweep() {
    let mut net = Net::up("two", config());
    net.pass(QUIET);
    for up in [false, true] {
        let cable = port(0, 1);
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, up, inbox)).expect("a cable");
        net.pass(QUIET);
        net.assert_configured();
    }
    assert_eq!(net.manager().model().nodes().len(), 2);
}

#[test]
fn partitioned_part_of_the_subnet_rejoins_with_its_lids() {
    let mut net = Net::up("torus:3x1x1", config());
    net.pass(QUIET);
    // Switch 2 loses both cables to the other switches.
    let cut: Vec<_> =
        (1..=6).map(|n| port(2, n)).filter(|p| net.subnet.peer(*p).is_some()).collect();
    for &cable in &cut {
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, false, inbox))
            .expect("a cable");
    }
    net.pass(QUIET);
    let lids: Vec<Lid> =
        net.ends().iter().map(|e| net.subnet.port(*e).expect("a port").lid()).collect();
    assert_eq!(net.manager().model().nodes().len(), 4);
    for &cable in &cut {
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, true, inbox))
            .expect("a cable");
    }
    net.pass(QUIET);
    let again: Vec<Lid> =
        net.ends().iter().map(|e| net.subnet.port(*e).expect("a port").lid()).collect();
    assert_eq!(again, lids, "all have the LIDs that they had");
    net.assert_configured();
    net.assert_routed();
}
