//! What rings, boards, route tables and counter rows are made of: memory that processes share, the words in it, and fences.
//!
//! Built with `--cfg loom`, all of it is a model, and the same [`ring`](crate::ring), [`board`](crate::board) and [`routes`](crate::routes) run on that:
//! the tests in `model` then see every order in which their threads' accesses can happen, and every value
//! that a load may return by the rules of the language.

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

/// The bytes of a model are few, since each way through it is gone: `real`, or of a model `model`.
pub(crate) const fn size(real: usize, model: usize) -> usize {
    if cfg!(loom) { model } else { real }
}
