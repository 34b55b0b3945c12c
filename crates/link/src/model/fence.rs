//! `membarrier(2)` in a model; see the crate's `fence`.
//!
//! A heavy fence takes effect on each other thread somewhere between two of its accesses. So one of that thread's light fence and
//! the heavy one is first, and accesses after the later one see those before the earlier one. Two changes of one word have the
//! same effect. A light fence that relies on a heavy one that does not exist orders nothing.

use std::cell::Cell;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering, fence};

loom::lazy_static! {
    static ref PROCESSORS: AtomicU64 = AtomicU64::new(0);
}

std::thread_local! {
    /// Whether the kernel has the system call. All threads of a model run on one kernel thread.
    static THERE: Cell<bool> = const { Cell::new(true) };
}

/// Sets whether processes can execute heavy fences.
#[cfg(test)]
pub(super) fn set_there(there: bool) {
    THERE.set(there);
}

pub(crate) fn register() -> bool {
    true
}

/// Does nothing: registration takes no time here.
pub fn prepare() {}

pub(crate) fn can_do_heavy() -> bool {
    THERE.get()
}

pub(crate) fn heavy() -> bool {
    let there = THERE.get();
    if there {
        all_fence();
    } else {
        fence(Ordering::SeqCst);
    }
    there
}

/// Executes a fence of this thread, and of the others.
fn all_fence() {
    fence(Ordering::SeqCst);
    PROCESSORS.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn light(relies: bool) {
    if relies {
        PROCESSORS.fetch_add(1, Ordering::AcqRel);
    } else {
        fence(Ordering::SeqCst);
    }
}

std::thread_local! {
    static CLOCK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// See `std::time::Instant`. Only [`wait_long`] advances the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(CLOCK.get())
    }

    pub(crate) fn elapsed(self) -> Duration {
        CLOCK.get() - self.0
    }
}

/// Waits until all processors have seen all earlier writes, and their threads have continued from there: as a heavy fence, which
/// needs no permission.
#[cfg(test)]
pub(super) fn wait_long() {
    CLOCK.set(CLOCK.get() + Duration::from_secs(1));
    all_fence();
}
