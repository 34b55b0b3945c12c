//! Fuzz targets: each takes bytes that a stranger chose, feeds them to a decoder or a machine, and
//! panics when a promise is broken.
//!
//! [`targets`] has a plain function per target, so that any fuzzer can call it: the built-in one
//! ([`runner`], `cargo xtask fuzz`), which mutates ([`mutate`]) the frames of real captures
//! ([`corpus`]) on stable Rust, or libFuzzer (`fuzz/libfuzzer`, with `cargo fuzz`).
#![forbid(unsafe_code)]

pub mod corpus;
pub mod mutate;
pub mod runner;
pub mod targets;

pub use targets::{TARGETS, Target};
