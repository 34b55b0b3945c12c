//! An InfiniBand subnet without I/O: switches, cables, and the management agents of every port.
//!
//! A [`Topology`] says which nodes there are and how they are cabled; it is read from a file as
//! `ibnetdiscover` writes it, or made from a [`topology::Shape`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod packet;
pub mod rmpp;
pub mod sink;
pub mod topology;
pub mod umad;

pub use packet::{MadPacket, NodeId, PortId};
pub use rdmux_transport::Time;
pub use sink::{PortEvent, Sink};
pub use topology::Topology;
