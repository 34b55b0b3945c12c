//! `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3` as one shared object over the software device.
//!
//! In reading order: `abi` (the layouts compiled into programs), `boundary` (the entry of every exported
//! function), `verbs` (libibverbs), `cm` (librdmacm), `umad` (libibumad), `own` (functions of this library only), `signals`, `private` and
//! `unsupported` (functions that only have to exist). `exports/` lists the version node of each function.
//!
//! Pointers are the caller's responsibility: as with the reference implementation, an invalid pointer
//! is undefined behaviour, except where the manual says otherwise.

mod abi;
mod boundary;
mod cm;
mod log;
mod own;
mod private;
#[cfg(target_env = "gnu")]
mod signals;
mod umad;
mod unsupported;
mod verbs;

// Directives and jumps written by `build.rs`: they define symbols and execute nothing by themselves.
include!(concat!(env!("OUT_DIR"), "/exports.rs"));
