//! The C ABI: layouts and constants that are compiled into programs. `cargo xtask test` compares
//! them with the distribution's headers.
#![allow(
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    dead_code,
    missing_docs,
    reason = "the names are the C headers' own"
)]

pub mod cma;
pub mod mad;
pub mod rdmux_cm;
pub mod umad;
pub mod verbs;

#[cfg(test)]
mod layout;
