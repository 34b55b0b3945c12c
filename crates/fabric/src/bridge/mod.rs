//! Extends a fabric's socket to another machine, over TCP.
//!
//! The fabric [listens](Server), and a [`Client`] on another machine offers a Unix socket like the fabric's own. It makes a TCP connection
//! for each connection to that socket, and both sides relay the messages unchanged, each after its length. So hosts, programs and commands
//! need not know of it. Descriptors cannot be passed: the bridge has copies of the hosts' route tables (`copies`), and the fabric's side
//! reports to its server the machine of each connection (`machines`).
//!
//! Both sides first prove that they know the same secret (`handshake`). Knowing it gives the rights of the fabric's
//! owner. Messages are neither encrypted nor protected in transit: the network between the machines must be as trusted as the
//! subnet's cables, or a tunnel.

mod client;
mod clients;
mod copies;
mod handshake;
mod machines;
mod pump;
mod secret;
mod server;
mod state;
mod unproved;
mod watch;

pub use client::Client;
pub(crate) use machines::{Machine, Machines, Via};
pub use secret::keep as keep_secret;
pub use server::Server;
