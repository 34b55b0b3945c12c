//! The client side of an ACM service, `ib_acm`: ours, or the ibacm of rdma-core.
//!
//! - [`Places`]: where the service's files are, for it and for its clients; [`Target`]: which service is meant
//! - [`Client`]: blocking calls with a deadline, from any number of threads
//! - [`Requests`]: any number of requests at a time, and a descriptor that tells when one is answered
//! - [`Shared`]: what the service has cached, read from shared memory without a message; [`Offer`] is the service's side of that, and [`Users`] says whom it serves
//!
//! # What a service can do to a client
//!
//! It may hang, die, restart, close early, or send half a message or another one. Every call has a deadline that holds whatever the service does,
//! no write raises SIGPIPE, and after a restart the next request connects again. A Unix socket is used only if root, this user, or the owner of the directory
//! that it is in listens there.
//!
//! # Both kinds of services
//!
//! ibacm takes what one receive call gives for one request, so two requests on a connection may be lost in each other. A connection has a second
//! request only where the service offers its cache ([`Places::paths`]), which ibacm does not.
#![forbid(unsafe_code)]

mod client;
mod connection;
mod error;
mod places;
mod reply;
mod requests;
mod shared;
mod socket;
mod target;
mod users;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use error::Error;
pub use places::{Address, Places};
pub use reply::{Endpoint, Reply};
pub use requests::{RequestId, Requests};
pub use shared::{Offer, Shared};
pub use target::Target;
pub use users::Users;

use std::time::Duration;

/// How long a resolution may take by default: longer than three tries of ibacm's, two seconds each, and subnet timeouts.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
