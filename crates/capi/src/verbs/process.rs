//! Singletons of a process, and the effects of a fork on them.
//!
//! A child inherits the memory of all objects, but neither the engine's thread nor its parent's connection to the
//! service. So its objects are dead: calls on them fail with ENODEV, and destroying them does nothing. Objects
//! that it creates itself work.

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_int};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;

use super::device::Device;
use super::objects::Opened;
use super::objects::generation::Generation;
use crate::umad::open::OpenPort;

/// The singletons. They are changed under a lock that a fork takes first, so that no child finds them half changed.
pub(crate) struct Process {
    /// Every device that was ever listed. They are never freed, because programs compare their addresses, and use
    /// them after they have freed the list.
    pub(crate) devices: Vec<&'static Device>,
    /// Open devices, for imports.
    opened: Vec<Weak<Opened>>,
    /// The host service's program that belongs to this library, once it was searched for.
    pub(crate) program: Option<Option<PathBuf>>,
    /// The mount point of sysfs, once it was requested.
    pub(crate) sysfs: Option<CString>,
    /// Ports that are open for management datagrams, by descriptor.
    pub(crate) mad_ports: BTreeMap<c_int, Arc<OpenPort>>,
    /// Whether the logging configuration was read.
    pub(crate) logs: bool,
    /// Whether [`drain_at_exit`] was called.
    drains: bool,
    /// Destroyed objects that threads may still access, oldest first.
    kept: VecDeque<Box<dyn Send>>,
}

/// The number of destroyed objects that are kept, some hundred bytes each. A thread that accesses an object even later accesses freed
/// memory.
const KEPT: usize = 256;

/// The standard library's lock, because a child can unlock it: parking_lot's passes ownership to a waiting thread, which the
/// child does not have.
static PROCESS: Mutex<Process> = Mutex::new(Process {
    devices: Vec::new(),
    opened: Vec::new(),
    program: None,
    sysfs: None,
    mad_ports: BTreeMap::new(),
    logs: false,
    drains: false,
    kept: VecDeque::new(),
});

/// Locks and returns this process's singletons.
pub(crate) fn lists() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Adds a newly opened device, and removes closed ones.
    pub(crate) fn add(&mut self, opened: &Arc<Opened>) {
        self.opened.retain(|opened| opened.strong_count() != 0);
        self.opened.push(Arc::downgrade(opened));
    }

    /// Returns the devices that are still open and this process's own.
    pub(crate) fn open_ones(&self) -> impl Iterator<Item = Arc<Opened>> {
        self.opened.iter().filter_map(Weak::upgrade).filter(|opened| opened.is_ours())
    }
}

/// Keeps a destroyed object for a while, and drops the oldest one that is kept if there are many.
pub(crate) fn keep(object: impl Send + 'static) {
    let mut lists = lists();
    lists.kept.push_back(Box::new(object));
    let oldest = (lists.kept.len() > KEPT).then(|| lists.kept.pop_front());
    // Not under the lock: any code may run.
    drop(lists);
    drop(oldest);
}

/// Called when the library is loaded, before any other of its functions.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = watch_forks;

/// Holds the lock of [`lists`] while a thread forks.
struct Forking(UnsafeCell<Option<MutexGuard<'static, Process>>>);

// SAFETY: only the thread that holds the lock stores the guard here and takes it out.
unsafe impl Sync for Forking {}

static FORKING: Forking = Forking(UnsafeCell::new(None));

/// Registers handlers that count forks and keep the lists consistent over them: another thread may be changing them.
extern "C" fn watch_forks() {
    extern "C" fn before() {
        let guard = lists();
        // SAFETY: this thread has the lock.
        unsafe { *FORKING.0.get() = Some(guard) }
    }
    extern "C" fn in_parent() {
        // SAFETY: this thread has had the lock since `before`.
        drop(unsafe { (*FORKING.0.get()).take() });
    }
    extern "C" fn in_child() {
        Generation::begin_child();
        // The child's only thread is a copy of the one that holds the lock.
        in_parent();
    }
    // SAFETY: the handlers only do what a child of a multithreaded process may do: they change memory of their own. It fails
    // only without memory for three pointers.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// The longest time that the exit of a program may be delayed.
const FAREWELL: Duration = Duration::from_millis(100);

/// Arranges that open devices acknowledge received packets when the program exits. Programs may exit with everything
/// open, and an adapter has acknowledged by then whatever it received.
pub(crate) fn drain_at_exit() {
    extern "C" fn at_exit() {
        // In a separate thread: a signal handler that exits may have interrupted anything here.
        let (done, all) = mpsc::channel();
        let drain = move || {
            let open: Vec<_> = lists().open_ones().collect();
            open.iter().for_each(|opened| opened.device.drain());
            let _ = done.send(());
        };
        if std::thread::Builder::new().spawn(drain).is_ok() {
            let _ = all.recv_timeout(FAREWELL);
        }
    }
    if std::mem::replace(&mut lists().drains, true) {
        return;
    }
    // SAFETY: the handler takes no argument from the program, and the shared object is never unloaded.
    if unsafe { libc::atexit(at_exit) } != 0 {
        tracing::warn!("packets that arrive while this program exits may stay unacknowledged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_has_another_generation_and_a_free_process_lock() {
        let parent = Generation::current();
        // SAFETY: the child only checks, and ends without cleaning up.
        match unsafe { libc::fork() } {
            0 => {
                let free = PROCESS.try_lock().is_ok();
                let other = Generation::current() != parent;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if free && other { 0 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for this process's own child.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
                assert_eq!(Generation::current(), parent);
                drop(PROCESS.lock());
            }
        }
    }
    #[test]
    fn kept_objects_are_dropped_oldest_first_and_without_the_lock() {
        struct Object(usize, mpsc::Sender<usize>);
        impl Drop for Object {
            fn drop(&mut self) {
                // In another thread, which does not have the lock.
                std::thread::spawn(|| drop(lists())).join().unwrap();
                self.1.send(self.0).unwrap();
            }
        }
        let (dropped, all) = mpsc::channel();
        (0..KEPT + 2).for_each(|n| keep(Object(n, dropped.clone())));
        assert_eq!(all.try_iter().collect::<Vec<_>>(), [0, 1]);
    }
}
