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

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: see the head of this file.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sees to it that [`heavy`] fences of other processes reach this one. Whether they do.
///
/// Takes milliseconds the first time, in which another thread may fork: so no lock is held, and a child, which would
/// wait for it for ever, registers for itself.
pub(crate) fn register() -> bool {
    /// The process that has registered.
    static DONE: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    if DONE.load(Ordering::Relaxed) == process {
        return true;
    }
    let done = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
    if done {
        DONE.store(process, Ordering::Relaxed);
    }
    done
}

/// Does at once what the first ring to another process would wait for, as long as that takes no time: while the process has
/// one thread.
pub fn prepare() {
    use std::os::unix::fs::MetadataExt;
    // The links of a folder: one for each folder in it, and two of its own.
    if std::fs::metadata("/proc/self/task").is_ok_and(|threads| threads.nlink() == 3) {
        register();
    }
}

/// Whether this process can do the [`heavy`] fence. A sandbox may forbid the system call.
pub(crate) fn can_do_heavy() -> bool {
    register() && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

/// A full fence of this thread, and of all threads of the processes that are registered. False if it is of this thread only, since a
/// sandbox forbids the system call by now.
#[must_use]
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
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
