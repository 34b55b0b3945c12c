//! A fence of which one side pays nothing (`membarrier(2)`).
//!
//! Who fills a ring looks after each record whether the other side sleeps, and who is about to sleep raises a flag and
//! looks once more whether a record has come: between the two steps both sides need a full fence. The first does it for
//! every message, and would wait each time until all processors have seen the record; the second does it when it has
//! nothing else to do. So the second asks the kernel to run a fence on every processor on which a process runs that has
//! [`register`]ed, and the first needs none.
//!
//! # What the unsafe code here relies on
//!
//! The system call takes numbers only, and touches no memory.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: see the head of this file.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sees to it that [`heavy`] fences of other processes reach this one. Whether they do.
pub(crate) fn register() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED))
}

/// Whether this process can do the [`heavy`] fence. A sandbox may forbid the system call.
pub(crate) fn can_do_heavy() -> bool {
    register() && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

/// A full fence of this thread, and of all threads of the processes that are registered.
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

/// A full fence towards who does the [`heavy`] one: none at all, where `relies` says that this process is registered
/// and that the other side can do the heavy one.
#[inline]
pub(crate) fn light(relies: bool) {
    if relies {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
