//! `sigaction(2)` and `signal(2)` of programs that are linked with this library, for SIGSEGV and SIGBUS.
//!
//! `rdmux_link::guarded` uses these signals to detect that memory which a program registered is gone. A handler that the
//! program installs later would get this library's faults. The loader finds these functions before those of the C
//! library. They keep this library's handler installed and chain to the program's, which gets every other fault. The program
//! sees the same dispositions as without this library. Every other signal is passed to the C library.
//!
//! They are exported without a version, so that a reference to the C library's version of the name finds them.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::sighandler_t;
use rdmux_link::guarded;

unsafe extern "C" {
    /// The C library's `sigaction` under its other name.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    /// The C library's `signal` under its other name.
    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
}

/// `sigaction(2)`.
///
/// # Safety
/// As `sigaction(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(before) = guarded::sigaction(signal, unsafe { new.as_ref() }) else {
        // SAFETY: the caller guarantees it.
        return unsafe { __sigaction(signal, new, old) };
    };
    // SAFETY: the caller guarantees it.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// `signal(2)`: installs a handler that stays, with restarted system calls.
///
/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: all zero bytes are a valid action.
    let mut new = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    if handler != libc::SIG_ERR
        && let Some(before) = guarded::sigaction(signal, Some(&new))
    {
        return before.sa_sigaction;
    }
    // SAFETY: the caller guarantees it.
    unsafe { bsd_signal(signal, handler) }
}
