//! RoCEv2's carrier: UDP port 4791 (IBTA annex A17).
//!
//! - [`group`]: the service's side, the group of sockets of one address
//! - `steer`: the program that picks a socket by destination QPN
//! - [`holder`]: who has the port when we cannot
//! - [`mcast`]: a socket per joined group
//! - [`offload`]: whether the kernel has what makes this fast
//! - [`port`]: one socket of a group, in the process that uses it
//! - [`tx`]: packets out, gathered into one system call
//! - [`lend`]: pages that the kernel sends from, instead of a copy
//! - [`rx`]: packets in, many per system call
//! - `control`: control messages, and `checksum`: the ICRC over UDP
//!
//! # The IPv4 Identification
//!
//! The ICRC covers it, and a UDP socket neither chooses nor sees it. A socket that is not connected
//! and has `IP_PMTUDISC_DO` sends zero, and i in segment i of a segmented message. So the sender
//! computes with that, and the receiver solves for what it cannot see ([`Arrival::check_icrc`](crate::wire::Arrival::check_icrc)).

pub mod group;
pub mod holder;
pub mod lend;
pub mod mcast;
pub mod offload;
pub mod port;
pub mod rx;
pub mod tx;

pub(crate) mod checksum;
pub(crate) mod control;
mod steer;

pub use checksum::IcrcCheck;
pub use group::{GroupOptions, OpenError, UdpGroup};
pub use holder::{Holder, holder_of};
pub use lend::{Borrower, LendingPool, Loan};
pub use mcast::McastSocket;
pub use offload::Offload;
pub use port::{Destination, UdpPort};
pub use rx::{Datagrams, RxBatch};
pub use steer::{SERVICE_QPNS, SLOT_SHIFT, SLOTS};
pub use tx::{PushError, TxBatch};

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The hop limit that our sockets send with unless told otherwise, so that the usual one need not be
/// told with each packet.
const HOP_LIMIT: u8 = 64;
