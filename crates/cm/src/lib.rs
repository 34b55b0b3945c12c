//! Connections as state machines without I/O: IB CM, SIDR and the ids that multiplex over them.
//!
//! A program identifies its side of a connection by an *id* (`rdma_cm_id`), which works like a
//! socket: it is bound, it listens or connects, and it reports *events* on an
//! *event channel*. [`Manager`] holds all ids of one host. It does no I/O and reads no clock:
//!
//! ```text
//!   commands: create_id bind resolve_addr connect accept ..        id/
//!        |                                                          |  which id, which port,
//!        v                                                          |  which listener
//!   +---------+   events, datagrams, path queries    +------+      ib/
//!   | Manager | -----------------------------------> | Sink |       |  REQ REP RTU DREQ DREP,
//!   +---------+                                      +------+       |  SIDR, retries, timewait
//!        ^                                                          |
//!        |  handle_mad  handle_timeout  handle_path ..         rdmux_wire::cm, ::mad
//! ```
//!
//! The driver passes in time and input, and implements [`Sink`] for the output. After each call
//! [`Manager::poll_timeout`] returns the latest time at which to call [`Manager::handle_timeout`].
//!
//! The events carry all attributes that a process needs to bring its queue pair up ([`Negotiated`]), so that
//! it modifies its queue pair without querying the service again.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod address;
pub mod config;
pub mod counters;
pub mod error;
pub mod event;
pub mod fields;
pub mod group;
pub mod ib;
pub mod id;
pub mod iw;
pub mod params;
pub mod path;
pub mod ports;
mod rng;
mod services;
pub mod sink;

pub use address::{Addr, IbAddr};
pub use config::Config;
pub use counters::Counters;
pub use error::{CmError, Command};
pub use event::{Event, EventKind, EventParam};
pub use fields::{CmOption, Courtesy, Failover, Redirect, Refusal};
pub use group::{GroupAddr, GroupFault, GroupWish, JoinFlags};
pub use id::{IdInfo, IdState, Manager, StreamListener};
pub use params::{Alternate, ConnParam, Ece, IdOption, Negotiated, PathData, Route, UdParam};
pub use path::{MadPath, Path, PathQuery, Paths, Peer};
pub use ports::PortSpace;
pub use rdmux_transport::{Time, timers};
pub use sink::{
    ChannelId, DevicePort, IdHandle, JoinQuery, LocalAddress, OnlyDevice, Resolved, RouteQuery,
    Sink,
};
