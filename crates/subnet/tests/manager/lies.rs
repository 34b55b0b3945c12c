//! Nodes that give false answers affect only themselves.

use std::time::Duration;

use rdmux_subnet::manager::{Config, Manager, ProblemKind};
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{PortId, Time, Topology};
use rdmux_wire::mad::{MAD_LEN, Method};
use rdmux_wire::sm::{LinearForwardingTable, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use crate::net::{Net, Out, Way, config};

/// Modifies the answers of the node that is reached by a route that ends with these ports.
fn lie(net: &mut Net, route: &[u8], lie: impl Fn(&mut Smp) -> bool + 'static) {
    let route = route.to_vec();
    net.meddler = Box::new(move |_, way, mad: &mut [u8; MAD_LEN]| {
        let Ok(mut smp) = Smp::parse(&mad[..]) else { return true };
        let count = usize::from(smp.hop_count());
        if way == Way::ToSubnet || smp.header.method != Method::GET_RESP {
            return true;
        }
        if smp.initial_path[1..=count] != route[..] {
            return true;
        }
        let arrives = lie(&mut smp);
        *mad = smp.to_bytes();
        arrives
    });
}

/// Returns the first port of the first switch that connects to another switch.
fn to_switch(net: &Net) -> u8 {
    let peer = |number: &u8| net.subnet.peer(crate::net::port(0, *number));
    let leads_to_switch = |n: &u8| peer(n).is_some_and(|far| net.is_switch(far.node));
    (1..=36).find(leads_to_switch).expect("a cable to a switch")
}

/// Checks that everything but the node behind port 3 of the first switch is configured.
fn assert_others_work(net: &Net) {
    for view in net.subnet.ports().filter(|view| view.id().node.0 == 0) {
        if view.id().number != 3 {
            assert_eq!(view.state(), PortState::ACTIVE, "{}", view.id());
        }
    }
    let ends: Vec<PortId> = net.ends().into_iter().filter(|end| end.node.0 != 3).collect();
    for &from in &ends {
        for &to in &ends {
            let lid = net.subnet.port(to).expect("a port").lid();
            assert!(net.hops(from, lid).is_some(), "{from} to {to}");
        }
    }
}

fn problems(net: &Net) -> Vec<ProblemKind> {
    let last = net.managers[0].1.status().last.expect("a sweep");
    last.problems.iter().map(|problem| problem.what).collect()
}

#[test]
fn a_node_that_never_answers_is_reported_and_the_others_are_managed() {
    let mut net = Net::of("switch:5");
    lie(&mut net, &[3], |_| false);
    net.start_first(config());
    net.pass(Duration::from_secs(5));
    assert_others_work(&net);
    assert!(problems(&net).contains(&ProblemKind::Silent));
    net.meddler = Box::new(|_, _, _| true);
    net.pass(Duration::from_secs(300));
    net.assert_configured();
    assert_eq!(problems(&net), []);
}

#[test]
fn node_info_with_zero_guid_or_bad_local_port_is_reported_as_nonsense() {
    let lies: [fn(&mut NodeInfo); 4] = [
        |info| info.node_guid = Guid(0),
        |info| info.port_guid = Guid(0),
        |info| info.local_port_num = 77,
        |info| info.local_port_num = 0,
    ];
    for change in lies {
        let mut net = Net::of("switch:5");
        lie(&mut net, &[3], move |smp| {
            if smp.header.attr_id == NodeInfo::ATTR_ID {
                let mut info = NodeInfo::parse(&smp.data).expect("long enough");
                change(&mut info);
                smp.set_attribute(&info.into());
            }
            true
        });
        net.start_first(config());
        net.pass(Duration::from_secs(5));
        assert_others_work(&net);
        assert!(problems(&net).contains(&ProblemKind::Nonsense));
    }
}

#[test]
fn an_adapter_that_calls_itself_a_switch_of_255_ports_costs_only_itself() {
    let mut net = Net::of("switch:5");
    lie(&mut net, &[3], |smp| {
        if smp.header.attr_id == NodeInfo::ATTR_ID {
            let info = NodeInfo::parse(&smp.data).expect("long enough");
            let ports = (NodeType::SWITCH, 255);
            smp.set_attribute(&NodeInfo { node_type: ports.0, num_ports: ports.1, ..info }.into());
        }
        true
    });
    net.start_first(config());
    net.pass(Duration::from_secs(60));
    assert_others_work(&net);
    assert!(net.gets < 2000, "{}", net.gets);
}

#[test]
fn two_adapters_with_one_guid_are_reported_and_one_works() {
    let text = "Switch 4 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n[3] \"c\"[1]\n\nCa 1 \"a\"\n\nCa 1 \"b\"\n\nCa 1 \"c\"\n";
    let mut net = Net::new(&Topology::parse(text).expect("a file"));
    let guid = net.subnet.port(crate::net::port(1, 1)).expect("a port").guid();
    // The nodes behind ports 1 and 2 both claim to be the first.
    lie(&mut net, &[2], move |smp| {
        if smp.header.attr_id == NodeInfo::ATTR_ID {
            let info = NodeInfo::parse(&smp.data).expect("long enough");
            let node_guid = Guid(guid.0 - 1);
            smp.set_attribute(&NodeInfo { node_guid, port_guid: guid, ..info }.into());
        }
        true
    });
    net.start_first(config());
    net.pass(Duration::from_secs(5));
    assert!(problems(&net).contains(&ProblemKind::DuplicateGuid), "{:?}", problems(&net));
    let ends = net.ends();
    assert!(ends.contains(&crate::net::port(3, 1)) && ends.len() == 3, "{ends:?}");
}

#[test]
fn a_switch_that_does_not_keep_its_table_is_reported_and_does_not_stop_the_sweep() {
    let mut net = Net::of("fattree:40");
    let route = [to_switch(&net)];
    lie(&mut net, &route, |smp| {
        if smp.header.attr_id == LinearForwardingTable::ATTR_ID {
            smp.data[5] ^= 1;
        }
        true
    });
    net.start_first(config());
    net.pass(Duration::from_secs(3));
    assert!(problems(&net).contains(&ProblemKind::NotKept));
    net.assert_configured();
}

#[test]
fn a_switch_that_always_says_that_something_has_changed_does_not_cost_sweep_after_sweep() {
    let mut net = Net::of("fattree:40");
    let route = [to_switch(&net)];
    lie(&mut net, &route, |smp| {
        if smp.header.attr_id == SwitchInfo::ATTR_ID {
            let info = SwitchInfo::parse(&smp.data).expect("long enough");
            smp.set_attribute(&SwitchInfo { port_state_change: true, ..info }.into());
        }
        true
    });
    net.start_first(Config { sweep_interval: Duration::from_secs(10), ..config() });
    net.pass(Duration::from_secs(100));
    net.assert_configured();
    assert!(net.managers[0].1.status().sweeps < 25, "{}", net.managers[0].1.status().sweeps);
}

#[test]
fn an_adapter_that_does_not_keep_its_lid_costs_only_itself() {
    let mut net = Net::of("switch:5");
    lie(&mut net, &[3], |smp| {
        if smp.header.attr_id == PortInfo::ATTR_ID {
            let info = PortInfo::from_bytes(&smp.data);
            smp.set_attribute(&PortInfo { lid: Lid(info.lid.0 + 1), ..info }.into());
        }
        true
    });
    net.start_first(config());
    net.pass(Duration::from_secs(30));
    assert_others_work(&net);
    assert!(problems(&net).contains(&ProblemKind::NotKept), "{:?}", problems(&net));
}

#[test]
fn switch_that_reports_a_wrong_local_port_num_affects_no_other_node() {
    let mut net = Net::of("fattree:40");
    let number = to_switch(&net);
    let liar = net.subnet.peer(crate::net::port(0, number)).expect("a cable").node;
    let is_free = |n: &u8| {
        let port = PortId::new(liar, *n);
        net.subnet.port(port).is_some() && net.subnet.peer(port).is_none()
    };
    let free = (1..=36).find(is_free).expect("a port without a cable");
    lie(&mut net, &[number], move |smp| {
        if smp.header.attr_id == NodeInfo::ATTR_ID {
            let info = NodeInfo::parse(&smp.data).expect("long enough");
            smp.set_attribute(&NodeInfo { local_port_num: free, ..info }.into());
        }
        true
    });
    net.start_first(config());
    net.pass(Duration::from_secs(30));
    assert_ne!(problems(&net), []);
    let others: Vec<PortId> = net.ends().into_iter().filter(|end| end.node != liar).collect();
    let behind = |end: &PortId| net.subnet.peer(*end).is_some_and(|far| far.node == liar);
    let others: Vec<PortId> = others.into_iter().filter(|end| !behind(end)).collect();
    assert!(others.len() > 30, "{}", others.len());
    for &from in &others {
        for &to in &others {
            let lid = net.subnet.port(to).expect("a port").lid();
            assert!(net.hops(from, lid).is_some(), "{from} to {to}");
        }
    }
}

/// Returns an answer of an endless subnet: behind each port of a switch is another switch with 255 ports.
fn endless(request: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
    let mut smp = Smp::parse(request).expect("an SMP");
    let path = &smp.initial_path[1..=usize::from(smp.hop_count())];
    let mixed = |hash: u64, port: &u8| (hash ^ u64::from(*port)).wrapping_mul(0x0100_0000_01b3);
    let guid = Guid(path.iter().fold(0xcbf2_9ce4_8422_2325, mixed));
    let is_adapter = path.is_empty();
    if smp.header.method == Method::GET {
        match smp.header.attr_id {
            NodeInfo::ATTR_ID => smp.set_attribute(
                &NodeInfo {
                    node_type: if is_adapter { NodeType::CA } else { NodeType::SWITCH },
                    num_ports: if is_adapter { 1 } else { 255 },
                    node_guid: guid,
                    port_guid: guid,
                    local_port_num: 1,
                    ..NodeInfo::default()
                }
                .into(),
            ),
            SwitchInfo::ATTR_ID => smp.set_attribute(
                &SwitchInfo { linear_fdb_cap: 0xbfff, ..SwitchInfo::default() }.into(),
            ),
            PortInfo::ATTR_ID => smp.set_attribute(
                &PortInfo { port_state: PortState::INIT, ..PortInfo::default() }.into(),
            ),
            _ => {}
        }
    }
    smp.header.method = Method::GET_RESP;
    smp.to_bytes()
}

#[test]
fn endless_subnet_is_discovered_up_to_max_ports_and_reported() {
    let max_ports = 3000;
    let mut manager = Manager::new(Config { max_ports, ..config() }, Time::ZERO);
    let (mut out, mut now, mut count) = (Out::default(), Time::ZERO, 0);
    while manager.status().sweeps == 0 {
        now = now.max(manager.next_timeout().expect("something to do"));
        manager.handle_timeout(now, &mut out);
        while let Some(request) = out.next() {
            count += 1;
            manager.handle_mad(now, &UserAddress::directed(), &endless(&request), &mut out);
            assert!(manager.model().port_count() <= max_ports && count < 100_000);
        }
    }
    let last = manager.status().last.expect("a sweep");
    assert!(last.problems.iter().any(|problem| problem.what == ProblemKind::TooMany));
    assert!(last.switches >= max_ports / 256 - 1, "{}", last.switches);
}
