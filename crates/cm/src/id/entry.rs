//! The state of one id.

use core::fmt;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use rdmux_transport::attr::QpType;
use rdmux_wire::sa::McMemberRecord;
use rdmux_wire::{Psn, Qkey, Qpn};

use crate::address::Addr;
use crate::event::Event;
use crate::fields::{Courtesy, Failover, Fields};
use crate::group::{GroupAddr, GroupWish};
use crate::ib::sidr::SidrKey;
use crate::iw::StreamId;
use crate::params::{Negotiated, Route};
use crate::path::{MadPath, Path};
use crate::ports::PortSpace;
use crate::sink::{ChannelId, IdHandle, LocalAddress, OnlyDevice, Sink};
use crate::timers::Deadline;

/// The states of an id (those of Linux's `rdma_cm`; rdma_cm(7)).
///
/// ```text
///   Idle -- bind --> AddrBound -- listen --> Listen
///     |                  |
///     +-- resolve_addr --+--> AddrQuery -- answer --> AddrResolved -- resolve_route --> RouteQuery
///                        ^        |                        ^                            |  |
///                        +--------+ no answer              +------------ no answer -----+  | answer
///                                                                                          v
///                                                                connect <---------- RouteResolved
///                                                     AddrResolved -- set_paths -------^
///   (a request arrived) ---------------------------------> Connect
///                                                             |  the connection went down
///                                                             v
///                                                         Disconnect
///   any, once its device is gone: DeviceRemoval
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IdState {
    /// New.
    Idle,
    /// Resolving the peer's address.
    AddrQuery,
    /// The id has a local address and a device.
    AddrResolved,
    /// Resolving the path.
    RouteQuery,
    /// Ready to connect.
    RouteResolved,
    /// Connecting, connected, or refused.
    Connect,
    /// Disconnected.
    Disconnect,
    /// Bound to a local address.
    AddrBound,
    /// Listening.
    Listen,
    /// Its device is gone.
    DeviceRemoval,
}

impl IdState {
    /// Returns whether `next` may follow.
    pub fn may_become(self, next: Self) -> bool {
        if next == Self::DeviceRemoval {
            return self != next;
        }
        let successors: &[Self] = match self {
            Self::Idle => &[Self::AddrBound],
            Self::AddrBound => &[Self::Listen, Self::AddrQuery],
            Self::AddrQuery => &[Self::AddrResolved, Self::AddrBound],
            Self::AddrResolved => &[Self::RouteQuery, Self::RouteResolved],
            Self::RouteQuery => &[Self::RouteResolved, Self::AddrResolved],
            Self::RouteResolved => &[Self::Connect],
            Self::Connect => &[Self::Disconnect],
            Self::Listen | Self::Disconnect | Self::DeviceRemoval => &[],
        };
        successors.contains(&next)
    }
}

impl fmt::Display for IdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "IDLE",
            Self::AddrQuery => "ADDR_QUERY",
            Self::AddrResolved => "ADDR_RESOLVED",
            Self::RouteQuery => "ROUTE_QUERY",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::Connect => "CONNECT",
            Self::Disconnect => "DISCONNECT",
            Self::AddrBound => "ADDR_BOUND",
            Self::Listen => "LISTEN",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
        })
    }
}

/// The result of [`Manager::query`](crate::Manager::query).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IdInfo {
    /// Its channel.
    pub channel: ChannelId,
    /// Its context.
    pub context: u64,
    /// Its state.
    pub state: IdState,
    /// Its port space.
    pub port_space: PortSpace,
    /// The transport of its queue pair.
    pub qp_type: QpType,
    /// Its own address, once bound.
    pub local: Option<Addr>,
    /// The peer's address, once known.
    pub peer: Option<Addr>,
    /// The device of its address, once that is not a wildcard.
    pub device: Option<LocalAddress>,
    /// The path, once known.
    pub route: Option<Route>,
    /// The program's queue pair, once known.
    pub qpn: Option<Qpn>,
}

/// The options of an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: Option<u8>,
    pub(super) reuse_addr: bool,
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
    pub(super) peer_to_peer: Option<bool>,
    pub(super) fields: Fields,
}

/// The protocol object of an id: a connection, a stream or a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    None,
    /// A connection, by its communication id.
    Conn(u32),
    /// An iWARP connection.
    Stream(StreamId),
    /// A lookup of this end, by its request id.
    Lookup(u32),
    /// A lookup of a peer that awaits its answer.
    LookedUp(SidrKey),
}

/// The port or service ID that an id holds exclusively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owns {
    Nothing,
    /// A port of a port space.
    Port(PortSpace, u16),
    /// A service ID that does not encode a port.
    Service,
}

/// A multicast group of an id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) wish: GroupWish,
    /// Its address; for a new group, once it is joined, the GID that it was assigned.
    pub(super) name: GroupAddr,
    /// The record from the network, while the group is joined.
    pub(super) record: Option<McMemberRecord>,
    /// The reason why the join failed or the group was lost: an errno.
    pub(super) lost: Option<i32>,
    pub(super) events: u32,
}

/// An id.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) channel: ChannelId,
    pub(super) context: u64,
    pub(super) ps: PortSpace,
    pub(super) qp_type: QpType,
    /// The device to which the id is restricted, if any.
    pub(super) only: Option<OnlyDevice>,
    state: IdState,
    pub(super) options: Options,
    pub(super) local: Option<Addr>,
    pub(super) peer: Option<Addr>,
    /// The port or service ID that the id holds. A request has its listener's.
    pub(super) owns: Owns,
    pub(super) device: Option<LocalAddress>,
    /// Whether the program got the event that the address is gone. False again when the address is back.
    pub(super) is_lost: bool,
    pub(super) route: Option<Route>,
    /// For an id that connects: the path from which its route is made, before its options apply.
    pub(super) path: Option<Path>,
    /// The alternate path.
    pub(super) alternate: Option<Path>,
    /// The path of a LAP that is not answered yet.
    pub(super) asked_alternate: Option<Path>,
    /// For a peer's request: the outcome of its alternate path, unless the program sets another.
    pub(super) failover: Failover,
    /// How long the peer's queue pair takes to acknowledge; code.
    pub(super) peer_ack_delay: u8,
    /// Private data of messages that other commands of the program send.
    pub(super) courtesies: BTreeMap<Courtesy, Vec<u8>>,
    /// The path of the connection manager's own datagrams, if it differs.
    pub(super) cm_path: Option<Path>,
    pub(super) negotiated: Option<Negotiated>,
    pub(super) qpn: Option<Qpn>,
    /// The first PSN that this end expects, which is sent to the peer.
    pub(super) psn: Psn,
    pub(super) link: Link,
    /// For a request that is not taken yet: its listener.
    pub(super) listener: Option<IdHandle>,
    /// For a request: whether the program has yet to accept it.
    pub(super) is_unanswered: bool,
    /// For a request that ended before it was accepted: the event of its end, sent only if the program accepts it.
    pub(super) end: Option<Box<Event>>,
    /// For a listener: the requests that are not taken yet.
    pub(super) requests: BTreeSet<IdHandle>,
    pub(super) backlog: u32,
    /// The number of events so far.
    pub(super) events: u32,
    /// Multicast groups, by the contexts that they were joined with.
    pub(super) groups: BTreeMap<u64, Group>,
    /// The number of the latest path query.
    pub(super) path_query: u32,
    /// For a redirected request whose new path is being looked up: the message that redirects, and the path by which it arrived.
    pub(super) redirection: Option<(MadPath, Vec<u8>)>,
    /// The deadline of a route query or a path query.
    pub(super) deadline: Deadline,
}

impl Id {
    pub(super) fn new(
        channel: ChannelId,
        ps: PortSpace,
        qp_type: QpType,
        context: u64,
        psn: Psn,
    ) -> Self {
        Self {
            channel,
            context,
            ps,
            qp_type,
            only: None,
            state: IdState::Idle,
            options: Options::default(),
            local: None,
            peer: None,
            owns: Owns::Nothing,
            device: None,
            is_lost: false,
            route: None,
            path: None,
            alternate: None,
            asked_alternate: None,
            failover: Failover::default(),
            peer_ack_delay: 0,
            courtesies: BTreeMap::new(),
            cm_path: None,
            negotiated: None,
            qpn: None,
            psn,
            link: Link::None,
            listener: None,
            is_unanswered: false,
            end: None,
            requests: BTreeSet::new(),
            backlog: 0,
            events: 0,
            groups: BTreeMap::new(),
            path_query: 0,
            redirection: None,
            deadline: Deadline::default(),
        }
    }

    /// Returns an id for a peer's request.
    pub(super) fn requested(mut self, listener: IdHandle) -> Self {
        self.state = IdState::Connect;
        self.listener = Some(listener);
        self.is_unanswered = true;
        self
    }

    pub(super) fn state(&self) -> IdState {
        self.state
    }

    /// Sends an event to the id's channel.
    pub(super) fn tell(&mut self, event: Event, sink: &mut impl Sink) {
        self.events = self.events.saturating_add(1);
        sink.event(self.channel, event);
    }

    /// Returns the private data that the program has set for a message.
    pub(super) fn courtesy(&self, of: Courtesy) -> &[u8] {
        self.courtesies.get(&of).map_or(&[], Vec::as_slice)
    }

    /// Returns the Q_Key of its datagrams.
    pub(super) fn qkey(&self) -> Qkey {
        let device = self.device.as_ref().filter(|_| self.ps == PortSpace::IpoIb);
        device.map_or(Qkey::RDMA_UDP, |device| device.ipoib_qkey)
    }

    /// Changes the state. No other function does.
    pub(super) fn go(&mut self, next: IdState) {
        debug_assert!(self.state.may_become(next), "{} -> {next}", self.state);
        self.state = next;
    }

    pub(super) fn info(&self) -> IdInfo {
        IdInfo {
            channel: self.channel,
            context: self.context,
            state: self.state,
            port_space: self.ps,
            qp_type: self.qp_type,
            local: self.local,
            peer: self.peer,
            device: self.device.clone(),
            route: self.route,
            qpn: self.qpn,
        }
    }
}
