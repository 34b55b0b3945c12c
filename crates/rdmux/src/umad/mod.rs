//! Management datagrams (MADs): managing an InfiniBand subnet, or querying its manager.
//!
//! A [`Port`] corresponds to an open `/dev/infiniband/umadN`: it has agents, and receives for all of them. It is opened
//! [from a device](Port::open), or from a [`Fabric`] by the name of a node, which may be a switch. An [`Agent`] is
//! registered for a management class. It sends requests, and receives their answers by transaction ID, or an event if
//! no answer arrived after all retries. It also receives the requests of the methods that it has registered. A
//! [`Client`] is for programs that only query: one request, one answer.
//!
//! | type | purpose |
//! |---|---|
//! | [`Fabric`] | the switches, adapters and ports |
//! | [`Port`] | an open management interface: receives, and has a descriptor that polls |
//! | [`Agent`], [`AgentAttr`] | sends, and receives by class and method; RMPP segments and reassembles long messages |
//! | [`Address`], [`Grh`] | destination and source: LID or GID, queue pair, path bits, index of the P_Key |
//! | [`Event`] | a received datagram, or a request without an answer |
//! | [`Client`] | requests that wait for their answers |
//!
//! The contents of datagrams are in [`smp`] and [`sm`] (subnet management), [`sa`] (subnet administration), [`pm`]
//! (performance management) and [`mad`] (the common header).
//!
//! ```
//! use rdmux::umad::sm::{Attribute, NodeInfo};
//! use rdmux::umad::smp::Smp;
//! use rdmux::umad::{Address, AgentAttr, Fabric, Method, MgmtClass};
//!
//! # fn main() -> rdmux::Result<()> {
//! // A fabric of this process's own: two adapters back to back. `Fabric::open` is for one that others use, too.
//! let fabric = Fabric::embedded("two")?;
//! let adapter = &fabric.nodes()?[0].name;
//!
//! // Asks the node behind port 1 who it is. Nobody has given LIDs yet: a directed route leads there.
//! let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
//! let mut client = fabric.port(adapter, 1)?.client(&agent)?;
//! let question = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[1]);
//! let answer = client.ask_smp(&Address::directed(), &question)?;
//! let Some(Attribute::NodeInfo(peer)) = answer.attribute() else { panic!("{answer:?}") };
//! assert_eq!((peer.node_guid, peer.local_port_num), (fabric.nodes()?[1].guid, 1));
//! # Ok(())
//! # }
//! ```

mod agent;
mod client;
mod event;
mod fabric;
mod port;

pub use agent::{Agent, AgentAttr, AgentId, RequestAttr, Tid};
pub use client::Client;
pub use event::{Event, Incoming, Unanswered, Why};
pub use fabric::{Fabric, IsSm, Node};
pub use port::Port;
pub use rdmux_subnet::umad::{UserAddress as Address, UserGrh as Grh};
pub use rdmux_wire::mad::{MadHeader, Method, MgmtClass};
pub use rdmux_wire::{Lid, mad, pm, sa, sm, smp};
