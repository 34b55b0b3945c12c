//! `libibacm.so.1`: what `include/rdmux/acm.h` declares, over [`rdmux_acm_client`].
//!
//! In reading order: `boundary` (what every exported function goes through), `service` (what a service is called), `arguments` (C's addresses and
//! ours), `waiting` (calls that wait) and `asking` (those that do not).
//!
//! Pointers are the caller's, as the header has it.

mod arguments;
mod asking;
mod boundary;
mod service;
mod waiting;

// Directives that `build.rs` wrote: they name symbols and execute nothing by themselves.
include!(concat!(env!("OUT_DIR"), "/exports.rs"));
