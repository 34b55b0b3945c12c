//! How many completion vectors there are.

use std::ffi::c_int;
use std::num::NonZero;
use std::sync::atomic::{AtomicI32, Ordering};

/// Completion vectors are interrupts elsewhere; here they only balance what needs no balance. One for each
/// processor, as usual.
pub(crate) fn comp_vectors() -> c_int {
    // Asking reads files.
    static PROCESSORS: AtomicI32 = AtomicI32::new(0);
    let known = PROCESSORS.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = std::thread::available_parallelism().map_or(1, NonZero::get);
    let found = c_int::try_from(found).unwrap_or(1);
    PROCESSORS.store(found, Ordering::Relaxed);
    found
}
