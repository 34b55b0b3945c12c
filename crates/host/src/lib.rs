//! The host service, which does the kernel's part of RDMA.
//!
//! One service runs for each (virtual) host. It owns everything that must be unique or must outlive
//! a process: addresses and the sockets of UDP port 4791, QP number slots, the general services
//! interface (QP1), all connection manager ids and their events, multicast membership, and the
//! rings between processes. Processes send it requests over a Unix socket.
//!
//! - [`names`]: host names, runtime directory, address registry, configuration
//! - [`proto`]: the protocol between service and processes
//! - [`service`]: the service, a single-threaded event loop
//! - [`client`]: the client side; starts the service on demand
//! - [`resolver`]: resolves names to addresses and paths
//! - [`view`]: the files that programs find under `/sys` and `/dev`
#![forbid(unsafe_code)]

pub mod client;
mod error;
pub mod names;
pub mod proto;
pub mod resolver;
pub mod service;
pub mod view;

pub use client::{ConnectOptions, EventChannel, HostClient};
pub use error::HostError;
pub use names::{
    Config, DeviceChoice, HostDir, HostName, NetworkNamespace, NodeGuid, Registry, RegistryEntry,
    RuntimeDir, ServiceKey,
};
pub use proto::DeviceRow;
