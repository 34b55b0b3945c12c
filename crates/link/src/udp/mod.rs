//! The transport of RoCEv2: UDP port 4791 (IBTA annex A17).
//!
//! - [`group`]: the service's side, the group of sockets of one address
//! - `steer`: the BPF program that selects a socket by destination QPN
//! - [`holder`]: the process that holds the port if it cannot be opened
//! - [`mcast`]: a socket per joined group
//! - [`offload`]: whether the kernel has segmentation and receive offload
//! - [`port`]: one socket of a group, in the process that uses it
//! - [`tx`]: sending, with packets gathered into one system call
//! - [`zerocopy`]: zero-copy transmission
//! - [`rx`]: receiving, with many packets per system call
//! - `refusals`: destinations to which the kernel refuses a kind of sending
//! - `control`: control messages, and `checksum`: the ICRC over UDP
//!
//! # The IPv4 Identification
//!
//! The ICRC covers this field, which a UDP socket can neither set nor read. A socket that is not connected and has `IP_PMTUDISC_DO` sends
//! zero, and i in segment i of a segmented message. So the sender computes with that value, and the receiver solves for the value
//! that it cannot see ([`Arrival::check_icrc`](crate::wire::Arrival::check_icrc)).

pub mod group;
pub mod holder;
pub mod mcast;
pub mod offload;
pub mod port;
pub mod rx;
pub mod tx;
pub mod zerocopy;

pub(crate) mod checksum;
pub(crate) mod control;
mod refusals;
mod steer;

pub use checksum::IcrcCheck;
pub use group::{GroupOptions, OpenError, UdpGroup};
pub use holder::{Holder, holder_of};
pub use mcast::McastSocket;
pub use offload::Offload;
pub use port::{Destination, UdpPort};
pub use rx::{Datagrams, RxBatch};
pub use steer::{SERVICE_QPNS, SLOT_SHIFT, SLOTS};
pub use tx::{PushError, TxBatch};
pub use zerocopy::{ZeroCopyBuf, ZeroCopyDest, ZeroCopyPool};

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The default hop limit of this crate's sockets, so that the usual value need not be passed with each packet.
const HOP_LIMIT: u8 = 64;
