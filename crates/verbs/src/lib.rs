//! The software RDMA device in a process: protection domains, memory regions, completion queues,
//! queue pairs, and the engine that drives the transports over the links.
//!
//! In reading order: [`control`] (what the device asks of the host service), [`device`] (opening,
//! queries), [`pd`], [`mr`], [`mw`], [`cq`], [`channel`], [`srq`], [`qp`], [`event`] (the objects of
//! `libibverbs`), [`quota`] (how many of them there may be), [`xrc`] (queue pairs that belong to no process), and `engine`
//! (sockets and rings in, packets to queue pairs, completions out).
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as rdmux_verbs;

pub mod channel;
pub mod cq;
pub mod device;
mod engine;
pub mod event;
#[cfg(test)]
#[allow(unsafe_code, reason = "memory of the tests' own")]
#[path = "../tests/lab/mod.rs"]
mod lab;
pub mod mr;
pub mod mw;
mod objects;
pub mod pd;
pub mod qp;
pub mod srq;
pub mod xrc;

pub use channel::CompChannel;
pub use cq::{Cq, CqInit};
pub use device::Device;
pub use engine::capture::{Capture, FrameHeader};
pub use event::{AsyncEvent, AsyncEventKind};
pub use mr::{Advice, Mr, MrChange};
pub use mw::{Mw, MwPart};
pub use objects::error::VerbsError;
pub use objects::memory::Space;
pub use objects::mr::MrInit;
pub use objects::mw::MwType;
pub use objects::{control, counters, error, query, quota, signals, throttle};
pub use pd::Pd;
pub use qp::{Posting, Qp, QpInit, QpRef};
pub use srq::{Srq, SrqAttr};
pub use xrc::{Target, TargetRef, Xrcd, XrcdFlags};

pub use rdmux_transport as transport;
pub use rdmux_wire as wire;
