//! Which process an object is of: what a child inherits over a fork is its parent's.

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

    /// Whether it is that of the calling process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// The calling process is a child that a fork has just made.
    pub(crate) fn begin_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}
