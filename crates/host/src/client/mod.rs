//! A process's side: reaching the host service, and asking it.
//!
//! [`HostClient`] is the connection of one process that has a device. It implements
//! [`Control`](rdmux_verbs::control::Control) for the device, and the commands of the connection
//! manager. [`EventChannel`] is where the answers to those come. [`acm`] is whom it asks for paths first. [`admin`] is for commands.

pub mod acm;
pub mod admin;
mod cm;
mod connect;
mod control;
mod hub;
pub mod memory;
mod messages;
mod rpc;

pub use cm::EventChannel;
pub(crate) use connect::connect_socket;
pub use connect::{ConnectOptions, Hold};
pub use control::{HostClient, MadEvent};
