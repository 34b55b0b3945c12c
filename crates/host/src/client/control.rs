//! The connection of a process with a device to its host's service.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rdmux_link::ib::{IbWire, KeyViolation, Routes};
use rdmux_link::routes::RouteView;
use rdmux_link::rows::Rows;
use rdmux_link::{Board, PeerBell, SharedMem};
use rdmux_verbs::control::{
    Control, ControlError, ControlEvent, DeviceKind, DriverWire, HostInfo, ReachFds, RingEnd,
    RingPeer, SlotGrant,
};
use rdmux_verbs::counters::{self, Counter, PAGE_COUNTERS};
use rdmux_verbs::device::PORT;
use rdmux_verbs::port::Port;
use rdmux_verbs::throttled;
use rdmux_verbs::xrc::{XrcReply, XrcRequest};
use rdmux_wire::{Gid, Qpn};

use super::acm::Acm;
use super::connect::ConnectOptions;
use super::hub::HubSession;
use super::memory;
use super::reports::{Wakeups, Worth};
use super::rpc::Session;
use crate::error::HostError;
use crate::names::{HostName, NetworkNamespace};
use crate::proto::socket::{self, MAX_MESSAGE, MessageError};
use crate::proto::{AgentRequest, ClientKind, MadAddress, Notify, Request, Response, Welcome};

/// A management datagram for an agent of this process, or the timeout of one that it sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadEvent {
    /// The agent.
    pub agent: u32,
    /// The peer.
    pub from: MadAddress,
    /// 0, or `ETIMEDOUT` when no response arrived. `mad` is then the sent datagram.
    pub errno: i32,
    /// 256 bytes.
    pub mad: Vec<u8>,
}

/// Maximum number of management datagrams queued in a process.
const MAX_MADS: usize = 1024;

/// Returns the service's page of counters if both sides use the same layout. Else a private page, because a missing
/// counter is better than a wrong one.
fn page_to_count_in(page: SharedMem, host: &HostName) -> io::Result<SharedMem> {
    let (theirs, ours) = (counters::schema_of(&page), counters::SCHEMA);
    if theirs == ours {
        return Ok(page);
    }
    tracing::warn!(%host, theirs, ours, "the service is of another build with another schema of \
        counters: it does not show the counters of this process");
    SharedMem::create("rdmux-counters", PAGE_COUNTERS)
}

/// A process's connection to its host service. All calls are thread-safe and wait for the
/// service's answer, which takes some microseconds; none of those is made on the data path. Reports of the data path do
/// not wait ([`Control`]).
///
/// Dropping it releases everything that the service holds for this process.
#[derive(Debug)]
pub struct HostClient {
    pub(super) session: Session,
    info: HostInfo,
    port: u16,
    board: Option<Arc<Board>>,
    counters: SharedMem,
    notify: OwnedFd,
    /// The routing state of each InfiniBand port.
    routes: Vec<Arc<Routes>>,
    /// Whether processes of other hosts are reached by rings where possible.
    host_rings: bool,
    /// Whether this is the hub of its kind of device.
    is_hub: bool,
    pub(super) hub: HubSession,
    /// Reserved numbers for new ids.
    pub(super) reserved: Mutex<std::ops::Range<u64>>,
    /// Locked while an id migrates: the service holds one channel of a process at a time.
    pub(super) migrating: Mutex<()>,
    /// The client of ACM, if ACM is queried.
    pub(super) acm: OnceLock<Arc<Acm>>,
    inbox: Mutex<Inbox>,
}

/// The buffer for notifications, and the datagrams that wait for the program.
#[derive(Debug)]
struct Inbox {
    buf: Vec<u8>,
    mads: std::collections::VecDeque<MadEvent>,
}

impl HostClient {
    /// Connects to the service of a host, which is started if it does not run. See
    /// [`ConnectOptions`] for the details.
    ///
    /// # Errors
    /// [`HostError::Start`] and others, which name the host and the path, and suggest a remedy.
    pub fn connect_or_start(host: &HostName, kind: DeviceKind) -> Result<Arc<Self>, HostError> {
        ConnectOptions::of_environment()?.connect_or_start(host, kind)
    }

    /// Greets the service behind a connected socket.
    pub(crate) fn open(
        host: &HostName,
        socket: OwnedFd,
        kind: DeviceKind,
    ) -> Result<Arc<Self>, HostError> {
        Self::greet(host, socket, kind, false)
    }

    /// Greets the service as the hub of a kind of device.
    pub(crate) fn open_hub(
        host: &HostName,
        socket: OwnedFd,
        kind: DeviceKind,
    ) -> Result<Arc<Self>, HostError> {
        Self::greet(host, socket, kind, true)
    }

    fn greet(
        host: &HostName,
        socket: OwnedFd,
        kind: DeviceKind,
        is_hub: bool,
    ) -> Result<Arc<Self>, HostError> {
        let board = (kind.row().rings && memory::is_shared()).then(Board::create);
        let board = board
            .transpose()
            .map_err(|e| HostError::io("create the board for direct memory access", e))?
            .map(Arc::new);
        let ours: Vec<_> = board.iter().map(|board| board.fd().as_fd()).collect();
        let (mut session, welcome, fds) =
            Session::open(host, socket, ClientKind::Device(kind), &ours)?;
        welcome.check_network(NetworkNamespace::current())?;
        let [notify, counters] = <[OwnedFd; 2]>::try_from(fds).map_err(|fds| {
            let why = format!("{} descriptors in its greeting, not 2", fds.len());
            HostError::Protocol { host: host.clone(), why }
        })?;
        let counters = SharedMem::map(counters, PAGE_COUNTERS)
            .and_then(|page| page_to_count_in(page, host))
            .map_err(|e| HostError::io("map the counters", e))?;
        socket::set_nonblocking(&notify, true).map_err(|e| HostError::io("use a socket", e))?;
        let wakeups = Wakeups::new(notify.as_fd());
        session.wake_by(wakeups.map_err(|e| HostError::io("watch a socket", e))?);
        let inbox = Inbox { buf: vec![0; MAX_MESSAGE], mads: Default::default() };
        let port = welcome.port;
        let host_rings = kind.is_on_fabric() && memory::has_host_rings();
        if kind.is_on_fabric() && !host_rings {
            session.tell(&Request::NoHostRings)?;
        }
        let info = host_info(welcome, kind).ok_or_else(|| {
            let why = format!("its greeting lacks the device {}", kind.device_name());
            HostError::Protocol { host: host.clone(), why }
        })?;
        let routes =
            routes_of(&info.ports, &counters).map_err(|e| HostError::io("map the counters", e))?;
        let client = Arc::new(Self {
            session,
            port,
            board,
            counters,
            notify,
            routes,
            host_rings,
            info,
            is_hub,
            hub: HubSession::new(),
            reserved: Mutex::default(),
            migrating: Mutex::default(),
            acm: OnceLock::new(),
            inbox: Mutex::new(inbox),
        });
        for (port, routes) in (1..).zip(&client.routes) {
            let teller = Arc::downgrade(&client);
            routes.report_violations(move |violation| {
                if let Some(client) = teller.upgrade() {
                    let violation = violation.into();
                    client.report(&Request::Violation { port, violation }, Worth::Droppable);
                }
            });
        }
        Ok(client)
    }

    /// Returns the name of the service's host.
    pub fn host(&self) -> &HostName {
        self.session.host()
    }

    /// Returns the UDP port of this host: 4791 unless configured otherwise.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the service was found to be gone. This connection does not recover.
    pub fn is_gone(&self) -> bool {
        self.session.is_gone()
    }

    /// Releases a block of QP numbers. `next_index` is the index after the last number used.
    ///
    /// # Errors
    /// [`HostError::Refused`] for another process's slot.
    pub fn release_slot(&self, slot: u16, next_index: u16) -> Result<(), HostError> {
        let request = Request::ReleaseSlot { slot, next_index };
        self.done(&request, || format!("release slot {slot}"))
    }

    /// Registers an agent for management datagrams to QP0 or QP1 of a port of the device: bit n of `methods` is method n.
    /// [`take_mad`](Self::take_mad) returns the datagrams.
    ///
    /// # Errors
    /// [`HostError::Refused`] with `EBUSY` when another agent has one of the methods.
    pub fn register_agent(
        &self,
        port: u8,
        qpn: Qpn,
        class: u8,
        class_version: u8,
        methods: u128,
    ) -> Result<u32, HostError> {
        let register = AgentRequest::Register { port, qpn, class, class_version, methods };
        let request = Request::Agent(register);
        match self.session.call(&request, || format!("register for class {class:#04x}"))? {
            Response::Agent(agent) => Ok(agent),
            other => Err(self.session.unexpected(&other)),
        }
    }

    /// Unregisters an agent.
    ///
    /// # Errors
    /// [`HostError::Refused`] for another process's agent.
    pub fn unregister_agent(&self, agent: u32) -> Result<(), HostError> {
        let request = Request::Agent(AgentRequest::Unregister { agent });
        self.done(&request, || format!("unregister agent {agent}"))
    }

    /// Sends a management datagram. With a timeout, a response is expected: the datagram is sent again up to `retries`
    /// times, and [`take_mad`](Self::take_mad) returns the response or its absence. The service sets the upper half of
    /// the transaction ID.
    ///
    /// # Errors
    /// [`HostError::Refused`] for another process's agent, or an invalid datagram.
    pub fn send_mad(
        &self,
        agent: u32,
        to: MadAddress,
        mad: &[u8; 256],
        timeout_ms: u32,
        retries: u8,
    ) -> Result<(), HostError> {
        let mad = mad.to_vec();
        let request = Request::Agent(AgentRequest::Send { agent, to, timeout_ms, retries, mad });
        self.done(&request, || format!("send a datagram of agent {agent}"))
    }

    /// Returns the next management datagram. The device calls [`poll_event`](Control::poll_event), which queues them.
    pub fn take_mad(&self) -> Option<MadEvent> {
        self.inbox.lock().mads.pop_front()
    }

    /// Makes a report without waiting, and counts it if it is dropped.
    fn report(&self, report: &Request, worth: Worth) {
        if !self.session.report(report, worth)
            && let Some(dropped) = self.counters.words().get(Counter::ReportsDropped as usize)
        {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends a request whose reply is empty.
    pub(super) fn done(
        &self,
        request: &Request,
        what: impl FnOnce() -> String,
    ) -> Result<(), HostError> {
        match self.session.call(request, what)? {
            Response::Done => Ok(()),
            other => Err(self.session.unexpected(&other)),
        }
    }

    /// Sends a request whose reply has at most one descriptor.
    pub(super) fn descriptor(
        &self,
        request: &Request,
        what: impl FnOnce() -> String,
    ) -> Result<Option<OwnedFd>, HostError> {
        match self.session.call_with_fds(request, &[], what)? {
            (Response::Done, mut fds) => Ok(fds.pop()),
            (other, _) => Err(self.session.unexpected(&other)),
        }
    }

    /// Turns a notification into the device's event. Datagrams for agents are queued: `None`.
    fn event(
        &self,
        inbox: &mut Inbox,
        notify: Notify,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<ControlEvent>, HostError> {
        Ok(Some(match notify {
            Notify::Ring { peer, known_as } => {
                ControlEvent::Ring { peer, end: self.ring_end(known_as, fds)? }
            }
            Notify::PeerGone { slot } => ControlEvent::PeerGone { slot },
            Notify::Stray { src, dst, bytes } => {
                ControlEvent::Stray { src, dst: (dst, self.port).into(), bytes }
            }
            Notify::Ports { ports, events } => {
                ports.iter().zip(&self.routes).for_each(|(port, routes)| follow_gids(routes, port));
                ControlEvent::Ports { ports, events }
            }
            Notify::Routes { port } => {
                self.follow_table(port, &fds);
                return Ok(None);
            }
            Notify::Target { qpn, event } => ControlEvent::Target { qpn, event },
            Notify::Stream { qpn, number, params, receive_wait } => {
                let stream = self.only_descriptor(fds)?;
                ControlEvent::Stream { qpn, number, stream, params, receive_wait }
            }
            Notify::CloseStream { qpn, number } => ControlEvent::CloseStream { qpn, number },
            Notify::Capture => ControlEvent::Capture(fds.into_iter().next()),
            Notify::Mad { agent, from, errno, mad } => {
                if inbox.mads.len() < MAX_MADS {
                    inbox.mads.push_back(MadEvent { agent, from, errno, mad });
                }
                return Ok(None);
            }
        }))
    }

    /// Routes packets of a port by this table from now on, and counts them in these rows.
    fn follow_table(&self, port: u8, fds: &[OwnedFd]) {
        let Some(routes) = self.routes_of(port) else { return };
        let view = fds.first().map(RouteView::map).transpose();
        let view = view.unwrap_or_else(|error| {
            throttled!(
                warn,
                "cannot read the route table of an InfiniBand port, which sends no data: {error}"
            );
            None
        });
        let rows = fds.get(1).map(Rows::map).transpose().unwrap_or_else(|error| {
            throttled!(
                warn,
                "cannot map the counter rows of an InfiniBand port, whose packets are \
                 not counted on their way: {error}"
            );
            None
        });
        routes.set_view_with(view, rows);
    }

    fn routes_of(&self, port: u8) -> Option<&Arc<Routes>> {
        self.routes.get(usize::from(port).checked_sub(1)?)
    }

    fn only_descriptor(&self, fds: Vec<OwnedFd>) -> Result<OwnedFd, HostError> {
        let [stream] = <[OwnedFd; 1]>::try_from(fds).map_err(|fds| {
            let why = format!("{} descriptors for a stream, not 1", fds.len());
            HostError::Protocol { host: self.host().clone(), why }
        })?;
        Ok(stream)
    }

    fn ring_end(&self, known_as: u16, fds: Vec<OwnedFd>) -> Result<RingEnd, HostError> {
        let n = fds.len();
        let mut fds = fds.into_iter();
        match (fds.next(), fds.next(), fds.next(), fds.next(), fds.next()) {
            (Some(tx), Some(rx), Some(bell), board, pidfd) if n != 4 && n <= 5 => {
                let reach = board.zip(pidfd).map(|(board, pidfd)| ReachFds { board, pidfd });
                let bell = PeerBell::from_fd(bell).map_err(|e| HostError::Protocol {
                    host: self.host().clone(),
                    why: e.to_string(),
                })?;
                Ok(RingEnd { tx, rx, bell, known_as, reach })
            }
            _ => {
                let why = format!("{n} descriptors for a pair of rings, not 3 or 5");
                Err(HostError::Protocol { host: self.host().clone(), why })
            }
        }
    }
}

/// Returns the initial routes of InfiniBand ports, before there are tables. Drops are counted in the page of counters.
fn routes_of(ports: &[Port], page: &SharedMem) -> io::Result<Vec<Arc<Routes>>> {
    let routes = |(number, port): (u8, &Port)| {
        let page = SharedMem::map(page.duplicate()?, PAGE_COUNTERS)?;
        let routes = Routes::counting_in(number, page, counters::IB_DROPS);
        follow_gids(&routes, port);
        Ok(Arc::new(routes))
    };
    (1..).zip(ports).map(routes).collect()
}

/// Sets the port's GIDs.
fn follow_gids(routes: &Routes, port: &Port) {
    let gids: Vec<Gid> = port.gids().iter().map(|entry| entry.gid).collect();
    routes.set_gids(&gids);
}

/// Returns the information for a device of this kind. None if the host has no such device.
fn host_info(welcome: Welcome, kind: DeviceKind) -> Option<HostInfo> {
    let device = welcome.devices.into_iter().find(|row| row.kind == kind)?;
    Some(HostInfo {
        kind,
        host: welcome.host,
        device: device.name,
        node_guid: device.node_guid,
        adapter: device.adapter,
        ports: device.ports,
        slot: SlotGrant { slot: welcome.slot, first_index: welcome.first_index },
        limits: welcome.limits,
        privileged: welcome.privileged,
    })
}

/// Converts an error to the device's.
pub(super) fn control_error(error: HostError) -> ControlError {
    match error {
        HostError::Refused { what, why, errno } => ControlError::Refused { what, why, errno },
        HostError::Io { what, source } => {
            let errno = source.raw_os_error().unwrap_or(libc::EIO);
            ControlError::Refused { what, why: source.to_string(), errno }
        }
        _ => ControlError::Gone,
    }
}

impl Control for HostClient {
    fn info(&self) -> &HostInfo {
        &self.info
    }

    fn attach_address(&self, gid_index: u8, slot: u16) -> Result<OwnedFd, ControlError> {
        let what = || match self.info.addresses().get(usize::from(gid_index)) {
            Some(entry) => format!("attach {}", entry.gid.ip()),
            None => format!("attach the address of GID index {gid_index}"),
        };
        self.descriptor(&Request::AttachAddress { port: PORT, gid_index, slot }, what)
            .map_err(control_error)?
            .ok_or(ControlError::Gone)
    }

    fn attach_wire(
        &self,
        port: u8,
        gid_index: u8,
        slot: u16,
    ) -> Result<Option<DriverWire>, ControlError> {
        let Some(routes) = self.routes_of(port).filter(|_| self.info.kind.is_on_fabric()) else {
            return Ok(None);
        };
        let request = Request::AttachAddress { port, gid_index, slot };
        let socket = self.descriptor(&request, || format!("attach port {port}"));
        let socket = socket.map_err(control_error)?.ok_or(ControlError::Gone)?;
        let wire = IbWire::new(socket, slot, routes.clone());
        let wire = wire.map_err(|e| control_error(HostError::io("use a socket", e)))?;
        Ok(Some(DriverWire::Ib(Arc::new(if self.is_hub { wire.with_targets() } else { wire }))))
    }

    fn new_slot(&self) -> Result<SlotGrant, ControlError> {
        let what = || "get a slot for more queue pair numbers".to_owned();
        match self.session.call(&Request::NewSlot, what).map_err(control_error)? {
            Response::Slot { slot, first_index } => Ok(SlotGrant { slot, first_index }),
            _ => Err(ControlError::Gone),
        }
    }

    fn connect_ring(&self, peer: RingPeer) -> Result<Option<(u16, RingEnd)>, ControlError> {
        let RingPeer { host, slot } = peer;
        let request = Request::ConnectRing { host, peer: slot };
        let what = || match host {
            None => format!("set up rings to slot {slot}"),
            Some(host) => format!("set up rings to slot {slot} of the host at {host}"),
        };
        match self.session.call_with_fds(&request, &[], what).map_err(control_error)? {
            (Response::NoRing, _) => Ok(None),
            (Response::Ring { peer, known_as }, fds) => {
                let end = self.ring_end(known_as, fds);
                end.map(|end| Some((peer, end))).map_err(control_error)
            }
            _ => Err(ControlError::Gone),
        }
    }

    fn routes(&self, port: u8) -> Option<&Arc<Routes>> {
        self.routes_of(port).filter(|_| self.host_rings)
    }

    fn attach_multicast(
        &self,
        port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, ControlError> {
        self.descriptor(&Request::AttachMulticast { port, qpn, mgid }, || {
            format!("join {} for queue pair {qpn}", mgid.ip())
        })
        .map_err(control_error)
    }

    fn group_wire(
        &self,
        port: u8,
        mgid: Gid,
        socket: BorrowedFd<'_>,
    ) -> Result<Option<DriverWire>, ControlError> {
        let Some(routes) = self.routes_of(port).filter(|_| self.info.kind.is_on_fabric()) else {
            return Ok(None);
        };
        let wire = socket.try_clone_to_owned();
        let wire = wire.and_then(|fd| IbWire::of_group(fd, mgid, routes.clone()));
        let wire = wire
            .map_err(|e| control_error(HostError::io("use the socket of a multicast group", e)))?;
        Ok(Some(DriverWire::Ib(Arc::new(wire))))
    }

    fn detach_multicast(&self, port: u8, qpn: Qpn, mgid: Gid) -> Result<(), ControlError> {
        self.done(&Request::DetachMulticast { port, qpn, mgid }, || {
            format!("leave {} for queue pair {qpn}", mgid.ip())
        })
        .map_err(control_error)
    }

    fn board(&self) -> Option<&Arc<Board>> {
        self.board.as_ref()
    }

    fn hub_slot(&self) -> Result<u16, ControlError> {
        self.ask_hub_slot()
    }

    fn ask_hub(
        &self,
        request: &XrcRequest,
        fd: Option<BorrowedFd<'_>>,
        what: &'static str,
    ) -> Result<XrcReply, ControlError> {
        self.ask_hub_xrc(request, fd, what)
    }

    fn stream_ended(&self, qpn: Qpn, number: u64) {
        self.report(&Request::StreamEnded { qpn, number }, Worth::Needed);
    }

    fn key_violation(&self, port: u8, violation: &KeyViolation) {
        if let Some(routes) = self.routes_of(port) {
            routes.violated(violation);
        }
    }

    fn stray(&self, src: SocketAddr, dst: IpAddr, bytes: &[u8]) {
        // A datagram may be lost.
        self.report(&Request::Stray { src, dst, bytes: bytes.to_vec() }, Worth::Droppable);
    }

    fn counters(&self) -> &SharedMem {
        &self.counters
    }

    fn notify_fd(&self) -> BorrowedFd<'_> {
        self.session.wakeups().map_or(self.notify.as_fd(), AsFd::as_fd)
    }

    fn poll_event(&self) -> Result<Option<ControlEvent>, ControlError> {
        self.session.send_reports();
        let mut inbox = self.inbox.lock();
        loop {
            let mut fds = Vec::new();
            let notify = socket::recv_bytes_with_cut(self.notify.as_fd(), &mut inbox.buf, &mut fds)
                .and_then(|(bytes, cut)| Ok((socket::decode(bytes)?, cut)));
            let notify = match notify {
                Ok((notify, false)) => notify,
                // One peer or one capture fails. The rest of the device continues.
                Ok((notify, true)) => {
                    throttled!(
                        warn,
                        "out of descriptors: cannot receive a descriptor that the host service passes"
                    );
                    if let Notify::Stream { qpn, number, .. } = notify {
                        self.stream_ended(qpn, number);
                    }
                    continue;
                }
                Err(MessageError::WouldBlock) => return Ok(None),
                Err(_) => {
                    self.session.set_gone();
                    return Err(ControlError::Gone);
                }
            };
            if let Some(event) = self.event(&mut inbox, notify, fds).map_err(control_error)? {
                return Ok(Some(event));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_page_of_another_schema_is_not_written() {
        let host = HostName::default();
        let page = SharedMem::create("page", PAGE_COUNTERS).unwrap();
        let also = SharedMem::map(page.duplicate().unwrap(), PAGE_COUNTERS).unwrap();
        let own = page_to_count_in(page, &host).unwrap();
        own.words()[0].store(1, Ordering::Relaxed);
        assert_eq!(also.words()[0].load(Ordering::Relaxed), 0);

        counters::declare_schema(&also);
        let page = SharedMem::map(also.duplicate().unwrap(), PAGE_COUNTERS).unwrap();
        let shared = page_to_count_in(page, &host).unwrap();
        shared.words()[0].store(2, Ordering::Relaxed);
        assert_eq!(also.words()[0].load(Ordering::Relaxed), 2);
    }
}
