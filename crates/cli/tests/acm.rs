//! The service `ib_acm` on hosts of a fabric, with conforming and misbehaving clients.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::acm::{
    LONG, QUICK, Service, command, configure, fabric, fabric_of, name, places, resolve,
};
use common::{Net, missing_here, start_server};
use rdmux_acm_client::{Client, Places, Target};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{MAX_ENDPOINT_ADDRESSES, Paths};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn two_hosts_resolve_each_other_by_name_and_address_and_then_from_memory() {
    let net = fabric();
    for protocol in ["route_prot acm\n", "route_prot sa\n"] {
        let options = format!("{QUICK}{protocol}");
        let (a, b) = (Service::start(&net, "a", &options), Service::start(&net, "b", &options));
        let client = a.client();
        let path = resolve(&client, Some(name("a")), name("b")).paths[0].path;
        let back = resolve(&b.client(), Some(name("b")), name("a")).paths[0].path;
        assert_eq!((path.slid, path.dlid, path.sgid), (back.dlid, back.slid, back.dgid));
        assert_ne!(path.slid, path.dlid);
        let ip = |host| Address::from(net.address(host).parse::<std::net::IpAddr>().unwrap());
        let found = resolve(&client, None, ip(2));
        assert_eq!((found.source, found.paths[0].path.dlid), (Some(ip(1)), path.dlid));
        // Resolves once more, without sending a datagram.
        let sent = a.counted("sent_requests");
        assert_eq!(client.resolve_cached(None, ip(2), LONG).unwrap().paths, found.paths);
        assert_eq!(
            client.resolve_cached(Some(name("a")), name("b"), LONG).unwrap().paths[0].path,
            path
        );
        assert_eq!(a.counted("sent_requests"), sent);
        // Programs see the path in shared memory.
        assert_eq!(in_memory(&client, &ip(1), &ip(2)).paths, found.paths);
        let top = told(&net, &["--host", "a", "top", "--json"]);
        let is_found = |row: &serde_json::Value| {
            row["destination"] == net.address(2) && row["dlid"] == path.dlid.0
        };
        assert!(top["top"].as_array().unwrap().iter().any(is_found), "{top}");
        // The path disappears after a flush.
        assert!(client.flush(None, LONG).unwrap() > 0);
        assert!(client.cached(Some(&ip(1)), &ip(2)).is_none());
    }
}

#[test]
fn path_by_the_slowest_group_to_a_host_with_another_route_protocol_is_verified() {
    let net = fabric();
    let _services = [("a", "acm"), ("b", "sa")].map(|(host, protocol)| {
        Service::start(&net, host, &format!("{QUICK}route_prot {protocol}\n"))
    });
    let client = Client::new([Target::Tools(places(&net, "a"))]);
    let path = resolve(&client, Some(name("a")), name("b")).paths[0].path;
    let words = ["--host", "a", "-f", "n", "-s", "a", "-d", "b", "-v", "--json"];
    let row = &told(&net, &words)["services"][0]["paths"][0];
    assert_eq!((&row["verified"], &row["path"]["dlid"]), (&true.into(), &path.dlid.0.into()));
    let differs = format!("{}", row["differs"]);
    assert!(differs.contains(&format!("rate is 16, not {}", path.rate.0)), "{row}");
}

#[test]
fn files_are_read_anew_after_a_signal_and_after_a_change() {
    let net = fabric();
    let a = Service::start(&net, "a", QUICK);
    let client = a.client();
    resolve(&client, Some(name("a")), name("a"));
    let addresses = a.places.config().join("ibacm_addr.cfg");
    // A change of the file is noticed.
    fs::write(&addresses, "first rdmux_ib0 1 default\n").unwrap();
    resolve(&client, Some(name("first")), name("first"));
    assert!(
        client.resolve_cached(Some(name("a")), name("first"), LONG).is_err(),
        "no name any more"
    );
    // An invalid line is reported, and the others are used.
    fs::write(&addresses, "nonsense\nsecond rdmux_ib0 1 default\n").unwrap();
    a.signal(Signal::HUP);
    resolve(&client, Some(name("second")), name("second"));
    let log = fs::read_to_string(a.places.log()).unwrap();
    assert!(log.contains("ibacm_addr.cfg:1: error"), "{log}");
}

#[test]
fn socket_that_could_not_be_created_is_tried_again_after_a_signal() {
    let net = fabric();
    let a = Service::start(&net, "a", QUICK);
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let options = format!("{QUICK}server_mode open\nserver_port {port}\n");
    fs::write(a.places.config().join("ibacm_opts.cfg"), options).unwrap();
    a.signal(Signal::HUP);
    let wanted = format!("listen on TCP port {port}");
    while !fs::read_to_string(a.places.log()).unwrap().contains(&wanted) {
        std::thread::yield_now();
    }
    // Clients still connect to the socket.
    resolve(&a.client(), Some(name("a")), name("a"));
    drop(taken);
    a.signal(Signal::HUP);
    let written = format!("{port}\n");
    while fs::read_to_string(a.places.port()).unwrap_or_default() != written {
        std::thread::yield_now();
    }
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
}

/// Pings a host from the other one, by devices of this kind.
fn ping(net: &Net, device: &str) {
    let of = |args: &[&str]| {
        let mut command = net.command(args);
        command.env("RDMUX_DEVICE", device).env("RDMUX_ACM_TIMEOUT", "60000");
        command
    };
    let (mut server, port) = start_server(of(&["--host", "b", "ping", "-s", "-p", "0"]));
    let to = net.address(2);
    let client = ["--host", "a", "ping", "-c", "-a", &to, "-p", &port, "-C", "1"];
    let output = of(&client).output().unwrap();
    assert!(output.status.success(), "{device}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(server.wait().unwrap().success(), "{device}: the server did not end well");
}

#[test]
fn program_on_roce_or_iwarp_is_not_answered_for_the_fabric_that_has_the_same_addresses() {
    let net = fabric();
    let mut all = command(&net, "a");
    all.env_remove("RDMUX_DEVICE");
    let a = Service::start_by(all, places(&net, "a"), QUICK);
    // Only a port of a fabric has a name with a number: it is up.
    resolve(&a.client(), Some(name("a-1")), name("a-1"));
    let counted = || ["resolves", "errors", "sent_requests"].map(|name| a.counted(name));
    let [resolves, errors, sent] = counted();
    ping(&net, "roce");
    assert_eq!(counted(), [resolves + 1, errors, sent]);
    // The following programs find the path in shared memory.
    ping(&net, "roce");
    ping(&net, "iw");
    assert_eq!(counted(), [resolves + 1, errors, sent]);
}

/// Returns a command that runs `ib_acme`.
fn tool(net: &Net, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ib_acme"));
    configure(command.args(args), net);
    command
}

/// Returns the document that `ib_acme` prints.
fn told(net: &Net, args: &[&str]) -> serde_json::Value {
    let output = tool(net, args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the addresses of a host's endpoints, as `ib_acme -e` lists them.
fn listed(net: &Net, host: &str) -> Vec<Vec<String>> {
    let told = told(net, &["--host", host, "-e", "--json"]);
    let endpoints = told["services"][0]["endpoints"].as_array().unwrap();
    let text = |address: &serde_json::Value| address.as_str().unwrap().to_owned();
    let addresses =
        |e: &serde_json::Value| e["addresses"].as_array().unwrap().iter().map(text).collect();
    endpoints.iter().map(addresses).collect()
}

#[test]
fn endpoint_has_any_number_of_names_and_as_many_as_an_answer_has_room_for_are_listed() {
    let net = fabric();
    let (a, b) = (Service::start(&net, "a", QUICK), Service::start(&net, "b", QUICK));
    let client = b.client();
    for count in [1000, 1100] {
        let names: Vec<String> = (1..=count).map(|n| format!("name{n}-of{count}")).collect();
        let lines: String = names.iter().map(|n| format!("{n} rdmux_ib0 1 default\n")).collect();
        fs::write(a.places.addresses(), lines).unwrap();
        // The last one is resolved from another host, and is the source of a resolve.
        let last = name(names.last().unwrap());
        let there = resolve(&client, Some(name("b")), last).paths[0].path;
        let back = resolve(&a.client(), Some(last), name("b")).paths[0].path;
        assert_eq!((there.slid, there.dlid), (back.dlid, back.slid));
        // The port's IP addresses follow.
        let ip = net.address(1);
        let mut right = [names, vec![ip]].concat();
        right.truncate(MAX_ENDPOINT_ADDRESSES);
        assert_eq!(listed(&net, "a"), [right], "{count}");
    }
    assert_eq!(listed(&net, "b").len(), 1);
}

#[test]
fn host_is_found_when_its_service_has_another_number_of_receives() {
    let net = fabric();
    let (a, b) = (Service::start(&net, "a", QUICK), Service::start(&net, "b", QUICK));
    let client = b.client();
    resolve(&client, Some(name("b")), name("a"));
    // The name is now at another queue pair.
    fs::write(a.places.options(), format!("{QUICK}recv_depth 64\n")).unwrap();
    fs::write(a.places.config().join("ibacm_addr.cfg"), "other rdmux_ib0 1 default\n").unwrap();
    a.signal(Signal::HUP);
    resolve(&client, Some(name("b")), name("other"));
}

#[test]
fn service_that_was_killed_is_replaced_and_a_second_one_is_refused() {
    let net = fabric();
    let a = Service::start(&net, "a", QUICK);
    let client = a.client();
    resolve(&client, Some(name("a")), name("a"));
    let second = command(&net, "a").arg("-P").output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains(&format!("process {}", a.child.id())), "{said}");
    a.signal(Signal::KILL);
    let places = a.places.clone();
    drop(a);
    assert!(places.socket().exists(), "it could not remove its socket");
    let again = Service::start(&net, "a", QUICK);
    // The same client, which connects again.
    resolve(&client, Some(name("a")), name("a"));
    again.signal(Signal::TERM);
    let mut again = again;
    assert!(again.child.wait().unwrap().success());
    assert!(!places.socket().exists() && !places.paths().exists());
}

#[test]
fn service_in_a_pid_namespace_serves_programs_outside_of_it() {
    let Some(mut inside) = rdmux_testing::in_pid_namespace() else { return };
    let net = fabric();
    inside.args([env!("CARGO_BIN_EXE_ib_acm"), "--host", "a"]);
    configure(&mut inside, &net);
    let a = Service::start_by(inside, places(&net, "a"), QUICK);
    let _b = Service::start(&net, "b", QUICK);
    let found = resolve(&a.client(), Some(name("a")), name("b"));
    // Programs outside of the view see the shared cache, too.
    assert_eq!(in_memory(&a.client(), &name("a"), &name("b")).paths, found.paths);
}

#[test]
fn ordinary_user_has_a_fabric_with_hosts_whose_services_resolve_each_other() {
    let Some(net) = Net::of_ordinary_user() else { return };
    let net = fabric_of(net, &[]);
    let services = ["a", "b"].map(|host| Service::start(&net, host, QUICK));
    let words = ["--host", "a", "-f", "n", "-s", "a", "-d", "b", "-v"];
    let output = loop {
        let output = tool(&net, &words).output().unwrap();
        // Ports come up and groups are joined first.
        if output.status.success() {
            break String::from_utf8_lossy(&output.stdout).into_owned();
        }
    };
    assert!(output.contains("SA verification: success\n"), "{output}");
    for service in services {
        let process = fs::metadata(format!("/proc/{}", service.child.id())).unwrap();
        let socket = fs::metadata(service.places.socket()).unwrap();
        assert_ne!(process.uid(), 0);
        assert_eq!(socket.uid(), process.uid());
    }
}

#[test]
fn server_mode_loop_serves_tcp_until_a_reload_without_it() {
    let net = fabric();
    let a = Service::start(&net, "a", &format!("{QUICK}server_mode loop\n"));
    let port: u16 = fs::read_to_string(a.places.port_link()).unwrap().trim().parse().unwrap();
    let at = rdmux_acm_client::Address::Tcp(([127, 0, 0, 1], port).into());
    resolve(&Client::new([Target::At(at)]), Some(name("a")), name("a"));
    // Without the option the port is closed; connected clients stay.
    let mut stays = TcpStream::connect(("127.0.0.1", port)).unwrap();
    fs::write(a.places.options(), QUICK).unwrap();
    a.signal(Signal::HUP);
    while TcpStream::connect(("127.0.0.1", port)).is_ok() || a.places.port().exists() {
        std::thread::yield_now();
    }
    stays.write_all(&[1, 2, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
    stays.read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn socket_access_option_sets_the_mode_of_the_sockets() {
    let net = fabric();
    let a = Service::start(&net, "a", QUICK);
    let modes = || {
        [a.places.socket(), a.places.paths()]
            .map(|path| fs::metadata(path).map_or(0, |file| file.permissions().mode() & 0o777))
    };
    assert_eq!(modes(), [0o600; 2]);
    for (options, mode) in [("socket_access all\n", 0o666), ("", 0o600)] {
        fs::write(a.places.options(), format!("{QUICK}{options}")).unwrap();
        a.signal(Signal::HUP);
        while modes() != [mode; 2] {
            std::thread::yield_now();
        }
    }
}

#[test]
fn check_says_which_line_is_wrong_and_starts_nothing() {
    let net = Net::new().hosts(&["a"]);
    let places = places(&net, "a");
    fs::create_dir_all(places.config()).unwrap();
    let options: PathBuf = places.config().join("ibacm_opts.cfg");
    fs::write(&options, "retries 3\nmin_mtu 1000\n").unwrap();
    let check = || command(&net, "a").arg("--check").output().unwrap();
    let output = check();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{}:2: error: min_mtu", options.display())), "{said}");
    fs::write(&options, "retries 3\n").unwrap();
    let output = check();
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(String::from_utf8_lossy(&output.stdout).contains("absent"));
    // Of the host, which is up.
    fs::write(places.addresses(), "a RDMUX_IB0 1 default\nb mlx5_0 1 default\n").unwrap();
    let output = check();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let right = format!("{}:2: warning: b is not used: there", places.addresses().display());
    assert!(output.status.success() && said.starts_with(&right), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!places.socket().exists());
}

#[test]
fn addresses_of_a_file_that_the_cache_has_no_room_for_are_counted_in_log_and_check() {
    let net = fabric();
    let files = places(&net, "a");
    fs::create_dir_all(files.config()).unwrap();
    let hosts = files.config().join("ibacm_hosts.data");
    let lines: String = (1..=30).map(|n| format!("h{n} fe80::{n}\n")).collect();
    fs::write(&hosts, lines).unwrap();
    let a = Service::start(&net, "a", "addr_preload acm_hosts\ncache_entries 10\n");
    let log = || fs::read_to_string(a.places.log()).unwrap_or_default();
    let why = "20 of 30 addresses do not fit into cache_entries, which is 10; raise it";
    until_is_in(log, &format!("endpoint 0: {why}"));
    assert!(log().contains("endpoint 0: 10 addresses loaded"), "{}", log());
    let check = || {
        let output = command(&net, "a").arg("--check").output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(check(), format!("{}: warning: {why}\n", hosts.display()));
    fs::write(a.places.options(), "addr_preload acm_hosts\ncache_entries 30\n").unwrap();
    until_is_in(log, "endpoint 0: 30 addresses loaded");
    assert_eq!(check(), "");
}

/// Waits until a text contains a part.
fn until_is_in(text: impl Fn() -> String, part: &str) {
    while !text().contains(part) {
        std::thread::yield_now();
    }
}

/// Starts a host's service in the background, and queries it once.
fn in_background(net: &Net, host: &str) -> Places {
    let output = command(net, host).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let places = places(net, host);
    let client = Client::new([Target::Tools(places.clone())]);
    resolve(&client, Some(name(host)), name(host));
    places
}

#[test]
fn background_acm_service_is_ready_when_its_command_returns() {
    let net = fabric();
    let places = in_background(&net, "a");
    let pid: i32 = fs::read_to_string(places.pid()).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    while places.socket().exists() {
        std::thread::yield_now();
    }
    let mode = fs::metadata(places.log()).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}");
}

#[test]
fn background_acm_service_with_log_file_stdout_logs_to_its_default_file() {
    let net = fabric();
    let config = places(&net, "a").config().to_owned();
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("ibacm_opts.cfg"), "log_file stdout\n").unwrap();
    let places = in_background(&net, "a");
    let log = fs::read_to_string(places.log()).unwrap();
    assert!(log.contains("serving host a"), "{log}");
}

#[test]
fn host_down_ends_its_acm_service_too() {
    let net = fabric();
    let places = in_background(&net, "a");
    let other = Service::start(&net, "b", QUICK);
    assert_eq!(net.ok(&["host", "down", "a"]), "host a and its ACM service are down\n");
    assert!(!places.socket().exists());
    let status = net.ok(&["host", "status"]);
    assert!(!status.lines().any(|line| line.starts_with("a ")), "{status}");
    resolve(&other.client(), Some(name("b")), name("b"));
}

#[test]
fn systemd_socket_activation_with_ready_notification() {
    let net = fabric();
    let places = places(&net, "a");
    fs::create_dir_all(places.runtime()).unwrap();
    let listener = UnixListener::bind(places.socket()).unwrap();
    let notified = UnixDatagram::bind(net.path().join("notify")).unwrap();
    // The shell's process id is that of the program that replaces it, and descriptor 3 is the first that is passed.
    let script = r#"exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --host a --systemd"#;
    let mut shell = Command::new("sh");
    let given = command(&net, "a");
    for (name, value) in given.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", script, env!("CARGO_BIN_EXE_ib_acm")]);
    shell.env("NOTIFY_SOCKET", net.path().join("notify")).stdin(OwnedFd::from(listener));
    let service = Service { child: shell.spawn().unwrap(), places };
    let mut said = [0; 64];
    let count = notified.recv(&mut said).unwrap();
    assert_eq!(said[..count].trim_ascii_end(), b"READY=1");
    resolve(&service.client(), Some(name("a")), name("a"));
    let socket = service.places.socket();
    drop(service);
    assert!(socket.exists(), "it is systemd's");
}

/// Runs a script on a host, with a view of this kind; none if the machine does not support it.
fn in_view(net: &Net, kind: &str, script: &str) -> Option<String> {
    let mut command =
        net.command(&["--host", "a", "run", "--view", kind, "--", "sh", "-c", script]);
    command.env("XDG_CONFIG_HOME", net.path().join("config"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("cannot create a mount namespace here") {
        missing_here(&said);
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn files_created_in_run_inside_a_view_belong_to_the_host() {
    for kind in ["namespace", "preload"] {
        let net = fabric();
        let places = places(&net, "a");
        let script = "echo here > /run/ibacm.probe && cat /run/ibacm.probe && ls /run";
        let all = contents("/run");
        let Some(said) = in_view(&net, kind, script) else { continue };
        let probe = places.runtime().join("ibacm.probe");
        assert_eq!(fs::read_to_string(probe).unwrap(), "here\n", "{kind}");
        let mut there = said.lines();
        assert_eq!(there.next(), Some("here"), "{kind}");
        let there: Vec<&str> = there.collect();
        assert_has_all(kind, &all, &there);
        // The second program of the host sees the files of the first.
        assert_eq!(in_view(&net, kind, "cat /run/ibacm.probe").unwrap(), "here\n", "{kind}");
    }
}

#[test]
fn configuration_in_a_view_is_the_hosts_not_the_machines() {
    for kind in ["namespace", "preload"] {
        if kind == "namespace" && !Path::new("/etc/rdma").is_dir() {
            missing_here("no /etc/rdma (package rdma-core): such a view has none either");
            continue;
        }
        let net = Net::new();
        // The host's service also has to know where the configuration is.
        let mut up = net.command(&["host", "up", "a", "--addr", &net.address(1)]);
        up.env("XDG_CONFIG_HOME", net.path().join("config"));
        assert!(up.output().unwrap().status.success());
        let config = places(&net, "a").config().to_owned();
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("ibacm_addr.cfg"), "a rdmux_ib0 1 default\n").unwrap();
        let script =
            "cat /etc/rdma/ibacm_addr.cfg && echo here > /etc/rdma/probe.cfg && ls /etc/rdma";
        let Some(said) = in_view(&net, kind, script) else { continue };
        assert_eq!(said, "a rdmux_ib0 1 default\nibacm_addr.cfg\nprobe.cfg\n", "{kind}");
        assert_eq!(fs::read_to_string(config.join("probe.cfg")).unwrap(), "here\n", "{kind}");
        assert!(!Path::new("/etc/rdma/probe.cfg").exists(), "{kind}");
    }
}

/// Returns the paths that a program sees in the service's shared memory, once they are there.
fn in_memory(client: &Client, source: &Address, dest: &Address) -> Paths {
    loop {
        if let Some(paths) = client.cached(Some(source), dest) {
            return paths;
        }
        std::thread::yield_now();
    }
}

/// Returns the entries of a system directory.
fn contents(folder: &str) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Checks that a view shows all of a system directory, except for entries removed since.
fn assert_has_all(kind: &str, all: &[PathBuf], seen: &[&str]) {
    for entry in all.iter().filter(|entry| fs::symlink_metadata(entry).is_ok()) {
        let name = entry.file_name().unwrap();
        assert!(seen.iter().any(|seen| *seen == name), "{kind}: no {name:?} in {seen:?}");
    }
}

#[test]
fn ibacm_log_written_in_a_view_is_the_hosts_not_the_machines() {
    let machine = Path::new("/var/log/ibacm.log");
    let before = fs::metadata(machine).map(|log| log.len()).ok();
    for kind in ["namespace", "preload"] {
        let net = fabric();
        let script = "echo line >> /var/log/ibacm.log && cat /var/log/ibacm.log && ls /var/log";
        let all = contents("/var/log");
        let Some(said) = in_view(&net, kind, script) else { continue };
        assert_eq!(fs::read_to_string(places(&net, "a").log()).unwrap(), "line\n", "{kind}");
        let mut there = said.lines();
        assert_eq!(there.next(), Some("line"), "{kind}");
        assert_has_all(kind, &all, &there.collect::<Vec<_>>());
        // The next program sees it, but the machine does not.
        assert_eq!(in_view(&net, kind, "cat /var/log/ibacm.log").unwrap(), "line\n", "{kind}");
        assert_eq!(fs::metadata(machine).map(|log| log.len()).ok(), before, "{kind}");
    }
}

/// Returns a resolve message with this many entries and no source.
fn entries(count: u16) -> Vec<u8> {
    let length = 16 + count * 72;
    let mut message = vec![1, 1, 0, 0, 0, 0];
    message.extend(length.to_ne_bytes());
    message.extend([7; 8]);
    for entry in 0..count {
        // The last one is the destination, an IPv4 address.
        let flags: u32 = if entry + 1 == count { 2 } else { 0 };
        message.extend(flags.to_ne_bytes());
        message.extend(2_u16.to_ne_bytes());
        message.extend([0, 0, 127, 99, 99, 99]);
        message.extend([0; 60]);
    }
    message
}

#[test]
fn malformed_slow_or_closing_clients_do_not_delay_others() {
    let net = fabric();
    let a = Service::start(&net, "a", QUICK);
    let connect = || UnixStream::connect(a.places.socket()).unwrap();
    // Eight entries and no source: the service writes nothing after them.
    let mut eight = connect();
    eight.write_all(&entries(8)).unwrap();
    let mut header = [0; 16];
    eight.read_exact(&mut header).unwrap();
    assert_eq!((header[8..].iter().all(|b| *b == 7), header[0]), (true, 1));
    // Nine entries are invalid: the connection is closed.
    let mut nine = connect();
    nine.write_all(&entries(9)[..16]).unwrap();
    assert_eq!(nine.read(&mut header).unwrap(), 0);
    // Half a message, for any time.
    let mut half = connect();
    half.write_all(&entries(1)[..40]).unwrap();
    // Clients that close before the answer.
    for _ in 0..20 {
        connect().write_all(&entries(1)).unwrap();
    }
    // A client that never reads, and sends requests until it is dropped.
    let mut deaf = connect();
    deaf.set_nonblocking(true).unwrap();
    let counters = [1, 2, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1].repeat(64);
    while deaf.write(&counters).is_ok() {}
    // Meanwhile other clients are served.
    resolve(&a.client(), Some(name("a")), name("a"));
    half.write_all(&entries(1)[40..]).unwrap();
    half.read_exact(&mut header).unwrap();
    assert!(a.counted("clients_dropped_malformed") >= 1);
}

#[test]
fn host_down_force_ends_a_hung_acm_service_of_a_dead_host() {
    let net = fabric();
    let a = Service::start(&net, "a", QUICK);
    a.signal(Signal::STOP);
    let status = net.ok(&["host", "status", "a", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let pid = Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap();
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ended, None), Ok(1));
    let said = net.ok(&["host", "down", "--force", "a"]);
    assert!(said.contains("its ACM service ended"), "{said}");
}
