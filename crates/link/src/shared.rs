//! The primitives of rings, boards, route tables and counter rows: shared memory, its words, and fences.
//!
//! With `--cfg loom`, they are models, and the unchanged [`ring`](crate::ring), [`board`](crate::board) and [`routes`](crate::routes) run
//! on them: the tests in `model` then explore every order of their threads' accesses, and every value that a load may return by the memory
//! model of the language.

#[cfg(not(loom))]
pub(crate) use {
    crate::{
        fence,
        mmap::{Mapping, ReadMapping},
    },
    std::sync::atomic::{AtomicU64, Ordering, fence},
    std::time::Instant,
};

#[cfg(loom)]
pub(crate) use {
    crate::model::{
        fence::{self, Instant},
        memory::{Mapping, ReadMapping},
    },
    loom::sync::atomic::{AtomicU64, Ordering, fence},
};

/// Returns the size `real`, or `model` in a model: models are small, since each execution consumes one.
pub(crate) const fn size(real: usize, model: usize) -> usize {
    if cfg!(loom) { model } else { real }
}
