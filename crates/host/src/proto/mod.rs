//! What processes and their host service say to each other.
//!
//! Four kinds of `SOCK_SEQPACKET` socket. A message is one value in postcard's encoding; of requests and of events it is
//! one or more, one after the other, and only the last request may have a reply:
//!
//! | socket | how a process gets it | direction |
//! |---|---|---|
//! | rpc | connects to the service's path; so does another host's service | [`Request`], then [`Reply`] |
//! | notify | descriptor in the reply to [`Request::Hello`] | [`Notify`] to the process |
//! | event channel | descriptor in the reply to [`Request::OpenChannel`] | [`rdmux_cm::Event`] to the process |
//! | hub | descriptor in the reply to [`Request::OpenHub`] | [`HubRequest`], then [`HubReply`] |
//!
//! A message that does not decode, a request out of place or a descriptor too many closes that
//! client, and nobody else notices.

pub(crate) mod cm;
mod hub;
mod request;
mod status;

pub use cm::{CmReply, CmRequest};
pub use hub::{HubReply, HubRequest, HubResponse};
pub use rdmux_runtime::socket::{self, MAX_FDS, MAX_MESSAGE, MessageError};
pub use request::{
    AgentRequest, ClientKind, DeviceRow, Failure, MadAddress, Notify, Reply, Request, Response,
    RingOffer, Welcome,
};
pub use status::{
    ClientStatus, DomainStatus, FabricStatus, GroupStatus, HolderStatus, IdStatus, Status,
    TargetStatus,
};

/// The most bytes of events in one message, but that one event may be longer; and the most of a message of them.
pub const EVENTS: usize = 4 * 1024;
/// See [`EVENTS`].
pub const MAX_EVENTS_MESSAGE: usize = 2 * EVENTS;

/// The version of everything here. Both sides must have the same.
pub const VERSION: u32 = 25;
