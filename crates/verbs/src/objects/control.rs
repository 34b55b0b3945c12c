//! The seam to the control plane: what a device in a process asks of its host service.
//!
//! The service owns what must be unique or must outlive a process (addresses, QP number slots, the
//! sockets of port 4791, rings between processes, multicast membership). The device owns the data
//! path. `rdmux_host::client` implements [`Control`]; tests plug in their own.

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

/// QP numbers of one process: bits 22..12 are its slot.
pub const SLOT_SHIFT: u32 = 12;
/// How many QP numbers a slot has.
pub const SLOT_QPS: u32 = 1 << SLOT_SHIFT;
/// The slot of the service itself: QP0 and QP1.
pub const SERVICE_SLOT: u16 = 0;

/// The slot that a QP number belongs to. Numbers with bit 23 set are the service's.
pub fn slot_of(qpn: Qpn) -> u16 {
    if qpn.get() & TARGET_QPNS != 0 {
        SERVICE_SLOT
    } else {
        ((qpn.get() >> SLOT_SHIFT) & 0x7ff) as u16
    }
}

/// Whether a QP number is that of an XRC target, or could be.
pub fn is_target(qpn: Qpn) -> bool {
    qpn.get() & TARGET_QPNS != 0 && qpn != Qpn::MULTICAST
}

/// The bit in the numbers of XRC targets, which are the service's.
pub const TARGET_QPNS: u32 = 1 << 23;

/// A block of QP numbers, granted to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotGrant {
    /// The slot, 1 to 2047.
    pub slot: u16,
    /// The index in the slot from which to count, so that numbers of a previous owner do not come
    /// back soon.
    pub first_index: u16,
}

/// What the service tells a process when it arrives.
#[derive(Clone, Debug)]
pub struct HostInfo {
    /// The (virtual) host's name.
    pub host: String,
    /// The device's name, as `ibv_get_device_name` gives it.
    pub device: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// The node's GUID.
    pub node_guid: Guid,
    /// The adapter that it is, where a fabric told.
    pub adapter: Option<Adapter>,
    /// Its ports, at least one, in the order of their numbers.
    pub ports: Vec<Port>,
    /// The process's first slot.
    pub slot: SlotGrant,
    /// Limits of the device.
    pub limits: Limits,
    /// Whether the process may choose Q_Keys whose top bit is set, as management has them: it is of the user who owns the host,
    /// or root's.
    pub privileged: bool,
}

impl HostInfo {
    /// The IP addresses of the first port, by their index.
    pub fn addresses(&self) -> &[GidEntry] {
        self.ports.first().map_or(&[], |port| &port.addresses)
    }
}

/// Another process that is to be reached by rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingPeer {
    /// Where its host takes packets, if that is another host.
    pub host: Option<SocketAddr>,
    /// A slot of its, on its host.
    pub slot: u16,
}

impl RingPeer {
    /// A process of the own host.
    pub const fn here(slot: u16) -> Self {
        Self { host: None, slot }
    }
}

/// Our end of a pair of rings to another process of the same machine.
#[derive(Debug)]
pub struct RingEnd {
    /// The ring that we fill.
    pub tx: OwnedFd,
    /// The ring that we empty.
    pub rx: OwnedFd,
    /// Our end of what the two wake each other with. Nobody else has it.
    pub bell: PeerBell,
    /// By which number the peer knows us.
    pub known_as: u16,
    /// How to reach the peer's memory, if both allow it.
    pub reach: Option<ReachFds>,
}

/// What it takes to reach the memory of another process.
#[derive(Debug)]
pub struct ReachFds {
    /// Its [`Board`].
    pub board: OwnedFd,
    /// A pidfd of it.
    pub pidfd: OwnedFd,
}

/// A wire that the driver brings.
#[derive(Clone, Debug)]
pub enum DriverWire {
    /// That of an InfiniBand port.
    Ib(Arc<IbWire>),
    /// One of a kind that the engine does not know.
    Other(Arc<PacketWire>),
}

/// What the service tells of its own accord.
#[derive(Debug)]
pub enum ControlEvent {
    /// A process of this host, or of another one of the user's, set up rings to us.
    Ring {
        /// By which number we know it: its first slot, or one that no slot has.
        peer: u16,
        /// Our end.
        end: RingEnd,
    },
    /// A process of this host, or one of another host that had rings to us, is gone: whatever was connected to its slot is
    /// flushed.
    PeerGone {
        /// Its slot, or the number by which we know it.
        slot: u16,
    },
    /// A datagram for one of our queue pairs that arrived elsewhere.
    Stray {
        /// Its source.
        src: SocketAddr,
        /// The local address that it was sent to.
        dst: IpAddr,
        /// The UDP payload, ICRC included.
        bytes: Vec<u8>,
    },
    /// The ports changed: addresses came or went, or a subnet manager did something to one.
    Ports {
        /// How they are.
        ports: Vec<Port>,
        /// What happened, in this order, each with the number of its port.
        events: Vec<(u8, PortEvent)>,
    },
    /// A connection of iWARP is made: the stream is this queue pair's. Comes before the program can
    /// read of it in an event.
    Stream {
        /// The queue pair.
        qpn: Qpn,
        /// The service's number of the stream, which is never used again.
        number: u64,
        /// The TCP socket, non-blocking.
        stream: OwnedFd,
        /// What the two ends agreed on.
        params: StreamParams,
        /// How long a message may wait for a receive; zero is not at all.
        receive_wait: Duration,
    },
    /// The program disconnects: what was posted is sent, and the stream ended in order.
    CloseStream {
        /// The queue pair.
        qpn: Qpn,
        /// The number of its stream. A queue pair that has another one by now keeps it.
        number: u64,
    },
    /// Frames are wanted on this socket, or no longer.
    Capture(Option<OwnedFd>),
    /// Something happened to an XRC target that this process holds.
    Target {
        /// Its number.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
}

/// Why the service did not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// The service is gone; so is the device.
    #[error("the host service is gone: the device failed; open it again to start a new one")]
    Gone,
    /// The service refused.
    #[error("the host service refused to {what}: {why} (errno {errno})")]
    Refused {
        /// What was asked, as in "attach 127.0.0.1".
        what: String,
        /// Its words.
        why: String,
        /// The number that the C interface gives.
        errno: i32,
    },
}

fn no_hub(what: &str) -> ControlError {
    let why = "this host has no XRC".to_owned();
    ControlError::Refused { what: what.to_owned(), why, errno: libc::EOPNOTSUPP }
}

/// What a device in a process asks of its host service. Calls may take a round trip; none is made
/// on the data path.
pub trait Control: Send + Sync + 'static {
    /// Who we are.
    fn info(&self) -> &HostInfo;

    /// The socket of `slot` on the address of `gid_index`: UDP port 4791, non-blocking, GRO on. Devices over IP have one port.
    fn attach_address(&self, gid_index: u8, slot: u16) -> Result<OwnedFd, ControlError>;

    /// The wire of `slot` at the address of `gid_index` of a port, where that is another than a socket of port 4791. Asked before
    /// [`attach_address`](Self::attach_address); none unless the driver brings wires of its own.
    fn attach_wire(
        &self,
        _port: u8,
        _gid_index: u8,
        _slot: u16,
    ) -> Result<Option<DriverWire>, ControlError> {
        Ok(None)
    }

    /// A further block of QP numbers.
    fn new_slot(&self) -> Result<SlotGrant, ControlError>;

    /// Rings to the process of `peer`, and the number by which that is known here: its first slot, or if it is on another host
    /// one that no slot has. None if the pair must use the network. Both processes get the same answer, however often and in
    /// whatever order they ask.
    fn connect_ring(&self, peer: RingPeer) -> Result<Option<(u16, RingEnd)>, ControlError>;

    /// Where packets of a port go, if it is an InfiniBand one whose processes have rings to other hosts.
    fn routes(&self, _port: u8) -> Option<&Arc<Routes>> {
        None
    }

    /// Joins a group at a port for a queue pair. Returns the socket that hears the group the first time that
    /// this process joins it, later none.
    fn attach_multicast(
        &self,
        port: u8,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, ControlError>;

    /// The wire that hears a group by such a socket, where that is another than one of port 4791. None unless the driver brings wires of
    /// its own.
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

    /// What this process publishes, if it lets others of its user reach its memory.
    fn board(&self) -> Option<&Arc<Board>> {
        None
    }

    /// The slot of the hub, which keeps what belongs to no process: it is started if need be.
    fn hub_slot(&self) -> Result<u16, ControlError> {
        Err(no_hub("find the XRC hub"))
    }

    /// Asks the hub, with a descriptor where the request takes one. `what` is for the error.
    fn ask_hub(
        &self,
        _request: &XrcRequest,
        _fd: Option<BorrowedFd<'_>>,
        what: &'static str,
    ) -> Result<XrcReply, ControlError> {
        Err(no_hub(what))
    }

    /// The stream with this number, of this queue pair, has come to its end, for whatever reason, and is closed.
    fn stream_ended(&self, _qpn: Qpn, _number: u64) {}

    /// A packet came to a port with a key that is not that of its queue pair, on a device that is on a fabric.
    fn key_violation(&self, _port: u8, _violation: &KeyViolation) {}

    /// Hands over a datagram that arrived here but belongs to another process.
    fn stray(&self, src: SocketAddr, dst: IpAddr, bytes: &[u8]);

    /// The page of counters that the service shares; see [`crate::objects::counters`].
    fn counters(&self) -> &SharedMem;

    /// Readable when [`poll_event`](Self::poll_event) has something to say.
    fn notify_fd(&self) -> BorrowedFd<'_>;

    /// The next event, if any; never blocks. [`ControlError::Gone`] when the service is.
    fn poll_event(&self) -> Result<Option<ControlEvent>, ControlError>;
}
