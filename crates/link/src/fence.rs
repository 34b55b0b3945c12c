//! An asymmetric fence, which costs one side nothing (`membarrier(2)`).
//!
//! A producer checks after each record whether the other side sleeps. A consumer that is about to sleep sets a flag and checks once
//! more for a record. Both sides need a full fence between the two steps. The producer would execute it for every message, and wait
//! each time until all processors have seen the record; the consumer executes it only when it has nothing else to do. So the
//! consumer makes the kernel execute a fence on every processor that runs a [`register`]ed process, and the producer needs none.
//!
//! # What the unsafe code here relies on
//!
//! The system call takes only numbers, and accesses no memory.

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: see the head of this file.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for the [`heavy`] fences of other processes. Returns whether they reach it.
///
/// Takes milliseconds the first time, in which another thread may fork. So no lock is held, which a child would wait for forever,
/// and a child registers for itself.
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

/// Registers in advance, as the first ring to another process would otherwise have to wait for it. Does so only while the process
/// has one thread, when it takes no time.
pub fn prepare() {
    use std::os::unix::fs::MetadataExt;
    // The number of links of a directory: one for each subdirectory, and two of its own.
    if std::fs::metadata("/proc/self/task").is_ok_and(|threads| threads.nlink() == 3) {
        register();
    }
}

/// Returns whether this process can execute the [`heavy`] fence. A sandbox may forbid the system call.
pub(crate) fn can_do_heavy() -> bool {
    register() && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

/// Executes a full fence on this thread, and on all threads of registered processes. Returns false if it was on this thread only,
/// because a sandbox has since forbidden the system call.
#[must_use]
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

/// Executes a full fence against a side that executes the [`heavy`] one. It is only a compiler fence if `relies` is set: this
/// process is registered, and the other side can execute the heavy fence.
#[inline]
pub(crate) fn light(relies: bool) {
    if relies {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
