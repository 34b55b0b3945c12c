//! What process and hub say to each other, and the numbers of what belongs to no process.

pub(crate) mod ask;
pub(crate) mod numbers;
pub(crate) mod record;
pub mod request;
