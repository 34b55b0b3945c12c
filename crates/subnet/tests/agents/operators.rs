//! Operators' commands: cables, and switch resets. Case 20.

use rdmux_subnet::topology::{LinkRate, Node, NodeKind};
use rdmux_subnet::{NodeId, OperateError};
use rdmux_wire::sm::{
    Attribute, LinearForwardingTable, NodeInfo, PhysState, PortState, SwitchInfo,
};
use rdmux_wire::{Guid, Lid};

use crate::manager::Manager;
use crate::net::{Net, get, port};

#[test]
fn unplugged_ports_poll_and_plugged_ones_train() {
    let mut net = Net::of("switch:2");
    let far = net.subnet.unplug(net.now, port(0, 2), &mut net.inbox);
    assert_eq!(far, Ok(port(2, 1)));
    for end in [port(0, 2), port(2, 1)] {
        let view = net.subnet.port(end).expect("a port");
        assert_eq!((view.state(), view.phys_state()), (PortState::DOWN, PhysState::POLLING));
        assert_eq!((view.rate(), net.subnet.peer(end)), (None, None));
    }
    let rate: LinkRate = "1xSDR".parse().expect("a rate");
    net.subnet.plug(net.now, port(2, 1), port(0, 2), rate, &mut net.inbox).expect("free ports");
    let view = net.subnet.port(port(0, 2)).expect("a port");
    assert_eq!((view.state(), view.rate()), (PortState::INIT, Some(rate)));
    assert_eq!(net.subnet.topology().links().last().map(|(.., rate)| rate), Some(rate));
}

#[test]
fn an_adapter_without_a_cable_is_replaced_by_another_with_as_many_ports() {
    let mut net = Net::of("switch:2");
    let new = |ports| Node::new(NodeKind::Ca, "new".to_owned(), Guid(0x7000), ports);
    assert!(!net.subnet.replace(NodeId(2), &new(1)), "it has a cable");
    net.subnet.unplug(net.now, port(0, 2), &mut net.inbox).expect("a cable");
    for (node, ports) in [(0, 1), (2, 2), (9, 1)] {
        assert!(!net.subnet.replace(NodeId(node), &new(ports)));
    }
    assert!(net.subnet.replace(NodeId(2), &new(1)));
    let view = net.subnet.port(port(2, 1)).expect("a port");
    assert_eq!((view.guid(), view.lid()), (Guid(0x7001), Lid(0)));
    let topology = net.subnet.topology();
    let ids: Vec<_> = topology.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!((ids.len(), ids[2], topology.nodes[2].guid), (3, "new", Guid(0x7000)));
    let rate = LinkRate::DEFAULT;
    net.subnet.plug(net.now, port(2, 1), port(0, 2), rate, &mut net.inbox).expect("free ports");
    let asked = get(NodeInfo::ATTR_ID, 0);
    let found = net.dr(port(1, 1), &[1, 2], &asked).expect("an answer");
    let Some(Attribute::NodeInfo(info)) = found.attribute() else { panic!("{found:?}") };
    assert_eq!((info.node_guid, info.port_guid), (Guid(0x7000), Guid(0x7001)));
}

#[test]
fn impossible_plug_unplug_and_reset_commands_are_errors() {
    let mut net = Net::of("switch:3");
    let rate = LinkRate::DEFAULT;
    let inbox = &mut net.inbox;
    let subnet = &mut net.subnet;
    let plug = subnet.plug(net.now, port(0, 1), port(0, 2), rate, inbox);
    assert_eq!(plug, Err(OperateError::Taken(port(0, 1), port(1, 1))));
    assert_eq!(
        plug.expect_err("taken").to_string(),
        "node 0 port 1 has a cable to node 1 port 1 already: unplug it first"
    );
    for wrong in [port(0, 0), port(0, 4), port(1, 0), port(9, 1)] {
        assert_eq!(
            subnet.plug(net.now, wrong, port(0, 1), rate, inbox),
            Err(OperateError::NoPort(wrong))
        );
        assert_eq!(subnet.unplug(net.now, wrong, inbox), Err(OperateError::NoPort(wrong)));
        assert_eq!(subnet.set_cable(net.now, wrong, true, inbox), Err(OperateError::NoPort(wrong)));
    }
    subnet.unplug(net.now, port(0, 1), inbox).expect("a cable");
    assert_eq!(subnet.unplug(net.now, port(0, 1), inbox), Err(OperateError::NoCable(port(0, 1))));
    assert_eq!(
        subnet.plug(net.now, port(0, 1), port(0, 1), rate, inbox),
        Err(OperateError::Itself(port(0, 1)))
    );
    assert_eq!(
        subnet.reset_switch(net.now, NodeId(1), inbox),
        Err(OperateError::NoSwitch(NodeId(1)))
    );
    assert_eq!(
        subnet.reset_switch(net.now, NodeId(9), inbox),
        Err(OperateError::NoSwitch(NodeId(9)))
    );
}

#[test]
fn a_disabled_port_does_not_train_with_a_new_cable() {
    let mut net = Net::of("switch:2");
    net.change(port(1, 1), &[1], 2, |info| {
        info.port_state = PortState::DOWN;
        info.port_physical_state = PhysState::DISABLED;
    });
    net.subnet.unplug(net.now, port(0, 2), &mut net.inbox).expect("a cable");
    net.subnet
        .plug(net.now, port(0, 2), port(2, 1), LinkRate::DEFAULT, &mut net.inbox)
        .expect("free");
    assert_eq!(net.state(port(2, 1)), PortState::DOWN);
    assert_eq!(net.subnet.port(port(0, 2)).expect("a port").phys_state(), PhysState::DISABLED);
}

#[test]
fn a_reset_switch_forgets_its_tables_and_says_so() {
    let mut net = Net::of("switch:2");
    Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    net.subnet.reset_switch(net.now, NodeId(0), &mut net.inbox).expect("a switch");
    let Attribute::SwitchInfo(info) = net.get(port(1, 1), &[1], SwitchInfo::ATTR_ID, 0) else {
        panic!()
    };
    assert!(info.port_state_change);
    assert_eq!(info.linear_fdb_top, Lid(0));
    let lft = net.get(port(1, 1), &[1], LinearForwardingTable::ATTR_ID, 0);
    assert_eq!(lft, LinearForwardingTable { ports: [255; 64] }.into());
    assert_eq!(net.subnet.port(port(0, 0)).expect("a port").lid(), Lid(0));
    for end in [port(0, 1), port(0, 2), port(1, 1), port(2, 1)] {
        assert_eq!(net.state(end), PortState::INIT);
    }
    // Adapters were not reset.
    assert_eq!(net.subnet.port(port(1, 1)).expect("a port").lid(), Lid(1));
    let lids = Manager::bring_up(&mut net, port(1, 1)).expect("a subnet again");
    assert_eq!(lids.len(), 3);
}
