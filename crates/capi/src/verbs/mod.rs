//! libibverbs.
//!
//! In reading order: `objects` and `device` (the objects behind C pointers), `process` (singletons, and forks), `devices` (the
//! list), `context` (open, close, the table of functions), `query`; then the objects created from a context: `pd`, `mr`, `channel`,
//! `cq`, `srq`, `qp`, `xrc`, `ah`; then work: `post` with `inline`, `poll`, `event`. `attr` converts attributes and `wait` waits.
//! `names`, `rate`, `fork`, `sysfs` and `marshall` are small helpers, `ext` is the extended interface.

pub(crate) mod ah;
pub(crate) mod attr;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod devices;
pub(crate) mod event;
pub(crate) mod ext;
pub(crate) mod fork;
mod inline;
pub(crate) mod marshall;
pub(crate) mod mr;
pub(crate) mod names;
pub(crate) mod objects;
pub(crate) mod pd;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod process;
pub(crate) mod qp;
pub(crate) mod query;
pub(crate) mod rate;
pub(crate) mod srq;
pub(crate) mod sysfs;
mod vectors;
mod wait;
pub(crate) mod xrc;
