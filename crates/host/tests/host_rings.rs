//! A service to which other hosts' services, or impostors, offer rings.

mod common;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{Host, next_event, raw, wait_closed, wait_readable};
use rdmux_host::names::Registry;
use rdmux_host::proto::socket::{self, MAX_MESSAGE};
use rdmux_host::proto::{ClientKind, Reply, Request, Response, RingOffer, VERSION};
use rdmux_host::{HostClient, HostName};
use rdmux_link::ring::DEFAULT_CAPACITY;
use rdmux_link::{PeerBell, RingPair};
use rdmux_verbs::control::{Control, ControlEvent, DeviceKind, DriverWire, RingEnd, RingPeer};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The address of a host that does not exist.
const ELSEWHERE: &str = "127.79.0.9:9";
/// The variables that pass the socket, and the address of its host, to a process of another user.
const SOCKET: &str = "RDMUX_TEST_SOCKET";
const ENDPOINT: &str = "RDMUX_TEST_ENDPOINT";

/// Returns a process with an InfiniBand device, and the address where its host receives packets.
fn process(host: &Host) -> (Arc<HostClient>, SocketAddr) {
    let client = host.connect_options().connect(&host.options.host, DeviceKind::Ib).unwrap();
    let slot = client.info().slot.slot;
    let Some(DriverWire::Ib(wire)) = client.attach_wire(1, 0, slot).unwrap() else { panic!() };
    (client, wire.port().local_addr())
}

/// The offering side.
struct Offerer {
    socket: OwnedFd,
}

impl Offerer {
    fn greet(path: &Path) -> Self {
        let this = Self { socket: raw(path) };
        this.send(&Request::Hello { version: VERSION, kind: ClientKind::Host }, &[]);
        assert!(matches!(this.reply().0, Response::Welcome(_)));
        this
    }

    fn to(host: &Host) -> Self {
        Self::greet(&host.host_dir().socket())
    }

    fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) {
        socket::send(self.socket.as_fd(), request, fds, &mut Vec::new()).unwrap();
    }

    fn reply(&self) -> (Response, usize) {
        wait_readable(&self.socket);
        let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
        let bytes = socket::recv_bytes(self.socket.as_fd(), &mut buf, &mut fds).unwrap();
        (socket::decode::<Reply>(bytes).unwrap().unwrap(), fds.len())
    }

    /// Offers rings as a correct service does.
    fn offer(&self, offer: RingOffer) -> (Response, PeerBell) {
        let (_, theirs) = RingPair::create(DEFAULT_CAPACITY).unwrap();
        let (ours, bell) = PeerBell::pair().unwrap();
        self.send(
            &Request::OfferRing(offer),
            &[theirs.tx.as_fd(), theirs.rx.as_fd(), bell.as_fd()],
        );
        bell.leave();
        (self.reply().0, ours)
    }
}

fn offer(to: SocketAddr, peer: u16) -> RingOffer {
    let from = ELSEWHERE.parse().unwrap();
    RingOffer { from, to, process: 77, slot: 3, peer, number: 2100 }
}

/// Waits until a process is notified of a pair.
fn told(client: &HostClient) -> (u16, RingEnd) {
    loop {
        if let ControlEvent::Ring { peer, end } = next_event(client).unwrap() {
            return (peer, end);
        }
    }
}

fn gone(client: &HostClient) -> u16 {
    loop {
        if let ControlEvent::PeerGone { slot } = next_event(client).unwrap() {
            return slot;
        }
    }
}

#[test]
fn the_process_has_the_rings_once_the_offerer_commits_and_until_its_end() {
    let host = Host::start();
    let (client, endpoint) = process(&host);
    let slot = client.info().slot.slot;
    let offerer = Offerer::to(&host);
    let (response, bell) = offerer.offer(offer(endpoint, slot));
    let Response::RingTaken { peer, number } = response else { panic!("{response:?}") };
    assert_eq!(peer, slot);
    assert!(number >= 2048, "no slot is as high");
    assert_eq!(host.status().rings, 1);
    offerer.send(&Request::CommitRing, &[]);
    let (known, end) = told(&client);
    assert_eq!((known, end.known_as), (number, 2100));
    assert!(end.reach.is_none(), "the offerer has passed no board");
    end.bell.ring().unwrap();
    assert!(bell.wait(Some(common::TIMEOUT)).unwrap());
    // The process makes a request, too, and gets the same pair. Another slot of the other process is another
    // request.
    let asked = RingPeer { host: Some(ELSEWHERE.parse().unwrap()), slot: 3 };
    assert_eq!(client.connect_ring(asked).unwrap().unwrap().0, number);
    // Offered again by another connection: the process has the rings already. Another process of that slot gets
    // none while they last.
    let again = Offerer::to(&host);
    assert_eq!(again.offer(offer(endpoint, slot)).0, Response::RingKnown { peer: slot });
    let other = RingOffer { process: 78, ..offer(endpoint, slot) };
    assert_eq!(again.offer(other).0, Response::NoRing);
    drop(offerer);
    assert_eq!(gone(&client), number);
    assert_eq!(host.status().rings, 0);
    assert!(matches!(again.offer(other).0, Response::RingTaken { .. }));
}

/// Makes the kernel refuse the option by which a bell rejects descriptors (`SO_PASSRIGHTS`) to this thread and those that it
/// starts, as kernels before Linux 6.16 do.
fn forbid_passrights() {
    let option = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 83).unwrap();
    let rule = SeccompRule::new(vec![option]).unwrap();
    let rules = [(libc::SYS_setsockopt, vec![rule])].into_iter().collect();
    let refuse = SeccompAction::Errno(libc::ENOPROTOOPT as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

#[test]
fn processes_of_two_hosts_wake_each_other_where_bells_take_descriptors() {
    forbid_passrights();
    let here = Host::start();
    let name = HostName::new("there").unwrap();
    let there = Host::start_with(|options| {
        options.dir = here.options.dir.clone();
        options.host = name.clone();
    });
    Registry::open(&here.options.dir).unwrap().assign(&name, there.ip).unwrap();
    let (asking, _) = process(&here);
    let (asked, endpoint) = process(&there);
    let peer = RingPeer { host: Some(endpoint), slot: asked.info().slot.slot };
    let (_, near) = asking.connect_ring(peer).unwrap().unwrap();
    let (_, far) = told(&asked);
    for (from, to) in [(&near, &far), (&far, &near)] {
        from.bell.ring().unwrap();
        assert!(to.bell.wait(Some(common::TIMEOUT)).unwrap());
    }
}

#[test]
fn the_pair_ends_with_the_process() {
    let host = Host::start();
    let (client, endpoint) = process(&host);
    let offerer = Offerer::to(&host);
    let (response, _bell) = offerer.offer(offer(endpoint, client.info().slot.slot));
    assert!(matches!(response, Response::RingTaken { .. }));
    offerer.send(&Request::CommitRing, &[]);
    told(&client);
    drop(client);
    wait_closed(&offerer.socket);
}

#[test]
fn offers_that_do_not_fit_are_refused() {
    let host = Host::start();
    let (client, endpoint) = process(&host);
    let slot = client.info().slot.slot;
    let roce = host.client().info().slot.slot;
    let offerer = Offerer::to(&host);
    let nobodys = SocketAddr::new(endpoint.ip(), endpoint.port() ^ 1);
    for wrong in [
        offer(nobodys, slot),
        offer(endpoint, 0),
        offer(endpoint, 2047),
        offer(endpoint, roce),
        RingOffer { from: endpoint, ..offer(endpoint, slot) },
    ] {
        assert_eq!(offerer.offer(wrong).0, Response::NoRing, "{wrong:?}");
    }
    // The descriptors are not those of rings.
    let pipe = std::io::pipe().unwrap();
    let (_, theirs) = RingPair::create(DEFAULT_CAPACITY).unwrap();
    let (rings, other) = ([theirs.tx.as_fd(), theirs.rx.as_fd()], pipe.0.as_fd());
    let few = [rings[0], rings[1]];
    for (at, fds) in [&[][..], &few, &[rings[0], other, other], &[rings[0], rings[1], other, other]]
        .into_iter()
        .enumerate()
    {
        let offer = RingOffer { slot: u16::try_from(at).unwrap() + 10, ..offer(endpoint, slot) };
        offerer.send(&Request::OfferRing(offer), fds);
        assert_eq!(offerer.reply().0, Response::NoRing, "{at}");
    }
    // A process that was denied rings does not get any later.
    let asked = RingPeer { host: Some(ELSEWHERE.parse().unwrap()), slot: 3 };
    assert!(client.connect_ring(asked).unwrap().is_none(), "there is no such host");
    assert_eq!(offerer.offer(offer(endpoint, slot)).0, Response::NoRing);
}

#[test]
fn ring_connection_takes_one_offer_and_closes_on_other_requests() {
    let host = Host::start();
    let (client, endpoint) = process(&host);
    let slot = client.info().slot.slot;
    let offerer = Offerer::to(&host);
    offerer.send(&Request::CommitRing, &[]);
    let (response, _bell) = offerer.offer(offer(endpoint, slot));
    assert!(matches!(response, Response::RingTaken { .. }), "a commit before an offer is none");
    let second = RingOffer { slot: 4, ..offer(endpoint, slot) };
    assert_eq!(offerer.offer(second).0, Response::NoRing);
    offerer.send(&Request::NewSlot, &[]);
    wait_closed(&offerer.socket);
    let tool = Offerer { socket: host.raw() };
    tool.send(&Request::Hello { version: VERSION, kind: ClientKind::Tool }, &[]);
    tool.reply();
    tool.send(&Request::OfferRing(offer(endpoint, slot)), &[]);
    wait_closed(&tool.socket);
}

#[test]
fn an_offerer_that_does_not_commit_is_given_up() {
    let host = Host::start();
    let (client, endpoint) = process(&host);
    let offerer = Offerer::to(&host);
    let (response, _bell) = offerer.offer(offer(endpoint, client.info().slot.slot));
    assert!(matches!(response, Response::RingTaken { .. }));
    // The process makes a request meanwhile, and gets its answer when that is decided.
    let asked = RingPeer { host: Some(ELSEWHERE.parse().unwrap()), slot: 3 };
    assert!(client.connect_ring(asked).unwrap().is_none());
    wait_closed(&offerer.socket);
    assert_eq!(host.status().rings, 0);
}

/// The process of another user. Not a test itself.
#[test]
fn role_of_another_user() {
    let Some(path) = std::env::var_os(SOCKET) else { return };
    let endpoint = std::env::var(ENDPOINT).unwrap();
    let (endpoint, slot) = endpoint.split_once('/').unwrap();
    let offerer = Offerer::greet(Path::new(&path));
    let (response, _) = offerer.offer(offer(endpoint.parse().unwrap(), slot.parse().unwrap()));
    println!("SAYS {response:?}");
}

#[test]
fn another_user_s_process_gets_no_rings() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can be another user");
        return;
    }
    let host = Host::start();
    let (client, endpoint) = process(&host);
    let socket = host.host_dir().socket();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let inside = |path: &&Path| path.starts_with(host.dir.path());
    socket.ancestors().skip(1).take_while(inside).for_each(|path| open(path, 0o755));
    open(&socket, 0o666);
    let said = |uid: u32| {
        let mut role = Command::new("/proc/self/exe");
        role.args(["--exact", "role_of_another_user", "--nocapture"]).uid(uid).gid(uid);
        let slot = client.info().slot.slot;
        role.env(SOCKET, &socket).env(ENDPOINT, format!("{endpoint}/{slot}"));
        String::from_utf8(role.output().unwrap().stdout).unwrap()
    };
    let foreign = said(65_533);
    assert!(foreign.contains("SAYS NoRing"), "{foreign}");
    let own = said(0);
    assert!(own.contains("SAYS RingTaken"), "{own}");
}
