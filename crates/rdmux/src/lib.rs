//! RDMA on any Linux machine: no adapter, no kernel module, no root.
//!
//! The crate has three levels of API; use the highest that meets your needs.
//!
//! 1. [`Connection`], [`Listener`] and [`Datagram`]: messages and one-sided operations between two
//!    programs in a few lines, blocking or (feature `tokio`) async.
//! 2. [`cm`]: connect by address with your own queue pairs, parameters and private data.
//! 3. Verbs: [`Context`], [`Pd`], [`Mr`], [`Cq`], [`Srq`], [`Qp`], [`Ah`], [`Xrcd`], as in `libibverbs`.
//!
//! Besides these: [`resolver`] resolves names to all that a connection needs, [`acm`] looks up paths in the host's ACM service, and
//! [`umad`] exchanges management datagrams, as in `libibumad`.
//!
//! ```
//! # fn main() -> rdmux::Result<()> {
//! # let context = rdmux::Context::builder().embedded().open()?;
//! # let options = || rdmux::Options::new().context(&context);
//! let mut listener = options().bind((context.address()?, 0).into())?;
//! let address = listener.local_addr();
//! let server = std::thread::spawn(move || {
//!     let mut peer = listener.accept()?;
//!     while let Some(message) = peer.recv()? {
//!         peer.send(&message)?;
//!     }
//!     rdmux::Result::Ok(())
//! });
//!
//! let mut connection = options().connect(address)?;
//! connection.send(b"hello")?;
//! assert_eq!(connection.recv()?.as_deref(), Some(&b"hello"[..]));
//! connection.close()?;
//! server.join().unwrap()
//! # }
//! ```
//!
//! # Hosts
//!
//! A program's device belongs to a *host*: either the default host, which has the machine's own addresses, or a
//! virtual host, which has a name and its own loopback address. Virtual hosts give a single machine a network.
//! `$RDMUX_HOST` or [`ContextBuilder::host`] selects the host. Its service starts with the first program and exits
//! after the last.
//!
//! # What is safe, and why
//!
//! RDMA lets others write your memory at any time. This crate keeps such memory outside of Rust's rules for
//! references:
//!
//! - A region ([`Mr`]) owns its bytes and hands out no reference to them. Bytes are copied in and out, as the device
//!   copies them, outside of the language's memory model. A copy that races with a peer or another thread yields a
//!   mixture of old and new bytes and has no worse effect. A completion shows that the bytes of its transfer are complete.
//! - Work requests name memory by key, address and length ([`Sge`], [`RemoteMr`]). These are plain values that may outlive
//!   the region. On *each* access, the device looks the key up in the table of regions and checks range, rights and
//!   protection domain. A key of a dropped region, or one that never existed, causes an error completion on one side or the other,
//!   never a use of freed memory. Copies that a process of this host performs by itself finish before the memory is freed.
//!   If that process is stopped during a copy and does not resume, the memory is leaked instead.
//! - [`Pd::register_raw`] registers memory that is owned elsewhere. It is `unsafe`: the caller promises what `Mr`
//!   otherwise guarantees.
//! - Objects keep alive what they need: a queue pair keeps its completion queues and domain, and all of them keep the
//!   device. An [`Event`](cm::Event) keeps its id; dropping it acknowledges it.
//!
//! # Errors
//!
//! An [`Error`] names the object, the operation, the [`Cause`], and a remedy. Outside a tokio runtime, a function whose name ends
//! in `_async` returns an error instead of waiting. The runtime must be built with `enable_all`: tokio panics where its I/O or its
//! timers are not enabled.
#![deny(unsafe_code)]

pub mod acm;
mod ah;
pub mod cm;
mod context;
mod cq;
mod embedded;
mod error;
mod event;
mod manual;
mod memory;
mod net;
mod qp;
pub mod resolver;
mod srq;
mod style;
pub mod umad;
mod wait;
mod wr;
mod xrc;

pub use ah::Ah;
pub use context::{Context, ContextBuilder, DeviceAttr, PortAttr};
pub use cq::{Cq, EMPTY, ok};
pub use error::{Cause, Error, Result, reject_reason, sidr_status, wc_status};
pub use event::AsyncEvent;
pub use memory::{Mr, Pd, RemoteMr};
pub use net::{Connection, Datagram, Listener, Options, Peer, Receiver, Sender};
pub use qp::{Endpoint, Qp, QpBuilder};
pub use rdmux_host::DeviceChoice;
pub use rdmux_transport::attr::{
    Access, AddressVector, AttrMask, MigState, QpAttr, QpCaps, QpState, QpType,
};
pub use rdmux_transport::env::QpEvent;
pub use rdmux_transport::wr::{Completion, Sge, WcFlags, WcOpcode, WcStatus};
pub use rdmux_verbs::control::{DeviceKind, Limits};
pub use rdmux_verbs::port::{GidEntry, PortState};
pub use rdmux_wire::{AckTimeout, Gid, Guid, Lid, Lkey, Mtu, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer};
pub use srq::Srq;
pub use wr::SendWr;
pub use xrc::{XrcTarget, Xrcd, XrcdFlags};

/// The README, whose Rust snippet is tested like a documentation example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
