//! What every exported function goes through: no panic crosses it, errors leave as C wants them, and a cancellation of the thread
//! (pthread_cancel(3)), which would unwind Rust's frames, is put off.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rdmux_acm_client::Error;
use rdmux_link::cancel::Uncancelled;

/// An error as C has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);

    fn set(self) {
        // SAFETY: the C library gives each thread an errno of its own that may be written at any time.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// What a function returns: that of the call, or `failed` with errno set.
pub(crate) fn or<T>(failed: T, f: impl FnOnce() -> Result<T>) -> T {
    let _uncancelled = Uncancelled::new();
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        // Dropping what was thrown might panic again.
        std::mem::forget(panic);
        Err(Errno(libc::EIO))
    });
    result.unwrap_or_else(|errno| {
        errno.set();
        failed
    })
}
