//! The process that an object belongs to: objects that a child inherits over a fork are its parent's.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the process that loaded the library and this one. Objects store that of their process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

static GENERATION: AtomicU32 = AtomicU32::new(0);

impl Generation {
    /// Returns the generation of the calling process. A load, so cheap enough for every post and poll.
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether the generation is that of the calling process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Starts a new generation, in a child that a fork has just created.
    pub(crate) fn begin_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}
