//! The command from its users' point of view.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Stdio};

use common::Net;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Interrupts a command, as Ctrl-C does.
fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[test]
fn a_command_line_without_sense_exits_with_2() {
    let net = Net::new();
    net.fails(&[], 2);
    let said = net.fails(&["-v"], 2);
    assert!(said.contains("doctor") && !said.contains("soak"), "{said}");
    net.fails(&["no-such-command"], 2);
    net.fails(&["ping", "-c"], 2);
    net.fails(&["ping", "-s", "-S", "5"], 2);
    net.fails(&["cmtest", "-c", "16385"], 2);
    net.fails(&["host", "up", "Not A Name"], 2);
    assert!(net.fails(&["--host", "Not A Name", "devices"], 2).contains("is not a host name"));
    assert!(net.fails(&["fabric", "plug", "a", "b"], 2).contains("as in b:1"));
    let ports = ["host", "up", "x", "--fabric", "a", "--fabric", "b", "--fabric", "c"];
    assert!(net.fails(&ports, 2).contains("at most 2 ports"));
    assert!(net.fails(&["bench", "--only", "nosuch"], 2).contains("choose from bandwidth"));
    assert!(net.fails(&["bench", "--peers", "--only", "poll"], 2).contains("choose from send-lat"));
    let said = net.fails(&["bench", "--only", "udp-bw"], 2);
    assert!(said.contains("needs --peers") && said.contains("choose from bandwidth"), "{said}");
    assert!(net.fails(&["demo", "--only", "no such row"], 2).contains("no row's name contains"));
    assert_eq!(json(&net.ok(&["host", "status", "--json"])), Value::Array(Vec::new()));
}

#[test]
fn host_variable_that_is_empty_names_no_host() {
    let net = Net::new();
    let status = net.command(&["host", "status", "--json"]).env("RDMUX_HOST", "").output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let up = net.command(&["host", "up"]).env("RDMUX_HOST", "").output().unwrap();
    let said = String::from_utf8_lossy(&up.stderr);
    assert!(said.contains("give the host's NAME"), "{said}");
    assert_eq!(up.status.code(), Some(2));
}

#[test]
fn message_count_above_the_queue_limit_and_json_of_a_ping_server_exit_with_2() {
    let net = Net::new();
    let group = ["mctest", "-m", "239.1.2.3"];
    for test in [&["udtest"][..], &["cmtest"], &group] {
        let said = net.fails(&[test, &["-C", "2147483648"]].concat(), 2);
        assert!(said.contains("16384"), "{said}");
    }
    let said = net.fails(&["ping", "-s", "-p", "0", "--json"], 2);
    assert!(said.contains("--json") && said.contains("--server"), "{said}");
}

#[test]
fn failed_command_exits_with_1_and_advice() {
    let net = Net::new();
    assert!(net.fails(&["host", "status", "nosuch"], 1).contains("rdmux host up nosuch"));
    assert!(net.fails(&["--host", "nosuch", "capture"], 1).contains("rdmux host up nosuch"));
    // Commands that only inspect create no host.
    assert!(net.fails(&["--host", "nosuch", "devices"], 1).contains("rdmux host up nosuch"));
    let doctor = net.run(&["--host", "nosuch", "doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("rdmux host up nosuch"));
    let registry = fs::read_to_string(net.path().join("registry")).unwrap_or_default();
    assert!(!registry.contains("nosuch"), "{registry}");
}

#[test]
fn a_bench_without_its_peer_fails_and_names_the_package() {
    let net = Net::new().hosts(&["bench-a", "bench-b"]);
    let output = net
        .command(&["bench", "--peers", "--rounds", "1", "--json", "--only", "udp-bw,send-lat"])
        .env("PATH", "")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let missing = &json(&String::from_utf8_lossy(&output.stdout))["missing"];
    let why = |n: usize| missing[n]["why"].as_str().unwrap();
    assert!(why(0).contains("install the Debian package ucx-utils"), "{missing}");
    assert!(why(1).contains("install the Debian package iperf3"), "{missing}");
    let output = net.command(&["bench", "--only", "c"]).env("PATH", "").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rdmux: cannot measure c: ib_send_lat is missing"), "{said}");
    assert!(said.contains("install the Debian package perftest"), "{said}");
}

#[test]
fn a_host_keeps_the_node_guid_that_it_was_given() {
    let net = Net::new();
    let address = net.address(1);
    let guid = "0002:c903:0000:1234";
    net.ok(&["host", "up", "one", "--addr", &address, "--guid", guid]);
    let of = |host: &str| json(&net.ok(&["host", "status", host, "--json"]))["node_guid"].clone();
    assert_eq!(of("one"), "0x0002c90300001234");
    let said = net.fails(&["host", "up", "one", "--guid", "1234:5678:9abc:def0"], 1);
    assert!(said.contains("rdmux host down one"), "{said}");
    let said = net.fails(&["host", "up", "two", "--guid", guid], 1);
    assert!(said.contains("belongs to host \"one\""), "{said}");
    net.fails(&["host", "up", "two", "--guid", "1234"], 2);

    net.ok(&["host", "down", "one"]);
    net.ok(&["host", "up", "one"]);
    assert_eq!(of("one"), "0x0002c90300001234");
}

#[test]
fn address_that_the_machine_does_not_have_is_refused_and_not_kept() {
    let net = Net::new();
    let said = net.fails(&["host", "up", "one", "--addr", "198.51.100.77"], 1);
    assert!(said.contains("does not have the address 198.51.100.77"), "{said}");
    net.ok(&["host", "up", "one"]);
}

#[test]
fn host_that_does_not_start_at_an_address_keeps_the_one_it_had() {
    let net = Net::new().hosts(&["one"]);
    net.ok(&["host", "down", "one"]);
    let registry = || fs::read_to_string(net.path().join("registry")).unwrap();
    let before = registry();
    let taken = net.address(2);
    let _holder = UdpSocket::bind((&*taken, 4791)).unwrap();
    for name in ["one", "two"] {
        let said = net.fails(&["host", "up", name, "--addr", &taken], 1);
        assert!(said.contains("in use"), "{said}");
        assert_eq!(registry(), before);
    }
    for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"] {
        let said = net.fails(&["host", "up", "two", "--addr", address], 1);
        assert!(said.contains("which a host cannot have"), "{said}");
        assert_eq!(registry(), before);
    }
}

#[test]
fn ping_server_port_in_use_advises_another_port() {
    let net = Net::new().hosts(&["one"]);
    let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0"]);
    let said = net.fails(&["--host", "one", "ping", "-s", "-p", &port], 1);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(
        said.contains("choose another port") && !said.contains("must belong to this host"),
        "{said}"
    );
    assert_eq!(said.matches("cannot bind").count(), 1, "{said}");
}

#[test]
fn host_that_was_never_up_is_not_to_be_started_to_end_it() {
    let net = Net::new();
    let said = net.fails(&["host", "down", "nosuch"], 1);
    assert_eq!(said, "rdmux: host \"nosuch\" is not up\n");
}

#[test]
fn service_that_does_not_start_says_why_once() {
    let net = Net::new();
    fs::write(net.path().join("registry"), "one 198.51.100.77\n").unwrap();
    let said = net.fails(&["--host", "one", "devices"], 1);
    assert_eq!(said.matches("cannot start the service").count(), 1, "{said}");
    assert!(
        said.contains("none of the host's addresses; `rdmux host up NAME --addr ADDRESS`"),
        "{said}"
    );
}

#[test]
fn closed_stdout_is_not_a_failure() {
    const CAPTURE: [&str; 5] = ["--host", "one", "capture", "-w", "-"];
    let net = Net::new().hosts(&["one"]);
    let status = ["host", "status"];
    for args in [&[&status[..], &["--json"]].concat()[..], &status, &CAPTURE] {
        let mut command = net.command(args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn host_up_status_and_down() {
    let net = Net::new().hosts(&["one", "two"]);
    let all = json(&net.ok(&["host", "status", "--json"]));
    let names: Vec<_> = all.as_array().unwrap().iter().map(|s| &s["host"]).collect();
    assert_eq!(names, ["one", "two"]);
    let one = json(&net.ok(&["host", "status", "one", "--json"]));
    assert_eq!(one["gids"][0]["address"], net.address(1));
    assert_eq!(one["counters"]["devices"]["tx_packets"], 0);

    let device = json(&net.ok(&["--host", "two", "devices", "--json"]));
    assert_eq!(device[0]["ports"][0]["gids"][0]["address"], net.address(2));
    assert_eq!(device[1]["name"], "rdmux_iw0");
    assert_eq!(device[1]["ports"][0]["gids"].as_array().unwrap().len(), 1);
    assert_eq!(device[1]["limits"][16][1], 0, "{}", device[1]["limits"]);
    assert!(net.fails(&["host", "up", "one", "--addr", "127.0.0.9"], 1).contains("host down one"));
    net.ok(&["host", "down", "one"]);
    net.fails(&["host", "status", "one"], 1);
    net.ok(&["host", "status", "two"]);
}

#[test]
fn ping_crosses_hosts_and_stays_within_one() {
    let net = Net::new().hosts(&["one", "two"]);
    for from in ["one", "two"] {
        let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0"]);
        let to = net.address(1);
        let client = ["--host", from, "ping", "-c", "-a", &to, "-p", &port, "-V", "--json"];
        let args = [&client[..], &["-C", "3", "-S", "60000"]].concat();
        let summary = json(&net.ok(&args));
        assert_eq!((&summary["pings"], &summary["size"]), (&3.into(), &60000.into()));
        assert!(server.wait().unwrap().success());
    }
    let status = json(&net.ok(&["host", "status", "one", "--json"]));
    let counter = |name: &str| status["counters"]["devices"][name].as_u64().unwrap();
    assert!(counter("tx_packets") > 0 && counter("ring_tx_packets") > 0, "{status}");
}

#[test]
fn timeout_that_the_clock_cannot_hold_means_none() {
    let net = Net::new().hosts(&["one"]);
    let long = ["--timeout", "18446744073709551615"];
    let server = [&["--host", "one", "ping", "-s", "-p", "0"][..], &long].concat();
    let (mut server, port) = net.server(&server);
    let to = net.address(1);
    let client = ["--host", "one", "ping", "-c", "-a", &to, "-p", &port, "-C", "1"];
    net.ok(&[&client[..], &long].concat());
    assert!(server.wait().unwrap().success());
}

#[test]
fn ping_shows_the_data_as_rping_does() {
    let net = Net::new().hosts(&["one"]);
    let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0", "-v"]);
    let to = net.address(1);
    let text = net.ok(&["--host", "one", "ping", "-c", "-a", &to, "-p", &port, "-C", "1", "-d"]);
    assert!(text.contains("ping data: rdma-ping-0: ABCDEFG"), "{text}");
    let mut said = String::new();
    server.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("disconnected after 1 pings"), "{said}");
    assert!(server.wait().unwrap().success());
}

#[test]
fn the_exchanges_of_the_example_programs_run() {
    let net = Net::new().hosts(&["one", "two"]);
    let to = net.address(1);
    for test in ["cmtest", "udtest"] {
        let (mut server, port) =
            net.server(&["--host", "one", test, "-p", "0", "-c", "3", "-C", "20"]);
        net.ok(&["--host", "two", test, "-s", &to, "-p", &port, "-c", "3", "-C", "20"]);
        assert!(server.wait().unwrap().success());
    }
    let group = format!("239.{}", net.address(7).split_once('.').unwrap().1);
    let (mut receiver, _) = net.server(&["--host", "one", "mctest", "-m", &group]);
    net.ok(&["--host", "two", "mctest", "-m", &group, "-s"]);
    assert!(receiver.wait().unwrap().success());
}

#[test]
fn a_capture_can_be_decoded() {
    let net = Net::new().hosts(&["one", "two"]);
    let file = net.path().join("capture.pcapng");
    let file = file.to_str().unwrap();
    // Two CM messages of each side before the first ping are at least four frames.
    let mut capture = net
        .command(&["--host", "one", "capture", "-w", file, "-c", "4"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(capture.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0"]);
    let to = net.address(1);
    net.ok(&["--host", "two", "ping", "-c", "-a", &to, "-p", &port, "-C", "3"]);
    assert!(server.wait().unwrap().success());
    assert!(capture.wait().unwrap().success());
    let text = net.ok(&["decode", file]);
    assert!(text.contains("CM REQ") && text.contains("CM REP"), "{text}");
}

#[test]
fn capture_of_a_host_on_another_port_is_decoded_with_that_port() {
    let net = Net::new();
    let config = net.path().join("config.toml");
    fs::write(&config, "[service]\nport = 4792\n").unwrap();
    for (n, name) in (1..).zip(["one", "two"]) {
        let mut up = net.command(&["host", "up", name, "--addr", &net.address(n)]);
        up.env("RDMUX_CONFIG", &config).stdout(Stdio::null());
        assert!(up.status().unwrap().success());
    }
    let capture = |options: &[&str]| {
        let args = [&["--host", "one", "capture", "-c", "4"], options].concat();
        let mut command = net.command(&args);
        let mut capture = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(capture.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
        let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0"]);
        let to = net.address(1);
        net.ok(&["--host", "two", "ping", "-c", "-a", &to, "-p", &port, "-C", "3"]);
        assert!(server.wait().unwrap().success());
        let output = capture.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let live = capture(&[]);
    assert!(live.contains("CM REQ"), "{live}");
    let file = net.path().join("capture.pcapng");
    let file = file.to_str().unwrap();
    capture(&["-w", file]);
    let text = net.ok(&["decode", file, "--port", "4792"]);
    assert!(text.contains("CM REQ") && text.contains("CM REP"), "{text}");
    let text = net.ok(&["decode", file, "--port", "4791"]);
    assert!(!text.contains("CM REQ"), "{text}");
}

#[test]
fn the_demo_passes_and_leaves_nothing_behind() {
    let net = Net::new().hosts(&["demo-a", "demo-b"]);
    net.ok(&["host", "down"]);
    // The state that an interrupted demo leaves.
    net.ok(&["fabric", "up", "--fabric", "demo", "--shape", "two"]);
    let rows = json(&net.ok(&["demo", "--json"]));
    let rows = rows.as_array().unwrap();
    assert!(rows.len() > 70, "{} rows", rows.len());
    let crossing = rows.iter().filter(|r| r["link"] == "UDP" && r["crosses"] == true).count();
    assert!(crossing > 25, "{crossing} rows cross UDP");
    let managed = rows.iter().filter(|r| r["link"] == "fabric").count();
    assert_eq!(managed, 4, "rows on a fabric");
    for row in rows {
        assert_eq!(row["passed"], true, "{row}");
        if row["link"] == "UDP" && row["crosses"] == true {
            assert!(row["packets"][0]["sent"].as_u64() > Some(0), "{row}");
            assert!(row["packets"][1]["received"].as_u64() > Some(0), "{row}");
        }
    }
    assert_eq!(json(&net.ok(&["host", "status", "--json"])), Value::Array(Vec::new()));
    assert_eq!(json(&net.ok(&["fabric", "status", "--json"])), Value::Array(Vec::new()));
}

#[test]
fn there_is_one_demo_at_a_time_and_it_ends_hosts_that_one_before_left() {
    let net = Net::new().hosts(&["demo-a", "demo-b"]);
    let demo = ["demo", "--only", "UD SEND, echoed"];
    let lock = fs::File::create(net.path().join("demo.lock")).unwrap();
    lock.lock().unwrap();
    assert!(net.fails(&demo, 1).contains("another demo is running"));
    assert_eq!(json(&net.ok(&["host", "status", "--json"])).as_array().unwrap().len(), 2);
    drop(lock);
    net.ok(&demo);
    assert_eq!(json(&net.ok(&["host", "status", "--json"])), Value::Array(Vec::new()));
}

/// Starts a command, sends a signal to it when one of its hosts is up, and returns its exit status. Checks that no hosts and no fabrics
/// are left.
fn signal_when_a_host_is_up(
    net: &Net,
    args: &[&str],
    signal: rustix::process::Signal,
) -> Option<i32> {
    let mut child = net.command(args).stdout(Stdio::null()).spawn().unwrap();
    // A host that is starting may not answer yet.
    while !String::from_utf8_lossy(&net.run(&["host", "status", "--json"]).stdout).contains("pid") {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, signal).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(json(&net.ok(&["host", "status", "--json"])), Value::Array(Vec::new()));
    assert_eq!(json(&net.ok(&["fabric", "status", "--json"])), Value::Array(Vec::new()));
    status.code()
}

#[test]
fn interrupted_demo_or_bench_ends_its_hosts_and_exits_with_128_plus_the_signal() {
    use rustix::process::Signal;
    let net = Net::new().hosts(&["demo-a", "demo-b", "bench-a", "bench-b"]);
    net.ok(&["host", "down"]);
    // Shells start background jobs with SIGINT ignored, and a signal that is ignored stays ignored.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(mask.trim(), 16).unwrap();
    let is_ignored = ignored & 1 << (Signal::INT.as_raw() - 1) != 0;
    let (interrupt, status) = if is_ignored { (Signal::TERM, 143) } else { (Signal::INT, 130) };
    assert_eq!(signal_when_a_host_is_up(&net, &["demo"], interrupt), Some(status));
    assert_eq!(signal_when_a_host_is_up(&net, &["demo"], Signal::TERM), Some(143));
    assert_eq!(signal_when_a_host_is_up(&net, &["bench"], interrupt), Some(status));
}

/// Returns two parts of a capture: up to the end of the first frame, and the second frame.
fn two_frames() -> [Vec<u8>; 2] {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    let bytes = fs::read(captures.join("siw_rping.pcap")).unwrap();
    let end = |at: usize| {
        let len = bytes[at + 8..].first_chunk().copied().map(u32::from_le_bytes).unwrap();
        at + 16 + usize::try_from(len).unwrap()
    };
    let (first, second) = (end(24), end(end(24)));
    [bytes[..first].to_vec(), bytes[first..second].to_vec()]
}

#[test]
fn frames_from_a_pipe_are_shown_as_they_come_until_its_end() {
    let net = Net::new();
    let mut command = net.command(&["decode", "-"]);
    let mut decode = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut pipe, out) = (decode.stdin.take().unwrap(), decode.stdout.take().unwrap());
    let mut out = BufReader::new(out);
    let [first, second] = two_frames();
    // The line of a frame does not wait for the end of the next one.
    pipe.write_all(&first).unwrap();
    pipe.write_all(&second[..20]).unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("[SYN]"), "{line}");
    // A terminal interrupts the writer of the pipe, too, whose remaining output is still read.
    interrupt(&decode);
    pipe.write_all(&second[20..]).unwrap();
    drop(pipe);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[SYN, ACK]") && rest.contains("2 frames"), "{rest}");
    assert!(decode.wait().unwrap().success());
}

/// Waits until a process is blocked in a system call, given by its number on x86-64 and elsewhere. Returns false if the kernel
/// does not report it.
fn wait_until_in(child: &mut Child, [x86_64, generic]: [&str; 2]) -> bool {
    let call = if cfg!(target_arch = "x86_64") { x86_64 } else { generic };
    let at = format!("/proc/{}/syscall", child.id());
    loop {
        match fs::read_to_string(&at) {
            Ok(text) if text.split(' ').next() == Some(call) => return true,
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return false,
            _ => {}
        }
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        std::thread::yield_now();
    }
}

/// Returns whether SIGINT is ignored here, as in background jobs of a script (`sigaction(2)`: it is inherited).
fn is_interrupt_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << (2 - 1) != 0
}

#[test]
fn capture_can_be_interrupted_while_its_output_waits() {
    let net = Net::new().hosts(&["one"]);
    let fifo = net.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let args = ["--host", "one", "capture", "-w", fifo.to_str().unwrap()];
    let mut capture = net.command(&args).spawn().unwrap();
    const OPENAT: [&str; 2] = ["257", "56"];
    let waits = wait_until_in(&mut capture, OPENAT);
    if is_interrupt_ignored() || !waits {
        // The child ignores it, too, before the capture begins.
        capture.kill().unwrap();
        capture.wait().unwrap();
    } else {
        interrupt(&capture);
        assert_eq!(capture.wait().unwrap().signal(), Some(2));
    }

    // The output is not read: the first interrupt does not reach the command, which is blocked in a write.
    let mut command = net.command(&args);
    let mut capture = command.stderr(Stdio::piped()).spawn().unwrap();
    let _reader = fs::File::open(&fifo).unwrap();
    let mut said = BufReader::new(capture.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0"]);
    let to = net.address(1);
    let ping = ["--host", "one", "ping", "-c", "-a", &to, "-p", &port, "-C", "9", "-S", "60000"];
    net.ok(&ping);
    assert!(server.wait().unwrap().success());
    const WRITE: [&str; 2] = ["1", "64"];
    wait_until_in(&mut capture, WRITE);
    let status = loop {
        if let Some(status) = capture.try_wait().unwrap() {
            break status;
        }
        interrupt(&capture);
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn capture_that_is_refused_leaves_the_file_as_it_was() {
    let net = Net::new().hosts(&["one"]);
    let mut first = net.command(&["--host", "one", "capture"]);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(first.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("capturing"), "{said}");
    let file = net.path().join("old");
    fs::write(&file, "a capture of before").unwrap();
    let args = ["--host", "one", "capture", "-w", file.to_str().unwrap()];
    let second = net.command(&args).output().unwrap();
    assert!(!second.status.success(), "one captures at a time");
    assert_eq!(fs::read_to_string(&file).unwrap(), "a capture of before");
    interrupt(&first);
    assert!(first.wait().unwrap().success());
}

#[test]
fn ping_without_a_count_goes_on_until_it_is_interrupted() {
    let net = Net::new().hosts(&["one"]);
    let to = net.address(1);
    for json_too in [false, true] {
        let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0", "-d"]);
        let mut args = vec!["--host", "one", "ping", "-c", "-a", &to, "-p", &port];
        args.extend(json_too.then_some("--json"));
        let mut client = net.command(&args).stdout(Stdio::piped()).spawn().unwrap();
        // The client is running when the server has printed data.
        let mut served = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(served.any(|line| line.unwrap().contains("ping data")));
        let served = std::thread::spawn(move || served.last().unwrap().unwrap());
        interrupt(&client);
        let mut text = String::new();
        client.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(client.wait().unwrap().success(), "{text}");
        let pings = if json_too {
            json(&text)["pings"].to_string()
        } else {
            let last = text.lines().last().unwrap();
            assert!(last.contains("round trip min/avg/max"), "{text}");
            last.split(' ').next().unwrap().to_owned()
        };
        let last = served.join().unwrap();
        assert!(last.ends_with(&format!("disconnected after {pings} pings")), "{last}; {text}");
        assert!(server.wait().unwrap().success());
    }
}

#[test]
fn ping_prints_nothing_beside_json() {
    let net = Net::new().hosts(&["one"]);
    let (mut server, port) = net.server(&["--host", "one", "ping", "-s", "-p", "0"]);
    let to = net.address(1);
    let args = ["--host", "one", "ping", "-c", "-a", &to, "-p", &port, "-C", "2", "-v", "--json"];
    assert_eq!(json(&net.ok(&args))["pings"], 2);
    assert!(server.wait().unwrap().success());
}

#[test]
fn there_is_one_bench_at_a_time_and_it_ends_hosts_that_one_before_left() {
    let net = Net::new().hosts(&["bench-a", "bench-b"]);
    let bench = ["bench", "--only", "poll", "--rounds", "1", "--json"];
    let lock = fs::File::create(net.path().join("bench.lock")).unwrap();
    lock.lock().unwrap();
    assert!(net.fails(&bench, 1).contains("another bench is running"));
    assert_eq!(json(&net.ok(&["host", "status", "--json"])).as_array().unwrap().len(), 2);
    drop(lock);
    net.ok(&bench);
    assert_eq!(json(&net.ok(&["host", "status", "--json"])), Value::Array(Vec::new()));
}
