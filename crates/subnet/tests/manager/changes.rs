//! Cables, switches and adapters that come, go and change places.

use std::time::Duration;

use rdmux_subnet::manager::Event;
use rdmux_subnet::topology::LinkRate;
use rdmux_subnet::{NodeId, PortId};
use rdmux_wire::Lid;
use rdmux_wire::sm::PortState;

use crate::net::{Net, config, port};

/// Long enough for everything that a manager does by itself after a change.
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
fn switch_that_is_reset_gets_everything_again() {
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
fn the_managers_own_switch_is_reset() {
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

fn net_adapter(net: &Net, index: usize) -> PortId {
    let ports = net.subnet.ports().map(|view| view.id());
    ports.filter(|id| id.number == 1 && !net.is_switch(id.node)).nth(index).expect("an adapter")
}

#[test]
fn a_cable_that_fails_takes_its_routes_along_and_brings_them_back() {
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
fn a_part_that_is_cut_off_is_managed_again_when_it_comes_back() {
    let mut net = Net::up("torus:3x1x1", config());
    net.pass(QUIET);
    // Switch 2 loses both cables to the others.
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
