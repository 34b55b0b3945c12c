//! Hosts on a fabric: what they, and programs on them, see of their ports.

mod common;

use common::Net;
use common::subnet::set_lid;
use rdmux_wire::Guid;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The devices of host a.
fn devices(net: &Net, more: &[&str]) -> Vec<Value> {
    let all = [&["--host", "a", "devices", "--json"], more].concat();
    json(&net.ok(&all)).as_array().unwrap().clone()
}

/// The InfiniBand device of host a.
fn ib(net: &Net) -> Value {
    let [one] = &devices(net, &["--device", "ib"])[..] else { panic!("not one device") };
    one.clone()
}

/// Looks at the device until its port is so: what a manager or nobody did takes a moment to get there.
fn until(net: &Net, is_so: impl Fn(&Value) -> bool) -> Value {
    loop {
        let device = ib(net);
        if is_so(&device["ports"][0]) {
            return device;
        }
        std::thread::yield_now();
    }
}

fn state(port: &Value) -> &str {
    port["state"].as_str().unwrap()
}

fn lid(port: &Value) -> u64 {
    port["subnet"]["lid"].as_u64().unwrap()
}

fn node_guid(device: &Value) -> String {
    device["node_guid"].as_str().unwrap().to_owned()
}

fn kill_fabric(net: &Net) {
    let status = json(&net.ok(&["fabric", "status", "--fabric", "default", "--json"]));
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn host_has_its_adapter_and_lid_again_after_the_fabric_or_the_host_was_away() {
    let net = Net::new().hosts(&["a"]);
    let names = |net: &Net| -> Vec<String> {
        devices(net, &[]).iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&net), ["rdmux_roce0", "rdmux_iw0"]);
    let before = ib(&net);
    assert_eq!((state(&before["ports"][0]), lid(&before["ports"][0])), ("down", 0));
    assert!(before["ports"][0]["subnet"]["fabric"].is_null());

    net.ok(&["fabric", "up", "--shape", "switch:3"]);
    let attached = ib(&net);
    assert_eq!(state(&attached["ports"][0]), "init");
    assert_eq!(attached["ports"][0]["subnet"]["fabric"], "default");
    assert_eq!(names(&net), ["rdmux_roce0", "rdmux_iw0", "rdmux_ib0"]);
    let shown = net.ok(&["fabric", "show"]);
    assert!(shown.contains("host a"), "{shown}");

    let guid = node_guid(&attached);
    set_lid(&net, Guid(u64::from_str_radix(&guid[2..], 16).unwrap()), 0x123);
    until(&net, |port| lid(port) == 0x123);
    // It is written soon after.
    let file = net.path().join("fabrics/default/topology");
    while !std::fs::read_to_string(&file).unwrap().contains("lid 291") {
        std::thread::yield_now();
    }

    kill_fabric(&net);
    let down = until(&net, |port| state(port) == "down");
    assert_eq!((node_guid(&down), lid(&down["ports"][0])), (guid.clone(), 0x123));
    net.ok(&["fabric", "up"]);
    let again = until(&net, |port| state(port) == "init");
    assert_eq!((node_guid(&again), lid(&again["ports"][0])), (guid.clone(), 0x123));

    net.ok(&["host", "down", "a"]);
    let back = until(&net, |port| state(port) == "init");
    assert_eq!((node_guid(&back), lid(&back["ports"][0])), (guid, 0x123));
}
