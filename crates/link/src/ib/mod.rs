//! InfiniBand packets over UDP: the transport of data between the ports of an InfiniBand subnet whose switches are simulated by
//! tables.
//!
//! The sender looks up where a packet would leave the subnet ([`routes`](crate::routes)), and sends it directly to the socket of
//! the process that has the destination queue pair. No third process is involved.
//!
//! - [`encap`]: the header before a packet, or a part of one, in a datagram
//! - [`reassembly`]: reassembly of packets from their parts, without I/O
//! - [`Routes`]: the current table, the port's GIDs, and counters
//! - `batch`: sending of datagrams, several in one system call; [`Sender`]: checks of packets to send, and their destinations
//! - `receiver`: admission of received packets
//! - [`multicast`]: one datagram for all members of a group that are on this machine
//! - [`SentCounts`]: counts of packets for the ports on their path
//! - [`KeyViolation`]: packets with wrong keys, which are reported to the subnet manager
//! - [`Outlet`]: a destination of datagrams, such as a socket
//! - [`IbWire`]: all of it as a wire; [`BareWire`]: the same without a socket
//! - [`RouteGuard`]: the same checks for packets that are sent by a ring
//!
//! # Loss
//!
//! A packet that has no route, or that a switch or a port on its path would drop, is dropped and counted by reason
//! ([`IbDrop`]). To the queue pair it is lost, as on a cable.

mod bare;
mod batch;
mod counting;
pub mod drops;
pub mod encap;
mod guard;
pub mod multicast;
mod outlet;
pub mod reassembly;
mod receiver;
mod sender;
mod state;
mod violations;
mod wire;

pub use self::bare::BareWire;
pub use self::counting::{CountBy, SentCounts, SentKind, WayChanged};
pub use self::drops::IbDrop;
pub use self::encap::Encap;
pub use self::guard::RouteGuard;
pub use self::outlet::{Name, Outlet};
pub use self::reassembly::Reassembly;
pub use self::sender::Sender;
pub use self::state::Routes;
pub use self::violations::{KeyViolation, Violated};
pub use self::wire::IbWire;

#[cfg(test)]
mod tests;
