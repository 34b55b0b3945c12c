//! Memory for what a program asks to be large: where it cannot be had, the program is told. (Collections end it.)

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::objects::error::VerbsError;

/// What must be left: small things are allocated without asking, and at any time.
const SPARE: usize = 4 << 20;
/// How much of what was to spare may go to small things before the kernel is asked again.
const ADVANCE: usize = SPARE / 4;
/// What is small.
const SMALL: usize = ADVANCE / 16;

/// What is left of the advance.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Asks the kernel for so many bytes and some to spare, and lets them go. For small things it is asked now and then.
///
/// # Errors
///
/// ENOMEM if they cannot be had.
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
    Err(VerbsError::no_memory(what, format!("{bytes} bytes of memory cannot be had")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert!(super::check("try", 1 << 20).is_ok());
        assert_eq!(super::check("try", 1 << 48).unwrap_err().errno(), libc::ENOMEM);
        assert!(super::check("try", usize::MAX).is_err());
        assert!(super::check("try", super::SMALL).is_ok());
    }
}
