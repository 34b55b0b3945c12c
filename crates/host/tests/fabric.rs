//! A host and its fabric, which is another process: the host continues, whatever the fabric sends or
//! fails to send.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::{Host, next_event, wait_readable};
use rdmux_fabric::proto::{
    Described, Failure, Greeting, PortEvent as Said, PortFacts, PortUpdate, Reply, Role, VERSION,
};
use rdmux_fabric::{FabricDir, FabricName};
use rdmux_host::DeviceRow;
use rdmux_runtime::Listener;
use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rdmux_verbs::control::{Control, ControlEvent, DeviceKind};
use rdmux_verbs::kind;
use rdmux_verbs::port::{Port, PortEvent, PortState};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

/// Returns the kind of device that is on a fabric.
fn ib() -> DeviceKind {
    kind::all().iter().copied().find(|kind| kind.is_on_fabric()).unwrap()
}

/// A fabric that the test plays.
struct Fabric {
    listener: Listener,
    /// Connections for other purposes than an adapter, which are not answered.
    others: Vec<OwnedFd>,
}

impl Fabric {
    fn of(host: &Host) -> Self {
        let dir = FabricDir::open(host.options.dir.user_dir(), &FabricName::default()).unwrap();
        let lock = dir.lock_service().unwrap().unwrap();
        Self { listener: Listener::open(&dir, lock).unwrap(), others: Vec::new() }
    }

    /// Returns the host's next connection after its greeting, and its role.
    fn next(&mut self) -> (Role, OwnedFd) {
        wait_readable(&self.listener);
        let socket = self.listener.accept().unwrap().unwrap();
        wait_readable(&socket);
        let mut buf = vec![0; MAX_MESSAGE];
        let greeting = socket::recv_bytes(socket.as_fd(), &mut buf, &mut Vec::new()).unwrap();
        (socket::decode::<Greeting>(greeting).unwrap().role, socket)
    }

    /// Returns the host's next connection for an adapter.
    fn accept(&mut self) -> OwnedFd {
        loop {
            match self.next() {
                (Role::Attach { .. }, socket) => return socket,
                (_, socket) => self.others.push(socket),
            }
        }
    }
}

fn facts() -> PortFacts {
    PortFacts {
        number: 1,
        guid: Guid(0x101),
        state: 2,
        phys_state: 5,
        max_mtu: 5,
        active_mtu: 5,
        gids: vec![Gid::new(0xfe80 << 48, Guid(0x101))],
        pkeys: vec![Pkey::DEFAULT],
        ..PortFacts::default()
    }
}

fn described() -> Described {
    Described {
        node_guid: Guid(0x100),
        system_guid: Guid(0x99),
        description: "a node".to_owned(),
        vendor_id: 0,
        device_id: 0,
        revision: 0,
        port: facts(),
        is_joined: false,
    }
}

fn welcome(socket: &OwnedFd, reply: Reply<Described>) {
    let mut message = postcard::to_stdvec(&VERSION).unwrap();
    socket::append(&reply, &mut message).unwrap();
    socket::send_bytes(socket.as_fd(), &message, &[]).unwrap();
}

fn update(socket: &OwnedFd, port: PortFacts) {
    happens(socket, &[], port);
}

fn happens(socket: &OwnedFd, events: &[Said], port: PortFacts) {
    let update = PortUpdate { events: events.to_vec(), port };
    socket::send(socket.as_fd(), &update, &[], &mut Vec::new()).unwrap();
}

/// Returns the host's InfiniBand device, as a command sees it.
fn device(host: &Host) -> DeviceRow {
    let rows = host.connect_options().devices(&host.options.host).unwrap();
    rows.into_iter().find(|row| row.kind == ib()).unwrap()
}

fn refusal() -> Reply<Described> {
    Err(Failure::new(libc::EPERM, "no"))
}

/// Starts a host with a fabric that sends this answer to the first greeting, refuses the next, and ends.
/// Returns the host's counters.
fn counted(answer: impl FnOnce(&OwnedFd)) -> (u64, u64, u64) {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    answer(&fabric.accept());
    let again = fabric.accept();
    drop(fabric);
    welcome(&again, refusal());
    assert_eq!(device(&host).adapter, None);
    let count = |name: &str| host.counter(&format!("service_fabric_{name}"));
    (count("attached"), count("refused"), count("broke_protocol"))
}

#[test]
fn invalid_fabric_messages_end_the_attachment_not_the_host() {
    let long = Described { description: "x".repeat(65), ..described() };
    let path = ("../../../x".to_owned(), 0);
    let path = Described { port: PortFacts { counters: vec![path], ..facts() }, ..described() };
    let state = Described { port: PortFacts { state: 9, ..facts() }, ..described() };
    let nobody = Described { node_guid: Guid(0), ..described() };
    for nonsense in [long, path, state, nobody] {
        assert_eq!(counted(|socket| welcome(socket, Ok(nonsense))), (0, 1, 1));
    }
    for nonsense in [&[0xff; 100][..], &[99], &[1]] {
        let send = |socket: &OwnedFd| socket::send_bytes(socket.as_fd(), nonsense, &[]).unwrap();
        assert_eq!(counted(send), (0, 1, 1), "{nonsense:?}");
    }
}

#[test]
fn a_host_that_gets_no_adapter_asks_again() {
    assert_eq!(counted(|socket| welcome(socket, refusal())), (0, 2, 0));
    let close = |socket: &OwnedFd| {
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).unwrap();
    };
    assert_eq!(counted(close), (0, 2, 0));
}

#[test]
fn commands_do_not_wait_for_a_fabric_that_is_silent() {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    let _silent = fabric.accept();
    let found = device(&host);
    assert_eq!((found.adapter, found.ports[0].attr.state), (None, PortState::Down));
    assert_eq!(host.counter("service_fabric_silent"), 1);
}

#[test]
fn a_command_waits_for_a_fabric_that_is_about_to_answer() {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    let socket = fabric.accept();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| device(&host));
        welcome(&socket, Ok(described()));
        let found = asks.join().unwrap();
        assert_eq!(found.node_guid, Guid(0x100));
        assert_eq!(found.adapter.unwrap().description, "a node");
    });
}

#[test]
fn processes_get_port_changes_and_port_down_when_the_fabric_is_gone() {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    let socket = fabric.accept();
    welcome(&socket, Ok(described()));
    let client = host.connect_options().connect(&host.options.host, ib()).unwrap();
    let port = |ports: &[Port]| (ports[0].attr.state, ports[0].attr.lid);
    assert_eq!(port(&client.info().ports), (PortState::Init, Lid(0)));

    // Processes are not notified of counters alone.
    let counters = vec![("port_xmit_data".to_owned(), 5)];
    update(&socket, PortFacts { counters: counters.clone(), ..facts() });
    while device(&host).ports[0].managed.as_ref().unwrap().counters != counters {
        std::thread::yield_now();
    }
    update(&socket, PortFacts { lid: Lid(7), state: 4, ..facts() });
    let ControlEvent::Ports { ports, .. } = next_event(&client).unwrap() else {
        panic!("no ports")
    };
    assert_eq!(port(&ports), (PortState::Active, Lid(7)));

    update(&socket, PortFacts { max_mtu: 9, ..facts() });
    let ControlEvent::Ports { ports, .. } = next_event(&client).unwrap() else {
        panic!("no ports")
    };
    assert_eq!(port(&ports), (PortState::Down, Lid(7)));

    // The link is up again when the fabric is.
    welcome(&fabric.accept(), Ok(described()));
    let ControlEvent::Ports { ports, .. } = next_event(&client).unwrap() else {
        panic!("no ports")
    };
    assert_eq!(port(&ports), (PortState::Init, Lid(0)));
}

#[test]
fn a_host_asks_again_for_the_management_interface_that_it_does_not_get() {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    let socket = fabric.accept();
    welcome(&socket, Ok(described()));
    for _ in 0..3 {
        while !matches!(fabric.next(), (Role::OpenFile(_), _)) {}
    }
}

#[test]
fn port_changes_raise_lid_sm_pkey_gid_and_reregister_events() {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    let socket = fabric.accept();
    welcome(&socket, Ok(described()));
    let client = host.connect_options().connect(&host.options.host, ib()).unwrap();
    let told = || {
        let ControlEvent::Ports { events, .. } = next_event(&client).unwrap() else {
            panic!("no ports")
        };
        assert!(events.iter().all(|(port, _)| *port == 1));
        events.into_iter().map(|(_, event)| event).collect::<Vec<_>>()
    };
    let active = PortFacts { lid: Lid(7), state: 4, ..facts() };
    happens(&socket, &[Said::LidChange, Said::SmChange, Said::Active], active.clone());
    assert_eq!(told(), [PortEvent::LidChange, PortEvent::SmChange, PortEvent::Active]);
    // A manager's request to register again changes nothing in the port.
    happens(&socket, &[Said::ClientReregister], active.clone());
    assert_eq!(told(), [PortEvent::ClientReregister]);
    happens(&socket, &[Said::PkeyChange, Said::GidChange, Said::Error], facts());
    assert_eq!(told(), [PortEvent::PkeyChange, PortEvent::GidChange, PortEvent::Error]);
    happens(&socket, &[Said::Active], active.clone());
    assert_eq!(told(), [PortEvent::Active]);

    // The port is down while the fabric is gone. Changes meanwhile are reported when it is back.
    update(&socket, PortFacts { max_mtu: 9, ..facts() });
    assert_eq!(told(), [PortEvent::Error]);
    let port = PortFacts { sm_lid: Lid(3), pkeys: vec![Pkey(0x8001)], ..active };
    let gids = vec![Gid::new(0x1234 << 48, Guid(0x101))];
    let port = PortFacts { gid_prefix: 0x1234 << 48, gids, lid: Lid(8), ..port };
    welcome(&fabric.accept(), Ok(Described { port, ..described() }));
    let all = [
        PortEvent::LidChange,
        PortEvent::SmChange,
        PortEvent::PkeyChange,
        PortEvent::GidChange,
        PortEvent::Active,
    ];
    assert_eq!(told(), all);
}

#[test]
fn flood_of_fabric_updates_does_not_drop_clients() {
    let host = Host::start();
    let mut fabric = Fabric::of(&host);
    let socket = fabric.accept();
    welcome(&socket, Ok(described()));
    let client = host.connect_options().connect(&host.options.host, ib()).unwrap();
    for lid in (1..=10_000).map(Lid) {
        wait_writable(&socket);
        update(&socket, PortFacts { lid, ..facts() });
    }
    // The last update counts, and the process that received earlier ones is still connected.
    loop {
        let ControlEvent::Ports { ports, .. } = next_event(&client).unwrap() else {
            panic!("no ports")
        };
        if ports[0].attr.lid == Lid(10_000) {
            break;
        }
    }
    assert_eq!(host.counter("service_clients_too_slow"), 0);
}

fn wait_writable(fd: impl AsFd) {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::OUT)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&common::TIMEOUT)), Ok(1));
}
