//! Signal masks of the threads that rdmux creates in a program: those of the device and of the service.
//!
//! # Safety of this file
//!
//! The two system calls here change the calling thread's signal mask and nothing else.

use std::mem::MaybeUninit;

/// Signals for a fault of the thread itself: never blocked.
const FAULTS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// Calls `f` with all signals blocked except those for faults. Threads created by it inherit the mask, and so never run a signal
/// handler of the program.
pub fn with_blocked<R>(f: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointers are to local sets; `sigfillset` initialises `all` before the rest
    // reads it, and `pthread_sigmask` initialises `before`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = f();
    // SAFETY: `before` was initialised above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
    result
}
