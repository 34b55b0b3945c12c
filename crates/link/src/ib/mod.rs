//! InfiniBand packets over UDP: what carries data between the ports of an InfiniBand subnet whose switches are tables.
//!
//! The sender looks up where a packet would come out of the subnet ([`routes`](crate::routes)) and sends it there itself, to
//! the socket of the process that has the destination queue pair. No third process touches it.
//!
//! - [`encap`]: the header before a packet, or a part of one, in a datagram
//! - [`reassembly`]: packets from their parts, without I/O
//! - [`Routes`]: the table that holds now, the port's GIDs, and counters
//! - `batch`: datagrams out, several in one system call; [`Sender`]: which packets leave, and where to
//! - `receiver`: which packets are let in
//! - [`multicast`]: one datagram for all members of a group that are on this machine
//! - [`SentCounts`]: what is counted for the ports on the way
//! - [`KeyViolation`]: packets with wrong keys, of which the subnet's manager is told
//! - [`Outlet`]: what takes datagrams, a socket for example
//! - [`IbWire`]: all of it as a wire; [`BareWire`]: the same without a socket
//! - [`RouteGuard`]: what of it holds for packets that go by a ring
//!
//! # What is lost
//!
//! A packet for which there is no way, or which a switch or a port on the way would drop, is dropped and counted by its
//! reason ([`IbDrop`]). To the queue pair it is lost, as on cables.

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
