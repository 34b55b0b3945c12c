//! The software RDMA device in a process: protection domains, memory regions, completion queues,
//! queue pairs, and the engine that drives the transports over the links.
//!
//! Three floors, each of which imports only what is on it or below (`xtask/floors.toml`):
//!
//! - `objects`: the tables of objects, and the values in them: [`control`] (what the device asks of the host service),
//!   [`quota`] (how many objects there may be), regions, counters.
//! - `engine`: sockets and rings in, packets to queue pairs, completions out. Beside it the objects that it drives:
//!   [`device`], [`pd`], [`cq`], [`channel`], [`srq`], [`event`], [`xrc`] (queue pairs that belong to no process).
//! - `handles`: what programs hold: [`mr`], [`mw`], [`qp`].
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as rdmux_verbs;

pub mod channel;
pub mod cq;
pub mod device;
mod engine;
pub mod event;
mod handles;
#[cfg(test)]
#[allow(unsafe_code, reason = "memory of the tests' own")]
#[path = "../tests/lab/mod.rs"]
mod lab;
mod objects;
pub mod pd;
pub mod srq;
pub mod xrc;

pub use channel::CompChannel;
pub use cq::{Cq, CqInit};
pub use device::Device;
pub use engine::capture::{Capture, FrameHeader};
pub use event::{AsyncEvent, AsyncEventKind};
pub use handles::mr::{Advice, Mr, MrChange};
pub use handles::mw::{Mw, MwPart};
pub use handles::qp::{Posting, Qp, QpInit, QpRef};
pub use handles::{mr, mw, qp};
pub use objects::error::VerbsError;
pub use objects::memory::Space;
pub use objects::mr::MrInit;
pub use objects::mw::MwType;
pub use objects::{control, counters, error, query, quota, signals, throttle};
pub use pd::Pd;
pub use srq::{Srq, SrqAttr};
pub use xrc::{Target, TargetRef, Xrcd, XrcdFlags};

pub use rdmux_transport as transport;
pub use rdmux_wire as wire;
