//! IP over InfiniBand for a port: resolution of IP addresses and membership in groups, without I/O.
//!
//! - [`neighbours`]: the link addresses of IP addresses, by ARP and neighbour discovery (RFC 4391)
//! - [`membership`]: the groups that the port has joined at subnet administration, and their members on the host
//!
//! Time and input are arguments. Output goes to a trait that the driver implements ([`neighbours::Link`],
//! [`membership::Administration`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod membership;
pub mod neighbours;

pub use membership::{Join, Memberships};
pub use neighbours::{Neighbours, Source, To};
pub use rdmux_transport::Time;
