//! Fuzz targets: each feeds untrusted bytes to a decoder or a state machine, and panics when an invariant is violated.
//!
//! [`targets`] has a plain function per target, which any fuzzer can call: the built-in one ([`runner`], `cargo xtask fuzz`),
//! which mutates ([`mutate`]) the frames of real captures ([`corpus`]) on stable Rust, or libFuzzer (`fuzz/libfuzzer`, with
//! `cargo fuzz`).
#![forbid(unsafe_code)]

pub mod corpus;
pub mod mutate;
pub mod runner;
pub mod targets;

pub use targets::{TARGETS, Target};
