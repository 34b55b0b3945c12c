//! The files of an ACM service: ibacm's, as they are, with options of our own.
//!
//! - [`options`]: `ibacm_opts.cfg`, what the service can be told
//! - [`addresses`]: `ibacm_addr.cfg`, which names and addresses endpoints have
//! - [`routes`] and [`hosts`]: what a cache can be filled with before anybody asks
//!
//! Each is parsed from what the caller gives, and has a [`Report`] of every problem with its line. Nothing is fatal: as with ibacm, a
//! line that is wrong is as if it were not there. [`open`] opens files, and refuses those that others could have written.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod hosts;
mod lines;
pub mod open;
pub mod options;
mod problem;
pub mod routes;

pub use options::Options;
pub use problem::{MAX_PROBLEMS, Problem, Report, Severity};
