//! Virtual lanes of service levels, if that option is on.

use std::time::Duration;

use rdmux_subnet::manager::Config;
use rdmux_subnet::topology::LinkRate;
use rdmux_subnet::{NodeId, PortId};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{SlToVlTable, Vl, VlArbitration};
use rdmux_wire::smp::Smp;

use crate::net::{Net, config, port};

const QUIET: Duration = Duration::from_secs(60);

/// Returns a mapping other than that after power-on: the next lane, and the last service level is dropped.
fn mapping() -> SlToVlTable {
    let mut vls = [Vl(0); 16];
    vls.iter_mut().zip(1..).for_each(|(vl, next)| *vl = Vl(next));
    SlToVlTable { vls }
}

fn up(shape: &str) -> Net {
    let mut net = Net::up(shape, Config { sl_to_vl: Some(mapping()), ..config() });
    net.pass(QUIET);
    net
}

/// Returns the table of a port, by a directed route from the manager at port 0 of node 0.
fn table(net: &mut Net, route: &[u8], modifier: u32) -> SlToVlTable {
    let smp = Smp::directed(Method::GET, SlToVlTable::ATTR_ID, modifier, route);
    let answer = net.ask(port(0, 0), smp).expect("an answer");
    assert_eq!(answer.status(), 0);
    SlToVlTable::parse(&answer.data[..]).expect("a table")
}

fn wanted(net: &Net, at: PortId) -> SlToVlTable {
    let lanes = net.subnet.port(at).expect("a port").info().operational_vls.count();
    assert!(lanes > 1);
    let lane = |vl: Vl| if vl.0 == 15 { vl } else { Vl(vl.0 % lanes) };
    SlToVlTable { vls: mapping().vls.map(lane) }
}

fn assert_mapped(net: &mut Net) {
    for number in 1..=3 {
        let expected = wanted(net, port(0, number));
        for input in (0..=3).filter(|input| *input != number) {
            let modifier = u32::from(input) << 8 | u32::from(number);
            assert_eq!(table(net, &[], modifier), expected, "{input} to {number}");
        }
        let end = port(number.into(), 1);
        let expected = wanted(net, end);
        assert_eq!(table(net, &[number], 0), expected, "{end}");
    }
}

#[test]
fn lanes_are_set_at_all_ports_and_unchanged_ones_are_left_alone() {
    let mut net = up("switch:3");
    assert_mapped(&mut net);
    net.sets = 0;
    net.with(0, |manager, now, _| manager.sweep(now));
    net.pass(QUIET);
    assert_eq!(net.sets, 0);
}

#[test]
fn without_the_option_tables_are_neither_set_nor_read() {
    let mut net = Net::up("switch:3", config());
    assert_eq!(table(&mut net, &[1], 0).vls[1], Vl(1), "as after power-on");
    let nodes = net.manager().model().nodes();
    let ports = || nodes.iter().flat_map(|node| &node.ports);
    assert!(ports().all(|port| port.sl_to_vl.is_empty() && port.vl_arbitration.is_empty()));
}

#[test]
fn lanes_are_set_again_after_a_reset() {
    let mut net = up("switch:3");
    net.change(|subnet, now, inbox| subnet.reset_switch(now, NodeId(0), inbox)).expect("a switch");
    net.pass(QUIET);
    assert_mapped(&mut net);
    // An adapter whose link was down may have lost its tables.
    let end = port(2, 1);
    let place = net.change(|s, now, inbox| s.unplug(now, end, inbox)).expect("a cable");
    net.change(|s, now, inbox| {
        s.plug(now, end, place, LinkRate::DEFAULT, inbox).expect("a free port");
    });
    let mut smp = Smp::directed(Method::SET, SlToVlTable::ATTR_ID, 0, &[2]);
    smp.set_attribute(&SlToVlTable { vls: [Vl(0); 16] }.into());
    // The change goes unnoticed while the link stays up.
    net.pass(QUIET);
    net.ask(port(0, 0), smp).expect("an answer");
    net.change(|s, now, inbox| s.set_cable(now, end, false, inbox)).expect("a cable");
    net.change(|s, now, inbox| s.set_cable(now, end, true, inbox)).expect("a cable");
    net.pass(QUIET);
    assert_mapped(&mut net);
}

#[test]
fn opensms_mapping_takes_lane_7_for_service_level_15() {
    let config = Config { sl_to_vl: Some(Config::SL_TO_VL), ..config() };
    let mut net = Net::up("switch:3", config);
    let lanes = net.subnet.port(port(1, 1)).expect("a port").info().operational_vls.count();
    let found = table(&mut net, &[1], 0);
    let expected = std::array::from_fn(|sl| match u8::try_from(sl).expect("16") {
        15 => Vl(7 % lanes),
        sl => Vl(sl % lanes),
    });
    assert_eq!(found.vls, expected);
}

#[test]
fn arbitration_of_lanes_is_read() {
    let mut net = Net::of("switch:3");
    let mut block = VlArbitration::default();
    block.entries[0].weight = 77;
    for (route, modifier) in [(&[][..], 2), (&[1], 0)] {
        let modifier = 1 << 16 | modifier;
        let mut smp = Smp::directed(Method::SET, VlArbitration::ATTR_ID, modifier, route);
        smp.set_attribute(&block.into());
        assert_eq!(net.ask(port(0, 0), smp).expect("an answer").status(), 0);
    }
    net.start_first(Config { sl_to_vl: Some(mapping()), ..config() });
    let model = net.manager().model();
    for (node, number) in [(0, 2), (1, 1)] {
        let guid = model.nodes()[0].ports[0].guid;
        let index = model.nodes().iter().position(|n| n.is_switch() == (node == 0));
        assert_ne!(guid.0, 0);
        let node = &model.nodes()[index.expect("a node")];
        let known = &node.ports[usize::from(u8::try_from(number).expect("small"))].vl_arbitration;
        assert_eq!((known.len(), known[0]), (4, block));
    }
}
