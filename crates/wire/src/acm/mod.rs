//! ACM: how hosts of an InfiniBand subnet find each other's paths by multicast, and how programs ask their host's service,
//! as Linux's ibacm has it.
//!
//! - [`address`]: names and addresses in fields of 64 bytes, which both protocols have;
//! - [`datagram`]: from service to service, one MAD of a class of its own;
//! - [`group`]: the multicast groups by which services ask;
//! - [`client`]: from program to service, over a stream socket of the host.
//!
//! ```
//! # use rdmux_wire::acm::{Address, Datagram, Group, Request};
//! # use rdmux_wire::{Mtu, Pkey, sa::Rate};
//! let lowest = Group { pkey: Pkey::DEFAULT, tos: 0, rate: Rate::GBPS_10, mtu: Mtu::M2048 };
//! let question = Datagram::Request(Request {
//!     tid: 7,
//!     source: Address::name("node1").expect("short enough"),
//!     dest: Address::name("node2").expect("short enough"),
//!     groups: [lowest.gid()].into_iter().collect(),
//! });
//! assert_eq!(Datagram::parse(&question.to_bytes())?, question);
//! # Ok::<(), rdmux_wire::WireError>(())
//! ```

pub mod address;
pub mod client;
pub mod datagram;
pub mod group;

pub use address::{ADDRESS_LEN, Address, AddressType, Name};
pub use datagram::{Datagram, Groups, MAX_GROUPS, Request, Response};
pub use group::Group;

use crate::Qkey;
use crate::mad::MgmtClass;

/// The Q_Key of the service's queue pairs and groups, which is that of QP1.
pub const QKEY: Qkey = Qkey::QP1;

/// The management class of datagrams between services: in the range of vendors' classes.
pub const MGMT_CLASS: MgmtClass = MgmtClass(0x2c);

/// The version of that class.
pub const CLASS_VERSION: u8 = 1;

/// The scope of the groups: site-local (RFC 4291 2.7).
pub const SCOPE: u8 = 5;
