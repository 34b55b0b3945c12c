//! The fabric: the process that owns an InfiniBand subnet, as cables and switches would be owned by nobody's host.
//!
//! One fabric runs for each name. It holds every node of its subnet ([`rdmux_subnet`]), the agents of all ports and the
//! programs' management datagrams ([`rdmux_subnet::umad`]). Hosts attach to its adapters, programs open the management
//! interface of a port, and commands look at it and change it, all over a Unix socket.
//!
//! - [`proto`]: what is said on that socket
//! - [`client`]: the side of hosts, programs and commands; starts the fabric on demand
//! - [`routes`]: the ways that its forwarding tables make
//! - [`server`]: the fabric, a single-threaded event loop
//! - [`bridge`]: the same socket on another machine, by TCP
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
