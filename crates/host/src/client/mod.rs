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

/// Whether what a process's side reads of the environment makes sense: `$RDMUX_CROSS_MEMORY`, `$RDMUX_HOST_RINGS` and
/// `$RDMUX_PEER_TO_PEER`.
///
/// # Errors
/// Which variable does not, and what it may be.
pub fn check_environment() -> Result<(), String> {
    memory::check_environment()?;
    crate::names::peer_to_peer::of_environment().map(drop).map_err(|e| e.to_string())
}
