//! The number of completion vectors.

use std::ffi::c_int;
use std::num::NonZero;
use std::sync::atomic::{AtomicI32, Ordering};

/// Returns the number of completion vectors. With adapters they are interrupts; here they have no function. One for each
/// processor, as usual.
pub(crate) fn comp_vectors() -> c_int {
    // Determining it reads files.
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
