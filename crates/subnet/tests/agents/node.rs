//! NodeInfo, NodeDescription, unknown attributes, versions.

use rdmux_subnet::NodeId;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sm::{Attribute, NodeDescription, NodeInfo, NodeType, SmInfo, SwitchInfo};
use rdmux_wire::{Guid, Lid};

use crate::net::{Net, get, port, qp0, set};

#[test]
fn node_info_has_the_guid_of_the_port_that_is_asked_or_of_port_0() {
    let mut net = Net::of("switch:2");
    let Attribute::NodeInfo(switch) = net.get(port(1, 1), &[1], NodeInfo::ATTR_ID, 0) else {
        panic!()
    };
    assert_eq!((switch.node_type, switch.num_ports), (NodeType::SWITCH, 2));
    assert_eq!((switch.node_guid, switch.port_guid), (Guid(0x10_0000), Guid(0x10_0000)));
    let Attribute::NodeInfo(far) = net.get(port(1, 1), &[1, 2], NodeInfo::ATTR_ID, 0) else {
        panic!()
    };
    assert_eq!((far.node_type, far.num_ports), (NodeType::CA, 1));
    assert_eq!((far.node_guid, far.port_guid), (Guid(0x10_0200), Guid(0x10_0201)));
    assert_eq!(far.partition_cap, 64);
}

#[test]
fn a_description_can_be_set_by_a_manager_and_by_the_host() {
    let mut net = Net::of("switch:2");
    let name = NodeDescription::from("Zürich");
    let answer = net.set(port(1, 1), &[1, 2], name, 0);
    assert_eq!(answer, Some((status::OK, name.into())));
    assert_eq!(net.subnet.node_description(NodeId(2)).as_deref(), Some("Zürich"));
    net.subnet.set_node_description(net.now, NodeId(2), "b", &mut net.inbox);
    let read = net.get(port(1, 1), &[1, 2], NodeDescription::ATTR_ID, 0);
    assert_eq!(read, NodeDescription::from("b").into());
    assert_eq!(net.subnet.topology().nodes[2].description, "b");
}

#[test]
fn unknown_attributes_and_wrong_modifiers_have_a_status() {
    let mut net = Net::of("switch:2");
    let mut status_of = |hops: &[u8], smp| net.dr(port(1, 1), hops, &smp).map(|a| a.status());
    let unsupported = Some(status::UNSUPPORTED_METHOD_ATTRIBUTE);
    for attr_id in [0x02, 0x13, 0x1a, 0x30, 0x31, 0xff91, 0] {
        assert_eq!(status_of(&[1], get(attr_id, 0)), unsupported, "{attr_id:#x}");
    }
    assert_eq!(status_of(&[1], get(SmInfo::ATTR_ID, 0)), unsupported, "there is no manager");
    for attr_id in [0x12, 0x19, 0x1b] {
        assert_eq!(status_of(&[1, 2], get(attr_id, 0)), unsupported, "of an adapter: {attr_id:#x}");
    }
    assert_eq!(status_of(&[1], set(NodeInfo::default(), 0)), unsupported);
    for attr_id in [NodeInfo::ATTR_ID, NodeDescription::ATTR_ID, SwitchInfo::ATTR_ID] {
        assert_eq!(status_of(&[1], get(attr_id, 1)), Some(status::INVALID_VALUE), "{attr_id:#x}");
    }
}

#[test]
fn a_wrong_class_version_has_a_status_and_a_wrong_base_version_silence() {
    let mut net = Net::of("switch:2");
    let mut smp = get(NodeInfo::ATTR_ID, 0);
    smp.header.class_version = 2;
    let answer = net.ask(port(1, 1), Lid::PERMISSIVE, smp).expect("an answer");
    assert_eq!((answer.status(), answer.header.method), (status::BAD_VERSION, Method::GET_RESP));
    let mut packet = qp0(Lid::PERMISSIVE, Lid::PERMISSIVE, &get(NodeInfo::ATTR_ID, 0));
    packet.mad[0] = 2;
    net.send(port(1, 1), packet);
    assert!(net.take_smps().is_empty());
}
