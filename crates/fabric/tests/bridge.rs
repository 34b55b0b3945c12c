//! Bridges to the fabric of another machine: when they end, and what ends with them.

mod common;

use std::env;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::Fabric;
use common::traffic::{Burst, Host};
use rdmux_fabric::client::{Attachment, Capture, ConnectOptions, admin};
use rdmux_fabric::proto::{AttachmentRequest, Greeting, NodeRef, PortRef, Reply, Role, RowEntry};
use rdmux_fabric::server::{ManagerSetup, Server, ServerOptions, Setup};
use rdmux_fabric::{Config, FabricDir, FabricError, FabricName, bridge};
use rdmux_runtime::start::raise_descriptor_limit;
use rdmux_runtime::{UserDir, socket};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::LinearForwardingTable;
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

/// A bridge in a thread, with the directory of its machine.
struct Joined {
    options: ConnectOptions,
    running: Option<JoinHandle<Result<(), FabricError>>>,
}

impl Joined {
    /// Waits until the bridge has ended.
    fn ended(&mut self) {
        self.running.take().unwrap().join().unwrap().unwrap();
    }
}

fn listening() -> Fabric {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    Fabric::with("switch:2", Setup { listen, ..common::unmanaged() }, Config::default())
}

fn join(fabric: &Fabric, idle_exit: Option<Duration>) -> Joined {
    join_for(fabric, idle_exit, Config::default())
}

fn join_for(fabric: &Fabric, idle_exit: Option<Duration>, config: Config) -> Joined {
    let (at, user) = other_machine(fabric);
    let there = FabricDir::open(&user, &fabric.name).unwrap();
    let mut options = ServerOptions::new(fabric.name.clone(), user.clone());
    (options.idle_exit, options.config) = (idle_exit, config);
    let client = bridge::Client::open(at, &there, options).unwrap();
    let running = thread::spawn(|| client.run());
    let config = Config::default();
    let options = ConnectOptions { user, config, embedded: true, program: None };
    Joined { options, running: Some(running) }
}

/// Returns the address where the fabric listens, and the directory of a machine that has its secret.
fn other_machine(fabric: &Fabric) -> (SocketAddr, UserDir) {
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let here = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let user = UserDir::at(fabric.tmp().join("other")).unwrap();
    let there = FabricDir::open(&user, &fabric.name).unwrap();
    bridge::keep_secret(&there, &std::fs::read(here.secret()).unwrap()).unwrap();
    (status.listen.unwrap().parse().unwrap(), user)
}

fn attach(joined: &Joined, fabric: &Fabric) -> Attachment {
    Attachment::open(&joined.options, &fabric.name, "far", Guid(0xfa)).unwrap().0
}

fn is_up(joined: &Joined, fabric: &Fabric) -> bool {
    match admin::status(&joined.options, &fabric.name) {
        Ok(_) => true,
        Err(FabricError::NotUp { .. } | FabricError::Gone { .. }) => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn idle_bridge_ends_when_its_fabric_stops() {
    let mut fabric = listening();
    let mut joined = join(&fabric, None);
    fabric.stop();
    joined.ended();
}

#[test]
fn connections_that_do_not_show_the_secret_keep_no_bridge_out() {
    // Each has a descriptor at both ends.
    raise_descriptor_limit();
    let fabric = listening();
    let status = admin::status(&fabric.options, &fabric.name).unwrap();
    let at: SocketAddr = status.listen.unwrap().parse().unwrap();
    // As many as there may be connections of bridges. The fabric sends its nonce once it has accepted one.
    let silent: Vec<_> = std::iter::repeat_with(|| {
        let mut tcp = TcpStream::connect(at).unwrap();
        tcp.read_exact(&mut [0]).unwrap();
        tcp
    })
    .take(1024)
    .collect();
    let mut joined = join(&fabric, None);
    let mut host = attach(&joined, &fabric);
    host.refresh().unwrap();
    drop(silent);
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}

#[test]
fn clients_of_a_bridge_end_with_it_and_the_fabric_notices() {
    let fabric = listening();
    let mut joined = join(&fabric, None);
    let mut host = attach(&joined, &fabric);
    let attached = || admin::status(&fabric.options, &fabric.name).unwrap().attached.len();
    assert_eq!(attached(), 1);
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
    while host.refresh().is_ok() {}
    while attached() > 0 {
        thread::yield_now();
    }
    assert_eq!(host.refresh().unwrap_err().errno(), 5);
}

/// The variables with the address where the fabric listens, and the directory of the bridge's machine,
/// for a bridge in another process.
const AT: &str = "RDMUX_TEST_AT";
const DIR: &str = "RDMUX_TEST_DIR";

/// A bridge in a process of its own. Not a test itself.
#[test]
fn role() {
    let (Ok(at), Ok(dir)) = (env::var(AT), env::var(DIR)) else { return };
    let (user, name) = (UserDir::at(dir).unwrap(), FabricName::default());
    let there = FabricDir::open(&user, &name).unwrap();
    let options = ServerOptions::new(name, user);
    let client = bridge::Client::open(at.parse().unwrap(), &there, options).unwrap();
    println!("\nSAYS ready");
    client.run().unwrap();
}

#[test]
fn a_bridge_in_a_pid_namespace_serves_hosts_outside_of_it() {
    let Some(mut inside) = rdmux_testing::in_pid_namespace() else { return };
    let fabric = listening();
    let (at, user) = other_machine(&fabric);
    inside.arg(env::current_exe().unwrap()).args(["--exact", "role", "--nocapture"]);
    inside.env(AT, at.to_string()).env(DIR, user.path());
    let mut bridge = inside.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(bridge.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "SAYS ready"), "{:?}", bridge.wait());
    let config = Config::default();
    let options = ConnectOptions { user, config, embedded: false, program: None };
    let mut host = Attachment::open(&options, &fabric.name, "far", Guid(0xfa)).unwrap().0;
    host.refresh().unwrap();
    let attached = admin::status(&options, &fabric.name).unwrap().attached;
    assert_eq!(attached.iter().map(|host| &host.host).collect::<Vec<_>>(), ["far"]);
    admin::down(&options, &fabric.name).unwrap();
    lines.for_each(drop);
    assert!(bridge.wait().unwrap().success());
}

/// Makes a fabric with a manager that listens, and a bridge to it.
fn managed() -> (Fabric, Joined) {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let manager = ManagerSetup { sweep_ms: Some(3_600_000), ..ManagerSetup::default() };
    let setup = Setup { listen, manager, ..Setup::default() };
    let fabric = Fabric::with("switch:4", setup, Config::default());
    common::up(&fabric);
    let joined = join(&fabric, None);
    (fabric, joined)
}

#[test]
fn hosts_of_two_machines_exchange_packets_and_all_ports_count_them() {
    let (fabric, mut joined) = managed();
    let mut near = Host::new(&fabric, "near", Guid(1), 1);
    let by = |name, guid| Host::by(&joined.options, &fabric.name, name, Guid(guid), 1);
    let (mut far, mut beside) = (by("far", 2), by("beside", 3));
    // This machine plays the other one, too, by its loopback address.
    let machine = |host: &Host| SocketAddr::from(([127, 0, 0, 1], host.addr().port()));
    for (from, to) in [(&near, &far), (&far, &near), (&far, &beside), (&beside, &far)] {
        let peer = from.view.peer(from.view.way(to.lid()).unwrap().peer).unwrap();
        assert_eq!((peer.addr, peer.port_guid), (machine(to), to.described.port.guid));
    }
    let (mut sent, mut came) = ([0; 3], [0; 3]);
    let mut hosts = [&mut near, &mut far, &mut beside];
    for n in 1..=30 {
        let (from, to) = (n % 3, (n + 1 + n % 2) % 3);
        let burst = Burst::to(hosts[to], n as u64, 100 * n);
        hosts[from].processes[0].send(&burst);
        hosts[to].processes[0].expect(n as u64);
        sent[from] += n as u64;
        came[to] += n as u64;
    }
    let counters = |host: &mut Host| {
        while host.attachment.poll_update().unwrap().is_some() {}
        let facts = host.attachment.refresh().unwrap().port;
        let counter = |name: &str| facts.counters.iter().find(|(n, _)| n == name).unwrap().1;
        (counter("port_xmit_packets"), counter("port_rcv_packets"))
    };
    // The manager's datagrams, which brought the ports up, are the same for each host.
    let managed = |host: &mut Host, sent, came| {
        let since = std::time::Instant::now();
        loop {
            let (xmit, rcv) = counters(host);
            // Packets of other bridged hosts are counted a little later.
            if rcv >= came && xmit >= sent && xmit - sent == rcv - came {
                return xmit - sent;
            }
            assert!(since.elapsed().as_secs() < 20, "{xmit} {rcv} {sent} {came}");
        }
    };
    let all: Vec<_> = (0..3).map(|n| managed(hosts[n], sent[n], came[n])).collect();
    assert!(all.iter().all(|n| *n < 100), "{all:?}");
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}

#[test]
fn bridged_route_table_has_a_change_before_the_set_is_answered() {
    let (fabric, mut joined) = managed();
    let near = Host::new(&fabric, "near", Guid(1), 1);
    let far = Host::by(&joined.options, &fabric.name, "far", Guid(2), 1);
    let shown = admin::show(&joined.options, &fabric.name).unwrap();
    let switch = shown.nodes.iter().find(|node| node.is_switch).unwrap();
    // A subnet manager on the other machine.
    let port = PortRef { node: NodeRef::Guid(switch.guid), port: 0 };
    let mut manager = common::Manager::open(&joined.options, &fabric.name, &port);
    let lid = near.lid();
    let table = manager.get(&[], LinearForwardingTable::ATTR_ID, u32::from(lid.0 / 64)).data;
    let right = table[usize::from(lid.0 % 64)];
    let mut ids = std::collections::BTreeSet::new();
    for round in 0..200 {
        let mut smp =
            Smp::directed(Method::SET, LinearForwardingTable::ATTR_ID, u32::from(lid.0 / 64), &[]);
        smp.data = table;
        let arrives = round % 2 == 1;
        smp.data[usize::from(lid.0 % 64)] = if arrives { right } else { 255 };
        manager.ask(&smp);
        assert_eq!(far.view.way(lid).is_some(), arrives, "{round}");
        assert!(ids.insert(far.view.route_id(lid)), "a way of its own");
        let end = |guid: Guid| format!("{:#x}", guid.0).parse().unwrap();
        if round % 50 == 0 {
            let (a, b) = (end(near.described.node_guid), end(switch.guid));
            for up in [false, true] {
                admin::link(&joined.options, &fabric.name, up, &a, &b).unwrap();
                if !up {
                    assert_eq!(far.view.way(lid), None);
                }
            }
            while !near.view.own().active {
                thread::yield_now();
            }
        }
    }
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
    // The table keeps its last state.
    assert!(far.view.own().active);
}

#[test]
fn host_with_a_machine_local_endpoint_is_no_peer_on_other_machines() {
    let (fabric, mut joined) = managed();
    let near = Host::new(&fabric, "near", Guid(1), 1);
    let far = Host::by(&joined.options, &fabric.name, "far", Guid(2), 1);
    let mut only = Host::by(&joined.options, &fabric.name, "only", Guid(3), 1);
    let addr = only.addr();
    only.attachment.set_endpoint(addr, false, false).unwrap();
    only.attachment.refresh().unwrap();
    let peer = |host: &Host| host.view.peer(host.view.way(only.lid()).unwrap().peer);
    while peer(&near).is_some() {
        thread::yield_now();
    }
    assert_eq!(peer(&far).map(|peer| peer.addr), Some(addr));
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}

/// Sends messages to a fabric or a bridge. Returns the reply.
fn say(options: &ConnectOptions, fabric: &Fabric, messages: &[Vec<u8>]) -> Vec<u8> {
    let dir = options.dir(&fabric.name).unwrap();
    let connected = rdmux_runtime::connect::connect(&dir, Duration::from_secs(10));
    let socket = connected.ok().flatten().unwrap();
    for message in messages {
        socket::send_bytes(socket.as_fd(), message, &[]).unwrap();
    }
    let mut buf = vec![0; socket::MAX_MESSAGE];
    match socket::recv_bytes(socket.as_fd(), &mut buf, &mut Vec::new()) {
        Ok(message) => message.to_vec(),
        Err(_) => Vec::new(),
    }
}

#[test]
fn bridge_only_roles_and_requests_of_clients_are_refused() {
    let (fabric, mut joined) = managed();
    let tables = postcard::to_stdvec(&Greeting::new(Role::Tables)).unwrap();
    for options in [&fabric.options, &joined.options] {
        let answer = say(options, &fabric, std::slice::from_ref(&tables));
        let (_, reply): (u32, Reply<()>) = postcard::from_bytes(&answer).unwrap();
        assert_eq!(reply.unwrap_err().errno, libc::EPERM);
    }
    // A request that only a bridge may send ends a host's connection.
    for options in [&fabric.options, &joined.options] {
        let row =
            RowEntry { route: 0, dlid: Lid(1), sl: 0, pkey: 0, payload: 0, packets: 9, words: 9 };
        let counted = [
            AttachmentRequest::Counted { rows: vec![row] },
            AttachmentRequest::CountBy { made: 0, ways: Vec::new() },
        ];
        for told in &counted {
            let attached = Attachment::open(options, &fabric.name, "liar", Guid(7)).unwrap().0;
            let message = postcard::to_stdvec(told).unwrap();
            socket::send_bytes(attached.as_fd(), &message, &[]).unwrap();
            let mut attached = attached;
            while attached.refresh().is_ok() {}
            let is_there = || {
                let status = admin::status(&fabric.options, &fabric.name).unwrap();
                !status.attached.is_empty()
            };
            while is_there() {
                thread::yield_now();
            }
        }
    }
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}

#[test]
fn bridge_on_demand_ends_after_its_last_client() {
    let fabric = listening();
    let mut joined = join(&fabric, Some(Duration::ZERO));
    let host = attach(&joined, &fabric);
    for _ in 0..20 {
        assert!(is_up(&joined, &fabric), "it has a client");
        let attached = admin::status(&fabric.options, &fabric.name).unwrap().attached;
        assert_eq!(attached.len(), 1, "by the bridge, not to a fabric of the other machine's own");
    }
    drop(host);
    joined.ended();
    // The fabric itself stays, and notices that the host is gone.
    while !admin::status(&fabric.options, &fabric.name).unwrap().attached.is_empty() {
        thread::yield_now();
    }
}

/// Connects to a bridge without greeting it.
fn say_nothing(joined: &Joined, fabric: &Fabric) -> OwnedFd {
    let dir = joined.options.dir(&fabric.name).unwrap();
    let connected = rdmux_runtime::connect::connect(&dir, Duration::from_secs(10));
    connected.unwrap().unwrap()
}

/// Waits until the bridge has closed a connection.
fn is_closed(socket: &OwnedFd) {
    let closed = socket::recv_bytes(socket.as_fd(), &mut [0; 1], &mut Vec::new()).map(drop);
    assert!(matches!(closed, Err(socket::MessageError::Closed)), "{closed:?}");
}

#[test]
fn silent_client_does_not_prevent_the_bridges_idle_exit() {
    let fabric = listening();
    let mut joined = join(&fabric, Some(Duration::ZERO));
    let silent = say_nothing(&joined, &fabric);
    drop(attach(&joined, &fabric));
    joined.ended();
    is_closed(&silent);
}

#[test]
fn bridge_client_without_greeting_is_disconnected() {
    let fabric = listening();
    let mut joined = join(&fabric, None);
    // A client that has greeted may be silent for as long as it likes.
    let host = attach(&joined, &fabric);
    is_closed(&say_nothing(&joined, &fabric));
    assert_eq!(admin::status(&joined.options, &fabric.name).unwrap().attached.len(), 1);
    drop(host);
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}

#[test]
fn bridge_after_admin_up_outlives_its_clients_until_down() {
    let fabric = listening();
    let mut joined = join(&fabric, Some(Duration::ZERO));
    let host = attach(&joined, &fabric);
    // The answer is that of the fabric.
    let status = admin::up(&joined.options, &fabric.name, None).unwrap();
    assert_eq!(status.attached.len(), 1);
    drop(host);
    for _ in 0..20 {
        assert!(is_up(&joined, &fabric));
    }
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
    assert!(!is_up(&joined, &fabric));
}

#[test]
fn admin_up_at_a_bridge_does_not_make_the_fabric_stay() {
    let mut fabric = listening();
    fabric.stop();
    let mut options = ServerOptions::new(fabric.name.clone(), fabric.options.user.clone());
    options.idle_exit = Some(Duration::from_secs(3600));
    let server = Server::spawn(options).unwrap();
    let mut joined = join(&fabric, None);
    let status = admin::up(&joined.options, &fabric.name, None).unwrap();
    assert!(!status.stays, "it ends when nobody uses it");
    assert!(!admin::status(&fabric.options, &fabric.name).unwrap().stays);
    server.stop().unwrap();
    joined.ended();
}

#[test]
fn users_of_the_configuration_attach_by_a_bridge_and_may_not_command_nor_capture() {
    if !rustix::process::geteuid().is_root() {
        println!("only root can be another user: not run");
        return;
    }
    let fabric = listening();
    let passable = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(fabric.tmp(), passable).unwrap();
    let mut joined = join_for(&fabric, None, Config { users: vec![4001], ..Config::default() });
    let (options, name) = (joined.options.clone(), fabric.name.clone());
    let shown = admin::show(&fabric.options, &fabric.name).unwrap();
    let switch = shown.nodes.iter().find(|node| node.is_switch).unwrap();
    // A port where a subnet manager would run.
    let port = PortRef { node: NodeRef::Guid(switch.guid), port: 0 };
    let as_user = |uid: u32| {
        let (options, name, port) = (options.clone(), name.clone(), port.clone());
        let thread = thread::spawn(move || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
            let attached = Attachment::open(&options, &name, "a", Guid(1)).map(drop);
            let commands = [
                admin::status(&options, &name).map(drop),
                admin::down(&options, &name),
                Capture::start(&options, &name, &port).map(drop),
            ];
            (attached.map_err(|e| e.errno()), commands.map(|c| c.unwrap_err().errno()))
        });
        thread.join().unwrap()
    };
    assert_eq!(as_user(4001), (Ok(()), [1, 1, 1]));
    assert_eq!(as_user(4002), (Err(1), [1, 1, 1]));
    Capture::start(&options, &name, &port).unwrap();
    admin::down(&joined.options, &fabric.name).unwrap();
    joined.ended();
}
