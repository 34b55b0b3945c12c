//! What a host does on an InfiniBand port so that IP addresses and groups mean something there, without I/O.
//!
//! - [`neighbours`]: which port has an IP address, by ARP and neighbour discovery (RFC 4391)
//! - [`membership`]: the groups that the port is a member of at subnet administration, and for whom
//!
//! Time and input are arguments. What comes out goes to a trait that the driver implements ([`neighbours::Link`],
//! [`membership::Administration`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod membership;
pub mod neighbours;

pub use membership::{Join, Memberships};
pub use neighbours::{Neighbours, Source, To};
pub use rdmux_transport::Time;
