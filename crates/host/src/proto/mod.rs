//! The protocol between processes and their host service.
//!
//! There are four kinds of `SOCK_SEQPACKET` socket. A message is one value in postcard's encoding. A message of requests
//! or events holds one or more, in order, and only the last request may have a reply:
//!
//! | socket | how a process gets it | direction |
//! |---|---|---|
//! | rpc | connects to the service's path; another host's service does, too | [`Request`], then [`Reply`] |
//! | notify | descriptor in the reply to [`Request::Hello`] | [`Notify`] to the process |
//! | event channel | descriptor in the reply to [`Request::OpenChannel`] | [`rdmux_cm::Event`] to the process |
//! | hub | descriptor in the reply to [`Request::OpenHub`] | [`HubRequest`], then [`HubReply`] |
//!
//! A message that does not decode, a request out of place or an excess descriptor closes that client's connection.
//! Other clients are not affected.

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

/// Maximum number of bytes of events in one message, unless a single event is longer.
pub const EVENTS: usize = 4 * 1024;
/// Maximum length of a message of events in bytes.
pub const MAX_EVENTS_MESSAGE: usize = 2 * EVENTS;

/// The version of everything here. Both sides must have the same.
pub const VERSION: u32 = 25;
