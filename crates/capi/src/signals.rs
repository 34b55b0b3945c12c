//! `sigaction(2)` and `signal(2)` of programs that are linked with this library, for SIGSEGV and SIGBUS.
//!
//! With these signals `rdmux_link::guarded` notices that memory which a program registered is gone. A handler that the
//! program installs after that would get the faults of ours. The loader finds these functions before those of the C
//! library, and they put the program's handler below ours: it gets every other fault, and the program is told what it would be
//! told without us. Every other signal is the C library's business.
//!
//! They are exported without a version, so that a reference to the C library's version of the name finds them.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::sighandler_t;
use rdmux_link::guarded;

unsafe extern "C" {
    /// What `sigaction` is another name of.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    /// What `signal` is another name of.
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
    // SAFETY: as promised.
    let Some(before) = guarded::sigaction(signal, unsafe { new.as_ref() }) else {
        // SAFETY: as promised.
        return unsafe { __sigaction(signal, new, old) };
    };
    // SAFETY: as promised.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// `signal(2)`: a handler that stays, and goes on with interrupted system calls.
///
/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: all zero bytes are an action.
    let mut new = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    if handler != libc::SIG_ERR
        && let Some(before) = guarded::sigaction(signal, Some(&new))
    {
        return before.sa_sigaction;
    }
    // SAFETY: as promised.
    unsafe { bsd_signal(signal, handler) }
}
