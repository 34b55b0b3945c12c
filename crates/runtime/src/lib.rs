//! What the services of a user have in common, whatever they serve: hosts and fabrics are built on this.
//!
//! - [`UserDir`]: where a user's services live in the file system, for each network namespace
//! - [`ServiceDir`]: the directory of one service, with its socket, its locks and its log
//! - [`Listener`]: the socket that clients connect to, made of [`listen_at`] and an [`Acceptor`], and [`connect`], their side; [`wait_for_end`] waits until it is gone
//! - [`start`]: a service as a process of its own, started by the client that needs it
//! - [`poller`]: what an event loop waits for
//! - [`closing`]: descriptors that clients pass are closed where nobody waits
//! - [`Shares`]: how much of what a service has the processes of one user may have
//! - [`socket`]: messages and descriptors over Unix sockets
//! - [`file`](mod@file): files that are replaced as a whole
#![forbid(unsafe_code)]

mod address;
pub mod closing;
pub mod connect;
mod end;
mod error;
pub mod file;
mod listener;
mod lock_holder;
pub mod name;
mod network;
pub mod poller;
mod service_dir;
mod shares;
pub mod socket;
pub mod start;
mod user_dir;

pub use address::unix_address;
pub use end::wait_for_end;
pub use error::{DirectoryError, process};
pub use listener::{Acceptor, Listener, listen_at};
pub use lock_holder::holder_of;
pub use network::NetworkNamespace;
pub use service_dir::ServiceDir;
pub use shares::{Exceeded, Share, Shares};
pub use user_dir::UserDir;
