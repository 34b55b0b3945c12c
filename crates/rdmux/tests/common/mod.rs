//! Code that the tests share: private hosts.
#![allow(dead_code, reason = "no test uses all of it")]

use std::thread;

use rdmux::umad::sm::{self, Attribute, PortInfo};
use rdmux::umad::smp::Smp;
use rdmux::umad::{Address, AgentAttr, Fabric, Method, MgmtClass, Port};
use rdmux::{Context, DeviceKind, Options, PortState};

/// Returns a private host.
pub(crate) fn host() -> Context {
    Context::builder().embedded().open().unwrap()
}

/// Returns options on a host.
pub(crate) fn on(context: &Context) -> Options {
    Options::new().context(context)
}

/// Returns the device of a host on a fabric, once its port is up.
pub(crate) fn active(fabric: &Fabric, host: &str) -> Context {
    let builder = Context::builder().embedded().fabric(fabric).host(host);
    let context = builder.device(DeviceKind::Ib).open().unwrap();
    while context.query_port().unwrap().state != PortState::Active {
        context.next_event(None).unwrap();
    }
    context
}

/// Returns two hosts on an InfiniBand fabric with a subnet manager, once their ports are up.
pub(crate) fn infiniband() -> [Context; 2] {
    let fabric = Fabric::managed("switch:3").unwrap();
    ["a", "b"].map(|host| active(&fabric, host))
}

/// Runs a test on RoCE and on InfiniBand: over the network between two hosts, and through shared memory within one.
pub(crate) fn over_every_link(test: impl Fn(&Context, &Context)) {
    over_roce(&test);
    let [a, b] = infiniband();
    test(&a, &b);
    test(&a, &a);
}

/// Runs a test as [`over_every_link`] does, on RoCE only.
pub(crate) fn over_roce(test: impl Fn(&Context, &Context)) {
    let (a, b) = (host(), host());
    test(&a, &b);
    test(&a, &a);
}

/// Returns a host's device with a port on each of these fabrics, once both are up.
pub(crate) fn with_two_ports(fabrics: [&Fabric; 2], host: &str) -> Context {
    let builder = fabrics.iter().fold(Context::builder(), |builder, fabric| builder.fabric(fabric));
    let context = builder.embedded().host(host).device(DeviceKind::Ib).open().unwrap();
    assert_eq!(context.num_ports(), 2);
    for port in [1, 2] {
        while context.query_port_number(port).unwrap().state != PortState::Active {
            context.next_event(None).unwrap();
        }
    }
    context
}

/// Sends client reregister to the first port of an InfiniBand device, as a subnet manager does that has lost its groups. The port loses
/// its memberships, too.
pub(crate) fn lose_groups(context: &Context) {
    let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    let mut client = Port::open(context, 1).unwrap().client(&agent).unwrap();
    let smp = |method| Smp::directed(method, PortInfo::ATTR_ID, 1, &[]);
    let answer = client.ask_smp(&Address::directed(), &smp(Method::GET)).unwrap();
    let Some(Attribute::PortInfo(mut info)) = answer.attribute() else { panic!("{answer:?}") };
    info.client_reregister = true;
    (info.port_state, info.port_physical_state) =
        (sm::PortState::NO_CHANGE, sm::PhysState::NO_CHANGE);
    let mut set = smp(Method::SET);
    set.set_attribute(&Attribute::PortInfo(info));
    client.ask_smp(&Address::directed(), &set).unwrap();
}

/// Disables a port's link, like `ibportstate -D 0 PORT disable`, and waits until the device is notified. Until then, packets
/// from a port to itself still pass.
pub(crate) fn disable(context: &Context, number: u8) {
    let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    let mut client = Port::open(context, number).unwrap().client(&agent).unwrap();
    let smp = |method| Smp::directed(method, PortInfo::ATTR_ID, number.into(), &[]);
    let answer = client.ask_smp(&Address::directed(), &smp(Method::GET)).unwrap();
    let Some(Attribute::PortInfo(mut info)) = answer.attribute() else { panic!("{answer:?}") };
    (info.port_state, info.port_physical_state) = (sm::PortState::DOWN, sm::PhysState::DISABLED);
    let mut set = smp(Method::SET);
    set.set_attribute(&Attribute::PortInfo(info));
    client.ask_smp(&Address::directed(), &set).unwrap();
    while context.query_port_number(number).unwrap().state != PortState::Down {
        thread::yield_now();
    }
}
