//! Encoding and decoding of every header, checksum and management datagram that rdmux uses.
//!
//! One file per header, in the order of a packet:
//!
//! - the link and the network: [`ether`], [`ip`], [`udp`] and [`tcp`], or InfiniBand's [`lrh`] and [`grh`];
//! - the transport: [`bth`], then [`deth`], [`xrceth`], [`reth`], [`atomic`], [`aeth`], [`immdt`] and
//!   [`ieth`]; [`opcode`] is the table of which of them follow, [`packet`] combines them, and [`ib_packet`]
//!   adds the headers of an InfiniBand subnet;
//! - the checksums: [`icrc`] and [`vcrc`], over [`crc`];
//! - iWARP, which is RDMA over TCP streams: [`iwarp`];
//! - management datagrams: [`mad`], [`rmpp`] for messages of several, the connection manager's messages in [`cm`],
//!   subnet management in [`smp`] with its attributes in [`sm`], performance management in [`pm`], subnet administration
//!   in [`sa`], and [`class_port_info`], which those two share; [`layout`] makes types from tables of fields;
//! - the resolution of paths by multicast, and the protocol by which programs query them: [`acm`].
//!
//! Every `parse` accepts untrusted bytes: it returns an error, and never panics. Every `emit`
//! writes bytes from which `parse` gives the same value. Nothing here allocates or does I/O.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

#[macro_use]
mod bytes;

pub mod acm;
pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod class_port_info;
pub mod cm;
pub mod crc;
pub mod deth;
pub mod error;
pub mod ether;
pub mod grh;
pub mod ib_packet;
pub mod icrc;
pub mod ieth;
pub mod immdt;
pub mod ip;
pub mod ipoib;
pub mod iwarp;
pub mod layout;
pub mod lrh;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod pm;
pub mod reth;
pub mod rmpp;
pub mod sa;
pub mod sm;
pub mod smp;
pub mod tcp;
pub mod types;
pub mod udp;
pub mod vcrc;
pub mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use error::WireError;
pub use grh::Grh;
pub use ib_packet::IbPacket;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use lrh::Lrh;
pub use mad::MadHeader;
pub use opcode::{OpKind, Opcode, Operation, Service};
pub use packet::{HeaderBuf, MAX_HEADER, Packet};
pub use reth::Reth;
pub use rmpp::{Rmpp, RmppFlags, RmppStatus, RmppType};
pub use types::{
    AckTimeout, Gid, Guid, Lid, Lkey, Mkey, Mtu, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer, ServiceId,
    SmKey, Stag,
};
pub use xrceth::XrcEth;
