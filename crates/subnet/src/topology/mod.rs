//! Which nodes a subnet has and how they are cabled.
//!
//! [`Topology`] is the model. [`Topology::parse`] reads the text that `ibnetdiscover` prints and
//! `ibsim` reads, `Display` writes it, and a [`Shape`] makes one of a size.

mod model;
mod parse;
mod rate;
mod scan;
mod shapes;
mod write;

pub use model::{LinkError, Node, NodeKind, Port, PortRef, Topology};
pub use parse::{ParseError, Rule};
pub use rate::{LinkRate, Speed, Width};
pub use shapes::{Shape, ShapeError};

/// The most nodes that a topology has: about as many as there are unicast LIDs.
pub const MAX_NODES: usize = 0xbfff;

/// The most ports of one node, as many as a forwarding table can name.
pub const MAX_PORTS: u8 = 254;

/// The most ports of all nodes together.
pub const MAX_ALL_PORTS: usize = 1 << 21;

/// The longest node description, in bytes.
pub const MAX_DESCRIPTION: usize = 64;

#[cfg(test)]
mod tests;
