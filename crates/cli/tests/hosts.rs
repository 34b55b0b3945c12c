//! `rdmux host` and its services in case of problems: stopped services, services that are ending, a full disk.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use common::{Net, accept, listen_as, stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

/// Only a failing test waits this long.
const TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Returns the process of a host's service.
fn service_of(net: &Net, host: &str) -> Pid {
    let status = json(&net.ok(&["host", "status", host, "--json"]));
    Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

#[test]
fn up_and_down_take_the_host_of_the_environment() {
    let net = Net::new();
    let said = net.fails(&["host", "up"], 2);
    assert!(said.contains("Usage: rdmux host up") && said.contains("NAME"), "{said}");
    let run = |host: &str, args: &[&str]| net.command(args).env("RDMUX_HOST", host).output();
    let up = run("one", &["host", "up", "--addr", &net.address(1), "--json"]).unwrap();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    assert_eq!(json(&String::from_utf8_lossy(&up.stdout))["host"], "one");
    // A name on the command line takes precedence over it.
    assert!(
        run("one", &["host", "up", "two", "--addr", &net.address(2)]).unwrap().status.success()
    );
    assert!(run("one", &["host", "down"]).unwrap().status.success());
    let left = json(&net.ok(&["host", "status", "--json"]));
    let left: Vec<_> = left.as_array().unwrap().iter().map(|s| &s["host"]).collect();
    assert_eq!(left, ["two"]);
}

#[test]
fn soak_ends_its_hosts_when_the_reader_of_its_output_closes_it() {
    let net = Net::new();
    let mut soak = net.command(&["soak", "xrc", "--cycles", "2000"]);
    let mut soak = soak.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(soak.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("connections"), "{line}");
    assert!(soak.wait().unwrap().success());
    let left = json(&net.ok(&["host", "status", "--json"]));
    assert!(left.as_array().unwrap().is_empty(), "{left}");
}

#[test]
fn a_stopped_service_is_named_beside_the_others_and_ended_by_force() {
    let net = Net::new().hosts(&["one", "two"]);
    let pid = service_of(&net, "one");
    stop(pid);

    let output = net.run(&["host", "status"]);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    let row =
        |host: &str| out.lines().find(|l| l.trim_start().starts_with(host)).unwrap().to_owned();
    let number = pid.as_raw_nonzero().to_string();
    assert!(row("one").contains("does not answer") && row("one").contains(&number), "{out}");
    assert!(row("two").contains(&net.address(2)), "{out}");
    assert!(err.contains("rdmux host down --force one") && err.contains(&number), "{err}");

    let all = net.run(&["host", "status", "--json"]);
    let all = json(&String::from_utf8_lossy(&all.stdout));
    assert_eq!(all[0]["pid"], pid.as_raw_nonzero().get(), "{all}");
    assert_eq!((&all[0]["host"], &all[1]["host"]), (&"one".into(), &"two".into()), "{all}");

    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    net.ok(&["host", "down", "--force", "one"]);
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&TIMEOUT)), Ok(1));
    assert!(net.fails(&["host", "status", "one"], 1).contains("is not up"));
    net.ok(&["host", "up", "one"]);
    net.ok(&["host", "down", "--force"]);
}

#[test]
fn a_stopped_service_does_not_outlive_its_test() {
    let mut net = Net::new().hosts(&["one"]);
    let pid = service_of(&net, "one");
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    stop(pid);
    net.end();
    assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&TIMEOUT)), Ok(1));
    assert!(!net.path().exists());
}

#[test]
fn a_program_that_meets_an_ending_service_waits_for_its_end() {
    let net = Net::new().hosts(&["one"]);
    net.ok(&["host", "down", "one"]);
    // The state of a service that is ending: its socket is removed, and everything else is not yet.
    let lock = File::open(net.path().join("hosts/one/lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    let inode = format!(":{} ", lock.metadata().unwrap().ino());

    let mut program = net.command(&["--host", "one", "devices"]);
    let mut program = program.stdout(Stdio::null()).spawn().unwrap();
    let waits = |line: &str| line.contains("-> FLOCK") && line.contains(&inode);
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        assert_eq!(program.try_wait().unwrap(), None, "it did not wait");
        std::thread::yield_now();
    }
    drop(lock);
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_full_disk_leaves_the_registry_as_it_was() {
    let net = Net::new();
    // Some bytes less than fit the disk below.
    let mut text = format!("one {}\n", net.address(1));
    for n in 0.. {
        let line = format!("host-{n} 127.77.1.{}\n", n + 1);
        if text.len() + line.len() > 500 {
            break;
        }
        text += &line;
    }
    let registry = net.path().join("registry");
    fs::write(&registry, &text).unwrap();

    // A file size limit acts like a full disk: writes beyond it fail.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let mut full = Command::new("sh");
    full.args(["-c", script, "sh", env!("CARGO_BIN_EXE_rdmux"), "host", "up", "another-one"]);
    full.args(["--addr", &net.address(2)]);
    full.env("RDMUX_RUNTIME_DIR", net.path()).env_remove("RDMUX_HOST");
    let output = full.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("registry") && said.contains("File too large"), "{said}");

    assert_eq!(fs::read_to_string(&registry).unwrap(), text);
    net.ok(&["host", "up", "one"]);
    net.ok(&["host", "up", "another-one", "--addr", &net.address(2)]);
}

#[test]
fn a_damaged_line_of_the_registry_is_named_and_the_hosts_start() {
    let net = Net::new();
    let text = format!("one {}\ntwo 127.77.\n", net.address(1));
    fs::write(net.path().join("registry"), text).unwrap();
    let output = net.run(&["host", "up", "three", "--addr", &net.address(3)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("registry: line 2 is skipped"), "{said}");
    let one = json(&net.ok(&["host", "up", "one", "--json"]));
    assert_eq!(one["gids"][0]["address"], net.address(1));
}

#[test]
fn a_service_whose_log_is_full_goes_on() {
    let net = Net::new();
    // The service logs this invalid line when it starts.
    let text = format!("nonsense\none {}\n", net.address(1));
    fs::write(net.path().join("registry"), text).unwrap();
    fs::create_dir_all(net.path().join("hosts/one")).unwrap();
    let mut serve = net.command(&["host", "serve", "one"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut serve = serve.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(serve.stdout.as_mut().unwrap()),
        &mut said,
    )
    .unwrap();
    assert_eq!(said, "ready\n");
    net.ok(&["host", "status", "one"]);
    net.ok(&["host", "down", "one"]);
    assert!(serve.wait().unwrap().success());
}

#[test]
fn down_of_all_hosts_ignores_those_that_ended_by_themselves() {
    let net = Net::new().hosts(&["c"]);
    let [broken, ending] = ["a", "b"].map(|name| listen_as(&net.path().join("hosts").join(name)));
    let mut command = net.command(&["host", "down"]);
    let down = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first connection is from looking for hosts that are up, and the second from ending the host.
    let _first = accept(&broken);
    let second = accept(&broken);
    drop((ending, second));
    let output = down.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("\"a\"") && said.lines().count() == 1, "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "host c is down\n");
    net.fails(&["host", "down", "b"], 1);
}

#[test]
fn clients_that_break_the_protocol_do_not_fill_the_log() {
    const CLIENTS: usize = 500;
    let net = Net::new().hosts(&["one"]);
    let socket = SocketAddrUnix::new(net.path().join("hosts/one/sock")).unwrap();
    for _ in 0..CLIENTS {
        let kind = SocketType::SEQPACKET;
        let client = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::connect(&client, &socket).unwrap();
        rustix::net::send(&client, &[0xff; 64], SendFlags::NOSIGNAL).unwrap();
        // Waits until the service has closed it: its messages before that do not matter.
        while rustix::net::recv(&client, &mut [0; 512], RecvFlags::empty()).is_ok_and(|n| n.0 > 0) {
        }
    }
    let status = json(&net.ok(&["host", "status", "one", "--json"]));
    assert_eq!(status["counters"]["service"]["service_clients_broke_protocol"], CLIENTS);
    let log = fs::read_to_string(net.path().join("hosts/one/log")).unwrap();
    let lines = log.lines().count();
    assert!(lines > 0 && lines < CLIENTS / 2, "{lines} lines: {log}");
}

#[test]
fn a_service_keeps_nothing_of_the_program_that_needed_it() {
    let net = Net::new();
    // The test's program has a file open and signals blocked, becomes `rdmux`, and waits.
    let script = r#"exec 9>"$RDMUX_RUNTIME_DIR/file" && exec env --block-signal=TERM,HUP "$@""#;
    let program = [env!("CARGO_BIN_EXE_rdmux"), "--host", "one", "ping", "-s", "-p", "0"];
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(program).env("RDMUX_RUNTIME_DIR", net.path());
    command.env_remove("RDMUX_HOST").stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();

    let of = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = move |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            value.trim().to_owned()
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        // A descriptor that is closed meanwhile is not the one in question.
        let files: Vec<_> = files.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect();
        (field("PPid:"), field("SigBlk:"), files.contains(&net.path().join("file")))
    };
    let server_pid = server.id().to_string();
    let (_, blocked, has_file) = of(&server_pid);
    assert_eq!((&*blocked, has_file), ("0000000000004001", true), "the program itself");
    let (parent, blocked, has_file) = of(&service_of(&net, "one").as_raw_nonzero().to_string());
    assert_eq!((&*blocked, has_file), ("0000000000000000", false), "its service");
    assert_ne!(parent, server_pid);
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn files_that_the_environment_names_may_lie_where_the_program_is() {
    let net = Net::new();
    fs::write(net.path().join("mine.toml"), "[service]\nidle_exit_seconds = 123\n").unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_rdmux"), net.path().join("mine")).unwrap();
    let up = |config: &str| {
        let mut up = net.command(&["host", "up", "one", "--addr", &net.address(1)]);
        up.current_dir(net.path()).env("RDMUX_CONFIG", config).env("RDMUX_DAEMON", "./mine");
        let output = up.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(up("mine.toml"), (true, String::new()));
    let (is_up, why) = up("other.toml");
    assert!(!is_up && why.contains("other.toml"), "{why}");
}
