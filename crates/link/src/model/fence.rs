//! `membarrier(2)` in a model. As the crate's `fence`, which see.
//!
//! A heavy fence happens on each thread of the others somewhere between two of its accesses. So of that thread's light
//! fence and the heavy one, either comes first, and what was before it is seen by what is after the other. Two
//! changes of one word are just that; and a light fence that relies on a heavy one where there is none orders nothing.

use std::cell::Cell;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering, fence};

loom::lazy_static! {
    static ref PROCESSORS: AtomicU64 = AtomicU64::new(0);
}

std::thread_local! {
    /// Whether the kernel has the call. All threads of a model are one of the kernel's.
    static THERE: Cell<bool> = const { Cell::new(true) };
}

/// Says whether processes can do heavy fences from now on.
#[cfg(test)]
pub(super) fn set_there(there: bool) {
    THERE.set(there);
}

pub(crate) fn register() -> bool {
    true
}

/// There is nothing to wait for.
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

/// A fence of this thread, and of the others.
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

/// See `std::time::Instant`. Time passes by [`wait_long`] only.
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

/// Waits until all processors have seen what was written before, and the threads on them have gone on from there: as a heavy
/// fence, which nobody has to permit.
#[cfg(test)]
pub(super) fn wait_long() {
    CLOCK.set(CLOCK.get() + Duration::from_secs(1));
    all_fence();
}
