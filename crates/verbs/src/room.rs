//! Memory for what a program asks to be large: where it cannot be had, the program is told. (Collections end it.)

use crate::error::VerbsError;

/// What must be left: small things are allocated without asking, and at any time.
const SPARE: usize = 4 << 20;

/// Asks the system for so many bytes and some to spare, and lets them go.
///
/// # Errors
///
/// ENOMEM if they cannot be had.
pub(crate) fn check(what: &'static str, bytes: usize) -> Result<(), VerbsError> {
    if rdmux_link::has_room(bytes.saturating_add(SPARE)) {
        return Ok(());
    }
    Err(VerbsError::no_memory(what, format!("{bytes} bytes of memory cannot be had")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert!(super::check("try", 1 << 20).is_ok());
        assert_eq!(super::check("try", 1 << 48).unwrap_err().errno(), libc::ENOMEM);
        assert!(super::check("try", usize::MAX).is_err());
    }
}
