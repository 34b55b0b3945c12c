//! ACM: resolution of paths between hosts of an InfiniBand subnet by multicast, and the protocol by
//! which programs query their host's service, as in Linux's ibacm.
//!
//! - [`address`]: names and addresses in fields of 64 bytes, which both protocols use;
//! - [`datagram`]: from service to service, one MAD of a separate class;
//! - [`group`]: the multicast groups to which services send requests;
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

/// The Q_Key of the service's queue pairs and groups, the same as QP1's.
pub const QKEY: Qkey = Qkey::QP1;

/// The management class of datagrams between services, in the range of applications.
pub const MGMT_CLASS: MgmtClass = MgmtClass(0x2c);

/// The version of the management class.
pub const CLASS_VERSION: u8 = 1;

/// The scope of the groups: site-local (RFC 4291 2.7).
pub const SCOPE: u8 = 5;
