//! Requests, replies and notifications.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdmux_verbs::control::{DeviceKind, Limits};
use rdmux_verbs::port::{Adapter, Port, PortEvent};
use rdmux_verbs::transport::env::QpEvent;
use rdmux_verbs::transport::iwarp::StreamParams;
use rdmux_wire::{Gid, Guid, Qkey, Qpn};
use serde::{Deserialize, Serialize};

use super::cm::{CmReply, CmRequest};
use crate::error::HostError;
use crate::names::{DeviceChoice, NetworkNamespace};
use rdmux_cm::ChannelId;

/// The purpose of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientKind {
    /// A process with a device of this kind, which gets a slot, counters and notifications. It passes its board if
    /// other processes of its user may access its memory.
    Device(DeviceKind),
    /// A client without a device, such as a command.
    Tool,
    /// The service of another host, which offers rings between processes of the two.
    Host,
}

/// A client's request. All but [`Stray`](Self::Stray), [`Violation`](Self::Violation), [`CmSoon`](Self::CmSoon),
/// [`NoHostRings`](Self::NoHostRings), [`CommitRing`](Self::CommitRing), [`TargetEvent`](Self::TargetEvent) and
/// [`StreamEnded`](Self::StreamEnded) have one [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The greeting, which must be the first request. The version is its first field in every version.
    Hello {
        /// [`VERSION`](super::VERSION).
        version: u32,
        /// The kind of client.
        kind: ClientKind,
    },
    /// Requests the socket of a slot on an address: one descriptor in the reply. On InfiniBand it is the port's socket,
    /// and [`Notify::Routes`] brings the table by which packets are routed.
    AttachAddress {
        /// The port.
        port: u8,
        /// Index of its GID table.
        gid_index: u8,
        /// A slot of the caller's.
        slot: u16,
    },
    /// Reports a packet with a key that does not match, which was counted in the rows of [`Notify::Routes`].
    Violation {
        /// The port that noticed it.
        port: u8,
        /// The packet.
        violation: rdmux_fabric::proto::Violation,
    },
    /// Requests a further block of QP numbers.
    NewSlot,
    /// Releases a block of QP numbers.
    ReleaseSlot {
        /// A slot of the caller's.
        slot: u16,
        /// The index after the last number used.
        next_index: u16,
    },
    /// Requests rings to the process of a slot. The reply is [`Response::NoRing`], or [`Response::Ring`] with three descriptors:
    /// the ring that the caller fills, the ring that it empties, and its end of the socket pair for wakeups. If the two may
    /// access each other's memory, two more follow: the peer's board and pidfd.
    ConnectRing {
        /// The address at which the other process's host receives packets, if it is another host.
        host: Option<SocketAddr>,
        /// A slot of the other process.
        peer: u16,
    },
    /// Declares that this process uses no rings to other hosts. No reply. Sent before any process can know one of its
    /// slots.
    NoHostRings,
    /// Offers rings between two processes, from another host's service. It has three descriptors, as for
    /// [`ConnectRing`](Self::ConnectRing), for the process of the receiving host, and two more if the other process's memory may be
    /// accessed. The reply is [`Response::RingTaken`], [`Response::RingKnown`] or [`Response::NoRing`].
    OfferRing(RingOffer),
    /// Follows [`Response::RingTaken`]: both processes now have the rings, until the connection is closed. No reply.
    CommitRing,
    /// Joins a group at a port for a queue pair. The first time, the reply has one descriptor.
    AttachMulticast {
        /// The port.
        port: u8,
        /// A queue pair of the caller's.
        qpn: Qpn,
        /// The group.
        mgid: Gid,
    },
    /// Leaves a group for a queue pair.
    DetachMulticast {
        /// The port.
        port: u8,
        /// A queue pair of the caller's.
        qpn: Qpn,
        /// The group.
        mgid: Gid,
    },
    /// Passes on a datagram that the caller received but that belongs to another process. No reply.
    Stray {
        /// The source of the datagram.
        src: SocketAddr,
        /// The local address that it was sent to.
        dst: IpAddr,
        /// The UDP payload.
        bytes: Vec<u8>,
    },
    /// Opens an event channel. The reply has its socket.
    OpenChannel,
    /// Holds a channel: the service sends nothing more to it until a [`CmRequest::Migrate`], so the process can drain its
    /// socket. A process holds one channel at a time.
    HoldChannel {
        /// The channel that an id will leave.
        channel: ChannelId,
    },
    /// Returns unread events of the held channel, in several requests, oldest first.
    PutBack {
        /// The events as they were received.
        events: Vec<u8>,
    },
    /// A command of the connection manager.
    Cm(CmRequest),
    /// Sends or receives the caller's own management datagrams.
    Agent(AgentRequest),
    /// Requests the full status: [`Response::Status`], and a memfd that holds a [`Status`](super::Status).
    Status,
    /// Starts a capture of all traffic. The reply has the socket to read it from. It ends when the socket is closed.
    Capture,
    /// Makes the service stay when it has no clients.
    Stay,
    /// Ends the service.
    Shutdown,
    /// Writes and updates the files of a view before the reply. The reply's descriptors are the user namespace that the
    /// service holds for the views of the caller's user, and the mount namespace of this view, each if it exists.
    View {
        /// The devices that the view shows.
        devices: DeviceChoice,
    },
    /// Requests the user namespace that the service holds for the views of the caller's user. The reply has it as a
    /// descriptor, if it exists.
    UserNamespace,
    /// Requests a socket to the hub, which owns the XRC objects.
    OpenHub,
    /// Reports an event of an XRC target, from the hub. No reply.
    TargetEvent {
        /// The target.
        qpn: Qpn,
        /// The event.
        event: QpEvent,
        /// The clients that hold it.
        holders: Vec<u64>,
    },
    /// Reports that a stream of one of the caller's queue pairs has ended. No reply.
    StreamEnded {
        /// The queue pair.
        qpn: Qpn,
        /// The stream's number, from [`Notify::Stream`].
        number: u64,
    },
    /// Passes the descriptors of a view's user and mount namespaces, which the service holds for the caller's user.
    HoldView {
        /// The devices that the view shows.
        devices: DeviceChoice,
    },
    /// Sends a command that can only fail if the id's state changes meanwhile: no reply. A failure becomes an event,
    /// unless an event has reported it already. Only for commands for which [`CmRequest::may_be_soon`] is true.
    CmSoon(CmRequest),
}

/// An offer of rings between a process of the offering service's host (the former) and one of the receiving host (the
/// latter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingOffer {
    /// The address where the former host receives packets.
    pub from: SocketAddr,
    /// The address where the latter host receives packets.
    pub to: SocketAddr,
    /// The number of the former process. It is never reused.
    pub process: u64,
    /// The first slot of the process.
    pub slot: u16,
    /// A slot of the latter process.
    pub peer: u16,
    /// The number by which the former process knows the latter.
    pub number: u16,
}

/// Requests about a process's management datagrams: it registers as an agent for a class, and then sends and receives
/// (IBTA 13.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentRequest {
    /// Registers; [`Response::Agent`] has the number.
    Register {
        /// The port of the caller's device.
        port: u8,
        /// 0 or 1.
        qpn: Qpn,
        /// Management class.
        class: u8,
        /// Class version.
        class_version: u8,
        /// The unsolicited methods that it receives: bit n is method n. With 0 it only sends.
        methods: u128,
    },
    /// Unregisters an agent.
    Unregister {
        /// The agent.
        agent: u32,
    },
    /// Sends a datagram. With a timeout, a response is expected, matched by the low half of the transaction ID, and
    /// [`Notify::Mad`] brings it or reports its absence.
    Send {
        /// The agent.
        agent: u32,
        /// The destination.
        to: MadAddress,
        /// 0 expects no response.
        timeout_ms: u32,
        /// The number of retries.
        retries: u8,
        /// 256 bytes.
        mad: Vec<u8>,
    },
}

/// A peer of management datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadAddress {
    /// The local GID.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The Q_Key of the peer's queue pair.
    pub qkey: Qkey,
}

/// The reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The errno of the C interface.
    pub errno: i32,
    /// The reason as text.
    pub why: String,
}

impl Failure {
    /// Makes a refusal.
    pub fn new(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}

/// The reply to a [`Request`].
pub type Reply = Result<Response, Failure>;

/// The reply to a [`Request`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// Done.
    Done,
    /// The reply to `Hello`.
    Welcome(Box<Welcome>),
    /// A block of QP numbers.
    Slot {
        /// The slot.
        slot: u16,
        /// The index to count from.
        first_index: u16,
    },
    /// Rings to a process.
    Ring {
        /// The peer's number: its first slot, or a number that no slot has if it is on another host.
        peer: u16,
        /// The number by which the peer knows the caller.
        known_as: u16,
    },
    /// The offered rings were taken. Two descriptors, a board and a pidfd, follow if the memory of the process may be
    /// accessed.
    RingTaken {
        /// The first slot of the process.
        peer: u16,
        /// The number by which that process knows the other process.
        number: u16,
    },
    /// The process already has rings to the other one.
    RingKnown {
        /// The first slot of the process.
        peer: u16,
    },
    /// The two processes use the network.
    NoRing,
    /// An event channel.
    Channel(ChannelId),
    /// The reply to a connection manager command.
    Cm(CmReply),
    /// An agent's number.
    Agent(u32),
    /// The status is in the descriptor, with this length in bytes.
    Status(u64),
}

/// The service's greeting. For a device, the notify socket and the counter page are attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`](super::VERSION) of the service.
    pub version: u32,
    /// The host's name.
    pub host: String,
    /// The service's network namespace, if the kernel reports it.
    pub network: Option<NetworkNamespace>,
    /// The host's devices.
    pub devices: Vec<DeviceRow>,
    /// The first slot; 0 for a tool.
    pub slot: u16,
    /// The index where numbers start in it.
    pub first_index: u16,
    /// The UDP port that the service and its processes use.
    pub port: u16,
    /// The device's limits.
    pub limits: Limits,
    /// Whether the process runs as the owner or root.
    pub privileged: bool,
}

impl Welcome {
    /// Checks that the host can be used from this network namespace. If the kernel does not report the namespaces, they are
    /// taken to match.
    pub(crate) fn check_network(&self, own: Option<NetworkNamespace>) -> Result<(), HostError> {
        match (self.network, own) {
            (Some(theirs), Some(ours)) if theirs != ours => {
                Err(HostError::OtherNetwork { host: self.host.clone(), ours, theirs })
            }
            _ => Ok(()),
        }
    }
}

/// A device of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The name of the device.
    pub name: String,
    /// GUID of its node.
    pub node_guid: Guid,
    /// The device's adapter, if it was ever on a fabric since the service started.
    pub adapter: Option<Adapter>,
    /// The ports of the device, in the order of their numbers.
    pub ports: Vec<Port>,
}

/// The service's unsolicited messages to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notify {
    /// Another process requested rings to this one. The contents are those of [`Response::Ring`].
    Ring {
        /// The number of the other process.
        peer: u16,
        /// The number by which the other process knows this one.
        known_as: u16,
    },
    /// A peer process is gone.
    PeerGone {
        /// The slot of that process or, on another host, its number.
        slot: u16,
    },
    /// A datagram for this process that another one received.
    Stray {
        /// The source of the datagram.
        src: SocketAddr,
        /// The local address that it was sent to.
        dst: IpAddr,
        /// The UDP payload.
        bytes: Vec<u8>,
    },
    /// The ports of the device changed: addresses were added or removed, or a subnet manager changed a port.
    Ports {
        /// The new state of the ports.
        ports: Vec<Port>,
        /// The events in order, each with its port's number.
        events: Vec<(u8, PortEvent)>,
    },
    /// A port's routes changed. Two descriptors: the InfiniBand port's new route table ([`rdmux_link::routes`]), and the rows in which this
    /// process counts what it sends by it ([`rdmux_link::rows`]). No descriptors: there is no table.
    Routes {
        /// The port.
        port: u8,
    },
    /// An event of an XRC target that this process holds.
    Target {
        /// The target.
        qpn: Qpn,
        /// The event.
        event: QpEvent,
    },
    /// An iWARP connection was made. The descriptor is its TCP socket, for the queue pair. It precedes the event for
    /// the program.
    Stream {
        /// A queue pair of this process.
        qpn: Qpn,
        /// The stream's number, which is never reused.
        number: u64,
        /// The parameters that the two ends agreed on.
        params: StreamParams,
        /// Time that a message may wait for a receive to be posted. Zero permits no wait.
        receive_wait: Duration,
    },
    /// The program disconnects: the stream must be closed in order.
    CloseStream {
        /// A queue pair of this process.
        qpn: Qpn,
        /// The stream's number.
        number: u64,
    },
    /// Starts a capture: copies of all traffic go to the descriptor. Without a descriptor, it ends.
    Capture,
    /// A management datagram for an agent of this process.
    Mad {
        /// The agent.
        agent: u32,
        /// The peer.
        from: MadAddress,
        /// 0, or the errno of a send that got no response. The datagram is then the sent one.
        errno: i32,
        /// 256 bytes.
        mad: Vec<u8>,
    },
}
