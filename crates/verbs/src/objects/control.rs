//! The interface to the control plane: the requests of a device in a process to its host service.
//!
//! The service owns all that must be unique or must outlive a process (addresses, QP number slots, the sockets of port 4791, rings
//! between processes, multicast membership). The device owns the data path. `rdmux_host::client` implements [`Control`]; tests plug in
//! their own.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rdmux_link::ib::{KeyViolation, Routes};
use rdmux_link::wire::PacketWire;
use rdmux_link::{Board, IbWire, PeerBell, SharedMem};
use rdmux_transport::env::QpEvent;
use rdmux_transport::iwarp::StreamParams;
use rdmux_wire::{Gid, Guid, Qpn};

pub use crate::objects::kind::DeviceKind;
pub use crate::objects::limits::Limits;
use crate::objects::port::{Adapter, GidEntry, Port, PortEvent};
use crate::objects::xrc::request::{XrcReply, XrcRequest};

/// The position of the slot in a process's QP numbers: bits 22..12.
pub const SLOT_SHIFT: u32 = 12;
/// The number of QP numbers in a slot.
pub const SLOT_QPS: u32 = 1 << SLOT_SHIFT;
/// The slot of the service itself: QP0 and QP1.
pub const SERVICE_SLOT: u16 = 0;

/// Returns the slot that a QP number belongs to. Numbers with bit 23 set are the service's.
pub fn slot_of(qpn: Qpn) -> u16 {
    if qpn.get() & TARGET_QPNS != 0 {
        SERVICE_SLOT
    } else {
        ((qpn.get() >> SLOT_SHIFT) & 0x7ff) as u16
    }
}

/// Returns whether a QP number is in the range of XRC targets.
pub fn is_target(qpn: Qpn) -> bool {
    qpn.get() & TARGET_QPNS != 0 && qpn != Qpn::MULTICAST
}

/// The bit that is set in the numbers of XRC targets, which belong to the service.
pub const TARGET_QPNS: u32 = 1 << 23;

/// A block of QP numbers, granted to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGrant {
    /// The slot, 1 to 2047.
    pub slot: u16,
    /// The index in the slot from which to allocate, so that numbers of a previous owner are not reused soon.
    pub first_index: u16,
}

/// The description of host and device that the service sends when a process connects.
#[derive(Clone, Debug)]
pub struct HostInfo {
    /// The (virtual) host's name.
    pub host: String,
    /// The device's name, which `ibv_get_device_name` returns.
    pub device: String,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The node's GUID.
    pub node_guid: Guid,
    /// The emulated adapter, if the fabric describes one.
    pub adapter: Option<Adapter>,
    /// The ports of the device, at least one, in the order of their numbers.
    pub ports: Vec<Port>,
    /// The process's first slot.
    pub slot: SlotGrant,
    /// Limits of the device.
    pub limits: Limits,
    /// Whether the process may use Q_Keys whose top bit is set, as management does: its user owns the host, or is root.
    pub privileged: bool,
}

impl HostInfo {
    /// Returns the IP addresses of the first port, by their index.
    pub fn addresses(&self) -> &[GidEntry] {
        self.ports.first().map_or(&[], |port| &port.addresses)
    }
}

/// Another process that is reached by rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingPeer {
    /// The address at which its host receives packets, if that is another host.
    pub host: Option<SocketAddr>,
    /// One of the peer's slots on its host.
    pub slot: u16,
}

impl RingPeer {
    /// A process of this host.
    pub const fn here(slot: u16) -> Self {
        Self { host: None, slot }
    }
}

/// This process's end of a pair of rings to another process of the same machine.
#[derive(Debug)]
pub struct RingEnd {
    /// The ring that this process fills.
    pub tx: OwnedFd,
    /// The ring that this process empties.
    pub rx: OwnedFd,
    /// This process's end of the doorbell with which the two wake each other. It is shared with no other process.
    pub bell: PeerBell,
    /// The number by which the peer knows this process.
    pub known_as: u16,
    /// The descriptors for access to the peer's memory, if both allow it.
    pub reach: Option<ReachFds>,
}

/// The descriptors that access to the memory of another process needs.
#[derive(Debug)]
pub struct ReachFds {
    /// The peer's [`Board`].
    pub board: OwnedFd,
    /// A pidfd of it.
    pub pidfd: OwnedFd,
}

/// A wire that the driver provides.
#[derive(Clone, Debug)]
pub enum DriverWire {
    /// The wire of an InfiniBand port.
    Ib(Arc<IbWire>),
    /// A wire of a kind that the engine does not know.
    Other(Arc<PacketWire>),
}

/// An event that the service sends unasked.
#[derive(Debug)]
pub enum ControlEvent {
    /// A process of this host, or of another of the user's hosts, set up rings to this process.
    Ring {
        /// The number by which this process knows the peer: its first slot, or a number that no slot has.
        peer: u16,
        /// This process's end.
        end: RingEnd,
    },
    /// A process of this host, or one of another host that had rings to this process, is gone. Whatever was connected to its slot is
    /// flushed.
    PeerGone {
        /// The slot of that process, or the number by which this process knows it.
        slot: u16,
    },
    /// A datagram for one of this process's queue pairs that arrived at another socket.
    Stray {
        /// The source address of the path.
        src: SocketAddr,
        /// The local address and UDP port that it was sent to, over which its ICRC is computed.
        dst: SocketAddr,
        /// The UDP payload, ICRC included.
        bytes: Vec<u8>,
    },
    /// The ports changed: addresses were added or removed, or a subnet manager changed a port.
    Ports {
        /// The present ports.
        ports: Vec<Port>,
        /// The events, in order, each with the number of its port.
        events: Vec<(u8, PortEvent)>,
    },
    /// An iWARP connection is established: the stream belongs to this queue pair. Sent before the program can read of the connection in
    /// an event.
    Stream {
        /// The queue pair.
        qpn: Qpn,
        /// The service's number of the stream, which is never used again.
        number: u64,
        /// The TCP socket, non-blocking.
        stream: OwnedFd,
        /// The parameters that the two ends agreed on.
        params: StreamParams,
        /// Time that a message may wait for a receive. Zero permits no wait.
        receive_wait: Duration,
    },
    /// The program disconnects: posted work is sent, and the stream is then closed in order.
    CloseStream {
        /// The queue pair.
        qpn: Qpn,
        /// The number of the queue pair's stream. If the queue pair has another stream by now, it keeps that.
        number: u64,
    },
    /// The service starts a capture to this socket, or ends it.
    Capture(Option<OwnedFd>),
    /// An event of an XRC target that this process holds.
    Target {
        /// The target's number.
        qpn: Qpn,
        /// The event.
        event: QpEvent,
    },
}

/// The reason why the service did not handle a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// The service is gone, and the device has failed.
    #[error(
        "the host service is gone, and the device failed; open the device again to start a new service"
    )]
    Gone,
    /// The service refused.
    #[error("the host service refused to {what}: {why} (errno {errno})")]
    Refused {
        /// The request, as in "attach 127.0.0.1".
        what: String,
        /// The reason, in the service's words.
        why: String,
        /// The `errno` that the C interface returns.
        errno: i32,
    },
}

fn no_hub(what: &str) -> ControlError {
    let why = "this host does not support XRC".to_owned();
    ControlError::Refused { what: what.to_owned(), why, errno: libc::EOPNOTSUPP }
}

/// The requests of a device in a process to its host service. Calls may take a round trip. None of those is made on the data path, which
/// makes only reports ([`stream_ended`](Self::stream_ended), [`key_violation`](Self::key_violation), [`stray`](Self::stray)). These
/// return without waiting for the service or for another thread.
pub trait Control: Send + Sync + 'static {
    /// Returns the description of this host and device.
    fn info(&self) -> &HostInfo;

    /// Returns the socket of `slot` on the address of `gid_index`: UDP port 4791, non-blocking, GRO on. Devices over IP have one port.
    fn attach_address(&self, gid_index: u8, slot: u16) -> Result<OwnedFd, ControlError>;

    /// Returns the wire of `slot` at the address of `gid_index` of a port, if that is not a socket of port 4791. Called before
    /// [`attach_address`](Self::attach_address). Returns none unless the driver provides its own wires.
    fn attach_wire(
        &self,
        _port: u8,
        _gid_index: u8,
        _slot: u16,
    ) -> Result<Option<DriverWire>, ControlError> {
        Ok(None)
    }

    /// Requests another block of QP numbers.
    fn new_slot(&self) -> Result<SlotGrant, ControlError>;

    /// Sets up rings to the process of `peer`. Returns them with the number by which that process is known here: its first slot, or
    /// a number that no slot has if it is on another host. Returns none if the pair must use the network. Both processes get the
    /// same reply, however often and in whatever order they call this.
    fn connect_ring(&self, peer: RingPeer) -> Result<Option<(u16, RingEnd)>, ControlError>;

    /// Returns the routes of a port's packets, if it is an InfiniBand port whose processes have rings to other hosts.
    fn routes(&self, _port: u8) -> Option<&Arc<Routes>> {
        None
    }

    /// Joins a group at a port for a queue pair. The first time that this process joins the group, returns the socket that receives its
    /// datagrams; later, returns none.
    fn attach_multicast(
        &self,
        port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, ControlError>;

    /// Returns the wire that receives a group from such a socket, if that is not a socket of port 4791. Returns none unless the driver
    /// provides its own wires.
    fn group_wire(
        &self,
        _port: u8,
        _mgid: Gid,
        _socket: BorrowedFd<'_>,
    ) -> Result<Option<DriverWire>, ControlError> {
        Ok(None)
    }

    /// Leaves a group for a queue pair.
    fn detach_multicast(&self, port: u8, qpn: Qpn, mgid: Gid) -> Result<(), ControlError>;

    /// Returns the board on which this process publishes, if it lets other processes of its user access its memory.
    fn board(&self) -> Option<&Arc<Board>> {
        None
    }

    /// Returns the slot of the hub, which keeps the XRC objects that belong to no process. Starts the hub if need be.
    fn hub_slot(&self) -> Result<u16, ControlError> {
        Err(no_hub("find the XRC hub"))
    }

    /// Sends a request to the hub, with a descriptor if the request takes one. `what` names the operation in the error.
    fn ask_hub(
        &self,
        _request: &XrcRequest,
        _fd: Option<BorrowedFd<'_>>,
        what: &'static str,
    ) -> Result<XrcReply, ControlError> {
        Err(no_hub(what))
    }

    /// Notifies the service that this stream of this queue pair has ended, for whatever reason, and is closed. A report: it does not wait,
    /// and is not lost.
    fn stream_ended(&self, _qpn: Qpn, _number: u64) {}

    /// Reports a packet whose key is not that of its queue pair, at a port of a device on a fabric. Does not wait. The report may be lost
    /// if the service does not read.
    fn key_violation(&self, _port: u8, _violation: &KeyViolation) {}

    /// Passes on a datagram that arrived here but belongs to another process. Does not wait. The datagram may be lost if the service does
    /// not read.
    fn stray(&self, src: SocketAddr, dst: IpAddr, bytes: &[u8]);

    /// Returns the page of counters that the service shares; see [`crate::objects::counters`].
    fn counters(&self) -> &SharedMem;

    /// Returns the descriptor that is readable when [`poll_event`](Self::poll_event) has an event, or reports to send.
    fn notify_fd(&self) -> BorrowedFd<'_>;

    /// Returns the next event, if any, without blocking, and sends reports for which the service had no room before. Returns
    /// [`ControlError::Gone`] when the service is gone.
    fn poll_event(&self) -> Result<Option<ControlEvent>, ControlError>;
}
