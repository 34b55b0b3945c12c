//! The software RDMA device in a process: protection domains, memory regions, completion queues,
//! queue pairs, and the engine that drives the transports over the links.
//!
//! Three floors, each of which imports only from itself and lower ones (`xtask/floors.toml`):
//!
//! - `objects`: the tables of objects and their entries: [`kind`] (the kinds of devices), [`port`] (the attributes of a port),
//!   [`control`] (requests of the device to the host service), [`quota`] (limits on the number of objects), regions, completion
//!   queues, shared receive queues, counters.
//! - `engine`: sockets and rings in, packets to queue pairs, completions out.
//! - `handles`: the program's handles: [`device`], [`pd`], [`mr`], [`mw`], [`cq`], [`channel`], [`srq`], [`qp`], [`event`],
//!   [`xrc`] (queue pairs that belong to no process).
#![deny(unsafe_code)]

#[cfg(test)]
extern crate self as rdmux_verbs;

mod engine;
mod handles;
#[cfg(test)]
#[allow(unsafe_code, reason = "memory of the tests' own")]
#[path = "../tests/lab/mod.rs"]
mod lab;
mod objects;

pub use engine::capture::Capture;
pub use engine::check_environment;
pub use handles::channel::CompChannel;
pub use handles::cq::{Cq, CqInit};
pub use handles::device::Device;
pub use handles::event::{AsyncEvent, AsyncEventKind};
pub use handles::mr::{Advice, Mr, MrChange};
pub use handles::mw::{Mw, MwPart};
pub use handles::pd::Pd;
pub use handles::qp::{Posting, Qp, QpInit};
pub use handles::refs::{CqRef, QpRef, SrqRef, TargetRef};
pub use handles::srq::{Srq, SrqAttr};
pub use handles::xrc::{Target, Xrcd, XrcdFlags};
pub use handles::{channel, cq, device, event, mr, mw, pd, qp, srq, xrc};
pub use objects::error::VerbsError;
pub use objects::memory::Space;
pub use objects::mr::MrInit;
pub use objects::mw::MwType;
pub use objects::{control, counters, error, kind, port, query, quota, throttle};

pub use rdmux_link::signals;
pub use rdmux_transport as transport;
pub use rdmux_wire as wire;
