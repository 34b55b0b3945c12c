//! A fabric's socket on another machine, by TCP.
//!
//! The fabric [listens](Server), and a [`Client`] on another machine offers a Unix socket like the fabric's own. For each
//! connection to that one it makes a TCP connection, and both sides carry messages from one to the other, as they are,
//! each behind its length. So hosts, programs and commands know nothing of this. Descriptors do not pass: the bridge has copies of the hosts' route
//! tables (`copies`), and the fabric's side tells its server from which machine a connection comes (`machines`).
//!
//! Both sides show that they know the same secret before anything else is said (`handshake`). Who knows it may do what
//! the fabric's owner may. Messages are neither encrypted nor protected on their way: the network between the machines
//! must be one that the subnet's cables could run through, or a tunnel.

mod client;
mod clients;
mod copies;
mod handshake;
mod machines;
mod pump;
mod secret;
mod server;
mod state;
mod watch;

pub use client::Client;
pub(crate) use machines::{Machine, Machines, Via};
pub use secret::keep as keep_secret;
pub use server::Server;
