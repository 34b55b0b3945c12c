//! What process and hub say to each other, what a process has of domains and targets, and the numbers of what belongs to no
//! process.

pub(crate) mod ask;
pub(crate) mod numbers;
pub(crate) mod opening;
pub(crate) mod queue;
pub(crate) mod record;
pub mod request;
pub(crate) mod target;
