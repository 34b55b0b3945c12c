//! Directed routes: cases 1 to 4.

use rdmux_subnet::Topology;
use rdmux_wire::Lid;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sm::{Attribute, NodeInfo, NodeType, PortState, SmInfo};
use rdmux_wire::smp::Smp;

use crate::net::{Net, get, port, qp0};

/// Builds `switch:2`: the switch is node 0, the adapters are nodes 1 and 2 on its ports 1 and 2.
fn star() -> Net {
    Net::of("switch:2")
}

fn node_info(net: &mut Net, hops: &[u8]) -> NodeInfo {
    match net.get(port(1, 1), hops, NodeInfo::ATTR_ID, 0) {
        Attribute::NodeInfo(info) => info,
        other => panic!("{other}"),
    }
}

#[test]
fn zero_hops_are_answered_by_the_own_port() {
    let mut net = star();
    let answer = net.dr(port(1, 1), &[], &get(NodeInfo::ATTR_ID, 0)).expect("an answer");
    assert_eq!((answer.hop_pointer(), answer.hop_count()), (0, 0));
    assert!(answer.is_returning());
    assert_eq!(answer.header.method, Method::GET_RESP);
    assert_eq!(node_info(&mut net, &[]).node_type, NodeType::CA);
    let own = net.subnet.port(port(1, 1)).expect("a port");
    assert_eq!(own.counter(rdmux_subnet::Counter::PortXmitPkts), 0, "never on the wire");
}

#[test]
fn the_requester_sees_pointer_0_and_the_return_path() {
    let mut net = star();
    let answer = net.dr(port(1, 1), &[1, 2], &get(NodeInfo::ATTR_ID, 0)).expect("an answer");
    assert_eq!((answer.hop_pointer(), answer.hop_count()), (0, 2));
    assert!(answer.is_returning());
    assert_eq!(answer.return_path[1..3], [1, 1], "in at the switch, in at the adapter");
    assert_eq!(answer.initial_path[1..3], [1, 2]);
}

#[test]
fn a_manager_sees_pointer_n_plus_1_and_answers_by_the_return_path() {
    let mut net = star();
    net.subnet.set_is_sm(net.now, port(2, 1), true, &mut net.inbox);
    let ask = Smp::directed(Method::GET, SmInfo::ATTR_ID, 0, &[1, 2]);
    net.send(port(1, 1), qp0(Lid::PERMISSIVE, Lid::PERMISSIVE, &ask));
    let (at, _, mut smp) = net.take_smps().pop().expect("it is passed on to the manager");
    assert_eq!((at, smp.hop_pointer()), (port(2, 1), 3));
    smp.header.method = Method::GET_RESP;
    smp.set_returning(true);
    net.send(port(2, 1), qp0(Lid::PERMISSIVE, Lid::PERMISSIVE, &smp));
    let (at, _, smp) = net.take_smps().pop().expect("the answer");
    assert_eq!((at, smp.hop_pointer()), (port(1, 1), 0));
}

#[test]
fn a_route_may_end_at_port_0_and_leave_by_its_ingress() {
    let mut net = star();
    let switch = node_info(&mut net, &[1]);
    assert_eq!((switch.node_type, switch.local_port_num), (NodeType::SWITCH, 1));
    // Out by the port of entry: back to the requesting adapter.
    let own = node_info(&mut net, &[]);
    assert_eq!(node_info(&mut net, &[1, 1]).node_guid, own.node_guid);
}

#[test]
fn a_route_of_63_hops_arrives_and_one_of_64_does_not() {
    let text = "Switch 4 \"a\"\n[1] \"h\"[1]\n[2] \"b\"[2]\n\nSwitch 4 \"b\"\n\nCa 1 \"h\"\n";
    let mut net = Net::new(&Topology::parse(text).expect("a file"));
    let mut hops = vec![2; 63];
    hops[0] = 1;
    // First to a, then back and forth between a and b.
    let info = match net.get(port(2, 1), &hops, NodeInfo::ATTR_ID, 0) {
        Attribute::NodeInfo(info) => info,
        other => panic!("{other}"),
    };
    assert_eq!((info.node_type, info.local_port_num), (NodeType::SWITCH, 2));
    let mut long = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &hops);
    long.set_hop_count(64);
    assert_eq!(net.ask(port(2, 1), Lid::PERMISSIVE, long), None);
}

#[test]
fn a_port_that_does_not_exist_or_has_no_link_is_silence() {
    let mut net = Net::of("switch:3");
    for hops in [&[1, 4][..], &[1, 255], &[1, 0], &[1, 0, 1], &[2], &[1, 2, 1]] {
        assert_eq!(net.dr(port(1, 1), hops, &get(NodeInfo::ATTR_ID, 0)), None, "{hops:?}");
    }
    net.subnet.set_cable(net.now, port(0, 3), false, &mut net.inbox).expect("a cable");
    assert_eq!(net.dr(port(1, 1), &[1, 3], &get(NodeInfo::ATTR_ID, 0)), None);
    assert!(net.take_smps().is_empty(), "no error MAD");
}

/// Builds a net that is configured from adapter 1.
fn with_lids() -> Net {
    let mut net = star();
    crate::manager::Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    net
}

#[test]
fn ibportstate_asks_the_peer_by_lid_and_then_by_one_hop() {
    let mut net = with_lids();
    let own = net.subnet.port(port(1, 1)).expect("a port").lid();
    let switch = net.subnet.port(port(0, 0)).expect("a port").lid();
    let mut ask = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[2]);
    ask.dr_slid = own;
    let answer = net.ask(port(1, 1), switch, ask).expect("the peer of the switch's port 2 answers");
    assert_eq!((answer.status(), answer.hop_pointer()), (status::OK, 0));
    let Some(Attribute::NodeInfo(info)) = answer.attribute() else { panic!("{answer}") };
    assert_eq!(info.port_guid, net.subnet.port(port(2, 1)).expect("a port").guid());
}

#[test]
fn a_directed_route_may_end_lid_routed() {
    let mut net = with_lids();
    let far = net.subnet.port(port(2, 1)).expect("a port").lid();
    let mut ask = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[1]);
    ask.dr_dlid = far;
    let answer = net.ask(port(1, 1), Lid::PERMISSIVE, ask).expect("an answer");
    let Some(Attribute::NodeInfo(info)) = answer.attribute() else { panic!("{answer}") };
    assert_eq!(info.port_guid, net.subnet.port(port(2, 1)).expect("a port").guid());
    assert_eq!(answer.hop_pointer(), 0);
}

#[test]
fn a_port_without_a_lid_asks_its_neighbour_by_the_permissive_lid() {
    let mut net = star();
    let answer =
        net.ask(port(1, 1), Lid::PERMISSIVE, get(NodeInfo::ATTR_ID, 0)).expect("an answer");
    let Some(Attribute::NodeInfo(info)) = answer.attribute() else { panic!("{answer}") };
    assert_eq!((info.node_type, info.local_port_num), (NodeType::SWITCH, 1));
    // LID 0 is the local port while it has no other LID.
    let answer = net.ask(port(1, 1), Lid::NONE, get(NodeInfo::ATTR_ID, 0)).expect("an answer");
    let Some(Attribute::NodeInfo(info)) = answer.attribute() else { panic!("{answer}") };
    assert_eq!(info.node_type, NodeType::CA);
    assert_eq!(net.state(port(1, 1)), PortState::INIT);
}
