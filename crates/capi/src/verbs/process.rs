//! What a process has once, and what a fork does to it.
//!
//! A child inherits the memory of all objects, but neither the engine's thread nor the service's view of its
//! parent. So its objects are dead: calls on them fail with ENODEV, and destroying them does nothing. What it
//! opens itself works.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once, Weak, mpsc};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::device::Device;
use super::objects::Opened;

/// The lists of a process.
pub(crate) struct Process {
    /// Every device that was ever listed. They are never freed: programs compare their addresses, and use
    /// them after they have freed the list.
    pub(crate) devices: Vec<&'static Device>,
    /// What is open, for those who import it.
    opened: Vec<Weak<Opened>>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { devices: Vec::new(), opened: Vec::new() });

/// The lists of this process.
pub(crate) fn lists() -> MutexGuard<'static, Process> {
    watch_forks();
    PROCESS.lock()
}

impl Process {
    /// Notes what was just opened, and forgets what is closed.
    pub(crate) fn add(&mut self, opened: &Arc<Opened>) {
        self.opened.retain(|opened| opened.strong_count() != 0);
        self.opened.push(Arc::downgrade(opened));
    }

    /// What of it is still open, and this process's own.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = Arc<Opened>> {
        self.opened.iter().filter_map(Weak::upgrade).filter(|opened| opened.is_ours())
    }
}

/// How many forks lie between this process and the one that loaded the library. Objects remember theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

static GENERATION: AtomicU32 = AtomicU32::new(0);

impl Generation {
    /// That of the calling process. A load, so cheap enough for every post and poll.
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }
}

/// Counts forks, and keeps the lists whole over them: another thread may be at them meanwhile.
fn watch_forks() {
    extern "C" fn before() {
        std::mem::forget(PROCESS.lock());
    }
    extern "C" fn in_parent() {
        // SAFETY: this thread locked it in `before` and let go of the guard without unlocking.
        unsafe { PROCESS.force_unlock() }
    }
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in the parent; the child's only thread is a copy of the one that locked it.
        unsafe { PROCESS.force_unlock() }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers do what a child with one thread of many may do: they change memory of their own.
        let failed = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if failed != 0 {
            tracing::warn!(errno = failed, "a fork of this program must not use what it inherits");
        }
    });
}

/// How long the end of a program may be held up.
const FAREWELL: Duration = Duration::from_millis(100);

/// Programs may exit with everything open. An adapter has acknowledged by then whatever it had received; so
/// does what is open here when the program exits.
pub(crate) fn settle_at_exit() {
    extern "C" fn at_exit() {
        // In a thread of its own: a signal handler that exits may have interrupted anything here.
        let (done, all) = mpsc::channel();
        let settle = move || {
            let open: Vec<_> = lists().open_ones().collect();
            open.iter().for_each(|opened| opened.device.settle());
            let _ = done.send(());
        };
        if std::thread::Builder::new().spawn(settle).is_ok() {
            let _ = all.recv_timeout(FAREWELL);
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler takes nothing from the program, and the shared object is never unloaded.
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!("what arrives as this program exits may stay unacknowledged");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_of_another_generation_and_can_use_the_lists() {
        drop(lists());
        let parent = Generation::current();
        // SAFETY: the child does nothing but look, and ends without cleaning up.
        match unsafe { libc::fork() } {
            0 => {
                let free = PROCESS.try_lock().is_some();
                let other = Generation::current() != parent;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if free && other { 0 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
                assert_eq!(Generation::current(), parent);
                assert!(PROCESS.try_lock().is_some());
            }
        }
    }
}
