//! Hosts on a fabric: the ports as hosts, and programs on them, see them.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use common::Net;
use common::subnet::set_lid;
use rdmux_wire::Guid;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Returns the devices of host a.
fn devices(net: &Net, more: &[&str]) -> Vec<Value> {
    let all = [&["--host", "a", "devices", "--json"], more].concat();
    json(&net.ok(&all)).as_array().unwrap().clone()
}

/// Returns the InfiniBand device of host a.
fn ib(net: &Net) -> Value {
    let [one] = &devices(net, &["--device", "ib"])[..] else { panic!("not one device") };
    one.clone()
}

/// Polls the device until its port is in this state: changes, by a manager or not, take a moment to arrive.
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

/// Returns the path at which a program of host a finds a file of the view without a namespace.
fn in_view(net: &Net, path: &str) -> std::path::PathBuf {
    // The view is written when a program runs in it.
    net.ok(&["--host", "a", "run", "--device", "ib", "--view", "preload", "--", "true"]);
    net.path().join("hosts/a/view/ib").join(path)
}

/// Waits until the fabric shows, or does not show, a subnet manager at host a.
fn until_manager(net: &Net, is_there: bool) {
    loop {
        let shown = json(&net.ok(&["fabric", "show", "--json"]));
        let nodes = shown["nodes"].as_array().unwrap();
        let of_a = nodes.iter().find(|node| node["host"] == "a");
        if of_a.is_some_and(|node| node["ports"][0]["is_sm"] == is_there) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn is_sm_is_set_while_issm_is_open() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--no-sm", "--shape", "two"]);
    let net = net.hosts(&["a"]);
    let issm = in_view(&net, "dev/infiniband/issm0");
    let open = || {
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(nonblocking).open(&issm).unwrap()
    };
    until_manager(&net, false);
    let (one, two) = (open(), open());
    until_manager(&net, true);
    drop(one);
    let status = json(&net.ok(&["host", "status", "a", "--json"]));
    assert_eq!(status["fabrics"][0]["is_sm"], true);
    drop(two);
    until_manager(&net, false);

    // A manager that is killed, and one that outlives the fabric and the host's service.
    let mut killed = Command::new("sleep").arg("infinity").stdin(open()).spawn().unwrap();
    until_manager(&net, true);
    killed.kill().unwrap();
    killed.wait().unwrap();
    until_manager(&net, false);
    let stays = open();
    until_manager(&net, true);
    kill_fabric(&net);
    net.ok(&["fabric", "up"]);
    until(&net, |port| state(port) == "init");
    until_manager(&net, true);
    net.ok(&["host", "down", "a"]);
    net.ok(&["host", "up", "a"]);
    until_manager(&net, true);
    drop(stays);
    until_manager(&net, false);
}

#[test]
fn host_on_a_managed_fabric_has_an_active_port() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--shape", "two"]);
    let net = net.hosts(&["a"]);
    let device = until(&net, |port| state(port) == "active");
    let port = &device["ports"][0];
    assert_ne!(lid(port), 0);
    assert_eq!(port["subnet"]["sm_lid"], port["subnet"]["lid"], "the manager is on its port");
}

#[test]
fn sysfs_view_shows_port_attributes_of_the_fabric() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--no-sm", "--shape", "switch:2", "--fabric", "other"]);
    net.ok(&["host", "up", "a", "--addr", &net.address(1), "--fabric", "other"]);
    let said = net.fails(&["host", "up", "a", "--fabric", "third"], 1);
    assert!(said.contains("on fabric other"), "{said}");
    net.ok(&["host", "down", "a"]);
    net.ok(&["host", "up", "a", "--fabric", "other"]);
    let device = until(&net, |port| port["subnet"]["fabric"] == "other");
    let dir = in_view(&net, "sys/class/infiniband/rdmux_ib0");
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap().trim_end().to_owned();
    let guid = node_guid(&device)[2..].to_owned();
    let groups: Vec<_> = (0..4).map(|i| &guid[4 * i..][..4]).collect();
    assert_eq!(read("node_guid"), groups.join(":"));
    assert_eq!(read("sys_image_guid"), groups.join(":"));
    assert_eq!(read("node_type"), "1: CA");
    assert_eq!(read("hw_rev"), "0xa1");
    assert_eq!(read("ports/1/state"), "2: INIT");
    assert_eq!(read("ports/1/link_layer"), "InfiniBand");
    assert_eq!(
        (read("ports/1/pkeys/0"), read("ports/1/pkeys/63")),
        ("0xffff".into(), "0x0000".into())
    );
    assert_eq!(read("ports/1/counters/port_xmit_data"), "0");
    assert!(!dir.join("ports/1/gid_attrs/ndevs/0").exists());
    let mad = in_view(&net, "sys/class/infiniband_mad/umad0/ibdev");
    assert_eq!(std::fs::read_to_string(mad).unwrap(), "rdmux_ib0\n");
}

#[test]
fn host_keeps_adapter_and_lid_over_fabric_and_host_restarts() {
    let net = Net::new().hosts(&["a"]);
    let names = |net: &Net| -> Vec<String> {
        devices(net, &[]).iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&net), ["rdmux_roce0", "rdmux_iw0"]);
    let before = ib(&net);
    assert_eq!((state(&before["ports"][0]), lid(&before["ports"][0])), ("down", 0));
    assert!(before["ports"][0]["subnet"]["fabric"].is_null());

    net.ok(&["fabric", "up", "--no-sm", "--shape", "switch:3"]);
    let attached = until(&net, |port| state(port) == "init");
    assert_eq!(attached["ports"][0]["subnet"]["fabric"], "default");
    assert_eq!(names(&net), ["rdmux_roce0", "rdmux_iw0", "rdmux_ib0"]);
    let shown = net.ok(&["fabric", "show"]);
    assert!(shown.contains("host a"), "{shown}");

    let guid = node_guid(&attached);
    set_lid(&net, Guid(u64::from_str_radix(&guid[2..], 16).unwrap()), 0x123);
    until(&net, |port| lid(port) == 0x123);
    // The topology file is written shortly afterwards.
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
