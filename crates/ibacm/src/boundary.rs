//! The wrapper of every exported function: no panic crosses it, errors are returned as C expects, and cancellation of the thread
//! (pthread_cancel(3)), which would unwind Rust's frames, is deferred.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rdmux_acm_client::Error;
use rdmux_link::cancel::Uncancelled;

/// An errno of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);

    fn set(self) {
        // SAFETY: the C library gives each thread its own errno, which may be written at any time.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self(error.errno())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Returns the result of the call, or `failed` with errno set.
pub(crate) fn or<T>(failed: T, f: impl FnOnce() -> Result<T>) -> T {
    let _uncancelled = Uncancelled::new();
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        // Dropping the panic's payload might panic again.
        std::mem::forget(panic);
        Err(Errno(libc::EIO))
    });
    result.unwrap_or_else(|errno| {
        errno.set();
        failed
    })
}
