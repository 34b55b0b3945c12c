//! The client side: connects a process to the host service and sends it requests.
//!
//! [`HostClient`] is the connection of a process with a device. It implements [`Control`](rdmux_verbs::control::Control) for the
//! device, and the commands of the connection manager, whose events arrive on an [`EventChannel`]. [`acm`] is queried for paths
//! first. [`admin`] is for commands.

pub mod acm;
pub mod admin;
mod cm;
mod connect;
mod control;
mod hub;
pub mod memory;
mod messages;
mod reports;
mod rpc;

pub use cm::EventChannel;
pub(crate) use connect::connect_socket;
pub use connect::{ConnectOptions, Hold};
pub use control::{HostClient, MadEvent};

/// Checks the environment variables that the client side reads: `$RDMUX_CROSS_MEMORY`, `$RDMUX_HOST_RINGS` and
/// `$RDMUX_PEER_TO_PEER`.
///
/// # Errors
/// The invalid variable, and its valid values.
pub fn check_environment() -> Result<(), String> {
    memory::check_environment()?;
    crate::names::peer_to_peer::of_environment().map(drop).map_err(|e| e.to_string())
}
