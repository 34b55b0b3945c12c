//! Extended reliable connections (IBTA annex A14): one connection that reaches the shared receive
//! queues of many processes.
//!
//! The receive queue pair, *target* for short, belongs to no process. It lives in the host service's *hub*, a device of the
//! service's own, and is destroyed when no process holds it any more. Each request names a shared receive queue, which determines
//! the destination process and protection domain:
//!
//! ```text
//! sender ──packets──▶ hub: target's machine ──records, by a ring──▶ process: memory, completion queue
//!                      ▲ takes receives from a ring per shared receive queue ──┘
//! ```
//!
//! In reading order: [`request`] has the requests of a process to the hub; [`domain`], [`target`] and `objects::xrc` are the
//! objects in a process, `engine::xrc` what the engine does with the hub's records; [`hub`] keeps everything, with `registry`
//! (which process holds which object).

pub mod domain;
pub mod hub;
mod registry;
pub mod target;

pub use crate::handles::refs::TargetRef;
pub use crate::objects::xrc::request;
pub use crate::objects::xrc::request::{Hold, XrcReply, XrcRequest};
pub use domain::{Xrcd, XrcdFlags};
pub use target::Target;
