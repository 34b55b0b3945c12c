//! What a process has once, and what a fork does to it.
//!
//! A child inherits the memory of all objects, but neither the engine's thread nor the service's view of its parent. So its
//! objects are dead: calls on them fail with ENODEV, and destroying them does nothing. What it opens itself works.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// Counts forks from now on. To be called before anything is opened.
pub(crate) fn watch_forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to a number, which is safe in a child with one thread of many.
        // It fails only without memory; then a child of this process must not use what it inherits, as in
        // the reference implementation without `ibv_fork_init`.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
