//! A lock that a program holds from one call to another, as from `ibv_wr_start` to `ibv_wr_complete`.

use std::fmt;

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

/// Excludes other threads between two calls, unless the program promised that there are none.
pub(crate) struct Section {
    raw: RawMutex,
    single_threaded: bool,
}

impl Section {
    /// Creates a section. With `single_threaded` (a thread domain, or the flag of a completion queue) nothing is locked.
    pub(crate) const fn new(single_threaded: bool) -> Self {
        Self { raw: RawMutex::INIT, single_threaded }
    }

    /// Waits until no other thread is inside.
    pub(crate) fn enter(&self) {
        if !self.single_threaded {
            self.raw.lock();
        }
    }

    /// Leaves the section. Without a matching enter this does nothing, unless another thread is inside, which would be an error
    /// of the program.
    pub(crate) fn leave(&self) {
        if !self.single_threaded && self.raw.is_locked() {
            // SAFETY: it is locked, and by this thread if the program calls in the order that the manual
            // requires; any thread may unlock it.
            unsafe { self.raw.unlock() }
        }
    }
}

impl Default for Section {
    fn default() -> Self {
        Self::new(false)
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").field("single_threaded", &self.single_threaded).finish()
    }
}
