//! What the tests share: hosts of their own.
#![allow(dead_code, reason = "no test uses all of it")]

use rdmux::umad::Fabric;
use rdmux::{Context, DeviceKind, Options, PortState};

/// A host of its own.
pub(crate) fn host() -> Context {
    Context::builder().embedded().open().unwrap()
}

/// Options on a host.
pub(crate) fn on(context: &Context) -> Options {
    Options::new().context(context)
}

/// The device of a host on a fabric, once its port is up.
pub(crate) fn active(fabric: &Fabric, host: &str) -> Context {
    let builder = Context::builder().embedded().fabric(fabric).host(host);
    let context = builder.device(DeviceKind::Ib).open().unwrap();
    while context.query_port().unwrap().state != PortState::Active {
        context.next_event(None).unwrap();
    }
    context
}

/// Two hosts on an InfiniBand fabric, with a manager, once their ports are up.
pub(crate) fn infiniband() -> [Context; 2] {
    let fabric = Fabric::managed("switch:3").unwrap();
    ["a", "b"].map(|host| active(&fabric, host))
}

/// Runs a test over the network, from host to host, and through shared memory, within one: on RoCE and on InfiniBand.
pub(crate) fn over_every_link(test: impl Fn(&Context, &Context)) {
    over_roce(&test);
    let [a, b] = infiniband();
    test(&a, &b);
    test(&a, &a);
}

/// The same on RoCE only.
pub(crate) fn over_roce(test: impl Fn(&Context, &Context)) {
    let (a, b) = (host(), host());
    test(&a, &b);
    test(&a, &a);
}
