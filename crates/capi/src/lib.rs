//! `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3` as one shared object over the software device.
//!
//! In reading order: `abi` (what programs have compiled in), `boundary` (what every exported function
//! goes through), `verbs` (libibverbs), `cm` (librdmacm), `umad` (libibumad), `own` (what is ours alone), `signals`, `private` and
//! `unsupported` (what only has to exist). `exports/` says which function has which version node.
//!
//! Pointers are the caller's: as with the reference implementation, a pointer that is not what the
//! function wants is undefined behaviour, except where the manual says otherwise.

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

// Directives and jumps that `build.rs` wrote: they define symbols and execute nothing by themselves.
include!(concat!(env!("OUT_DIR"), "/exports.rs"));
