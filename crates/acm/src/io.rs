//! The interface between the machine and its driver, and the ids that both use.

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_wire::acm::Address;
use rdmux_wire::acm::Datagram;
use rdmux_wire::acm::client::Status;
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask};
use rdmux_wire::{Gid, Lid, Qpn};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);
    };
}

id!(
    /// A port, numbered by the driver.
    PortId(u16)
);
id!(
    /// An endpoint, numbered by the driver.
    EndpointId(u16)
);
id!(
    /// A client, numbered by the driver.
    ClientId(u32)
);
/// The user of a client, which has a share of what the machine may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum User {
    /// The service's owner, or root. Its requests have no limit except that of all requests.
    #[default]
    Owner,
    /// Another user of this machine, by its number.
    Local(u32),
    /// A host of the network, whose users are not known.
    Remote(IpAddr),
}

id!(
    /// A request, by a number from the driver that is unique among its client's open requests.
    RequestId(u64)
);
id!(
    /// A query from the machine to the driver. The answer repeats it; an answer to a query that is no longer open is ignored.
    QuestionId(u64)
);

/// The operations that the driver performs for the machine. None of these calls may call the machine.
pub trait Io {
    /// Sends a datagram from the endpoint's queue pair, with Q_Key [`QKEY`](rdmux_wire::acm::QKEY).
    ///
    /// Returns false when its send queue is full. Nothing was sent then, and [`Machine::handle_room`](crate::Machine::handle_room)
    /// must be called when there is room again.
    fn send(&mut self, endpoint: EndpointId, to: To, datagram: &Datagram) -> bool;

    /// Requests membership of `record.mgid` from subnet administration (a Set), and attaches the endpoint's queue pair once it is
    /// granted. [`Machine::handle_join`](crate::Machine::handle_join) gets the answer, once. If an earlier join of the same group by the
    /// same endpoint is unanswered, this one replaces it: the earlier one's answer is dropped.
    fn join(&mut self, endpoint: EndpointId, record: &McMemberRecord, mask: McMemberRecordMask);

    /// Detaches the queue pair and releases the membership (a Delete), without an answer. If [`join`](Self::join) is still unanswered, the
    /// release follows its answer.
    fn leave(&mut self, endpoint: EndpointId, mgid: Gid);

    /// Queries subnet administration for paths (a Get). [`Machine::handle_paths`](crate::Machine::handle_paths) gets the answer, once. The
    /// driver retransmits lost datagrams, and gives up eventually.
    fn ask_paths(
        &mut self,
        port: PortId,
        question: QuestionId,
        record: &PathRecord,
        mask: PathRecordMask,
    );

    /// Queries the operating system for an address, for an endpoint whose port is not InfiniBand.
    /// [`Machine::handle_system`](crate::Machine::handle_system) gets the answer, once, after this call returns, unless it is not
    /// [wanted](crate::Machine::is_wanted) any more, or the driver [has no room](crate::Machine::refuse_system) for it.
    fn ask_system(&mut self, endpoint: EndpointId, question: QuestionId, address: &Address);

    /// Reports that a client, the first or one more, waits for the answer to a query of [`ask_system`](Self::ask_system) from now on.
    fn waits(&mut self, question: QuestionId, client: ClientId) {
        let _ = (question, client);
    }

    /// Answers a client's request, once.
    fn answer(&mut self, client: ClientId, request: RequestId, answer: Result<Resolved, Failure>);

    /// Publishes a new or changed path to an address, for caches that programs read. It is valid until `until` at most.
    fn publish(&mut self, endpoint: EndpointId, address: &Address, path: &PathRecord, until: Time) {
        let _ = (endpoint, address, path, until);
    }

    /// Withdraws a published path that is not known any more.
    fn withdraw(&mut self, endpoint: EndpointId, address: &Address) {
        let _ = (endpoint, address);
    }

    /// Reports for logging that an endpoint claims an address that another one has claimed. Remote endpoints decide how
    /// often this happens.
    fn contradiction(&mut self, endpoint: EndpointId, claim: &Contradiction<'_>) {
        let _ = (endpoint, claim);
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// A group that the endpoint is a member of.
    Group(Gid),
    /// An endpoint.
    Peer(Peer),
}

/// A remote endpoint: the source or destination of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The peer's GID. Datagrams to it have a GRH.
    pub gid: Gid,
    /// The peer's LID.
    pub lid: Lid,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The service level, of the group through which both can communicate. Ignored in received datagrams.
    pub sl: u8,
}

/// An address claimed by two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction<'a> {
    /// The address.
    pub address: &'a Address,
    /// The known holder.
    pub holder: Gid,
    /// The new claimant.
    pub claimant: Gid,
    /// Whether the claimant is believed from now on.
    pub is_believed: bool,
}

/// The answer to a request that found a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The endpoint at which the path begins.
    pub endpoint: EndpointId,
    /// The path.
    pub path: PathRecord,
    /// The chosen source, if the request had none.
    pub source: Option<Address>,
    /// Whether the answer was cached, without any query: an identical request gets the same answer
    /// [again](crate::Machine::tick).
    pub is_cached: bool,
}

/// The reason why no path is returned. Each is a status of the client protocol, see [`Self::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Too many requests of this client, of its user, or of all clients, are waiting.
    TooMany,
    /// The request is invalid.
    Invalid,
    /// The path is not cached, and the request does not wait.
    NoData,
    /// The endpoint's port is not active, or the endpoint is not in the lowest group.
    NotConnected,
    /// No answer arrived in time.
    TimedOut,
    /// No endpoint has the source address.
    SourceAddress,
    /// The source cannot be one of these addresses.
    SourceType,
    /// The request has no destination, or not a valid one.
    DestAddress,
    /// No source can be found for a destination of this kind.
    DestType,
    /// Subnet administration refused: the class-specific status of its datagram.
    Sa(u8),
}

impl Failure {
    /// Returns the status of the client protocol.
    pub const fn status(self) -> Status {
        match self {
            Self::TooMany => Status::NO_MEMORY,
            Self::Invalid => Status::INVALID,
            Self::NoData => Status::NO_DATA,
            Self::NotConnected => Status::NOT_CONNECTED,
            Self::TimedOut => Status::TIMED_OUT,
            Self::SourceAddress => Status::SOURCE_ADDRESS,
            Self::SourceType => Status::SOURCE_TYPE,
            Self::DestAddress => Status::DEST_ADDRESS,
            Self::DestType => Status::DEST_TYPE,
            Self::Sa(status) => Status(status),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => "too many requests are pending; try again later",
            Self::Invalid => "the request is invalid",
            Self::NoData => "not in the cache, and the request does not wait for resolution",
            Self::NotConnected => "the source's port is not active or has not joined its group",
            Self::TimedOut => "no answer in time",
            Self::SourceAddress => "no endpoint has the source address",
            Self::SourceType => "the source cannot be of this type",
            Self::DestAddress => "the destination is missing or invalid",
            Self::DestType => "a destination of this type needs a source",
            Self::Sa(status) => {
                return write!(f, "subnet administration refused with status {status:#04x}");
            }
        })
    }
}

impl core::error::Error for Failure {}

/// The failure of a query to subnet administration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaFailure {
    /// The status of subnet administration's datagram.
    Status(u16),
    /// No answer arrived, or subnet administration cannot be reached.
    Silent,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The local address to begin at; chosen if there is none.
    pub source: Option<Address>,
    /// The destination.
    pub dest: Dest,
    /// Whether the request fails with [`Failure::NoData`] at once if the answer is not cached. The search continues.
    pub no_delay: bool,
    /// Time that the client waits, [`Options::deadline`](crate::Options::deadline) at most and by default.
    pub timeout: Option<Duration>,
}

/// The destination of a requested path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dest {
    /// A name or an address.
    Address(Address),
    /// The LID of a record, or its GID if it has no LID; from its source GID, otherwise its source LID, with its P_Key if it has one.
    Path(PathRecord),
    /// A query that subnet administration answers each time. Cache entries that contradict the answer are invalidated.
    Query(PathRecord),
}

/// The cache entries to invalidate, see [`Machine::forget`](crate::Machine::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// All addresses that were learned. Entries from files stay.
    All,
    /// All addresses that an endpoint learned.
    Endpoint(EndpointId),
    /// An address, at all endpoints.
    Address(Address),
    /// Entries with this GID.
    Gid(Gid),
    /// Entries with this LID.
    Lid(Lid),
    /// Paths from subnet administration. Addresses stay.
    Routes,
}
