//! Processes that are killed, also while a child of theirs holds their sockets.
//!
//! The process to kill is this test program again, in the role that its environment names.

mod common;

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use common::{Host, SECOND, next_cm_event, next_event, raw};
use rdmux_cm::{ConnParam, EventKind, PortSpace};
use rdmux_host::proto::socket::{self, MAX_MESSAGE};
use rdmux_host::proto::{ClientKind, Request, VERSION};
use rdmux_host::service::{Service, ServiceOptions};
use rdmux_host::{ConnectOptions, EventChannel, HostError, HostName, RuntimeDir};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::{Control, ControlError, ControlEvent, DeviceKind, RingPeer};
use rdmux_wire::Qpn;

const ROLE: &str = "RDMUX_TEST_ROLE";
const DIR: &str = "RDMUX_TEST_DIR";
const ADDRESS: &str = "RDMUX_TEST_ADDRESS";

/// This program in a role.
struct Actor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    /// Waits until it prints a word.
    fn hear(&mut self) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let said = lines.find_map(|l| l.split_once("SAYS ").map(|(_, word)| word.to_owned()));
        said.expect("it ended without a word")
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts this program in a role.
fn start(host: &Host, role: &str) -> Actor {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DIR, host.options.dir.path())
        .env(ADDRESS, host.ip.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Actor { child, lines }
}

/// Runs the processes of the other tests. Not a test itself.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = RuntimeDir::at(std::env::var(DIR).unwrap()).unwrap();
    let host = HostName::new("test").unwrap();
    match role.as_str() {
        "parent" => be_parent(&dir, &host, ClientKind::Device(DeviceKind::default())),
        "holder" => be_parent(&dir, &host, ClientKind::Tool),
        "listener" => be_listener(&dir, &host),
        "service" => be_service(dir, host),
        other => panic!("{other}"),
    }
}

/// Greets, forks a child that holds the sockets, and waits to be killed.
#[expect(clippy::zombie_processes, reason = "it is killed before its child")]
fn be_parent(dir: &RuntimeDir, host: &HostName, kind: ClientKind) {
    let rpc = raw(&dir.host(host).unwrap().socket());
    let hello = Request::Hello { version: VERSION, kind };
    socket::send(rpc.as_fd(), &hello, &[], &mut Vec::new()).unwrap();
    let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
    socket::recv_bytes(rpc.as_fd(), &mut buf, &mut fds).unwrap();
    let child = Command::new("sleep")
        .arg("1000")
        .stdin(rpc.try_clone().unwrap())
        .stdout(fds.drain(..).next().map_or_else(Stdio::null, Stdio::from))
        .spawn()
        .unwrap();
    println!("SAYS {}", child.id());
    loop {
        std::thread::park();
    }
}

/// Listens, accepts one connection, and waits to be killed.
fn be_listener(dir: &RuntimeDir, host: &HostName) {
    let config = rdmux_host::Config::default();
    let options = ConnectOptions { dir: dir.clone(), config, embedded: true, program: None };
    let client = options.connect(host, DeviceKind::default()).unwrap();
    let channel = EventChannel::open(&client).unwrap();
    let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    let ip = client.info().addresses()[0].gid.ip();
    client.bind_addr(id, SocketAddr::new(ip, 0)).unwrap();
    println!("SAYS {}", client.listen(id, 1).unwrap().port());
    let request = next_cm_event(&channel);
    client.accept(request.id, &ConnParam::default()).unwrap();
    assert_eq!(next_cm_event(&channel).kind, EventKind::Established);
    println!("SAYS established");
    loop {
        std::thread::park();
    }
}

/// Runs the service of a host, at the given address.
fn be_service(dir: RuntimeDir, host: HostName) {
    let mut options = ServiceOptions::new(host, dir);
    options.addresses = Some(vec![std::env::var(ADDRESS).unwrap().parse().unwrap()]);
    let service = once_free(|| Service::new(options.clone()));
    println!("SAYS ready");
    service.run().unwrap();
}

/// Retries until the address is free. The previous service has ended, but a process that another test has just started has
/// copies of its sockets until it calls exec, and a client has one until it is notified.
fn once_free<T>(start: impl Fn() -> Result<T, HostError>) -> T {
    let deadline = Instant::now() + 30 * SECOND;
    loop {
        match start() {
            Err(HostError::PortInUse { .. }) if Instant::now() < deadline => {
                std::thread::yield_now();
            }
            other => break other.unwrap_or_else(|e| panic!("{e}")),
        }
    }
}

#[test]
fn a_killed_service_fails_its_clients_and_the_next_one_starts_clean() {
    let mut host = Host::start();
    host.service.take().unwrap().stop().unwrap();
    let mut service = start(&host, "service");
    service.hear();
    let (a, b) = (host.client(), host.client());
    a.connect_ring(RingPeer::here(b.info().slot.slot)).unwrap().unwrap();
    let channel = EventChannel::open(&a).unwrap();
    let id = a.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    a.bind_addr(id, host.at(5)).unwrap();
    assert!(matches!(next_event(&b), Ok(ControlEvent::Ring { .. })));
    let socket = a.attach_address(0, a.info().slot.slot).unwrap();
    service.kill();
    // The next service starts before the clients have closed the first one's sockets.
    let options = host.options.clone();
    let next = std::thread::spawn(move || once_free(|| Service::spawn(options.clone())));
    assert!(matches!(next_event(&b), Err(ControlError::Gone)));
    drop(socket);
    assert!(matches!(channel.get_event(), Err(HostError::ServiceGone { .. })));
    assert_eq!(a.listen(id, 1).unwrap_err().errno(), libc::EIO);

    let again = next.join().unwrap();
    let c = host.client();
    let channel = EventChannel::open(&c).unwrap();
    let id = c.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    c.bind_addr(id, host.at(5)).unwrap();
    assert_eq!(host.status().clients.len(), 1);
    again.stop().unwrap();
}

#[test]
fn a_killed_process_is_noticed_while_its_child_holds_its_sockets() {
    let host = Host::start();
    let watcher = host.client();
    let mut parent = start(&host, "parent");
    let grandchild = parent.hear();
    assert_eq!(host.status().clients.len(), 2);
    parent.kill();
    assert!(matches!(next_event(&watcher).unwrap(), ControlEvent::PeerGone { .. }));
    assert_eq!(host.counter("service_clients_died"), 1);
    assert_eq!(host.status().clients.len(), 1);
    let pid = rustix::process::Pid::from_raw(grandchild.parse().unwrap()).unwrap();
    // It was alive until now.
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn what_only_holds_the_service_is_there_while_a_child_has_its_socket() {
    let host = Host::start();
    let mut parent = start(&host, "holder");
    let grandchild = parent.hear();
    parent.kill();
    // The second query comes after the service has seen that the process is dead.
    let died = [(); 2].map(|()| host.counter("service_clients_died"));
    let pid = rustix::process::Pid::from_raw(grandchild.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(died, [0, 0]);
}

#[test]
fn the_peer_of_a_killed_process_is_disconnected() {
    let (here, there) = (Host::start(), Host::start());
    let mut listener = start(&here, "listener");
    let port = listener.hear();
    let client = there.client();
    let channel = EventChannel::open(&client).unwrap();
    let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    client.resolve_addr(id, None, here.at(port.parse().unwrap()), SECOND).unwrap();
    assert_eq!(next_cm_event(&channel).kind, EventKind::AddrResolved);
    client.resolve_route(id, SECOND).unwrap();
    assert_eq!(next_cm_event(&channel).kind, EventKind::RouteResolved);
    let param = ConnParam { qp_num: Qpn::new(0x1000), ..ConnParam::default() };
    client.connect_id(id, &param).unwrap();
    assert_eq!(next_cm_event(&channel).kind, EventKind::ConnectResponse);
    client.establish(id).unwrap();
    assert_eq!(listener.hear(), "established");
    listener.kill();
    assert_eq!(next_cm_event(&channel).kind, EventKind::Disconnected);
}
