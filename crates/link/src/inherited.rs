//! State that a process inherits from the program that started it, and that a service must not keep.

use std::io;
use std::mem::MaybeUninit;

/// Unblocks all signals for the calling thread. The parent may have blocked them: a mask survives execve(2).
pub fn unblock_signals() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to a local set, which `sigemptyset` initialises before it is read; the calls change
    // nothing but the calling thread's mask.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Returns whether this process got rights that the process which started it does not have: by a set-user-ID or set-group-ID program, or
/// by capabilities of its file (`AT_SECURE`, getauxval(3)).
pub fn has_more_rights() -> bool {
    // SAFETY: the call takes no pointer, and only reads what the kernel told this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Marks all descriptors except standard input, output and error as close-on-exec.
///
/// # Errors
/// ENOSYS or EINVAL of kernels before 5.11.
pub fn close_descriptors_on_exec() -> io::Result<()> {
    let (first, last) = (3_u32, u32::MAX);
    // SAFETY: the call takes no pointer, and closes no descriptor of this process: it only sets a flag.
    let r = unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
