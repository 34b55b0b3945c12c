//! The nodes of a subnet and their cables.
//!
//! [`Topology`] is the model. [`Topology::parse`] reads the text that `ibnetdiscover` prints and `ibsim` reads, `Display`
//! writes it, and [`Shape`] generates topologies of a given size.

mod commands;
mod error;
mod finish;
mod model;
mod names;
mod nodes;
mod parse;
mod rate;
mod scan;
mod shapes;
mod write;

pub use error::{ParseError, Place, Rule};
pub use model::{LinkError, Node, NodeKind, Port, PortRef, Topology};
pub use parse::Included;
pub use rate::{LinkRate, Speed, Width};
pub use shapes::{Shape, ShapeError};

/// The most nodes that a topology has: about as many as there are unicast LIDs.
pub const MAX_NODES: usize = 0xbfff;

/// The most ports of one node, the limit of a forwarding table.
pub const MAX_PORTS: u8 = 254;

/// The most ports of all nodes together.
pub const MAX_ALL_PORTS: usize = 1 << 21;

/// The longest node description, in bytes.
pub const MAX_DESCRIPTION: usize = 64;

/// How deep files may include others; the same as in ibsim.
pub const MAX_DEPTH: usize = 8;

/// How many files a topology may include, counting each inclusion.
pub const MAX_FILES: usize = 4096;

/// The most bytes of a text with all files that it includes.
pub const MAX_TEXT: usize = 64 << 20;

#[cfg(test)]
mod ibsim_tests;
#[cfg(test)]
mod tests;
