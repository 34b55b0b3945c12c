//! The files of an ACM service: those of ibacm, with additional options.
//!
//! - [`options`]: `ibacm_opts.cfg`, the service's options
//! - [`addresses`]: `ibacm_addr.cfg`, the names and addresses of endpoints
//! - [`routes`] and [`hosts`]: paths and addresses to preload into the caches
//! - [`names`]: the default names of ports, if no file assigns names
//!
//! Each parser reads from the caller's input, and returns a [`Report`] of every problem with its line. No problem is fatal: as in
//! ibacm, an invalid line is ignored. [`open`] opens files, and refuses those that other users could have written.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod hosts;
mod lines;
pub mod names;
pub mod open;
pub mod options;
mod problem;
pub mod routes;

pub use options::Options;
pub use problem::{MAX_PROBLEMS, Problem, Report, Severity};
