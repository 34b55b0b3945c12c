//! `rdmux fabric`: a subnet that comes up, is shown and changed, and is restored after it was killed.

mod common;

use std::process::Stdio;

use common::subnet::{guid, open_mads, set_lid};
use common::{Net, accept, listen_as};
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::Method;
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Qpn};
use rustix::net::SendFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn restarted_fabric_keeps_lids_and_cables_after_kill() {
    let net = Net::new();
    let said = net.ok(&["fabric", "up", "--no-sm", "--shape", "switch:3"]);
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
    // The topology file is written shortly afterwards.
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
fn datagrams_that_a_program_sent_before_it_closed_its_file_are_sent() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--no-sm", "--shape", "two"]);
    let status = || json(&net.ok(&["fabric", "status", "--fabric", "default", "--json"]));
    let pid = i32::try_from(status()["pid"].as_i64().unwrap()).unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    let file = open_mads(&net, guid(1));
    let agent = Registration { class: 0x81, class_version: 1, ..Registration::default() };
    let agent = file.register(&agent).unwrap();
    common::stop(pid);
    let address = UserAddress { lid: Lid(0xffff), qpn: Qpn::QP0, ..UserAddress::default() };
    let data = Smp::directed(Method::GET, 0x11, 0, &[]).to_bytes().to_vec();
    let mad = UserMad { agent, status: 0, timeout_ms: 0, retries: 0, address, data };
    (0..100).for_each(|_| file.send_mad(&mad).unwrap());
    drop(file);
    kill_process(pid, Signal::CONT).unwrap();
    let counters = loop {
        let status = status();
        if status["files"].as_array().unwrap().is_empty() {
            break status["counters"].clone();
        }
    };
    assert_eq!(counters["mads_sent"], 100, "{counters}");
}

#[test]
fn damaged_fabric_options_are_refused_until_a_shape_is_given() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--no-sm", "--shape", "switch:3"]);
    net.ok(&["fabric", "down"]);
    let [options, topology] =
        ["options", "topology"].map(|name| net.path().join("fabrics/default").join(name));
    let before = std::fs::read(&topology).unwrap();
    std::fs::write(&options, "source = ").unwrap();
    for changes in [&["--sm-lmc", "1"][..], &["--simulate"], &[]] {
        let said = net.fails(&[&["fabric", "up"], changes].concat(), 1);
        assert!(said.contains("default/options: "), "{said}");
        assert_eq!(std::fs::read(&topology).unwrap(), before);
    }
    net.ok(&["fabric", "up", "--no-sm", "--shape", "two"]);
    assert_ne!(std::fs::read(&topology).unwrap(), before);
}

#[test]
fn fabric_route_takes_node_names_and_guids_unless_ambiguous() {
    let net = Net::new();
    let file = net.path().join("twins");
    let twins = "switchguid=0x100000\nSwitch 2 \"S-1\"\n[1] \"H-1\"[1]\n[2] \"H-2\"[1]\n\n\
                 caguid=0x200000\nCa 1 \"H-1\" # \"twin\"\n\ncaguid=0x300000\nCa 1 \"H-2\" # \"twin\"\n";
    std::fs::write(&file, twins).unwrap();
    net.ok(&["fabric", "up", "--topology", file.to_str().unwrap()]);
    let status = || json(&net.ok(&["fabric", "status", "--fabric", "default", "--json"]));
    while status()["active_ports"].as_u64() < Some(4) {}
    let way = net.ok(&["fabric", "route", "H-1", "H-2"]);
    // The GUID of a port follows that of its node.
    for (from, to) in [("0x200000", "0x300000"), ("0x200001", "0x300001")] {
        assert_eq!(net.ok(&["fabric", "route", from, to]), way);
    }
    let said = net.fails(&["fabric", "route", "twin", "H-2"], 1);
    assert!(said.contains("is ambiguous") && said.contains("H-1"), "{said}");
    assert!(said.contains("0x0000000000300000"), "{said}");
    let said = net.fails(&["fabric", "route", "H-1", "0x777"], 1);
    assert!(said.contains("no node"), "{said}");
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
    // The shown topology can be brought up.
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
fn the_fabrics_manager_brings_the_subnet_up_and_status_tells_of_it() {
    let net = Net::new();
    let options =
        ["--sm-priority=3", "--sm-routing=updn", "--sm-lmc=1", "--sm-sweep=5", "--sm-poll=0.5"];
    net.ok(&[&["fabric", "up", "--shape", "switch:3"][..], &options].concat());
    let one = ["fabric", "status", "--fabric", "default"];
    let status = || json(&net.ok(&[&one[..], &["--json"]].concat()));
    let manager = || status()["manager"].clone();
    while manager()["sweeps"].as_u64() < Some(2) || manager()["sweeping"] == true {}
    let is = |m: &Value| assert_eq!((&m["state"], &m["priority"]), (&"master".into(), &3.into()));
    is(&manager());
    assert_eq!(manager()["routing"], "updn");
    assert_eq!(status()["active_ports"], 6);
    let text = net.ok(&one);
    assert!(
        text.contains("manager    master, priority 3, at 0x") && text.contains("sweep "),
        "{text}"
    );
    let route = json(&net.ok(&["fabric", "route", "--json"]));
    assert_eq!((&route["lost"], &route["without_lid"]), (&0.into(), &0.into()), "{route}");
    // The fabric is restored in the same state.
    net.ok(&["fabric", "down"]);
    net.ok(&["fabric", "up"]);
    is(&manager());
    net.ok(&["fabric", "down"]);
    net.ok(&["fabric", "up", "--no-sm"]);
    assert_eq!(status()["manager"], Value::Null);
    assert!(net.ok(&one).contains("manager    none in the fabric"));
    for bad in [
        ["--sm-priority", "16"],
        ["--sm-lmc", "8"],
        ["--sm-routing", "ring"],
        ["--sm-sweep", "0"],
        ["--sm-poll", "0"],
    ] {
        net.fails(&["fabric", "up", bad[0], bad[1]], 2);
    }
    net.fails(&["fabric", "up", "--no-sm", "--sm-priority", "1"], 2);
    net.fails(&["fabric", "up", "--m-key", "0"], 2);
    net.fails(&["fabric", "up", "--m-key-protect", "2"], 2);
}

#[test]
fn partitions_file_is_kept_over_restarts_and_its_errors_have_line_numbers() {
    let net = Net::new();
    let file = net.path().join("p.conf");
    let name = file.to_str().unwrap();
    let up = ["fabric", "up", "--shape", "two", "--partitions", name];
    std::fs::write(&file, "Default=0x7fff: ALL;\n\nA=0x10, rate=99: ALL;").unwrap();
    let said = net.fails(&up, 1);
    assert!(said.contains(&format!("{name}: line 3, at `99`: ")), "{said}");
    std::fs::write(&file, "Default=0x7fff: ALL;\nA=0x10: ALL=full;").unwrap();
    net.ok(&up);
    net.ok(&["fabric", "down"]);
    std::fs::remove_file(&file).unwrap();
    net.ok(&["fabric", "up"]);
    let said = net.ok(&["fabric", "status", "--fabric", "default"]);
    assert!(said.contains(&format!("partitions {name}\n")), "{said}");
    net.fails(&["fabric", "up", "--no-sm", "--partitions", name], 2);
}

#[test]
fn partitions_of_a_running_fabric_change_and_file_errors_have_line_numbers() {
    let net = Net::new();
    let file = net.path().join("p.conf");
    let name = file.to_str().unwrap();
    net.fails(&["fabric", "partitions", name], 1);
    std::fs::write(&file, "Default=0x7fff: ALL;\n\nA=0x10, rate=99: ALL;").unwrap();
    net.ok(&["fabric", "up", "--shape", "two"]);
    let said = net.fails(&["fabric", "partitions", name], 1);
    assert!(said.contains(&format!("{name}: line 3, at `99`: ")), "{said}");
    let status = || net.ok(&["fabric", "status", "--fabric", "default"]);
    assert!(!status().contains("partitions "), "{}", status());
    std::fs::write(&file, "Default=0x7fff: ALL;\nA=0x10: ALL=full;").unwrap();
    let said = net.ok(&["fabric", "partitions", name]);
    assert!(said.contains(&format!("2 partitions of {name}")), "{said}");
    assert!(status().contains(&format!("partitions {name}\n")), "{}", status());
}

#[test]
fn topology_error_names_file_and_line() {
    let net = Net::new();
    let file = net.path().join("bad");
    std::fs::write(&file, "Switch 8 \"S-1\"\n[1] \"nobody\"[1]\n").unwrap();
    let said = net.fails(&["fabric", "up", "--topology", file.to_str().unwrap()], 1);
    assert!(said.contains("bad") && said.contains("2"), "{said}");
    let said = net.fails(&["fabric", "up", "--shape", "ring:4"], 2);
    assert!(said.contains("torus:AxBxC"), "{said}");
}

#[test]
fn faults_of_a_port_are_counted_and_raise_traps() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--shape", "switch:2", "--simulate"]);
    let port = format!("{}:2", guid(0));
    for (kind, text) in [
        ("integrity", "16 symbol errors: trap 129 is raised"),
        ("overrun", "16 buffer overruns: trap 130 is raised"),
        ("flow-control", "1 expiries of the flow control watchdog: trap 131 is raised"),
    ] {
        let said = net.ok(&["fabric", "fault", &port, kind]);
        assert!(said.contains(text), "{said}");
    }
    // An adapter with one port needs no port number, a switch with two does.
    let said = net.ok(&["fabric", "fault", &guid(1).to_string(), "overrun", "--times", "2"]);
    assert!(said.contains("2 buffer overruns: "), "{said}");
    let said = net.fails(&["fabric", "fault", &guid(0).to_string(), "overrun"], 1);
    assert!(said.contains("2 ports: name one, as NODE:PORT"), "{said}");
    let said = net.fails(&["fabric", "fault", &port, "overrun", "--times", "0"], 2);
    assert!(said.contains("--times"), "{said}");
    net.ok(&["fabric", "down"]);
}

#[test]
fn system_guid_of_a_node_is_changed() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--shape", "switch:2", "--simulate"]);
    let node = guid(1).to_string();
    for wrong in ["0", "0x", "xyz", "10000000000000000"] {
        assert!(net.fails(&["fabric", "system-guid", &node, wrong], 2).contains("hexadecimal"));
    }
    let said = net.ok(&["fabric", "system-guid", &node, "0x77"]);
    assert!(said.contains("has the system GUID 0x0000000000000077"), "{said}");
    let topology = net.ok(&["fabric", "show", "--topology"]);
    assert_eq!(topology.matches("sysimgguid=0x77\n").count(), 1, "{topology}");
    let said = net.fails(&["fabric", "system-guid", "nobody", "0x77"], 1);
    assert!(said.contains("nobody"), "{said}");
    net.ok(&["fabric", "down"]);
}

#[test]
fn topology_of_several_files_is_read_beside_the_first() {
    let net = Net::new();
    let top = net.path().join("top.net");
    std::fs::create_dir(net.path().join("racks")).unwrap();
    std::fs::write(net.path().join("racks/one.net"), "Ca 1 \"h\"\n@[1] \"up\"\n").unwrap();
    let text = "module=\"a\"\ninclude \"racks/one.net\"\nmodule=\"b\"\ninclude \"racks/one.net\"\n\
                do link \"a@up\" \"b@up\"\n";
    std::fs::write(&top, text).unwrap();
    let said = net.ok(&["fabric", "up", "--topology", top.to_str().unwrap(), "--simulate"]);
    assert!(said.contains("0 switches, 2 adapters, 1 link"), "{said}");
    let shown = net.ok(&["fabric", "show", "--topology"]);
    assert!(shown.contains("\"a#h\"[1]") && shown.contains("\"b#h\"[1]"), "{shown}");
    net.ok(&["fabric", "down"]);
}

#[test]
fn fabric_that_does_not_start_stays_as_it_was() {
    let net = Net::new();
    let kept = || {
        let read = |name: &str| std::fs::read(net.path().join("fabrics/f").join(name)).ok();
        ["options", "topology", "hosts", "secret"].map(read)
    };
    let secret = net.path().join("secret");
    std::fs::write(&secret, "a secret of another machine").unwrap();
    // A port without a listener, and an address that does not exist here.
    let join = format!("{}:1", net.address(9));
    let join = ["--join", &join, "--secret", secret.to_str().unwrap()];
    let listen = ["--listen", "198.51.100.77:0", "--shape", "switch:3"];
    let fails = |args: &[&str]| {
        let before = kept();
        let said = net.fails(&[&["fabric", "up", "--fabric", "f"], args].concat(), 1);
        assert_eq!(said.matches("cannot start fabric").count(), 1, "{said}");
        assert_eq!(kept(), before, "{args:?}");
        net.fails(&[&["fabric", "up", "--fabric", "f", "--foreground"], args].concat(), 1);
        assert_eq!(kept(), before, "in the foreground, {args:?}");
    };
    fails(&join);
    fails(&listen);
    assert_eq!(kept(), [const { None }; 4]);
    net.ok(&["fabric", "up", "--fabric", "f", "--no-sm", "--shape", "two"]);
    net.ok(&["fabric", "down", "--fabric", "f"]);
    fails(&join);
    fails(&listen);
    let said = net.ok(&["fabric", "up", "--fabric", "f"]);
    assert!(said.contains("2 adapters"), "{said}");
}

#[test]
fn empty_fabric_variable_is_the_same_as_none() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--no-sm", "--shape", "two"]);
    let run = |name: &str, args: &[&str]| {
        let output = net.command(args).env("RDMUX_FABRIC", name).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    for command in ["status", "show"] {
        let (status, said) = run("", &["fabric", command]);
        assert!(status == Some(0) && said.contains("default"), "{command}: {said}");
        let (status, said) = run("other", &["fabric", command]);
        assert!(status == Some(1) && said.contains("fabric \"other\" is not up"), "{said}");
        // The command line takes precedence, so that an invalid variable does not matter.
        let (status, said) = run("No", &["fabric", command, "--fabric", "default"]);
        assert_eq!(status, Some(0), "{said}");
        let (status, said) = run("No", &["fabric", command]);
        assert!(status == Some(1) && said.contains("RDMUX_FABRIC: \"No\" is not"), "{said}");
    }
    net.ok(&["fabric", "down"]);
}

#[test]
fn down_of_all_fabrics_goes_on_after_a_failure_and_ignores_those_that_ended() {
    let net = Net::new();
    net.ok(&["fabric", "up", "--fabric", "c", "--no-sm", "--shape", "two"]);
    let [broken, ending] = ["a", "b"].map(|name| listen_as(&net.path().join("fabrics").join(name)));
    let mut command = net.command(&["fabric", "down", "--all"]);
    let down = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first connection is from looking for fabrics that are up, and the second from ending the fabric.
    let _first = accept(&broken);
    let second = accept(&broken);
    drop(ending);
    rustix::net::send(&second, &[0xff; 8], SendFlags::NOSIGNAL).unwrap();
    let output = down.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("fabric \"a\"") && said.lines().count() == 1, "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "fabric c is down\n");
    net.fails(&["fabric", "down", "--fabric", "b"], 1);
}
