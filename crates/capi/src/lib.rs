//! `libibverbs.so.1` and `librdmacm.so.1` as one shared object over the software device.
//!
//! In reading order: `abi` (what programs have compiled in), `boundary` (what every exported function
//! goes through), `verbs` (libibverbs), `cm` (librdmacm). `exports/` says which function has which version node.
//!
//! Pointers are the caller's: as with the reference implementation, a pointer that is not what the
//! function wants is undefined behaviour, except where the manual says otherwise.

mod abi;
mod boundary;

// SAFETY: directives and jumps that `build.rs` wrote; they define symbols and execute nothing by themselves.
core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/exports.s")));
