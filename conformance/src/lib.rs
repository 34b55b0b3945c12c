//! Black-box suites that run against rdmux and against the kernel's drivers.
//!
//! [`suite`] is the table of tests between rdmux and a Linux kernel's `rdma_rxe`, and runs
//! its rows inside the guest of `peer-vm`. [`exchange`] is the protocol by which two
//! programs exercise every verb on each other: `verbs-peer` ([`peer`]), on the crate `rdmux`, and
//! `verbs_peer`, in C on the verbs API. [`iwarp`] is a scripted peer of iWARP.
#![forbid(unsafe_code)]

pub mod exchange;
pub mod iwarp;
pub mod peer;
pub mod suite;
