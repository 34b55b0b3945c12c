//! Network namespaces act as different machines: hosts and fabrics of one are not those of another.

mod common;

use std::process::{Command, Output};

use common::namespace::Namespace;
use common::{Net, missing_here};
use rdmux_fabric::client::{Attachment, ConnectOptions, MadFile, admin};
use rdmux_fabric::proto::{NodeRef, PortRef};
use rdmux_fabric::{Config, FabricError, FabricName};
use rdmux_runtime::UserDir;
use rdmux_subnet::PortEvent;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{Attribute, PhysState, PortState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, Qpn};

/// Runs a shell command in a new network namespace, with its loopback interface up. `None` where the kernel forbids that.
fn in_another_namespace(line: &str, configure: impl FnOnce(&mut Command)) -> Option<Output> {
    const ENTERED: &str = "entered\n";
    let line = format!("ip link set lo up && echo entered && {line}");
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--user", "--net", "sh", "-c", &line]);
    command.env_remove("RDMUX_HOST").env_remove("RUST_LOG");
    configure(&mut command);
    let mut output = command.output().unwrap();
    let Some(said) = output.stdout.strip_prefix(ENTERED.as_bytes()) else {
        missing_here(&String::from_utf8_lossy(&output.stderr));
        return None;
    };
    output.stdout = said.to_vec();
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command under test.
const RDMUX: &str = env!("CARGO_BIN_EXE_rdmux");

#[test]
fn a_service_of_another_network_namespace_is_refused_with_advice() {
    let net = Net::new().hosts(&["one"]);
    for args in ["devices", "run -- true", "doctor"] {
        let line = format!("'{RDMUX}' --host one {args}");
        let Some(output) = in_another_namespace(&line, |command| {
            command.env("RDMUX_RUNTIME_DIR", net.path());
        }) else {
            return;
        };
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success(), "{args}: {said}");
        assert!(said.contains("another network namespace"), "{args}: {said}");
        assert!(said.contains("RDMUX_RUNTIME_DIR"), "{args}: {said}");
    }
    // The service can be queried and ended from there.
    let line = format!("'{RDMUX}' host status one && '{RDMUX}' host down one");
    let output = in_another_namespace(&line, |command| {
        command.env("RDMUX_RUNTIME_DIR", net.path());
    });
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn each_network_namespace_has_hosts_of_its_own() {
    let net = Net::new();
    let usual = |command: &mut Command| {
        command.env_remove("RDMUX_RUNTIME_DIR").env("XDG_RUNTIME_DIR", net.path());
    };
    let here = |args: &[&str]| {
        let mut command = net.command(args);
        usual(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let address = net.address(1);
    here(&["host", "up", "one", "--addr", &address]);
    // The same name and address, on a different machine.
    let line = format!(
        "'{RDMUX}' host status && '{RDMUX}' host up one --addr {address} && '{RDMUX}' host down one \
         && '{RDMUX}' --host one run -- true && '{RDMUX}' host down"
    );
    let output = in_another_namespace(&line, usual);
    let mine = here(&["host", "status"]);
    here(&["host", "down", "one"]);
    let Some(output) = output else { return };
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("no host is up"), "{said}");
    assert!(mine.contains(&address), "{mine}");
}

/// A machine with its own directory.
struct Machine {
    net: Net,
    namespace: Namespace,
}

impl Machine {
    /// Runs `rdmux` there.
    fn rdmux(&self, args: &[&str]) -> Output {
        let mut command = self.namespace.command(RDMUX);
        command.args(args).env("RDMUX_RUNTIME_DIR", self.net.path()).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.rdmux(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Returns how to reach the directory's fabric, for a host or a program of that machine: only programs there use
    /// its network.
    fn options(&self) -> ConnectOptions {
        let user = UserDir::at(self.net.path()).unwrap();
        ConnectOptions { user, config: Config::default(), embedded: false, program: None }
    }
}

/// Returns two machines connected by a cable, with the addresses 10.79.0.1 and 10.79.0.2. `None` where the kernel
/// forbids that.
fn two_machines() -> Option<[Machine; 2]> {
    const MAC: [&str; 2] = ["02:00:00:00:79:01", "02:00:00:00:79:02"];
    let left = Namespace::new()?;
    let right = left.beside()?;
    let ends = format!("wire0 address {} type veth peer name wire1 address {}", MAC[0], MAC[1]);
    left.ok(&format!("ip link add {ends} netns {}", right.holder.id()));
    for (end, own, other) in [(&left, 0, 1), (&right, 1, 0)] {
        let [own_ip, other_ip] = [own, other].map(|n| format!("10.79.0.{}", n + 1));
        end.ok(&format!("ip address add {own_ip}/24 dev wire{own}"));
        end.ok(&format!("ip link set wire{own} up"));
        // A new interface takes a second to answer neighbour requests.
        let neighbour = format!("{other_ip} lladdr {} dev wire{own} nud permanent", MAC[other]);
        end.ok(&format!("ip neighbour replace {neighbour}"));
    }
    Some([left, right].map(|namespace| Machine { net: Net::new(), namespace }))
}

/// A manager's agent at a port.
struct Agent {
    file: MadFile,
    agent: u32,
    tid: u64,
}

impl Agent {
    fn open(options: &ConnectOptions, node: &str) -> Self {
        let port = PortRef { node: NodeRef::Name(node.to_owned()), port: 1 };
        let file = MadFile::open(options, &FabricName::default(), &port).unwrap();
        let smi = Registration { class: 0x81, class_version: 1, ..Registration::default() };
        let agent = file.register(&smi).unwrap();
        Self { file, agent, tid: 0 }
    }

    /// Sends a request along a directed route.
    fn ask(&mut self, smp: &Smp) -> Attribute {
        self.tid += 1;
        let mut smp = *smp;
        smp.header.tid = self.tid;
        let address = UserAddress { lid: Lid(0xffff), qpn: Qpn::QP0, ..UserAddress::default() };
        let (agent, data) = (self.agent, smp.to_bytes().to_vec());
        let mad = UserMad { agent, status: 0, timeout_ms: 60_000, retries: 0, address, data };
        self.file.send_mad(&mad).unwrap();
        let answer = Smp::parse(&self.file.recv_mad().unwrap().data).unwrap();
        assert_eq!(answer.header.status & 0x7fff, 0, "{answer}");
        answer.attribute().unwrap()
    }

    /// Assigns a LID to its own port, as a manager does.
    fn set_lid(&mut self, lid: Lid) {
        let own = self.ask(&Smp::directed(Method::GET, 0x15, 1, &[]));
        let Attribute::PortInfo(mut info) = own else { panic!("{own}") };
        (info.lid, info.sm_lid) = (lid, lid);
        (info.port_state, info.port_physical_state) = (PortState::NO_CHANGE, PhysState::NO_CHANGE);
        let mut set = Smp::directed(Method::SET, 0x15, 1, &[]);
        set.set_attribute(&Attribute::PortInfo(info));
        self.ask(&set);
    }
}

/// Brings a fabric of two adapters up on one machine, and joins it on the other. Returns the address where it
/// listens.
fn join(here: &Machine, there: &Machine) -> String {
    let said = here.ok(&["fabric", "up", "--no-sm", "--shape", "two", "--listen", "10.79.0.1:0"]);
    let listens = said.lines().find_map(|line| line.strip_prefix("it listens at ")).unwrap();
    let at = listens.split(';').next().unwrap().to_owned();
    let secret = here.net.path().join("fabrics/default/secret");
    let secret = secret.to_str().unwrap();
    let said = there.ok(&["fabric", "up", "--join", &at, "--secret", secret]);
    assert!(said.contains(&format!("attach to it at {at}")), "{said}");
    at
}

#[test]
fn fabric_of_another_machine_is_joined_over_the_network() {
    let Some([here, there]) = two_machines() else { return };
    let at = join(&here, &there);
    let show = ["fabric", "show", "--json"];
    assert_eq!(there.ok(&show), here.ok(&show));

    // A host there has an adapter here. A manager there assigns a LID to the adapter, and the host is notified of it.
    let (options, fabric) = (there.options(), FabricName::default());
    let (mut host, described) =
        Attachment::open(&options, &fabric, "far", Guid(0x0200_0000_0000_00fa)).unwrap();
    assert_eq!((described.port.lid, described.port.state), (Lid(0), PortState::INIT.0));
    let status = here.ok(&["fabric", "status", "--fabric", "default"]);
    assert!(status.contains("far"), "{status}");
    let mut manager = Agent::open(&options, "far");
    let peer = manager.ask(&Smp::directed(Method::GET, 0x11, 0, &[1]));
    let Attribute::NodeInfo(peer) = peer else { panic!("{peer}") };
    assert_ne!(peer.node_guid, described.node_guid);
    manager.set_lid(Lid(0x21));
    let told = host.refresh().unwrap();
    assert_eq!(told.port.lid, Lid(0x21));
    assert!(told.events.contains(&PortEvent::LidChange), "{told:?}");

    // The end of the fabric also ends the bridge, and the connections through it.
    here.ok(&["fabric", "down"]);
    let gone = loop {
        if let Err(e) = host.refresh() {
            break e;
        }
    };
    assert!(matches!(gone, FabricError::Gone { .. }), "{gone}");
    while !matches!(admin::status(&options, &fabric), Err(FabricError::NotUp { .. })) {
        std::thread::yield_now();
    }
    // The next client starts it again, and gets the error why that fails.
    let refused = there.rdmux(&["fabric", "up"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("cannot connect to the fabric"), "{said}");
    here.ok(&["fabric", "up", "--no-sm", "--listen", &at]);
    // A machine that does not know the secret is rejected.
    let wrong = there.net.path().join("wrong");
    std::fs::write(&wrong, "another secret, as long as one").unwrap();
    let wrong = wrong.to_str().unwrap();
    let refused = there.rdmux(&["fabric", "up", "--fabric", "f", "--join", &at, "--secret", wrong]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("secret"), "{said}");
    there.ok(&["fabric", "up"]);
    let status = there.ok(&["fabric", "status", "--fabric", "default", "--json"]);
    assert!(status.contains(&at), "{status}");
}

#[test]
fn host_of_another_machine_has_its_adapter_over_the_network() {
    let Some([here, there]) = two_machines() else { return };
    let at = join(&here, &there);
    let address = there.net.address(1);
    there.ok(&["host", "up", "far", "--addr", &address]);
    // Waits for the port's state and LID, as programs of the host see them.
    let until = |state: &str, lid: u64| loop {
        let said = there.ok(&["--host", "far", "devices", "--device", "ib", "--json"]);
        let devices: serde_json::Value = serde_json::from_str(&said).unwrap();
        let port = &devices[0]["ports"][0];
        if port["state"] == state && port["subnet"]["lid"] == lid {
            return devices[0]["node_guid"].clone();
        }
        std::thread::yield_now();
    };
    let guid = until("init", 0);
    let status = here.ok(&["fabric", "status", "--fabric", "default"]);
    assert!(status.contains("far"), "{status}");
    Agent::open(&there.options(), "far").set_lid(Lid(0x21));
    assert_eq!(until("init", 0x21), guid);
    // The fabric ends, and returns with the host's adapter and its LID.
    here.ok(&["fabric", "down"]);
    until("down", 0x21);
    here.ok(&["fabric", "up", "--no-sm", "--listen", &at]);
    there.ok(&["fabric", "up"]);
    assert_eq!(until("init", 0x21), guid);
}
