//! An InfiniBand subnet without I/O: switches, cables and the management agents of every port.
//!
//! A [`Topology`] lists the nodes and their cables. It is read from a file in the format of `ibnetdiscover`, or generated
//! from a [`topology::Shape`]. [`Subnet`] is a running instance of it:
//!
//! ```text
//!   a program's datagram                    for programs of another port, events
//!         |                                                  ^
//!         v                                                  | Sink
//!   Subnet::send -> forward, directed   hop by hop           |
//!                     |  link  switch   states and tables    |
//!                     v                                      |
//!                   receive -> mkey -> sma, pma   the agents answer; other messages are delivered
//!                                 |
//!                               traps   unsolicited notices of ports to the manager
//! ```
//!
//! Programs reach it through the user MAD device ([`umad`]). One of them may be the subnet manager ([`manager`]), which
//! assigns LIDs and writes the forwarding tables. [`administration`] answers programs' queries about the subnet from the
//! manager's model. [`service`] combines the two.
//!
//! [`ways`] determines the routes of programs' data packets from the same tables.
//!
//! Time and input are arguments, and output goes to a [`Sink`]. Forwarding a datagram allocates nothing per hop.
//! [`Subnet::next_timeout`] returns when [`Subnet::handle_timeout`] has work to do.
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
