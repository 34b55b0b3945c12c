//! Checks for memory before large allocations that a program requests, so that the program gets an error. (A failed allocation of
//! a collection aborts the process.)

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::objects::error::VerbsError;

/// The memory that must remain, so that small allocations succeed without a check at any time.
const SPARE: usize = 4 << 20;
/// The number of bytes of small allocations between two checks with the kernel.
const ADVANCE: usize = SPARE / 4;
/// The largest size that counts as small.
const SMALL: usize = ADVANCE / 16;

/// The bytes that are left of the advance.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Checks that the kernel can provide this many bytes and the spare: requests and releases them. Small sizes are checked only
/// occasionally.
///
/// # Errors
///
/// ENOMEM if the kernel cannot provide them.
pub(crate) fn check(what: &'static str, bytes: usize) -> Result<(), VerbsError> {
    let pay = |left: usize| left.checked_sub(bytes);
    if bytes <= SMALL && LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok() {
        return Ok(());
    }
    if rdmux_link::has_room(bytes.saturating_add(SPARE)) {
        LEFT.store(ADVANCE, Ordering::Relaxed);
        return Ok(());
    }
    LEFT.store(0, Ordering::Relaxed);
    Err(VerbsError::no_memory(what, format!("cannot allocate {bytes} bytes")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_size_that_cannot_be_allocated_is_enomem() {
        assert!(super::check("try", 1 << 20).is_ok());
        assert_eq!(super::check("try", 1 << 48).unwrap_err().errno(), libc::ENOMEM);
        assert!(super::check("try", usize::MAX).is_err());
        assert!(super::check("try", super::SMALL).is_ok());
    }
}
