//! The common base of a user's services: hosts and fabrics are built on it.
//!
//! - [`UserDir`]: the location of a user's services in the file system, for each network namespace
//! - [`ServiceDir`]: the directory of one service, with its socket, its locks and its log
//! - [`Lock`]: a lock on a file, released when it is dropped
//! - [`Listener`]: the socket that clients connect to, built from [`listen_at`] and an
//!   [`Acceptor`]; [`connect`], the client's side; [`wait_for_end`], which waits until it is closed
//! - [`start`]: a service as a process of its own, started by the client that needs it
//! - [`poller`]: the event sources of an event loop
//! - [`closing`]: closes descriptors that clients pass, in a thread, since close(2) may block
//! - [`Shares`]: limits on the part of a service's resources that the processes of one user may
//!   have
//! - [`socket`]: messages and descriptors over Unix sockets
//! - [`environment`]: variables that name programs, folders and files
//! - [`file`](mod@file): atomic replacement of files
#![forbid(unsafe_code)]

mod address;
pub mod closing;
pub mod connect;
mod end;
pub mod environment;
mod error;
pub mod file;
mod listener;
mod lock;
mod lock_holder;
pub mod name;
mod network;
pub mod poller;
mod retry;
mod service_dir;
mod shares;
pub mod socket;
pub mod start;
mod user_dir;

pub use address::unix_address;
pub use end::wait_for_end;
pub use error::{DirectoryError, process};
pub use listener::{Acceptor, Listener, listen_at};
pub use lock::Lock;
pub use lock_holder::holder_of;
pub use network::NetworkNamespace;
pub use service_dir::ServiceDir;
pub use shares::{Exceeded, Share, Shares};
pub use user_dir::UserDir;
