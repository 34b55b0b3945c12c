//! Shared helpers of the tests: services in threads, each in a directory and on an address of its
//! own.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdmux_host::client::{EventChannel, admin};
use rdmux_host::proto::Status;
use rdmux_host::proto::socket;
use rdmux_host::service::{Service, ServiceHandle, ServiceOptions};
use rdmux_host::{Config, ConnectOptions, HostClient, HostDir, HostError, HostName, RuntimeDir};
use rdmux_testing::{TempDir, temp_dir};
use rdmux_transport::attr::{QpAttr, QpState};
use rdmux_verbs::Qp;
use rdmux_verbs::control::{Control, ControlError, ControlEvent, DeviceKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longer than anything in these tests takes. Only a failing test waits that long.
pub(crate) const TIMEOUT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns a loopback address that probably nothing else uses.
pub(crate) fn loopback_address() -> IpAddr {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let spread = (std::process::id().wrapping_mul(64).wrapping_add(n)).wrapping_mul(0x9e37_79b1);
    let [high, low, ..] = spread.to_be_bytes();
    Ipv4Addr::new(127, 79, high, low.clamp(1, 254)).into()
}

/// A host of one test.
pub(crate) struct Host {
    pub(crate) service: Option<ServiceHandle>,
    pub(crate) ip: IpAddr,
    pub(crate) options: ServiceOptions,
    pub(crate) dir: TempDir,
}

impl Host {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts a host with options that the test changes.
    pub(crate) fn start_with(change: impl Fn(&mut ServiceOptions)) -> Self {
        let (host, service) = Self::new(change);
        Self { service: Some(service.start().unwrap()), ..host }
    }

    /// Starts a host whose service ends this long after its last client. It cannot end before the
    /// returned client, which has not greeted, leaves.
    pub(crate) fn start_on_demand(idle: Duration) -> (Self, OwnedFd) {
        let (host, service) = Self::new(|o| o.idle_exit = Some(idle));
        let first = host.raw();
        (Self { service: Some(service.start().unwrap()), ..host }, first)
    }

    /// Starts a host with two addresses.
    pub(crate) fn with_two_addresses() -> Self {
        Self::start_with(|options| options.addresses = Some(vec![Ipv4Addr::UNSPECIFIED.into(); 2]))
    }

    /// Makes a service. If the options have addresses, their number is what counts.
    fn new(change: impl Fn(&mut ServiceOptions)) -> (Self, Service) {
        let dir = temp_dir();
        let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
        let mut options = ServiceOptions::new(HostName::new("test").unwrap(), runtime);
        change(&mut options);
        let count = options.addresses.as_ref().map_or(1, Vec::len);
        loop {
            let addresses: Vec<IpAddr> = (0..count).map(|_| loopback_address()).collect();
            let ip = addresses[0];
            options.addresses = Some(addresses);
            match Service::new(options.clone()) {
                Ok(service) => return (Self { service: None, ip, options, dir }, service),
                Err(HostError::PortInUse { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    pub(crate) fn connect_options(&self) -> ConnectOptions {
        let config = Config::default();
        ConnectOptions { dir: self.options.dir.clone(), config, embedded: true, program: None }
    }

    pub(crate) fn client(&self) -> Arc<HostClient> {
        self.client_of(DeviceKind::default())
    }

    pub(crate) fn client_of(&self, kind: DeviceKind) -> Arc<HostClient> {
        self.connect_options().connect(&self.options.host, kind).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        admin::status(&self.options.dir, &self.options.host).unwrap()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.status().counter(name).unwrap_or_else(|| panic!("no counter {name}"))
    }

    pub(crate) fn host_dir(&self) -> HostDir {
        self.options.dir.host(&self.options.host).unwrap()
    }

    /// Returns a socket connected to the service, before any greeting.
    pub(crate) fn raw(&self) -> OwnedFd {
        raw(&self.host_dir().socket())
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }
}

pub(crate) fn raw(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Moves a queue pair from RESET to RTS, connected to the peer that the attributes name.
pub(crate) fn connect_qp(qp: &Qp, attr: &QpAttr) {
    for (state, mask) in rdmux_testing::qp::steps(qp.init().qp_type, QpState::Rts) {
        qp.modify(&QpAttr { state, ..*attr }, mask).unwrap();
    }
}

/// Waits until a descriptor is readable.
pub(crate) fn wait_readable(fd: impl AsFd) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&TIMEOUT)), Ok(1), "nothing came");
}

/// Waits for the next notification.
pub(crate) fn next_event(client: &HostClient) -> Result<ControlEvent, ControlError> {
    loop {
        wait_readable(client.notify_fd());
        if let Some(event) = client.poll_event()? {
            return Ok(event);
        }
    }
}

/// Waits for the next event of a channel.
pub(crate) fn next_cm_event(channel: &EventChannel) -> rdmux_cm::Event {
    wait_readable(channel);
    channel.get_event().unwrap().unwrap()
}

/// Waits until the other side closes a socket. Messages before that are ignored.
pub(crate) fn wait_closed(fd: impl AsFd) {
    let (mut buf, mut fds) = (vec![0; socket::MAX_MESSAGE], Vec::new());
    loop {
        wait_readable(&fd);
        match socket::recv_bytes(fd.as_fd(), &mut buf, &mut fds) {
            Ok(_) | Err(socket::MessageError::WouldBlock) => {}
            Err(_) => return,
        }
    }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
