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

/// What a client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientKind {
    /// A process with a device of this kind: gets a slot, counters and notifications. Passes its
    /// board along, if others of its user may reach its memory.
    Device(DeviceKind),
    /// A command that asks or tells something.
    Tool,
    /// The service of another host, which offers rings between processes of the two.
    Host,
}

/// What a process asks. Every request but [`Stray`](Self::Stray), [`Violation`](Self::Violation), [`CmSoon`](Self::CmSoon),
/// [`NoHostRings`](Self::NoHostRings), [`CommitRing`](Self::CommitRing), [`TargetEvent`](Self::TargetEvent) and
/// [`StreamEnded`](Self::StreamEnded) has one [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first request; no other is heard before it. The version comes first in every version.
    Hello {
        /// [`VERSION`](super::VERSION).
        version: u32,
        /// What for.
        kind: ClientKind,
    },
    /// The socket of a slot on an address: one descriptor in the reply. On InfiniBand it is that of the port, and
    /// [`Notify::Routes`] tells by which table packets leave.
    AttachAddress {
        /// The port.
        port: u8,
        /// Index of its GID table.
        gid_index: u8,
        /// A slot of the caller's.
        slot: u16,
    },
    /// Tells of a packet with a key that does not fit, which was counted in the rows of [`Notify::Routes`].
    Violation {
        /// The port that noticed it.
        port: u8,
        /// The packet.
        violation: rdmux_fabric::proto::Violation,
    },
    /// A further block of QP numbers.
    NewSlot,
    /// Gives a block of QP numbers back.
    ReleaseSlot {
        /// A slot of the caller's.
        slot: u16,
        /// The index after the last number used.
        next_index: u16,
    },
    /// Rings to the process of a slot: [`Response::Ring`] with three descriptors (what
    /// we fill, what we empty, our end of what the two wake each other with), and with two more (the peer's board, its pidfd) if
    /// the two may reach each other's memory; or [`Response::NoRing`].
    ConnectRing {
        /// Where the host of the other process takes packets, if it is another host than ours.
        host: Option<SocketAddr>,
        /// A slot of the other process.
        peer: u16,
    },
    /// This process is to have no rings to other hosts. No reply. Before anybody can know of a slot of its.
    NoHostRings,
    /// Of another host's service: rings between two processes. With three descriptors as those of [`ConnectRing`](Self::ConnectRing),
    /// for the process of the host that is asked, and with two more if the memory of the other process may be reached. The
    /// answer is [`Response::RingTaken`], [`Response::RingKnown`] or [`Response::NoRing`].
    OfferRing(RingOffer),
    /// Behind [`Response::RingTaken`]: both processes have the rings now, until the connection is closed. No reply.
    CommitRing,
    /// Joins a group at a port for a queue pair; one descriptor in the reply the first time.
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
    /// A datagram that the caller received but that belongs to another process. No reply.
    Stray {
        /// Its source.
        src: SocketAddr,
        /// The local address that it was sent to.
        dst: IpAddr,
        /// The UDP payload.
        bytes: Vec<u8>,
    },
    /// A new event channel: its socket in the reply.
    OpenChannel,
    /// Nothing more is sent to the channel until a [`CmRequest::Migrate`]: what the process finds in its socket then is all. A
    /// process holds one channel at a time.
    HoldChannel {
        /// The channel from which an id is to be moved.
        channel: ChannelId,
    },
    /// Events of the channel that is held, which the process has not read. In pieces, the oldest first.
    PutBack {
        /// Encoded as they came.
        events: Vec<u8>,
    },
    /// A command of the connection manager.
    Cm(CmRequest),
    /// Management datagrams of the caller's own.
    Agent(AgentRequest),
    /// Everything that there is to know: [`Response::Status`], and a memfd that holds a
    /// [`Status`](super::Status).
    Status,
    /// Copies of all traffic: the socket to read them from in the reply. Until it is closed.
    Capture,
    /// The service shall stay when nobody is left.
    Stay,
    /// Ends the service.
    Shutdown,
    /// The files of a view, written and up to date when the reply comes. With it come as descriptors the user namespace that
    /// the service holds for the views of the caller's user, if it does, and the mount namespace of this view, if it does.
    View {
        /// Which devices are seen.
        devices: DeviceChoice,
    },
    /// The user namespace that the service holds for the views of the caller's user, if it does, as a descriptor in the reply.
    UserNamespace,
    /// A socket to the hub, where XRC's objects are, in the reply.
    OpenHub,
    /// Of the hub itself: something happened to an XRC target. No reply.
    TargetEvent {
        /// The target.
        qpn: Qpn,
        /// What.
        event: QpEvent,
        /// The clients that hold it.
        holders: Vec<u64>,
    },
    /// This stream of a queue pair of the caller's has come to its end. No reply.
    StreamEnded {
        /// The queue pair.
        qpn: Qpn,
        /// The stream's number, from [`Notify::Stream`].
        number: u64,
    },
    /// Takes the descriptors of a view's user and mount namespace, to be held for the caller's user.
    HoldView {
        /// Which devices are seen.
        devices: DeviceChoice,
    },
    /// A command that cannot fail but when the id's state changes meanwhile: no reply. A failure that no event has told
    /// becomes one. Only of those of which [`CmRequest::may_be_soon`] says so.
    CmSoon(CmRequest),
}

/// Rings between a process of the offering service's host and one of the host that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingOffer {
    /// Where the former host takes packets, and the latter.
    pub from: SocketAddr,
    /// See above.
    pub to: SocketAddr,
    /// Who the former process is: no other has or had this number.
    pub process: u64,
    /// Its first slot.
    pub slot: u16,
    /// A slot of the latter process.
    pub peer: u16,
    /// By which number the former process knows the latter.
    pub number: u16,
}

/// Management datagrams of a process: it registers as an agent for a class, and then sends and
/// receives (IBTA 13.4).
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
        /// Which unsolicited methods it takes: bit n is method n. With 0 it only sends.
        methods: u128,
    },
    /// Takes a registration back.
    Unregister {
        /// The agent.
        agent: u32,
    },
    /// Sends a datagram. With a timeout a response is awaited, matched by the low half of the
    /// transaction ID, and [`Notify::Mad`] tells of it, or of its absence.
    Send {
        /// The agent.
        agent: u32,
        /// Where to.
        to: MadAddress,
        /// 0 awaits no response.
        timeout_ms: u32,
        /// How often to send again.
        retries: u8,
        /// 256 bytes.
        mad: Vec<u8>,
    },
}

/// A peer of management datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadAddress {
    /// Our GID.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: Qkey,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For the C interface.
    pub errno: i32,
    /// For a reader.
    pub why: String,
}

impl Failure {
    /// A refusal.
    pub fn new(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}

/// The answer to a [`Request`].
pub type Reply = Result<Response, Failure>;

/// The answer to a [`Request`] that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// It was done.
    Done,
    /// To Hello.
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
        /// By which number it is known: its first slot, or one that no slot has if it is on another host.
        peer: u16,
        /// By which number it knows the caller.
        known_as: u16,
    },
    /// The rings are taken. With two descriptors, a board and a pidfd, if the memory of the process may be reached.
    RingTaken {
        /// The first slot of the process.
        peer: u16,
        /// By which number it knows the other one.
        number: u16,
    },
    /// The process has rings to the other one already.
    RingKnown {
        /// Its first slot.
        peer: u16,
    },
    /// These two use the network.
    NoRing,
    /// An event channel.
    Channel(ChannelId),
    /// Of the connection manager.
    Cm(CmReply),
    /// An agent's number.
    Agent(u32),
    /// The status is in the descriptor: so many bytes.
    Status(u64),
}

/// Who the service is. For a device, the notify socket and the counter page come along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`](super::VERSION) of the service.
    pub version: u32,
    /// The host's name.
    pub host: String,
    /// The network namespace that the service lives in, if the kernel tells.
    pub network: Option<NetworkNamespace>,
    /// The host's devices.
    pub devices: Vec<DeviceRow>,
    /// The first slot; 0 for a tool.
    pub slot: u16,
    /// The index to count from in it.
    pub first_index: u16,
    /// The UDP port that the service and its processes use.
    pub port: u16,
    /// The device's limits.
    pub limits: Limits,
    /// Whether the process is the owner's, or root's.
    pub privileged: bool,
}

impl Welcome {
    /// Whether the host is one that a process in a network namespace can be on. What the kernel does not tell is taken to
    /// be right.
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
    /// Its kind.
    pub kind: DeviceKind,
    /// Its name.
    pub name: String,
    /// GUID of its node.
    pub node_guid: Guid,
    /// Of a device on a fabric: the adapter that it is, if it ever was on one since the service started.
    pub adapter: Option<Adapter>,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<Port>,
}

/// What the service tells a process of its own accord.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notify {
    /// Another process asked for rings to us: as [`Response::Ring`].
    Ring {
        /// By which number it is known.
        peer: u16,
        /// By which number it knows us.
        known_as: u16,
    },
    /// A slot's process is gone, or one of another host.
    PeerGone {
        /// The slot, or the number by which it is known.
        slot: u16,
    },
    /// A datagram of ours that arrived elsewhere.
    Stray {
        /// Its source.
        src: SocketAddr,
        /// The local address that it was sent to.
        dst: IpAddr,
        /// The UDP payload.
        bytes: Vec<u8>,
    },
    /// The ports of the device changed: addresses came or went, or a subnet manager did something to one.
    Ports {
        /// How they are.
        ports: Vec<Port>,
        /// What happened, in this order, each with the number of its port.
        events: Vec<(u8, PortEvent)>,
    },
    /// With two descriptors: the table of ways of an InfiniBand port from now on ([`rdmux_link::routes`]), and the rows that this process counts
    /// in what it sends by it ([`rdmux_link::rows`]). Without: there is none.
    Routes {
        /// The port.
        port: u8,
    },
    /// Something happened to an XRC target that we hold.
    Target {
        /// The target.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
    /// With a descriptor: a connection of iWARP is made, and this TCP socket is the queue pair's. It
    /// comes before the event that tells the program.
    Stream {
        /// A queue pair of ours.
        qpn: Qpn,
        /// The stream's number, which no other has or will have.
        number: u64,
        /// What the two ends agreed on.
        params: StreamParams,
        /// How long a message may wait for a receive; zero is not at all.
        receive_wait: Duration,
    },
    /// The program disconnects: the stream is to be ended in order.
    CloseStream {
        /// A queue pair of ours.
        qpn: Qpn,
        /// The stream's number.
        number: u64,
    },
    /// With a descriptor: copies of all traffic are wanted there. Without: no longer.
    Capture,
    /// A management datagram for one of our agents.
    Mad {
        /// The agent.
        agent: u32,
        /// The peer.
        from: MadAddress,
        /// 0, or the errno of a send that got no response: then the datagram is the one sent.
        errno: i32,
        /// 256 bytes.
        mad: Vec<u8>,
    },
}
