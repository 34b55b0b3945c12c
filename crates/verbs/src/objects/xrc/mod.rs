//! The requests and records between process and hub, a process's part of domains and targets, and the numbers of objects that
//! belong to no process.

pub(crate) mod ask;
pub(crate) mod numbers;
pub(crate) mod opening;
pub(crate) mod queue;
pub(crate) mod record;
pub mod request;
pub(crate) mod shares;
pub(crate) mod target;
