//! `rdmux fabric`: a subnet that comes up, is shown and changed, and comes back after it was killed.

mod common;

use common::Net;
use common::subnet::{guid, set_lid};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn killed_fabric_comes_back_with_its_lids_and_cables() {
    let net = Net::new();
    let said = net.ok(&["fabric", "up", "--shape", "switch:3"]);
    assert!(said.contains("1 switch, 3 adapters, 3 links"), "{said}");
    net.ok(&["fabric", "unplug", &guid(2).to_string()]);
    let said = net.ok(&["fabric", "unplug", &guid(3).to_string()]);
    assert!(said.contains("is unplugged from"), "{said}");
    let port = format!("{}:2", guid(0));
    let said = net.ok(&["fabric", "plug", &guid(3).to_string(), &port]);
    assert!(said.contains("is plugged to"), "{said}");
    let before = json(&net.ok(&["fabric", "show", "--json"]));
    let lid_of = |shown: &Value| {
        let nodes = shown["nodes"].as_array().unwrap();
        let lids = nodes.iter().flat_map(|n| n["ports"].as_array().unwrap());
        lids.filter_map(|port| port["lid"].as_u64()).max().unwrap()
    };
    assert_eq!(lid_of(&before), 0);
    set_lid(&net, guid(1), 0x123);
    let status = json(&net.ok(&["fabric", "status", "--fabric", "default", "--json"]));
    let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    // It is written soon after.
    let file = net.path().join("fabrics/default/topology");
    while !std::fs::read_to_string(&file).unwrap().contains("lid 291") {
        std::thread::yield_now();
    }
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    net.ok(&["fabric", "up"]);
    let after = json(&net.ok(&["fabric", "show", "--json"]));
    assert_eq!(lid_of(&after), 0x123);
    assert_eq!(after["links"].as_array().unwrap().len(), 2);
    let said = net.ok(&["fabric", "down"]);
    assert_eq!(said, "fabric default is down\n");
    let said = net.fails(&["fabric", "show"], 1);
    assert!(said.contains("rdmux fabric up"), "{said}");
}

#[test]
fn subnet_is_shown_in_every_form() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--shape", "two", "--simulate", "--fabric", "f"]);
    let tree = net.ok(&["fabric", "show", "--fabric", "f"]);
    assert!(tree.starts_with("fabric f\n") && tree.matches("adapter ").count() == 2, "{tree}");
    assert!(net.ok(&["fabric", "show", "--fabric", "f", "--dot"]).contains(" -- "));
    let topology = net.ok(&["fabric", "show", "--fabric", "f", "--topology"]);
    assert_eq!(topology.matches("caguid=").count(), 2, "{topology}");
    let (svg, file) = (net.path().join("f.svg"), net.path().join("f.topology"));
    net.ok(&["fabric", "show", "--fabric", "f", "--svg", svg.to_str().unwrap()]);
    assert!(std::fs::read_to_string(svg).unwrap().ends_with("</svg>\n"));
    // What was shown can be brought up.
    std::fs::write(&file, &topology).unwrap();
    let up = ["fabric", "up", "--fabric", "g", "--topology", file.to_str().unwrap()];
    assert!(net.ok(&up).contains("0 switches, 2 adapters, 1 link"));
    let said = net.fails(&up, 1);
    assert!(said.contains("is up already") && said.contains("fabric down"), "{said}");
    let status = net.ok(&["fabric", "status"]);
    assert!(status.contains("f.topology") && status.lines().count() == 3, "{status}");
    net.ok(&["fabric", "down", "--all"]);
    assert!(net.ok(&["fabric", "status"]).contains("no fabric is up"));
}

#[test]
fn what_is_wrong_with_a_topology_is_told_with_its_file_and_line() {
    let net = Net::new();
    let file = net.path().join("bad");
    std::fs::write(&file, "Switch 8 \"S-1\"\n[1] \"nobody\"[1]\n").unwrap();
    let said = net.fails(&["fabric", "up", "--topology", file.to_str().unwrap()], 1);
    assert!(said.contains("bad") && said.contains("2"), "{said}");
    let said = net.fails(&["fabric", "up", "--shape", "ring:4"], 2);
    assert!(said.contains("torus:AxBxC"), "{said}");
}
