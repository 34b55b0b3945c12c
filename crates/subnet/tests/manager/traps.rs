//! Traps: repressed, reported, and acted on.

use std::time::Duration;

use rdmux_subnet::manager::{Config, Event};
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{Fault, NodeId, PortId};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{
    BadMkey, LinkError, LinkStateChange, LocalChange, LocalChangeFlags, NodeInfo, Notice,
    PortState, Producer, SystemImageGuidChange, Trap,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use crate::net::{Net, Way, config, port};

fn traps(net: &Net) -> Vec<u16> {
    let trap = |(_, event): &(usize, Event)| match event {
        Event::Trap(notice) => Some(notice.trap_number),
        _ => None,
    };
    net.out.events.iter().filter_map(trap).collect()
}

#[test]
fn trap_is_repressed_and_forwarded_once() {
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
fn node_description_trap_rereads_the_name_without_a_sweep() {
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

#[test]
fn a_port_tells_the_system_guid_of_its_own_node_only() {
    let mut net = Net::up("switch:4", config());
    let lid = |net: &Net, at| net.subnet.port(at).expect("a port").lid();
    let [switch, victim, liar] = [port(0, 0), port(2, 1), port(3, 1)].map(|at| lid(&net, at));
    let tell = |net: &mut Net, from: Lid, about: Lid| {
        let change = SystemImageGuidChange {
            lid: about,
            system_image_guid: Guid(0x77),
            ..SystemImageGuidChange::default()
        };
        let notice = Notice::new(&Trap::SystemImageGuid(change), Producer::CA, about);
        let mut smp = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
        smp.set_attribute(&notice.into());
        let from = UserAddress::smi(from);
        net.with(0, |manager, now, out| manager.handle_mad(now, &from, &smp.to_bytes(), out));
        let model = net.manager().model();
        let node = model.node(model.by_lid(about).expect("a port").node).expect("a node");
        node.info.system_image_guid == Guid(0x77)
    };
    let nobody = Lid(0xbfff);
    for from in [liar, switch, nobody] {
        assert!(!tell(&mut net, from, victim), "{from}");
    }
    assert!(!tell(&mut net, liar, switch));
    for own in [victim, switch] {
        assert!(tell(&mut net, own, own), "{own}");
    }
}

#[test]
fn traps_about_other_nodes_or_with_numbers_64_to_67_are_ignored() {
    let mut net = Net::up("switch:4", config());
    net.pass(Duration::from_secs(30));
    let lid = |net: &Net, at| net.subnet.port(at).expect("a port").lid();
    let [switch, victim, liar] = [port(0, 0), port(2, 1), port(3, 1)].map(|at| lid(&net, at));
    let tell = |net: &mut Net, from: Lid, notice: Notice| {
        net.out.events.clear();
        let mut smp = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
        smp.set_attribute(&notice.into());
        let from = UserAddress::smi(from);
        net.with(0, |manager, now, out| manager.handle_mad(now, &from, &smp.to_bytes(), out));
        traps(net)
    };
    let mkey =
        |of| Notice::new(&Trap::Mkey(BadMkey { lid: of, ..BadMkey::default() }), Producer::CA, of);
    let nobody = Lid(0xbfff);
    for (from, of) in [(liar, victim), (liar, switch), (switch, victim), (nobody, victim)] {
        assert_eq!(tell(&mut net, from, mkey(of)), [0; 0], "{from} of {of}");
    }
    assert_eq!(tell(&mut net, nobody, mkey(nobody)), [0; 0]);
    for own in [victim, switch] {
        assert_eq!(tell(&mut net, own, mkey(own)), [256]);
    }
    for number in 64..=67 {
        let notice = Notice { trap_number: number, ..mkey(liar) };
        assert_eq!(tell(&mut net, liar, notice), [0; 0], "{number}");
        // A vendor-specific notice of this number has another meaning.
        assert_eq!(tell(&mut net, liar, Notice { is_generic: false, ..notice }), [number]);
    }
}

/// Injects faults at a port, far enough apart that each raises a trap of its own.
fn babble(net: &mut Net, at: PortId, times: u32) {
    for _ in 0..times {
        net.change(|subnet, now, inbox| subnet.fault(now, at, Fault::Watchdog, 1, inbox));
        net.pass(Duration::from_millis(1500));
    }
}

#[test]
fn repeated_traps_are_forwarded_nine_times_and_again_after_a_quiet_minute() {
    let mut net = Net::up("switch:4", config());
    net.pass(Duration::from_secs(30));
    net.out.events.clear();
    babble(&mut net, port(2, 1), 300);
    assert_eq!(traps(&net), [131; 9]);
    babble(&mut net, port(3, 1), 1);
    assert_eq!(traps(&net), [131; 10], "another port is heard");
    net.pass(Duration::from_secs(50));
    babble(&mut net, port(2, 1), 1);
    assert_eq!(traps(&net), [131; 10]);
    net.pass(Duration::from_secs(61));
    babble(&mut net, port(2, 1), 1);
    assert_eq!(traps(&net), [131; 11]);
    net.assert_configured();
}

#[test]
fn port_with_250_traps_is_disabled_by_the_babbling_port_policy() {
    for at in [port(2, 1), port(0, 3)] {
        let mut net = Net::up("switch:4", Config { disable_babbling: true, ..config() });
        net.pass(Duration::from_secs(30));
        let switch = if at.number == 1 { net.subnet.peer(at).expect("a cable") } else { at };
        babble(&mut net, at, 249);
        assert_eq!(net.subnet.port(at).expect("a port").state(), PortState::ACTIVE);
        babble(&mut net, at, 1);
        assert_eq!(net.subnet.port(switch).expect("a port").state(), PortState::DOWN);
        let node = net.manager().model().nodes()[0].info.node_guid;
        let disabled = Event::PortDisabled { node, port: switch.number };
        assert_eq!(net.out.events.iter().filter(|(_, event)| *event == disabled).count(), 1);
        net.pass(Duration::from_secs(60));
        assert_eq!(net.manager().model().end_ports().count(), 4, "the port and the adapter");
        assert_eq!(net.managers[0].1.status().last.expect("a sweep").problem_count, 0);
    }
}

#[test]
fn forged_traps_of_another_port_neither_suppress_nor_disable_it() {
    let mut net = Net::up("switch:4", Config { disable_babbling: true, ..config() });
    net.pass(Duration::from_secs(30));
    let [victim, liar] = [2, 3].map(|node| net.subnet.port(port(node, 1)).expect("a port").lid());
    net.out.events.clear();
    let tell = |net: &mut Net, issuer: Lid, about: u8, times: u32| {
        let error = LinkError { lid: issuer, port: about, ..LinkError::default() };
        let notice = Notice::new(&Trap::LinkIntegrity(error), Producer::CA, issuer);
        let mut smp = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
        smp.set_attribute(&notice.into());
        for _ in 0..times {
            let from = UserAddress::smi(liar);
            net.with(0, |manager, now, out| manager.handle_mad(now, &from, &smp.to_bytes(), out));
        }
    };
    tell(&mut net, victim, 1, 1000);
    assert_eq!(traps(&net), [0; 0]);
    // A node may report anything about any of its own ports.
    for about in 0..=u8::MAX {
        tell(&mut net, liar, about, 10);
    }
    assert_eq!(traps(&net), [129; 9]);
    let state = |net: &Net, number| net.subnet.port(port(0, number)).expect("a port").state();
    assert_eq!(
        [2, 3, 4].map(|number| state(&net, number) == PortState::ACTIVE),
        [true, false, true]
    );
    net.change(|subnet, now, inbox| subnet.fault(now, port(2, 1), Fault::Watchdog, 1, inbox));
    assert_eq!(traps(&net).last(), Some(&131));
}

/// Delays each sweep by the timeout of its first request.
fn slow_down(net: &mut Net) {
    let mut is_first = true;
    net.meddler = Box::new(move |_, way, mad| {
        let smp = Smp::parse(&mad[..]).expect("an SMP");
        let begins = smp.is_directed() && smp.hop_count() == 0;
        if way == Way::ToManager || !begins || smp.header.attr_id != NodeInfo::ATTR_ID {
            return true;
        }
        is_first = !is_first;
        is_first
    });
}

#[test]
fn sweeps_for_a_node_with_endless_traps_are_throttled_and_others_are_not() {
    let mut net = Net::up("switch:4", config());
    net.pass(Duration::from_secs(30));
    slow_down(&mut net);
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    let changes = [
        Trap::LinkState(LinkStateChange { lid, ..LinkStateChange::default() }),
        Trap::Local(LocalChange { lid, ..LocalChange::default() }),
        // A new node description in the middle of a discovery.
        Trap::Local(LocalChange {
            lid,
            other_local_changes: true,
            change_flags: LocalChangeFlags::NODE_DESCRIPTION,
            ..LocalChange::default()
        }),
    ];
    for (index, trap) in changes.into_iter().enumerate() {
        net.pass(Duration::from_secs(120));
        let mut smp = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
        smp.set_attribute(&Notice::new(&trap, Producer::CA, lid).into());
        let tell = |net: &mut Net, times: u32| {
            for _ in 0..times {
                let from = UserAddress::smi(lid);
                let mad = smp.to_bytes();
                net.with(0, |manager, now, out| manager.handle_mad(now, &from, &mad, out));
                net.pass(Duration::from_millis(10));
            }
        };
        net.with(0, |manager, now, _| manager.sweep(now));
        let sweeps = |net: &Net| net.managers[0].1.status().sweeps;
        let before = sweeps(&net);
        tell(&mut net, 12_000);
        let count = sweeps(&net) - before;
        assert!((20..60).contains(&count), "kind {index}: {count} in two minutes");
        // A change of another node is found while this one, which has just had a sweep, waits for the next.
        let last = sweeps(&net);
        while sweeps(&net) == last {
            tell(&mut net, 1);
        }
        net.change(|s, now, inbox| s.set_cable(now, port(0, 4), false, inbox)).expect("a cable");
        net.change(|s, now, inbox| s.set_cable(now, port(0, 4), true, inbox)).expect("a cable");
        tell(&mut net, 100);
        let state = net.subnet.port(port(0, 4)).expect("a port").state();
        assert_eq!(state, PortState::ACTIVE, "kind {index}");
    }
}
