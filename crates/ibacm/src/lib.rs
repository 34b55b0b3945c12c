//! `libibacm.so.1`: the functions that `include/rdmux/acm.h` declares, on top of [`rdmux_acm_client`].
//!
//! In reading order: `boundary` (the wrapper of every exported function), `service` (names of services), `arguments` (conversion of C's
//! addresses), `waiting` (blocking calls) and `asking` (nonblocking calls).
//!
//! Pointers are the caller's, as documented in the header.

mod arguments;
mod asking;
mod boundary;
mod service;
mod waiting;

// Directives written by `build.rs`: they name symbols and execute nothing by themselves.
include!(concat!(env!("OUT_DIR"), "/exports.rs"));
