//! An InfiniBand device, from the outside: it opens, and says what it cannot do yet.

use std::io::ErrorKind;

use rdmux::cm::EventChannel;
use rdmux::umad::sm::{Attribute, NodeInfo};
use rdmux::umad::smp::Smp;
use rdmux::umad::{Address, AgentAttr, Client, Fabric, Method, MgmtClass, Port};
use rdmux::{Cause, Context, DeviceKind, QpType};

#[test]
fn queue_pairs_and_connections_are_unsupported_and_say_why() {
    let context = Context::builder().embedded().device(DeviceKind::Ib).open().unwrap();
    assert_eq!(context.query_port().unwrap().lid.0, 0, "there is no fabric");
    let (cq, pd) = (context.cq(16).unwrap(), context.pd());
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let error = pd.qp(qp_type).cq(&cq).build().unwrap_err();
        assert!(error.to_string().contains("management datagrams only"), "{error}");
    }
    let error = EventChannel::new(&context).unwrap_err();
    assert_eq!(error.cause().kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no connections"), "{error}");
}

/// Asks who is at the end of a route.
fn node_info(client: &mut Client, route: &[u8]) -> NodeInfo {
    let question = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, route);
    let answer = client.ask_smp(&Address::directed(), &question).unwrap();
    let Some(Attribute::NodeInfo(node)) = answer.attribute() else { panic!("{answer:?}") };
    node
}

#[test]
fn port_of_a_device_has_a_management_interface_on_the_fabric_of_its_host() {
    let fabric = Fabric::embedded("switch:3").unwrap();
    let open = |host: &str| {
        let builder = Context::builder().embedded().fabric(&fabric).host(host);
        builder.device(DeviceKind::Ib).open().unwrap()
    };
    let contexts = [open("a"), open("b")];
    let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    let mut own = contexts.each_ref().map(|context| {
        let port = Port::open(context, 1).unwrap();
        assert_eq!(port.fabric().name(), fabric.name());
        let mut client = port.client(&agent).unwrap();
        assert_eq!(node_info(&mut client, &[1]).num_ports, 3, "its cable leads to the switch");
        let own = node_info(&mut client, &[]);
        (client, own)
    });
    let nodes = fabric.nodes().unwrap();
    let adapters: Vec<_> = nodes.iter().filter(|n| !n.is_switch).map(|n| n.guid).collect();
    assert_eq!([own[0].1.node_guid, own[1].1.node_guid], adapters[..2]);
    // The port has all that it needs.
    drop((contexts, fabric));
    node_info(&mut own[1].0, &[1, 1]);
}

#[test]
fn port_that_is_not_managed_is_refused_and_says_why() {
    let open = |kind: DeviceKind| Context::builder().embedded().device(kind).open().unwrap();
    let refusal = |context: &Context, number: u8| {
        let e = Port::open(context, number).unwrap_err();
        assert!(matches!(e.cause(), Cause::Invalid(_)), "{e}");
        e.to_string()
    };
    let ib = open(DeviceKind::Ib);
    assert!(refusal(&ib, 1).contains("its host is on no fabric"));
    for number in [0, 2] {
        let said = refusal(&ib, number);
        assert!(
            said.contains("no such port") && said.contains(&format!("port {number} of device"))
        );
    }
    for kind in [DeviceKind::default(), DeviceKind::Iwarp] {
        assert!(refusal(&open(kind), 1).contains("only InfiniBand"));
    }
}
