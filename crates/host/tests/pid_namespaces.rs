//! A service and its clients in two PID namespaces, one of which cannot see the other's processes: they work together,
//! without the features that need a process's PID.
//!
//! Needs `unshare` of util-linux, and the privilege to make namespaces. Without these, each test prints that it was
//! skipped.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Host, connect_qp};
use rdmux_host::client::admin;
use rdmux_host::{Config, ConnectOptions, HostName, RuntimeDir};
use rdmux_testing::in_pid_namespace;
use rdmux_testing::qp::connected_to;
use rdmux_transport::attr::{QpCaps, QpType};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::{Cq, Device, Pd, Qp, QpInit, Xrcd, XrcdFlags};

/// The variables for the role of the process inside, and the folder of the host outside.
const ROLE: &str = "RDMUX_TEST_ROLE";
const DIR: &str = "RDMUX_TEST_DIR";

/// This program in a role. It prints a line, and lives until its parent waits for it.
struct Role {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
    said: String,
}

impl Role {
    fn start(mut command: Command, role: &str, dir: &Path) -> Self {
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(DIR, dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, w)| w.to_owned()));
        let said = said.unwrap_or_else(|| panic!("{role} has failed: {:?}", child.wait()));
        Self { child, lines: Box::new(lines), said }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.lines.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }
}

/// The processes inside. Not a test itself.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let say = |what: &str| println!("\nSAYS {what}");
    match role.as_str() {
        "service" => {
            let host = Host::start();
            say(host.dir.path().to_str().unwrap());
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        "client" => {
            let dir = std::env::var(DIR).unwrap();
            use_and_end(Path::new(&dir));
            say("done");
        }
        other => panic!("{other}"),
    }
}

/// Uses a service as a client does, and ends it. Returns the PIDs that it shows of its clients.
fn use_and_end(dir: &Path) -> Vec<i32> {
    let dir = RuntimeDir::at(dir.join("run")).unwrap();
    let host = HostName::new("test").unwrap();
    let config = Config::default();
    let options = ConnectOptions { dir: dir.clone(), config, embedded: false, program: None };
    let connect = || options.connect(&host, DeviceKind::default()).unwrap();
    let (a, b) = (Device::open(connect()).unwrap(), Device::open(connect()).unwrap());
    let qps = [&a, &b].map(|device| {
        let cq = Cq::new(device, 4, None, 0).unwrap();
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            caps: QpCaps { max_send_wr: 1, max_send_sge: 1, ..QpCaps::default() },
            sq_sig_all: false,
            context: 0,
        };
        Qp::new(&Pd::new(device), init).unwrap()
    });
    // Rings between the two, and the hub.
    let gid = b.gid(1, 0).unwrap().gid;
    connect_qp(&qps[0], &connected_to(gid, qps[1].qpn(), &qps[0].query()));
    let private = XrcdFlags { create: true, exclusive: false };
    let _domain = Xrcd::open(&b, None, private).unwrap();
    let status = admin::status(&dir, &host).unwrap();
    assert_eq!(status.clients.len(), 2);
    admin::down(&dir, &host).unwrap();
    status.clients.iter().map(|client| client.pid).collect()
}

#[test]
fn a_service_serves_clients_that_the_kernel_does_not_show_it() {
    let Some(command) = in_pid_namespace() else { return };
    let service = Role::start(command, "service", Path::new(""));
    assert_eq!(use_and_end(Path::new(&service.said)), [0, 0]);
    service.end();
}

#[test]
fn a_client_uses_a_service_that_the_kernel_does_not_show_it() {
    let Some(command) = in_pid_namespace() else { return };
    let host = Host::start();
    let client = Role::start(command, "client", host.dir.path());
    assert_eq!(client.said, "done");
    client.end();
}
