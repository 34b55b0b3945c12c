//! The fabric: the process that owns an InfiniBand subnet. Like cables and switches, the subnet belongs to no host.
//!
//! Each name has one fabric. It holds every node of its subnet ([`rdmux_subnet`]), the agents of all ports and the
//! programs' management datagrams ([`rdmux_subnet::umad`]). Hosts attach to its adapters, programs open the management
//! interface of a port, and commands show and change it, all over a Unix socket.
//!
//! - [`proto`]: the protocol on that socket
//! - [`client`]: the side of hosts, programs and commands; starts the fabric on demand
//! - [`routes`]: the routes given by its forwarding tables
//! - [`server`]: the fabric, a single-threaded event loop
//! - [`bridge`]: extends the socket to another machine, over TCP
#![forbid(unsafe_code)]

pub mod bridge;
pub mod client;
mod config;
mod dir;
mod error;
mod name;
mod process_rows;
pub mod proto;
pub mod routes;
pub mod server;

pub use config::Config;
pub use dir::FabricDir;
pub use error::FabricError;
pub use name::{FabricName, InvalidFabricName};
