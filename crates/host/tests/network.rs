//! Hosts on real network devices: the default host, with the machine's addresses, in a network namespace for each
//! test.
//!
//! Needs the privilege to make namespaces, and `ip` of iproute2. Without these, each test prints that it was
//! skipped. Each runs in a thread of its own, because a namespace belongs to a thread; threads that it starts are
//! in the same one.

mod common;

use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpStream};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use common::{SECOND, next_cm_event, next_event};
use rdmux_cm::{ConnParam, EventKind, GroupWish, IdHandle, JoinFlags, PortSpace};
use rdmux_fabric::proto::{
    AttachmentRequest, Described, Greeting, PortFacts, Reply, Role, VERSION,
};
use rdmux_fabric::{FabricDir, FabricName};
use rdmux_host::client::admin;
use rdmux_host::proto::Status;
use rdmux_host::service::{Service, ServiceHandle, ServiceOptions};
use rdmux_host::{Config, ConnectOptions, EventChannel, HostClient, HostName, RuntimeDir};
use rdmux_link::routes::RouteTable;
use rdmux_runtime::Listener;
use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rdmux_testing::qp::steps;
use rdmux_testing::{TempDir, temp_dir};
use rdmux_transport::attr::{QpAttr, QpCaps, QpState, QpType};
use rdmux_verbs::control::{Control, ControlEvent, DeviceKind};
use rdmux_verbs::port::GidEntry;
use rdmux_verbs::{Cq, Device, Pd, Qp, QpInit};
use rdmux_wire::{Gid, Guid, Mtu, Pkey, Qpn};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use std::os::fd::{AsFd, OwnedFd};

/// Moves this thread into a new network namespace.
fn new_namespace() -> Result<(), String> {
    // SAFETY: only the network namespace is unshared, no memory or descriptor table.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| format!("no namespace: {e}"))
}

/// Runs `ip` with these words, in this thread's namespace.
fn run_ip(words: &str) -> Result<(), String> {
    let out = Command::new("ip").args(words.split(' ')).output();
    let out = out.map_err(|e| format!("cannot run ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr)))
}

fn ip(words: &str) {
    run_ip(words).unwrap();
}

/// Runs `test` in a namespace with the loopback interface.
fn alone(test: impl FnOnce() + Send + 'static) {
    let outcome = thread::spawn(|| match new_namespace().and_then(|()| run_ip("link set lo up")) {
        Ok(()) => test(),
        Err(why) => println!("SKIPPED: {why}"),
    });
    outcome.join().unwrap();
}

/// Runs `test` in a namespace with v0, and `other` in another one with v1, the other end of the veth pair. Both
/// have the loopback interface.
fn on_a_wire(test: impl FnOnce() + Send + 'static, other: impl FnOnce() + Send + 'static) {
    alone(move || {
        let (tell, hear) = mpsc::channel();
        let (ready, go) = mpsc::channel::<()>();
        let far = thread::spawn(move || {
            new_namespace().unwrap();
            tell.send(gettid().as_raw_nonzero()).unwrap();
            go.recv().unwrap();
            ip("link set lo up");
            other();
            // The veth pair is removed with the namespace of either end.
            let _ = go.recv();
        });
        let far_thread = hear.recv().unwrap();
        ip("link add v0 type veth peer name v1");
        ip(&format!("link set v1 netns {far_thread}"));
        ready.send(()).unwrap();
        test();
        drop(ready);
        far.join().unwrap();
    });
}

/// Returns a process of the default host, with a device of this kind.
fn process(dir: &RuntimeDir, kind: DeviceKind) -> (Arc<HostClient>, EventChannel) {
    let config = Config::default();
    let options = ConnectOptions { dir: dir.clone(), config, embedded: true, program: None };
    let client = options.connect(&HostName::default(), kind).unwrap();
    let channel = EventChannel::open(&client).unwrap();
    (client, channel)
}

/// The default host of a namespace.
struct Default {
    _service: ServiceHandle,
    client: Arc<HostClient>,
    channel: EventChannel,
    dir: RuntimeDir,
    _tmp: TempDir,
}

impl Default {
    fn start() -> Self {
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("run")).unwrap();
        let host = HostName::default();
        let service = Service::spawn(ServiceOptions::new(host, dir.clone())).unwrap();
        let (client, channel) = process(&dir, DeviceKind::default());
        Self { _service: service, client, channel, dir, _tmp: tmp }
    }

    fn status(&self) -> Status {
        admin::status(&self.dir, &HostName::default()).unwrap()
    }

    fn addresses(&self) -> Vec<String> {
        self.status().gids.iter().map(|row| row.gid.ip().to_string()).collect()
    }

    fn id(&self, space: PortSpace) -> IdHandle {
        let qp_type = if space == PortSpace::Tcp { QpType::Rc } else { QpType::Ud };
        self.client.create_id(&self.channel, space, qp_type, 0).unwrap()
    }

    fn expect(&self, kind: EventKind) -> rdmux_cm::Event {
        let event = next_cm_event(&self.channel);
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    /// Waits until the process is notified that the addresses changed.
    fn moved(&self) {
        let event = next_event(&self.client).unwrap();
        assert!(matches!(event, ControlEvent::Ports { .. }), "{event:?}");
    }

    fn listen(&self, at: SocketAddr) {
        let id = self.id(PortSpace::Tcp);
        self.client.bind_addr(id, at).unwrap();
        self.client.listen(id, 8).unwrap();
    }

    fn accept(&self, qpn: u32) {
        let request = self.expect(EventKind::ConnectRequest);
        let param = ConnParam { qp_num: Qpn::new(qpn), ..ConnParam::default() };
        self.client.accept(request.id, &param).unwrap();
        self.expect(EventKind::Established);
    }

    /// Connects. Returns the path MTU.
    fn connect(&self, to: SocketAddr, qpn: u32) -> Mtu {
        let id = self.id(PortSpace::Tcp);
        self.client.resolve_addr(id, None, to, 10 * SECOND).unwrap();
        self.expect(EventKind::AddrResolved);
        self.client.resolve_route(id, SECOND).unwrap();
        self.expect(EventKind::RouteResolved);
        let param = ConnParam { qp_num: Qpn::new(qpn), ..ConnParam::default() };
        self.client.connect_id(id, &param).unwrap();
        let response = self.expect(EventKind::ConnectResponse);
        self.client.establish(id).unwrap();
        response.negotiated.unwrap().path_mtu
    }
}

fn at(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), 7000)
}

#[test]
fn machines_connect_over_both_protocols() {
    let (tell, hear) = mpsc::channel();
    on_a_wire(
        move || {
            ip("addr add 10.77.0.1/24 dev v0");
            ip("addr add fd77::1/64 dev v0 nodad");
            ip("link set v0 up");
            hear.recv().unwrap();
            let host = Default::start();
            assert_eq!(host.connect(at("10.77.0.2"), 0x1000), Mtu::M1024);
            assert_eq!(host.connect(at("fd77::2"), 0x2000), Mtu::M1024);
        },
        move || {
            ip("addr add 10.77.0.2/24 dev v1");
            ip("addr add fd77::2/64 dev v1 nodad");
            ip("link set v1 up");
            let host = Default::start();
            host.listen(at("0.0.0.0"));
            host.listen(at("fd77::2"));
            tell.send(()).unwrap();
            host.accept(0x3000);
            host.accept(0x4000);
        },
    );
}

#[test]
fn unreachable_neighbour_is_addr_error_ehostunreach_or_etimedout() {
    on_a_wire(
        || {
            ip("addr add 10.77.0.1/24 dev v0");
            ip("link set v0 up");
            for (name, value) in [("mcast_solicit", "1"), ("retrans_time_ms", "10")] {
                let path = format!("/proc/sys/net/ipv4/neigh/v0/{name}");
                std::fs::write(path, value).unwrap();
            }
            let host = Default::start();
            let id = host.id(PortSpace::Tcp);
            host.client.resolve_addr(id, None, at("10.77.0.9"), 3600 * SECOND).unwrap();
            assert_eq!(host.expect(EventKind::AddrError).status, -libc::EHOSTUNREACH);
            // The same if the kernel takes longer than the program's timeout.
            std::fs::write("/proc/sys/net/ipv4/neigh/v0/retrans_time_ms", "100000").unwrap();
            host.client.resolve_addr(id, None, at("10.77.0.8"), SECOND / 20).unwrap();
            assert_eq!(host.expect(EventKind::AddrError).status, -libc::ETIMEDOUT);
            // The id may resolve again.
            ip("neigh replace 10.77.0.8 lladdr 02:00:00:00:00:08 dev v0");
            host.client.resolve_addr(id, None, at("10.77.0.8"), 3600 * SECOND).unwrap();
            assert_eq!(host.expect(EventKind::AddrResolved).status, 0);
        },
        || ip("link set v1 up"),
    );
}

#[test]
fn both_loopback_addresses_work_and_no_address_is_lost_when_others_come_and_go() {
    alone(|| {
        let host = Default::start();
        assert_eq!(host.addresses(), ["127.0.0.1", "::1"]);
        host.listen(at("::1"));
        let id = host.id(PortSpace::Tcp);
        host.client.resolve_addr(id, None, at("::1"), SECOND).unwrap();
        host.expect(EventKind::AddrResolved);

        ip("addr add 10.77.0.1/24 dev lo");
        let ControlEvent::Ports { ports, .. } = next_event(&host.client).unwrap() else { panic!() };
        assert_eq!(ports[0].gids().len(), 3);
        assert_eq!(host.addresses(), ["127.0.0.1", "::1", "10.77.0.1"]);
        host.client.attach_address(2, host.client.info().slot.slot).unwrap();

        ip("addr del 127.0.0.1/8 dev lo");
        let ControlEvent::Ports { ports, .. } = next_event(&host.client).unwrap() else { panic!() };
        assert!(ports[0].gids()[0].gid.is_zero());
        assert!(host.client.attach_address(0, host.client.info().slot.slot).is_err());
        // The row is used again.
        ip("addr add 10.77.0.2/24 dev lo");
        next_event(&host.client).unwrap();
        assert_eq!(host.addresses(), ["10.77.0.2", "::1", "10.77.0.1"]);
    });
}

#[test]
fn an_address_is_found_on_another_interface_and_with_another_mtu() {
    alone(|| {
        ip("link add d0 type veth peer name d1");
        for link in ["d0", "d1"] {
            ip(&format!("link set {link} addrgenmode none"));
            ip(&format!("link set {link} up"));
        }
        ip("addr add 10.77.0.1/24 dev d0");
        let host = Default::start();
        // The address is never missing in between.
        ip("addr add 10.77.0.1/24 dev d1");
        ip("addr del 10.77.0.1/24 dev d0");
        let told = |is: &dyn Fn(&GidEntry) -> bool| loop {
            let event = next_event(&host.client).unwrap();
            let ControlEvent::Ports { ports, .. } = event else { panic!("{event:?}") };
            if is(&ports[0].gids()[0]) {
                break;
            }
        };
        told(&|entry| entry.interface == "d1");
        ip("link set d1 mtu 9000");
        told(&|entry| entry.mtu == Mtu::M4096);
    });
}

#[test]
fn an_address_is_found_while_links_change_all_the_time() {
    alone(|| {
        ip("link add d0 type veth peer name d1");
        ip("link set d0 addrgenmode none");
        let host = Default::start();
        ip("addr add 10.77.0.1/24 dev lo");
        let deadline = Instant::now() + 20 * SECOND;
        for state in ["up", "down"].into_iter().cycle() {
            ip(&format!("link set d0 {state}"));
            if host.client.poll_event().unwrap().is_some() {
                break;
            }
            assert!(Instant::now() < deadline, "it is not found");
        }
    });
}

#[test]
fn a_link_local_destination_is_named_with_its_interface() {
    on_a_wire(
        || {
            ip("addr add fe80::1/64 dev v0 nodad");
            ip("link set v0 up");
            ip("neigh replace fe80::2 lladdr 02:00:00:00:00:02 dev v0");
            let host = Default::start();
            let device = Device::open(host.client.clone()).unwrap();
            let gids = device.gids(1);
            let own = gids.iter().find(|entry| entry.gid.ip().to_string() == "fe80::1").unwrap();
            let to = SocketAddrV6::new("fe80::2".parse().unwrap(), 7000, 0, own.interface_index);
            let id = host.id(PortSpace::Tcp);
            host.client.resolve_addr(id, None, SocketAddr::from(to), 10 * SECOND).unwrap();
            assert_eq!(host.expect(EventKind::AddrResolved).status, 0);
        },
        || ip("link set v1 up"),
    );
}

#[test]
fn ud_qp_becomes_ready_after_a_local_address_was_removed() {
    alone(|| {
        ip("addr add 10.77.0.1/24 dev lo");
        ip("addr add 10.77.1.1/24 dev lo");
        let host = Default::start();
        let addresses = host.addresses();
        let index = addresses.iter().position(|address| address == "10.77.0.1").unwrap();
        assert!(index + 1 < addresses.len(), "it is not the last");
        let device = Device::open(host.client.clone()).unwrap();
        ip("addr del 10.77.0.1/24 dev lo");
        let deadline = Instant::now() + 20 * SECOND;
        while !device.gids(1)[index].gid.is_zero() {
            assert!(Instant::now() < deadline, "the row is not empty");
            thread::yield_now();
        }
        let pd = Pd::new(&device);
        let cq = Cq::new(&device, 1, None, 0).unwrap();
        let init = QpInit {
            qp_type: QpType::Ud,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            caps: QpCaps::default(),
            sq_sig_all: false,
            context: 0,
        };
        let qp = Qp::new(&pd, init).unwrap();
        for (state, mask) in steps(QpType::Ud, QpState::Rtr) {
            qp.modify(&QpAttr { state, port_num: 1, ..QpAttr::default() }, mask).unwrap();
        }
    });
}

#[test]
fn a_group_is_joined_on_the_interface_of_the_id() {
    on_a_wire(
        || {
            ip("addr add 10.77.0.1/24 dev v0");
            ip("link set v0 up");
            let host = Default::start();
            let group: IpAddr = "239.1.2.3".parse().unwrap();
            let id = host.id(PortSpace::Udp);
            host.client.bind_addr(id, "10.77.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
            let wish = GroupWish::address(group, JoinFlags::FullMember);
            host.client.join_multicast(id, wish, 0).unwrap();
            host.expect(EventKind::MulticastJoin);
            let qpn = Qpn::new(u32::from(host.client.info().slot.slot) << 12);
            host.client.attach_multicast(1, qpn, group.into()).unwrap().unwrap();
            let status = host.status();
            assert_eq!(status.groups.len(), 1);
            assert_eq!(status.groups[0].local.to_string(), "10.77.0.1");
            let igmp = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
            let of_v0 = igmp.split_once("v0").unwrap().1;
            assert!(of_v0.contains("030201EF"), "{igmp}");
        },
        || ip("link set v1 up"),
    );
}

#[test]
fn ipv6_group_is_reported_by_mld_until_left() {
    on_a_wire(
        || {
            ip("addr add fd00::77:1/64 dev v0 nodad");
            ip("link set v0 up");
            let host = Default::start();
            let group: IpAddr = "ff1e::77".parse().unwrap();
            let id = host.id(PortSpace::Udp);
            host.client.bind_addr(id, "[fd00::77:1]:0".parse::<SocketAddr>().unwrap()).unwrap();
            let is_told = || {
                let mld = std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap();
                mld.contains("ff1e0000000000000000000000000077")
            };
            for (flags, told) in
                [(JoinFlags::SendOnlyFullMember, false), (JoinFlags::FullMember, true)]
            {
                host.client.join_multicast(id, GroupWish::address(group, flags), 5).unwrap();
                host.expect(EventKind::MulticastJoin);
                assert_eq!(is_told(), told);
                let record = host.client.group(id, 5).unwrap();
                assert_eq!((record.mgid.ip(), record.scope), (group, 0xe));
                host.client.leave_multicast(id, 5).unwrap();
                // A process that another test starts has the service's socket, too, until it calls exec.
                let deadline = Instant::now() + 20 * SECOND;
                while is_told() {
                    assert!(Instant::now() < deadline, "{group} is still told");
                    thread::yield_now();
                }
            }
        },
        || ip("link set v1 up"),
    );
}

#[test]
fn a_group_is_left_with_the_address_on_which_it_was_joined() {
    on_a_wire(
        || {
            ip("addr add 10.77.0.1/24 dev v0");
            ip("addr add 10.77.1.1/24 dev v0");
            ip("link set v0 up");
            let host = Default::start();
            let group: IpAddr = "239.1.2.3".parse().unwrap();
            let join = |local: &str| {
                let id = host.id(PortSpace::Udp);
                host.client.bind_addr(id, SocketAddr::new(local.parse().unwrap(), 0)).unwrap();
                let wish = GroupWish::address(group, JoinFlags::FullMember);
                host.client.join_multicast(id, wish, 0).unwrap();
                host.expect(EventKind::MulticastJoin);
                id
            };
            let old = join("10.77.0.1");
            ip("addr del 10.77.0.1/24 dev v0");
            host.moved();
            assert_eq!(host.expect(EventKind::MulticastError).status, -libc::ENETRESET);
            host.expect(EventKind::AddrChange);
            assert_eq!(host.status().groups, []);
            // The process continues with another address, and still has the old id.
            join("10.77.1.1");
            let qpn = Qpn::new(u32::from(host.client.info().slot.slot) << 12);
            host.client.attach_multicast(1, qpn, group.into()).unwrap().unwrap();
            let groups = host.status().groups;
            assert_eq!((groups.len(), groups[0].members), (1, 2));
            assert_eq!(groups[0].local.to_string(), "10.77.1.1");
            host.client.leave_multicast(old, 0).unwrap();
            assert_eq!(host.status().groups, groups);
        },
        || ip("link set v1 up"),
    );
}

#[test]
fn iwarp_listener_listens_again_when_its_removed_address_returns() {
    alone(|| {
        ip("addr add 10.77.0.1/24 dev lo");
        let host = Default::start();
        let (client, channel) = process(&host.dir, DeviceKind::Iwarp);
        let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
        client.bind_addr(id, at("10.77.0.1")).unwrap();
        client.listen(id, 8).unwrap();
        TcpStream::connect(at("10.77.0.1")).unwrap();
        ip("addr del 10.77.0.1/24 dev lo");
        host.moved();
        assert_eq!(next_cm_event(&channel).kind, EventKind::AddrChange);
        for other in ["10.77.0.2/24", "10.77.0.1/24"] {
            ip(&format!("addr add {other} dev lo"));
            host.moved();
        }
        TcpStream::connect(at("10.77.0.1")).unwrap();
        client.destroy_id(id).unwrap();
        ip("addr del 10.77.0.1/24 dev lo");
        host.moved();
        ip("addr add 10.77.0.1/24 dev lo");
        host.moved();
        let refused = TcpStream::connect(at("10.77.0.1")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED), "nobody listens any more");
    });
}

#[test]
fn iwarp_wildcard_listens_at_each_new_address_as_soon_as_its_port_is_free() {
    alone(|| {
        ip("addr add 10.77.0.1/24 dev lo");
        let host = Default::start();
        let (client, channel) = process(&host.dir, DeviceKind::Iwarp);
        let id = client.create_id(&channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
        client.bind_addr(id, at("0.0.0.0")).unwrap();
        client.listen(id, 8).unwrap();
        // Another program's, which is there before the address is.
        let family = rustix::net::AddressFamily::INET;
        let other = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::sockopt::set_ip_freebind(&other, true).unwrap();
        rustix::net::bind(&other, &at("10.77.0.2")).unwrap();
        rustix::net::listen(&other, 1).unwrap();
        for new in ["10.77.0.2/24", "10.77.0.3/24"] {
            ip(&format!("addr add {new} dev lo"));
            host.moved();
        }
        TcpStream::connect(at("10.77.0.3")).unwrap();
        drop(other);
        let since = Instant::now();
        while let Err(e) = TcpStream::connect(at("10.77.0.2")) {
            assert_eq!(e.raw_os_error(), Some(libc::ECONNREFUSED));
            assert!(since.elapsed() < 20 * SECOND, "it is not tried again");
            thread::yield_now();
        }
    });
}

/// Returns the next message of a host to a fabric that the test plays.
fn received<T: serde::de::DeserializeOwned>(socket: &OwnedFd) -> T {
    common::wait_readable(socket);
    let mut buf = vec![0; MAX_MESSAGE];
    let bytes = socket::recv_bytes(socket.as_fd(), &mut buf, &mut Vec::new()).unwrap();
    socket::decode(bytes).unwrap()
}

#[test]
fn host_reports_where_it_receives_packets_once_it_has_sockets() {
    let test = || {
        // There is no loopback interface, whose address the port's data needs.
        ip("link add v0 type veth peer name v1");
        ip("addr add 10.9.0.1/24 dev v0");
        ip("link set v0 up");
        ip("link set v1 up");
        let tmp = temp_dir();
        let dir = RuntimeDir::at(tmp.path().join("run")).unwrap();
        let fabric = FabricDir::open(dir.user_dir(), &FabricName::default()).unwrap();
        let lock = fabric.lock_service().unwrap().unwrap();
        let mut listener = Listener::open(&fabric, lock).unwrap();
        let options = ServiceOptions::new(HostName::default(), dir);
        let _service = Service::spawn(options).unwrap();
        common::wait_readable(&listener);
        let host = listener.accept().unwrap().unwrap();
        let greeting: Greeting = received(&host);
        assert!(matches!(greeting.role, Role::Attach { .. }));
        let gids = vec![Gid::new(Gid::DEFAULT_PREFIX, Guid(0x101))];
        let pkeys = vec![Pkey::DEFAULT];
        let (number, guid, state, phys_state) = (1, Guid(0x101), 2, 5);
        let (max_mtu, active_mtu) = (5, 5);
        let port = PortFacts {
            number,
            guid,
            state,
            phys_state,
            max_mtu,
            active_mtu,
            gids,
            pkeys,
            ..PortFacts::default()
        };
        let reply: Reply<Described> = Ok(Described {
            node_guid: Guid(0x100),
            system_guid: Guid(0x99),
            description: "a node".to_owned(),
            vendor_id: 0,
            device_id: 0,
            revision: 0,
            port,
            is_joined: false,
        });
        let mut message = postcard::to_stdvec(&VERSION).unwrap();
        socket::append(&reply, &mut message).unwrap();
        let table = RouteTable::of_fabric(1).unwrap();
        socket::send_bytes(host.as_fd(), &message, &[table.fd().as_fd()]).unwrap();
        // Once the port is attached, the service opens its management interface. It has no data socket yet.
        common::wait_readable(&listener);
        let _interface = listener.accept().unwrap().unwrap();
        ip("link set lo up");
        loop {
            if let AttachmentRequest::Endpoint { addr, .. } = received(&host) {
                break assert!(addr.ip().is_loopback() && addr.port() != 0, "{addr}");
            }
        }
    };
    let outcome =
        thread::spawn(move || match new_namespace().and_then(|()| run_ip("link show lo")) {
            Ok(()) => test(),
            Err(why) => println!("SKIPPED: {why}"),
        });
    outcome.join().unwrap();
}
