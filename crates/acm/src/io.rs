//! What a machine wants of its driver, and the small values that both name things by.

use core::fmt;
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
    /// A port, by a number of the driver's.
    PortId(u16)
);
id!(
    /// An endpoint, by a number of the driver's.
    EndpointId(u16)
);
id!(
    /// A client, by a number of the driver's.
    ClientId(u32)
);
id!(
    /// A request, by a number of the driver's that no other open request of its client has.
    RequestId(u64)
);
id!(
    /// A question of the machine to the driver. The answer says it again; an answer to a question that is no longer open is ignored.
    QuestionId(u64)
);

/// What the driver does for the machine. None of these calls may call the machine.
pub trait Io {
    /// Sends a datagram from the endpoint's queue pair, with Q_Key [`QKEY`](rdmux_wire::acm::QKEY).
    ///
    /// False when its send queue is full: then nothing has happened, and [`Machine::handle_room`](crate::Machine::handle_room) follows
    /// when there is room again.
    fn send(&mut self, endpoint: EndpointId, to: To, datagram: &Datagram) -> bool;

    /// Asks subnet administration for membership of `record.mgid` (a Set), and attaches the endpoint's queue pair when it has been
    /// granted; [`Machine::handle_join`](crate::Machine::handle_join) has the answer, once.
    fn join(&mut self, endpoint: EndpointId, record: &McMemberRecord, mask: McMemberRecordMask);

    /// Detaches the queue pair and gives the membership back (a Delete). There is no answer. If [`join`](Self::join) has not been answered
    /// yet, that follows it.
    fn leave(&mut self, endpoint: EndpointId, mgid: Gid);

    /// Asks subnet administration for paths (a Get); [`Machine::handle_paths`](crate::Machine::handle_paths) has the answer, once. The driver
    /// repeats the datagram if it is lost, and gives up some time.
    fn ask_paths(
        &mut self,
        port: PortId,
        question: QuestionId,
        record: &PathRecord,
        mask: PathRecordMask,
    );

    /// Asks what the operating system knows of an address, for an endpoint whose port is none of InfiniBand;
    /// [`Machine::handle_system`](crate::Machine::handle_system) has the answer, once, at a later time, unless it is not
    /// [wanted](crate::Machine::is_wanted) any more.
    fn ask_system(&mut self, endpoint: EndpointId, question: QuestionId, address: &Address);

    /// Answers a client's request, once.
    fn answer(&mut self, client: ClientId, request: RequestId, answer: Result<Resolved, Failure>);

    /// The path to an address is known now, or another one than before: for caches that programs read. It is true until `until` at most.
    fn publish(&mut self, endpoint: EndpointId, address: &Address, path: &PathRecord, until: Time) {
        let _ = (endpoint, address, path, until);
    }

    /// A path that was published is not known any more.
    fn withdraw(&mut self, endpoint: EndpointId, address: &Address) {
        let _ = (endpoint, address);
    }

    /// An endpoint says that it has an address that another one has said it has, for a log. Strangers decide how often.
    fn contradiction(&mut self, endpoint: EndpointId, claim: &Contradiction<'_>) {
        let _ = (endpoint, claim);
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To a group that the endpoint is a member of.
    Group(Gid),
    /// To an endpoint.
    Peer(Peer),
}

/// An endpoint elsewhere: where its datagrams come from, and where those to it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its GID. Datagrams to it have a GRH.
    pub gid: Gid,
    /// Its LID.
    pub lid: Lid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The service level, of the group by which both can talk. That of one that comes is not looked at.
    pub sl: u8,
}

/// An address that two have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction<'a> {
    /// The address.
    pub address: &'a Address,
    /// Who is known to have it.
    pub holder: Gid,
    /// Who says so now.
    pub claimant: Gid,
    /// Whether the claimant is believed from now on.
    pub is_believed: bool,
}

/// The answer to a request that found a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The endpoint that the path begins at.
    pub endpoint: EndpointId,
    /// The path.
    pub path: PathRecord,
    /// The source that was chosen, if the request had none.
    pub source: Option<Address>,
    /// Whether it was known, so that nobody was asked: the same request has the same answer [again](crate::Machine::tick).
    pub is_cached: bool,
}

/// Why there is no path. Each is a status of the client protocol, see [`Self::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Too many requests wait, of this client or of all.
    TooMany,
    /// The request makes no sense.
    Invalid,
    /// It is not known, and the request does not wait.
    NoData,
    /// The endpoint's port is not active, or it is not in the lowest group.
    NotConnected,
    /// Nobody has answered in time.
    TimedOut,
    /// No endpoint has the source address.
    SourceAddress,
    /// The source cannot be one of these addresses.
    SourceType,
    /// There is no destination, or it cannot be one.
    DestAddress,
    /// No source can be found for a destination of this kind.
    DestType,
    /// What subnet administration says: the class-specific status of its datagram.
    Sa(u8),
}

impl Failure {
    /// The status of the client protocol.
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
            Self::TooMany => "too many requests wait for answers; try again later",
            Self::Invalid => "the request makes no sense",
            Self::NoData => "not known, and the request does not wait",
            Self::NotConnected => "the source's port is not active or has not joined its group",
            Self::TimedOut => "nobody has answered in time",
            Self::SourceAddress => "no endpoint has the source address",
            Self::SourceType => "the source cannot be of this type",
            Self::DestAddress => "the destination is missing or cannot be one",
            Self::DestType => "a destination of this type needs a source",
            Self::Sa(status) => {
                return write!(f, "subnet administration refuses with status {status:#04x}");
            }
        })
    }
}

impl core::error::Error for Failure {}

/// Why subnet administration has not answered, or how it has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaFailure {
    /// The status of its datagram.
    Status(u16),
    /// It has not answered, or cannot be reached.
    Silent,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// One of our addresses to begin at; chosen if there is none.
    pub source: Option<Address>,
    /// Where to.
    pub dest: Dest,
    /// Fails with [`Failure::NoData`] at once if the answer is not known. The search goes on.
    pub no_delay: bool,
    /// How long the client waits; [`Options::deadline`](crate::Options::deadline) if it is longer or missing.
    pub timeout: Option<Duration>,
}

/// Where a path is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dest {
    /// To a name or an address.
    Address(Address),
    /// To the LID of a record, or to its GID if it has no LID; from its source GID, else its source LID, with its P_Key if it has one.
    Path(PathRecord),
    /// Whatever subnet administration says to this record, asked each time. What is known and contradicts the answer is forgotten.
    Query(PathRecord),
}

/// What to forget, see [`Machine::forget`](crate::Machine::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// All that was learned. What was loaded stays.
    All,
    /// What was learned by an endpoint.
    Endpoint(EndpointId),
    /// An address, by all endpoints.
    Address(Address),
    /// What has this GID.
    Gid(Gid),
    /// What has this LID.
    Lid(Lid),
    /// Paths that subnet administration gave. Addresses stay.
    Routes,
}
