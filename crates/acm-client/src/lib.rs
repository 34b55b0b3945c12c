//! The client side of an ACM service, `ib_acm`: rdmux's, or the ibacm of rdma-core.
//!
//! - [`Places`]: the locations of the service's files, for it and for its clients; [`Target`]: the service to use
//! - [`Client`]: blocking calls with a deadline, from any number of threads
//! - [`Requests`]: any number of concurrent requests, with a descriptor that is readable when one is answered
//! - [`Shared`]: the service's cache in shared memory, read without a message; [`Offer`] is the service's side of it, and [`Users`] the
//!   users that it serves
//!
//! # Effects of a service on a client
//!
//! A service may hang, die, restart, close early, or send a partial or wrong message. Every call has a deadline that holds in all these
//! cases, no write raises SIGPIPE, and after a restart the next request connects again. A Unix socket, or the TCP port in a service's
//! file, is used only if its listener is root, this user, or the owner of the file's directory. The port is used only if the Unix socket
//! cannot be.
//!
//! # Both kinds of services
//!
//! ibacm treats the result of one receive call as one request, so if a connection carries two, one may be lost. A connection carries
//! several requests only if the service offers its cache ([`Places::paths`]), which ibacm does not.
#![forbid(unsafe_code)]

mod client;
mod connection;
mod error;
mod listener;
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

/// The default timeout of a resolution: longer than three attempts of ibacm, of two seconds each plus subnet timeouts.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
