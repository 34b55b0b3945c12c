//! ACM without I/O: resolves names and addresses to paths, for programs that connect to many peers.
//!
//! ```text
//!   clients           driver (a service, the simulation)          the subnet
//!  Request --------> request          Machine          Io::send, ask_paths ----->
//!  Io::answer <-----          cache, searches, groups          handle_* <--------
//! ```
//!
//! A request for an address that is not cached is sent to a multicast group. Only the endpoint that has the address answers, but every
//! endpoint that receives the request learns the sender's address: N endpoints learn each other's addresses by N requests, not N x N. So an
//! endpoint does not send all its requests at once, and drops those whose answers it overhears.
//!
//! - [`Options`], and [`Port`] and [`Endpoint`] as the driver describes them
//! - [`Io`]: the operations that the driver performs for the machine
//! - [`Machine`]: the state machine, for any number of ports and endpoints
//!
//! Time and input are arguments. Remote endpoints can cause only a bounded amount of memory, sends and log messages, and no panics.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod counters;
mod io;
mod machine;
mod options;
mod port;

pub use counters::Counters;
pub use io::{
    ClientId, Contradiction, Dest, EndpointId, Failure, Forget, Io, Peer, PortId, QuestionId,
    Request, RequestId, Resolved, SaFailure, To, User,
};
pub use machine::{Known, Machine, Row, System};
pub use options::{ClaimPolicy, GroupSpec, Options, RouteProtocol};
pub use port::{Endpoint, Port, PortKind};
pub use rdmux_transport::Time;
