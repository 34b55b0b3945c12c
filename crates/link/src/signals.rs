//! Signal masks of the threads that rdmux creates in a program: those of the device and of the service.
//!
//! # Safety of this file
//!
//! The two system calls here change the calling thread's signal mask and nothing else.

use std::mem::MaybeUninit;

/// Signals that the thread itself causes, by a fault, a trap or a system call that a sandbox traps: never blocked. The kernel ends a
/// process that blocks the one it must get.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Calls `f` with all signals blocked except those that a thread causes itself. Threads created by it inherit the mask, and so never run a signal
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_a_thread_causes_itself_are_not_blocked() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(mask.trim(), 16).unwrap()
        };
        let mask = with_blocked(|| std::thread::spawn(blocked)).join().unwrap();
        let is_blocked = |signal: libc::c_int| mask >> (signal - 1) & 1 == 1;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP, libc::SIGSYS] {
            assert!(!is_blocked(signal), "{signal}");
        }
        assert!(is_blocked(libc::SIGTERM) && is_blocked(libc::SIGUSR1));
    }
}
