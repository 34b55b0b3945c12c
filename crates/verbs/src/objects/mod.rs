//! The lowest floor: the tables of objects and their entries. Nothing here depends on the device or the engine.
//!
//! In reading order: [`kind`] (the table of kinds of devices), [`port`], [`control`] (requests of the device to the host
//! service), [`error`], [`query`], `limits` and [`quota`]; `pd`, `mr`, `region`, `mw` and `regions` (the table of memory),
//! `memory` and `reach` (access to bytes of this and of other processes), `cached_region`; `qp`, `cq` and `srq` (the parts that
//! events refer to, the engine fills and queue pairs take from); `notify`, `unacked` and `event`, [`counters`], `xrc` (requests
//! to the hub and records of it), and small utilities: `brief` (the lock of queue pairs), `room`, [`throttle`].

pub(crate) mod brief;
pub(crate) mod cached_region;
pub mod control;
pub mod counters;
pub(crate) mod cq;
pub mod error;
pub(crate) mod event;
pub mod kind;
mod limits;
pub(crate) mod memory;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod notify;
pub(crate) mod pd;
pub mod port;
pub(crate) mod qp;
pub mod query;
pub mod quota;
pub(crate) mod reach;
pub(crate) mod region;
pub(crate) mod regions;
pub(crate) mod room;
pub(crate) mod srq;
pub mod throttle;
pub(crate) mod unacked;
pub(crate) mod xrc;
