//! Where MAD files come from. Nothing else of this library knows that.

use super::file::MadFile;
use crate::boundary::{Errno, Result};

/// Opens the MAD file of a port.
///
/// # Errors
/// ENODEV for a port that has none.
pub(super) fn open(ca: &str, port: u8) -> Result<Box<dyn MadFile>> {
    tracing::debug!(ca, port, "a port without a management interface");
    Err(Errno(libc::ENODEV))
}
