//! Client reregistration: which ports are asked, including changes that a manager notices late.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rdmux_subnet::manager::{Config, Event, Manager};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::topology::{LinkRate, Shape};
use rdmux_subnet::{PortEvent, PortId, Subnet, Time, Topology};
use rdmux_wire::Guid;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{NodeInfo, PortInfo, SmInfo, SmState};
use rdmux_wire::smp::Smp;

use crate::net::{Net, Way, config, port};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns how often a port was asked to reregister.
fn asked(net: &Net, port: PortId) -> usize {
    net.inbox.events.iter().filter(|event| **event == (port, PortEvent::ClientReregister)).count()
}

fn is_set(mad: &Mad, attr_id: u16) -> bool {
    let header = Smp::parse(mad).expect("an SMP").header;
    header.method == Method::SET && header.attr_id == attr_id
}

/// Changes the subnet just before the first port gets its LID.
fn before_the_first_set(net: &mut Net, happen: impl Fn(&mut Subnet) + 'static) {
    let done = Cell::new(false);
    net.meddler = Box::new(move |subnet, way, mad| {
        if way == Way::ToSubnet && is_set(mad, PortInfo::ATTR_ID) && !done.replace(true) {
            happen(subnet);
        }
        true
    });
}

/// The second master has another LID than the first, or the same. With the same LID ports do not show that another manager
/// set them.
#[test]
fn client_reregister_is_set_at_all_ports_once_after_a_second_master_yields() {
    for has_same_lid in [false, true] {
        let mut net = Net::up("switch:4", Config { priority: 5, ..config() });
        net.meddler = Box::new(|_, _, mad| {
            Smp::parse(mad).expect("an SMP").header.attr_id != SmInfo::ATTR_ID
        });
        let second = port(2, 1);
        let view = |at| net.subnet.port(at).expect("a port");
        let (first, other) = (view(net.managers[0].0), view(second));
        let lids = [(first.guid(), other.lid()), (other.guid(), first.lid())];
        let lids = lids.into_iter().filter(|_| has_same_lid).collect();
        net.managers.push((second, Manager::new(Config { lids, ..config() }, net.now)));
        net.dead.push(false);
        net.subnet.set_attached(second, true);
        net.subnet.set_is_sm(net.now, second, true, &mut net.inbox);
        net.pass(Duration::from_secs(1));
        assert_eq!((net.state(0), net.state(1)), (SmState::MASTER, SmState::MASTER));
        let managers = [0, 1].map(|index| net.managers[index].1.model());
        let [one, two] = [0, 1]
            .map(|index| managers[index].port(net.managers[index].1.port()).expect("a port").lid());
        assert_eq!(one == two, has_same_lid);
        net.meddler = Box::new(|_, _, _| true);
        net.inbox.events.clear();
        net.pass(MINUTE);
        assert_eq!((net.state(0), net.state(1)), (SmState::MASTER, SmState::STANDBY));
        for end in net.ends() {
            assert!(asked(&net, end) > 0, "{end}, {has_same_lid}");
        }
        net.inbox.events.clear();
        net.pass(MINUTE);
        assert!(net.ends().into_iter().all(|end| asked(&net, end) == 0), "once is enough");
    }
}

#[test]
fn lost_client_reregister_is_set_by_a_later_sweep() {
    let mut net = Net::of("switch:4");
    let lost = Rc::new(Cell::new(true));
    let loses = Rc::clone(&lost);
    net.meddler = Box::new(move |_, way, mad| {
        let is_port_3 = mad[128 + 1] == 3;
        way == Way::ToManager || !loses.get() || !is_port_3 || !is_set(mad, PortInfo::ATTR_ID)
    });
    net.start_first(config());
    net.pass(Duration::from_secs(5));
    assert!(net.manager().is_up());
    assert_eq!(asked(&net, port(3, 1)), 0);
    lost.set(false);
    net.pass(Duration::from_secs(200));
    assert!(asked(&net, port(3, 1)) > 0);
    net.assert_configured();
}

#[test]
fn client_reregister_follows_when_two_ports_had_each_others_lid() {
    let mut net = Net::of("switch:4");
    before_the_first_set(&mut net, |subnet| {
        for end in [port(2, 1), port(3, 1)] {
            subnet.unplug(Time::ZERO, end, &mut ()).expect("a cable");
        }
        for (end, at) in [(port(2, 1), port(0, 3)), (port(3, 1), port(0, 2))] {
            subnet.plug(Time::ZERO, end, at, LinkRate::DEFAULT, &mut ()).expect("free ports");
        }
    });
    net.start_first(config());
    net.pass(MINUTE);
    net.assert_configured();
    for end in [port(2, 1), port(3, 1)] {
        let last = |what| net.inbox.events.iter().rposition(|event| *event == (end, what));
        let (changed, asked) = (last(PortEvent::LidChange), last(PortEvent::ClientReregister));
        assert!(changed.is_some() && asked > changed, "{end}: {changed:?} {asked:?}");
    }
}

#[test]
fn port_gone_is_reported_although_a_better_sm_takes_no_handover() {
    let mut net = Net::up("switch:4", Config { priority: 1, ..config() });
    net.pass(MINUTE);
    net.meddler = Box::new(|_, _, mad| !is_set(mad, SmInfo::ATTR_ID));
    let guid = net.subnet.port(port(3, 1)).expect("a port").guid();
    net.subnet.set_cable(net.now, port(3, 1), false, &mut net.inbox).expect("a cable");
    net.start(port(2, 1), Config { priority: 5, ..config() });
    net.pass(MINUTE);
    assert!(net.out.events.contains(&(0, Event::PortGone(guid))));
}

#[test]
fn link_that_comes_up_while_its_lid_is_set_is_discovered() {
    let mut net = Net::of("two");
    net.subnet.set_cable(Time::ZERO, port(0, 1), false, &mut ()).expect("a cable");
    before_the_first_set(&mut net, |subnet| {
        subnet.set_cable(Time::ZERO, port(0, 1), true, &mut ()).expect("a cable");
    });
    net.start_first(config());
    net.pass(MINUTE);
    net.assert_configured();
}

#[test]
fn replaced_adapter_at_the_sms_own_cable_is_discovered() {
    let text = "Ca 1 \"a\"\n[1] \"b\"[1]\n\nCa 1 \"b\"\n\nCa 1 \"c\"\n";
    let mut net = Net::new(&Topology::parse(text).expect("a file"));
    before_the_first_set(&mut net, |subnet| {
        subnet.unplug(Time::ZERO, port(0, 1), &mut ()).expect("a cable");
        let rate = LinkRate::DEFAULT;
        subnet.plug(Time::ZERO, port(0, 1), port(2, 1), rate, &mut ()).expect("free ports");
    });
    net.start_first(config());
    net.pass(MINUTE);
    net.assert_configured();
}

/// A node claims the identity of another one until that ends. The real one is connected by another cable.
#[test]
fn client_reregister_is_set_again_once_a_node_stops_claiming_anothers_guid() {
    const SWITCHES: &str =
        "Switch 4 \"a\"\n[1] \"b\"[1]\n[2] \"c\"[2]\n\nSwitch 4 \"b\"\n\nSwitch 4 \"c\"\n";
    let adapters: Shape = "switch:4".parse().expect("a shape");
    let cases = [
        (adapters.topology(Guid(0x10_0000)), port(1, 1), port(2, 1)),
        (Topology::parse(SWITCHES).expect("a file"), port(1, 0), port(2, 0)),
    ];
    for (topology, liar, truthful) in cases {
        for is_seen in [true, false] {
            let mut net = Net::new(&topology);
            let port_guid = net.subnet.port(truthful).expect("a port").guid();
            let node_guid = Guid(port_guid.0 - u64::from(truthful.number));
            let lies = Rc::new(Cell::new(true));
            let still = Rc::clone(&lies);
            net.meddler = Box::new(move |_, way, mad| {
                let mut smp = Smp::parse(mad).expect("an SMP");
                let is_answer = way == Way::ToManager && smp.header.attr_id == NodeInfo::ATTR_ID;
                if !still.get() || !is_answer || smp.hop_count() != 1 {
                    return true;
                }
                let info = NodeInfo::parse(&smp.data).expect("NodeInfo");
                if smp.initial_path[1] == 1 {
                    smp.set_attribute(&NodeInfo { node_guid, port_guid, ..info }.into());
                    *mad = smp.to_bytes();
                }
                is_seen || smp.initial_path[1] != 2
            });
            net.start_first(config());
            net.pass(MINUTE);
            assert_eq!((asked(&net, liar), asked(&net, truthful)), (1, 0), "{truthful} {is_seen}");
            lies.set(false);
            net.inbox.events.clear();
            net.with(0, |manager, now, _| manager.sweep(now));
            net.pass(MINUTE);
            net.assert_configured();
            assert_eq!((asked(&net, liar), asked(&net, truthful)), (1, 1), "{truthful} {is_seen}");
        }
    }
}

/// A request for a port reaches another one, because a switch on the route was moved after discovery. Both ports already have
/// the right LIDs, which an earlier manager has assigned.
#[test]
fn client_reregister_is_set_at_a_port_whose_cable_moved_after_discovery() {
    const SWITCHES: &str = "Switch 4 \"m\"\n[1] \"s\"[1]\n[2] \"t\"[1]\n\nSwitch 4 \"s\"\n[2] \"a\"[1]\n\n\
        Switch 4 \"t\"\n[2] \"b\"[1]\n\nCa 1 \"a\"\n\nCa 1 \"b\"\n";
    let mut net = Net::new(&Topology::parse(SWITCHES).expect("a file"));
    net.start_first(config());
    net.pass(MINUTE);
    net.kill(0);
    let (now, rate) = (net.now, LinkRate::DEFAULT);
    before_the_first_set(&mut net, move |subnet| {
        subnet.unplug(now, port(0, 1), &mut ()).expect("a cable");
        for (end, at) in [(port(0, 1), port(2, 3)), (port(1, 1), port(2, 4))] {
            subnet.plug(now, end, at, rate, &mut ()).expect("free ports");
        }
    });
    net.inbox.events.clear();
    net.start(port(0, 0), config());
    net.pass(MINUTE);
    net.assert_configured();
    assert!(asked(&net, port(3, 1)) > 0);
}
