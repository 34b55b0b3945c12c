//! Traps: repressed, told on, and acted on.

use std::time::Duration;

use rdmux_subnet::manager::Event;
use rdmux_subnet::{Fault, NodeId};
use rdmux_wire::Guid;
use rdmux_wire::sm::Trap;

use crate::net::{Net, config, port};

fn traps(net: &Net) -> Vec<u16> {
    let trap = |(_, event): &(usize, Event)| match event {
        Event::Trap(notice) => Some(notice.trap_number),
        _ => None,
    };
    net.out.events.iter().filter_map(trap).collect()
}

#[test]
fn a_trap_is_repressed_and_told_on_once() {
    let mut net = Net::up("switch:4", config());
    net.pass(Duration::from_secs(30));
    net.out.events.clear();
    net.change(|subnet, now, inbox| subnet.fault(now, port(2, 1), Fault::Watchdog, 1, inbox));
    net.pass(Duration::from_secs(30));
    assert_eq!(traps(&net), [131]);
    let Some((_, Event::Trap(notice))) = net.out.events.first() else { panic!("no trap") };
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    assert_eq!(notice.issuer_lid, lid);
    assert!(matches!(notice.trap(), Some(Trap::FlowControlWatchdog(error)) if error.lid == lid));
}

#[test]
fn a_cable_that_comes_is_found_at_once_by_trap_128() {
    let mut net = Net::of("switch:4");
    let cable = port(0, 2);
    net.subnet.set_cable(net.now, cable, false, &mut net.inbox).expect("a cable");
    net.start_first(config());
    net.pass(Duration::from_secs(5));
    net.change(|subnet, now, inbox| subnet.set_cable(now, cable, true, inbox)).expect("a cable");
    net.assert_configured();
    assert_eq!(traps(&net), [128]);
}

#[test]
fn a_new_name_is_read_again_without_a_sweep() {
    let mut net = Net::up("switch:4", config());
    net.pass(Duration::from_secs(30));
    let sweeps = net.managers[0].1.status().sweeps;
    net.change(|subnet, now, inbox| subnet.set_node_description(now, NodeId(2), "new", inbox));
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    let model = net.manager().model();
    let node = model.node(model.by_lid(lid).expect("a port").node).expect("a node");
    assert_eq!(node.description.node_description.as_bytes(), b"new");
    assert_eq!(net.managers[0].1.status().sweeps, sweeps);
}

#[test]
fn a_new_system_guid_is_known_from_the_trap() {
    let mut net = Net::up("switch:4", config());
    net.change(|subnet, now, inbox| subnet.set_system_guid(now, NodeId(3), Guid(0x77), inbox));
    let lid = net.subnet.port(port(3, 1)).expect("a port").lid();
    let model = net.manager().model();
    let node = model.node(model.by_lid(lid).expect("a port").node).expect("a node");
    assert_eq!(node.info.system_image_guid, Guid(0x77));
    assert_eq!(traps(&net), [145]);
}
