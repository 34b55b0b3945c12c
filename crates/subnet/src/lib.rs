//! An InfiniBand subnet without I/O: switches, cables, and the management agents of every port.
//!
//! A [`Topology`] says which nodes there are and how they are cabled; it is read from a file as
//! `ibnetdiscover` writes it, or made from a [`topology::Shape`]. [`Subnet`] is those nodes at work:
//!
//! ```text
//!   a program's datagram                    for programs of another port, events
//!         |                                                  ^
//!         v                                                  | Sink
//!   Subnet::send -> forward, directed   hop by hop           |
//!                     |  link  switch   states and tables    |
//!                     v                                      |
//!                   receive -> mkey -> sma, pma   the agents answer; what they do not know is delivered
//!                                 |
//!                               traps   what ports tell the manager of their own accord
//! ```
//!
//! Programs reach it through the user MAD device ([`umad`]). One of them may be the subnet manager ([`manager`]), which gives LIDs and
//! writes the forwarding tables; what programs ask of the subnet as a whole is answered by [`administration`], from what the manager
//! knows; [`service`] is both beside each other.
//!
//! Where packets of programs would go by the same tables is asked of [`ways`].
//!
//! Time and input are arguments, and what comes out goes to a [`Sink`]; nothing is allocated for each
//! hop of a datagram. [`Subnet::next_timeout`] says when [`Subnet::handle_timeout`] has something to do.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod administration;
pub mod config;
pub mod counters;
pub mod faults;
pub mod manager;
pub mod operate;
pub mod packet;
pub mod partitions;
pub mod port;
pub mod rmpp;
pub mod service;
pub mod sink;
pub mod subnet;
pub mod topology;
pub mod umad;
pub mod ways;

mod changes;
mod directed;
mod forward;
mod link;
mod mkey;
mod node;
mod pma;
mod ports;
mod receive;
mod sma;
mod switch;
mod traps;

pub use changes::Change;
pub use config::Config;
pub use counters::{Counter, DropReason};
pub use faults::Fault;
pub use node::REVISION as NODE_REVISION;
pub use operate::OperateError;
pub use packet::{MadPacket, NodeId, PortId};
pub use port::PortView;
pub use rdmux_transport::Time;
pub use sink::{PortEvent, Sink};
pub use subnet::Subnet;
pub use topology::Topology;
pub use ways::{Lost, PacketKind, Traffic, Trail, WayFound};
