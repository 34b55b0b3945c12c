//! The events of ids (`rdma_cm_event`; rdma_get_cm_event(3)).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use rdmux_wire::cm::CmMad;

use crate::address::IbAddr;
use crate::params::{ConnParam, Negotiated, Route, UdParam};
use crate::sink::IdHandle;

/// The kinds of event; the values of `rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum EventKind {
    /// `resolve_addr` done: the id has a local address and a device.
    AddrResolved = 0,
    /// `resolve_addr` failed; status is a negative errno.
    AddrError = 1,
    /// `resolve_route` done.
    RouteResolved = 2,
    /// `resolve_route` failed; status is a negative errno.
    RouteError = 3,
    /// A peer wants to connect to a listener. The event's id is new and belongs to the receiver.
    ConnectRequest = 4,
    /// The peer accepted. The process brings its queue pair up and calls `establish`.
    ConnectResponse = 5,
    /// The connection could not be established; status is a negative errno.
    ConnectError = 6,
    /// The peer does not answer; status is a negative errno, or for UD the SIDR status.
    Unreachable = 7,
    /// The peer refused; status is the reason of REJ (IBTA table 108), for UD the SIDR status.
    Rejected = 8,
    /// The connection is up (UD: the peer's queue pair is known).
    Established = 9,
    /// The connection is down.
    Disconnected = 10,
    /// The device is gone; the id must be destroyed.
    DeviceRemoval = 11,
    /// A multicast group was joined.
    MulticastJoin = 12,
    /// A multicast group could not be joined, or was lost; status is a negative errno.
    MulticastError = 13,
    /// The device behind the id's address changed; reconnect.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
    /// Names and services were resolved (rdma_resolve_addrinfo(3)).
    AddrinfoResolved = 16,
    /// Names and services could not be resolved; status is a negative errno.
    AddrinfoError = 17,
    /// An event that the program wrote ([`Manager::write_event`](crate::Manager::write_event)).
    User = 18,
    /// LAP: the peer requests that this end load an alternate path for the connection
    /// ([`Manager::answer_alternate`](crate::Manager::answer_alternate)). Only ids with
    /// [`CmOption::Messages`](crate::CmOption::Messages) get this event and `MoreTime`.
    AlternateRequest = 128,
    /// APR: the outcome of this end's LAP. Status is APR's (IBTA table 124), 0 if the peer has loaded the path, or a negative errno.
    AlternateResponse = 129,
    /// MRA: the peer needs more time; status is the code of that time, 4.096 us * 2^code.
    MoreTime = 130,
}

impl EventKind {
    /// Returns whether the event ends a connection or an attempt to establish one.
    pub const fn ends_connection(self) -> bool {
        use EventKind as E;
        matches!(
            self,
            E::Rejected | E::Disconnected | E::Unreachable | E::ConnectError | E::TimewaitExit
        )
    }

    /// The kinds of events, in order of their values.
    pub const ALL: [Self; 22] = [
        Self::AddrResolved,
        Self::AddrError,
        Self::RouteResolved,
        Self::RouteError,
        Self::ConnectRequest,
        Self::ConnectResponse,
        Self::ConnectError,
        Self::Unreachable,
        Self::Rejected,
        Self::Established,
        Self::Disconnected,
        Self::DeviceRemoval,
        Self::MulticastJoin,
        Self::MulticastError,
        Self::AddrChange,
        Self::TimewaitExit,
        Self::AddrinfoResolved,
        Self::AddrinfoError,
        Self::User,
        Self::AlternateRequest,
        Self::AlternateResponse,
        Self::MoreTime,
    ];

    /// Returns the name that `rdma_event_str` returns.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => "RDMA_CM_EVENT_REJECTED",
            Self::Established => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            Self::AddrinfoResolved => "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
            Self::AddrinfoError => "RDMA_CM_EVENT_ADDRINFO_ERROR",
            Self::User => "RDMA_CM_EVENT_USER",
            Self::AlternateRequest => "RDMUX_CM_EVENT_ALTERNATE_REQUEST",
            Self::AlternateResponse => "RDMUX_CM_EVENT_ALTERNATE_RESPONSE",
            Self::MoreTime => "RDMUX_CM_EVENT_MORE_TIME",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parameters of an event besides its status.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EventParam {
    /// No data.
    #[default]
    None,
    /// A connection's event: the peer's parameters (depths swapped to this end's point of view) and private data.
    Conn(ConnParam),
    /// An event of a datagram peer (UD) or a multicast group: its queue pair and address parameters.
    Ud(UdParam),
    /// A program's own event: the value that it wrote.
    Arg(u64),
    /// The result of a lookup at subnet administration: the services found.
    Services(Vec<IbAddr>),
}

impl EventParam {
    /// Returns the private data, which may be empty.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::None | Self::Arg(_) | Self::Services(_) => &[],
            Self::Conn(p) => &p.private_data,
            Self::Ud(p) => &p.private_data,
        }
    }
}

/// An event of an id.
///
/// Every event counts towards the number that
/// [`Manager::destroy`](crate::Manager::destroy) returns, so that a process knows how many it must
/// still take and acknowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// The id. In CONNECT_REQUEST the new id.
    pub id: IdHandle,
    /// The context given at `create_id`; in CONNECT_REQUEST the listener's. For multicast events
    /// the context given at `join`.
    pub context: u64,
    /// The listener, in CONNECT_REQUEST.
    pub listen_id: Option<IdHandle>,
    /// The kind of event.
    pub kind: EventKind,
    /// 0, a negative errno, or the peer's reason: see [`EventKind`].
    pub status: i32,
    /// Parameters.
    pub param: EventParam,
    /// Addresses and path, in ADDR_RESOLVED, ROUTE_RESOLVED and CONNECT_REQUEST.
    pub route: Option<Box<Route>>,
    /// The attributes that the queue pair needs, in CONNECT_REQUEST, CONNECT_RESPONSE and UD's ADDR_RESOLVED and
    /// ESTABLISHED; and those for another alternate path, in ALTERNATE_REQUEST and ALTERNATE_RESPONSE.
    pub negotiated: Option<Box<Negotiated>>,
    /// The peer's datagram that caused the event, 256 bytes, for ids with [`CmOption::Messages`](crate::CmOption::Messages).
    pub mad: Option<Vec<u8>>,
}

impl Event {
    /// Returns the peer's message that caused the event, for ids with [`CmOption::Messages`](crate::CmOption::Messages): REQ or
    /// SIDR_REQ for CONNECT_REQUEST, REP for CONNECT_RESPONSE, RTU or SIDR_REP for ESTABLISHED, REJ for REJECTED, SIDR_REP for
    /// UNREACHABLE, DREQ or DREP for DISCONNECTED; LAP, APR and MRA for the last three kinds. None if the event has another cause,
    /// such as a timeout.
    pub fn message(&self) -> Option<CmMad> {
        CmMad::parse(self.mad.as_deref()?).ok()
    }
}
