//! The state of a completion queue for polling one completion at a time.

use std::cell::UnsafeCell;
use std::fmt;

use rdmux_transport::wr::Completion;

use super::clock::WallClock;
use super::lock::Section;

/// State of a completion queue for the extended interface.
pub(crate) struct CqExt {
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    pub(crate) section: Section,
    pub(crate) current: UnsafeCell<Completion>,
    /// The context's wall clock.
    pub(crate) wall_clock: WallClock,
}

impl CqExt {
    pub(crate) fn new(single_threaded: bool, wall_clock: WallClock) -> Self {
        let current = UnsafeCell::new(Completion::EMPTY);
        Self { section: Section::new(single_threaded), current, wall_clock }
    }
}

impl fmt::Debug for CqExt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqExt").field("section", &self.section).finish_non_exhaustive()
    }
}
