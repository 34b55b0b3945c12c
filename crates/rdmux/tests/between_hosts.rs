//! Processes of two hosts of one user, whose InfiniBand ports are on one subnet: they share rings and access each other's memory
//! as long as the subnet would forward their packets.

mod processes;

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use processes::{
    ALL, DIR, End, Peer, ROLE, all_lengths, command, go_on, lengths, pattern, stop, sum,
};
use rdmux::{Ah, Context, DeviceKind, Lid, MigState, PortState, RemoteMr, SendWr, WcStatus};
use rdmux_fabric::client::{ConnectOptions, admin};
use rdmux_fabric::proto::{End as NodeEnd, NodeView};
use rdmux_fabric::server::{FIRST_GUID, PartitionsFile, Server, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricName};
use rdmux_host::client::admin as hosts;
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{HostName, RuntimeDir};
use rdmux_runtime::UserDir;
use rdmux_subnet::topology::Shape;
use rdmux_testing::temp_dir;

const HOST_RINGS: &str = "RDMUX_HOST_RINGS";
/// The number of ports of each host.
const PORTS: &str = "RDMUX_TEST_PORTS";

/// Not a test, but the entry point of the other tests' processes.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => return be_peer(),
        Ok("serve") => return serve(),
        Ok("copies") => copies(),
        Ok("off_here") => off("on"),
        Ok("off_there") => off("off"),
        Ok("link") => link(),
        Ok("partition") => partition(),
        Ok("ends") => ends(),
        Ok("stopped") => stopped(),
        Ok("migrates") => migrates(),
        Err(_) => return,
        Ok(other) => panic!("{other}"),
    }
    println!("SAYS done");
}

/// Runs a role's process on host a, on a fabric with a subnet manager and a switch. It starts the hosts' services as
/// processes.
fn on_a_fabric(role: &str) {
    on_a_fabric_with(role, "on");
}

/// Like [`on_a_fabric`], with or without rings between hosts.
fn on_a_fabric_with(role: &str, host_rings: &str) {
    let folder = temp_dir();
    let user = UserDir::at(folder.path().join("r")).unwrap();
    let fabric = FabricDir::open(&user, &FabricName::default()).unwrap();
    let shape: Shape = "switch:4".parse().unwrap();
    Setup::default().keep(&fabric, Some(&shape.topology(FIRST_GUID))).unwrap();
    let server = Server::spawn(ServerOptions::new(FabricName::default(), user.clone())).unwrap();
    let mut command = command(role);
    command.env(DIR, user.path()).env("RDMUX_DEVICE", "ib").env("RDMUX_HOST", "a");
    command.env(HOST_RINGS, host_rings);
    command.env(PORTS, if role == "migrates" { "2" } else { "1" });
    let done = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("SAYS done"), "{said}");
    server.stop().unwrap();
}

fn dir() -> RuntimeDir {
    RuntimeDir::at(PathBuf::from(std::env::var_os(DIR).unwrap())).unwrap()
}

/// A process that runs the service of a host. It ends when this is dropped.
struct Host(Child);

impl Host {
    fn up(name: &str) -> Self {
        let mut serve = command("serve");
        serve.env("RDMUX_HOST", name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = serve.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.into_iter().any(|line| line.contains("SAYS up")), "host {name} is not up");
        Self(child)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() {
    let host = HostName::of_environment().unwrap();
    let mut options = ServiceOptions::new(host, dir());
    options.fabrics = vec![FabricName::default(); ports().into()];
    let service = Service::spawn(options).unwrap();
    println!("SAYS up");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() != 0 {}
    service.stop().unwrap();
}

fn ports() -> u8 {
    std::env::var(PORTS).unwrap().parse().unwrap()
}

/// Returns a device whose ports are up.
fn active() -> Context {
    let context = Context::builder().no_start().device(DeviceKind::Ib).open().unwrap();
    (1..=ports()).for_each(|port| until_active(&context, port));
    context
}

fn until_active(context: &Context, port: u8) {
    while context.query_port_number(port).unwrap().state != PortState::Active {
        context.next_event(None).unwrap();
    }
}

fn lid(context: &Context, port: u8) -> Lid {
    context.query_port_number(port).unwrap().lid
}

/// Arms the path from a port to this LID as a queue pair's alternate path.
fn arm(end: &End, port: u8, dlid: &str) {
    end.qp.arm(&Ah::to_lid(Lid(dlid.parse().unwrap())).port(port)).unwrap();
}

fn be_peer() {
    drop(active());
    processes::be_peer(|end, _, words| match words[0] {
        "near" => end.qp.is_same_host().to_string(),
        "lid" => lid(&end.context, words[1].parse().unwrap()).0.to_string(),
        "arm" => {
            arm(end, words[1].parse().unwrap(), words[2]);
            String::new()
        }
        "active" => {
            until_active(&end.context, words[1].parse().unwrap());
            String::new()
        }
        "path" => {
            format!("{:?} at {}", end.qp.migration(), end.qp.attr().port_num)
        }
        _ => panic!("{words:?}"),
    });
}

/// Two hosts, a process on each, and their connection.
struct Scene {
    end: End,
    peer: Peer,
    _hosts: [Host; 2],
}

impl Scene {
    fn new() -> Self {
        Self::with("on")
    }

    fn with(there: &str) -> Self {
        let hosts = ["a", "b"].map(Host::up);
        let end = End::on(active());
        let mut peer = command("peer");
        peer.env("RDMUX_HOST", "b").env(HOST_RINGS, there);
        let mut peer = Peer::start_by(&mut peer, &end, ALL);
        assert_eq!(end.qp.is_same_host().to_string(), peer.ask("near"), "both or neither");
        Self { end, peer, _hosts: hosts }
    }

    /// Writes into a region of the peer's, and returns the completion status.
    fn write(&self, far: &RemoteMr, seed: u8) -> WcStatus {
        let near = self.end.pd.alloc(far.len.try_into().unwrap(), ALL).unwrap();
        near.write(0, &pattern(near.len(), seed));
        let list = [near.slice(..)];
        self.end.qp.post_send(&SendWr::write(1, *far).sges(&list).signaled()).unwrap();
        self.end.next().status
    }

    fn holds(&mut self, len: usize, seed: u8) -> bool {
        self.peer.ask(&format!("sum 0 {len}")) == sum(&pattern(len, seed)).to_string()
    }
}

fn counter(host: &str, name: &str) -> u64 {
    let status = hosts::status(&dir(), &HostName::new(host).unwrap()).unwrap();
    status.counter(name).unwrap()
}

fn copies() {
    let Scene { end, mut peer, _hosts } = Scene::new();
    assert!(end.qp.is_same_host(), "they have rings");
    all_lengths(&end, &mut peer);
    let bytes: usize = lengths().sum();
    assert_eq!(counter("a", "direct_write_bytes"), bytes as u64);
    assert_eq!(counter("a", "direct_read_bytes"), 0, "what is read its owner sends, and counts");
    let fetched: usize = lengths().filter(|len| *len >= 32 << 10).sum();
    assert_eq!(counter("b", "direct_fetch_bytes"), fetched as u64);
    assert_eq!(counter("a", "tx_packets") + counter("b", "tx_packets"), 0, "nothing by UDP");
}

fn off(there: &str) {
    let Scene { end, mut peer, _hosts } = Scene::with(there);
    assert!(!end.qp.is_same_host());
    all_lengths(&end, &mut peer);
    let direct = counter("a", "direct_writes") + counter("b", "direct_fetches");
    assert_eq!((direct, counter("a", "ring_tx_packets")), (0, 0));
}

fn fabric_options() -> ConnectOptions {
    let user = UserDir::at(PathBuf::from(std::env::var_os(DIR).unwrap())).unwrap();
    ConnectOptions { user, config: Config::default(), embedded: false, program: None }
}

/// Disconnects the cable of the peer's host.
fn link() {
    let mut scene = Scene::new();
    let far = scene.peer.region("region", 1 << 20, ALL);
    assert_eq!(scene.write(&far, 1), WcStatus::Success);
    let (options, name) = (fabric_options(), FabricName::default());
    let shown = admin::show(&options, &name).unwrap();
    let end = |is: &dyn Fn(&NodeView) -> bool| -> NodeEnd {
        shown.nodes.iter().find(|node| is(node)).unwrap().id.parse().unwrap()
    };
    let (switch, b) = (end(&|node| node.is_switch), end(&|node| node.host.as_deref() == Some("b")));
    admin::link(&options, &name, false, &b, &switch).unwrap();
    // From now on nothing passes, and the peer's memory does not change.
    assert_eq!(scene.write(&far, 2), WcStatus::RetryExcErr);
    assert!(scene.holds(1 << 20, 1));
}

/// The cables of the first ports fail while memory is written to: the rings lose what the cables would lose, and the connection
/// migrates to the second ports, and later back.
fn migrates() {
    let mut scene = Scene::new();
    let far = scene.peer.region("region", 1 << 20, ALL);
    let direct = || counter("a", "direct_writes");
    assert_eq!((scene.write(&far, 1), direct()), (WcStatus::Success, 1));
    scene.arm(2);
    set_cable_of_b(1, false);
    assert_eq!(scene.write(&far, 2), WcStatus::Success);
    assert!(scene.holds(1 << 20, 2));
    scene.is_at(2);
    assert_eq!(direct(), 1, "by packets, since nothing else told that there was no way any more");
    assert_eq!((scene.write(&far, 3), direct()), (WcStatus::Success, 2));
    assert!(scene.holds(1 << 20, 3));

    set_cable_of_b(1, true);
    until_active(&scene.end.context, 1);
    assert_eq!(scene.peer.ask("active 1"), "");
    scene.arm(1);
    scene.end.qp.migrate().unwrap();
    scene.is_at(1);
    set_cable_of_b(2, false);
    assert_eq!((scene.write(&far, 4), direct()), (WcStatus::Success, 3));
    assert!(scene.holds(1 << 20, 4));
    assert_eq!(counter("a", "tx_packets") + counter("b", "tx_packets"), 0, "nothing by UDP");
}

impl Scene {
    /// Arms the path through this port on both ends.
    fn arm(&mut self, port: u8) {
        let there = self.peer.ask(&format!("lid {port}"));
        arm(&self.end, port, &there);
        self.peer.ask(&format!("arm {port} {}", lid(&self.end.context, port).0));
        while self.end.qp.migration() != MigState::Armed
            || !self.peer.ask("path").starts_with("Armed")
        {}
    }

    /// Checks that both ends have migrated to this port and still use the ring.
    fn is_at(&mut self, port: u8) {
        let there = format!("Migrated at {port}");
        while self.peer.ask("path") != there {}
        assert_eq!(self.end.qp.migration(), MigState::Migrated);
        assert_eq!((self.end.qp.attr().port_num, self.end.qp.is_same_host()), (port, true));
    }
}

/// Connects or disconnects the cable of a port of host b.
fn set_cable_of_b(port: u8, up: bool) {
    let (options, name) = (fabric_options(), FabricName::default());
    let shown = admin::show(&options, &name).unwrap();
    let id = |is: &dyn Fn(&NodeView) -> bool| {
        shown.nodes.iter().find(|node| is(node)).unwrap().id.clone()
    };
    let b: NodeEnd =
        format!("{}:{port}", id(&|node| node.host.as_deref() == Some("b"))).parse().unwrap();
    let switch: NodeEnd = id(&|node| node.is_switch).parse().unwrap();
    admin::link(&options, &name, up, &b, &switch).unwrap();
}

/// Makes both ports limited members of their partition, between which nothing passes.
fn partition() {
    let mut scene = Scene::new();
    let far = scene.peer.region("region", 1 << 20, ALL);
    assert_eq!(scene.write(&far, 1), WcStatus::Success);
    let (options, name) = (fabric_options(), FabricName::default());
    let text = "Default=0x7fff: ALL_SWITCHES=full, SELF=full;".to_owned();
    let file = PartitionsFile { name: "partitions.conf".to_owned(), text };
    admin::set_partitions(&options, &name, file).unwrap();
    // Retries until the manager's sweep has applied it.
    let (last, status) = (2..=255)
        .cycle()
        .map(|seed| (seed, scene.write(&far, seed)))
        .find(|(_, status)| *status != WcStatus::Success)
        .unwrap();
    assert_eq!(status, WcStatus::RetryExcErr);
    let before = if last == 2 { [1, 255] } else { [last - 1; 2] };
    assert!(before.into_iter().any(|seed| scene.holds(1 << 20, seed)), "and nothing of the last");
}

/// The peer ends: the queue pair notices at once, and another process replaces the peer.
fn ends() {
    let Scene { end, mut peer, _hosts } = Scene::new();
    let far = peer.region("region", 4096, ALL);
    drop(peer);
    let near = end.pd.alloc(4096, ALL).unwrap();
    end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
    end.done(1, WcStatus::RetryExcErr);
    let next = End::on(end.context.clone());
    let mut peer = Peer::start_by(command("peer").env("RDMUX_HOST", "b"), &next, ALL);
    assert!(next.qp.is_same_host());
    all_lengths(&next, &mut peer);
}

/// The service of the peer's host is stopped: no process waits for it, and both use UDP.
fn stopped() {
    let hosts = ["a", "b"].map(Host::up);
    let end = End::on(active());
    let mut peer = Peer::spawn(command("peer").env("RDMUX_HOST", "b"));
    stop(&hosts[1].0);
    peer.connect_us(&end);
    go_on(&hosts[1].0);
    peer.connect_it(&end, ALL);
    assert!(!end.qp.is_same_host());
    assert_eq!(peer.ask("near"), "false");
    all_lengths(&end, &mut peer);
}

#[test]
fn processes_of_two_hosts_reach_each_other_s_memory() {
    on_a_fabric("copies");
}

#[test]
fn link_that_is_down_lets_nothing_pass() {
    on_a_fabric("link");
}

#[test]
fn connection_goes_on_by_other_ports_when_cables_fail() {
    on_a_fabric("migrates");
}

#[test]
fn limited_members_of_a_partition_have_no_way_to_each_other() {
    on_a_fabric("partition");
}

#[test]
fn qp_notices_end_of_peer_process_on_another_host() {
    on_a_fabric("ends");
}

#[test]
fn stopped_peer_service_falls_back_to_udp() {
    on_a_fabric("stopped");
}

#[test]
fn connections_between_hosts_work_when_either_side_disables_rings() {
    on_a_fabric_with("off_here", "off");
    on_a_fabric("off_there");
}
