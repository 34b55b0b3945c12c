//! The client side of an ACM service, `ib_acm`: ours, or the ibacm of rdma-core.
//!
//! - [`Places`]: where the service's files are, for it and for its clients
#![forbid(unsafe_code)]

mod places;

pub use places::{Address, Places};
