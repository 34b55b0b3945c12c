//! RDMA on any Linux machine: no adapter, no kernel module, no root.
//!
//! The crate has three floors; use the highest that does what you need.
//!
//! 1. [`Connection`], [`Listener`] and [`Datagram`]: messages and one-sided operations between two
//!    programs in a few lines, blocking or (feature `tokio`) async.
//! 2. [`cm`]: connect by address with your own queue pairs, parameters and private data.
//! 3. Verbs: [`Context`], [`Pd`], [`Mr`], [`Cq`], [`Srq`], [`Qp`], [`Ah`], [`Xrcd`], as in `libibverbs`.
//!
//! Beside them, [`resolver`]: names to what connections need; [`acm`]: paths that the host's ACM service knows; and [`umad`]: management datagrams, as in `libibumad`.
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
//! A program's device belongs to a *host*: the default one, with the machine's own addresses, or a
//! virtual one, with a name and a loopback address of its own, so that a single machine has a
//! network. `$RDMUX_HOST` or [`ContextBuilder::host`] choose. The host's service starts with its
//! first program and ends after its last.
//!
//! # What is safe, and why
//!
//! RDMA lets others write your memory at any time. This crate keeps that apart from the language's
//! rules:
//!
//! - A region ([`Mr`]) owns its bytes and lends no reference to them: they are copied in and out,
//!   as the device copies them, outside of the language's memory model. A copy that races with a peer or
//!   another thread is a mixture of old and new; nothing worse follows from it. A completion tells when bytes are whole.
//! - Work requests name memory by key, address and length ([`Sge`], [`RemoteMr`]), values that may
//!   outlive the region. Every access by the device looks the key up in the table of regions and
//!   checks range, rights and protection domain, *each time*. A region that was dropped, or a
//!   number that was invented, gives an error completion on one side or the other, never a use of
//!   freed memory. What a process of this host copies by itself ends before memory is freed; if it is stopped in the middle
//!   and does not go on, the memory is not freed.
//! - [`Pd::register_raw`] registers memory that somebody else owns. It is `unsafe`: the caller
//!   promises what `Mr` otherwise guarantees.
//! - Objects keep alive what they need: a queue pair its completion queues and domain, all of them
//!   the device. An [`Event`](cm::Event) keeps its id; dropping it acknowledges it.
//!
//! # Errors
//!
//! An [`Error`] names the object, what was asked of it, the [`Cause`], and what to do about it. What would have to wait outside a
//! tokio runtime, if its name ends in `_async`, is an error, too.
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

/// The README, whose snippet of Rust is tested as that of any documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
