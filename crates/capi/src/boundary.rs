//! The boundary of every exported function: catches panics, and returns errors as C expects them.
//!
//! A thread may be cancelled while it is in a function (pthread_cancel(3)). Cancellation unwinds the stack at the next
//! cancellation point, which Rust frames do not support, so [`guarded`] defers it. The functions that may
//! wait for ever are cancellation points as in the reference implementation: they are `extern "C-unwind"` and
//! wait in a frame without destructors.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use rdmux_host::HostError;
use rdmux_link::cancel::Uncancelled;
use rdmux_verbs::VerbsError;

/// An error of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);
    pub(crate) const ENOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const EIO: Self = Self(libc::EIO);
    pub(crate) const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);

    /// Returns the calling thread's errno.
    pub(crate) fn last() -> Self {
        // SAFETY: the C library gives each thread an errno of its own that may be read at any time.
        Self(unsafe { *libc::__errno_location() })
    }

    /// Sets the calling thread's errno.
    pub(crate) fn set(self) {
        // SAFETY: the C library gives each thread an errno of its own that may be written at any time.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        tracing::debug!(%error, "a call failed with an errno");
        Self(error.errno())
    }
}

impl From<HostError> for Errno {
    fn from(error: HostError) -> Self {
        tracing::debug!(%error, "a call failed with an errno");
        Self(error.errno())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Returns a C structure with all bits zero.
///
/// # Safety
/// Zero must be a valid value of every field.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller guarantees it.
    unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
}

/// Calls `f` for a function that returns 0 or the error number, as most of libibverbs do.
pub(crate) fn code(f: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// Calls `f` as [`code`] does, for the data path.
pub(crate) fn hot(f: impl FnOnce() -> Result<()>) -> c_int {
    caught(f).map_or_else(
        |errno| {
            errno.set();
            errno.0
        },
        |()| 0,
    )
}

/// Calls `f` for a function that returns 0, or -1 with errno set, as those of librdmacm do.
pub(crate) fn status(f: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// Calls `f` for a function that returns a number, or -1 with errno set.
pub(crate) fn number(f: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(f).unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// Calls `f` for a function that returns a number, or the negative error number, as most of libibumad do. It sets errno, too.
pub(crate) fn negative(f: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(f).unwrap_or_else(|errno| {
        errno.set();
        -errno.0
    })
}

/// Calls `f` for a function that returns a pointer, or NULL with errno set.
pub(crate) fn pointer<T>(f: impl FnOnce() -> Result<*mut T>) -> *mut T {
    match guarded(f) {
        Ok(pointer) => pointer,
        Err(errno) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

/// Converts a panic, which would be a bug of this library, into an error, and defers cancellation of the thread.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelled = Uncancelled::new();
    caught(f)
}

/// Converts a panic as [`guarded`] does, for the data path: `f` must not reach a cancellation point.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic: Box<dyn Any + Send>| {
        // Dropping the payload might panic again.
        std::mem::forget(panic);
        Err(Errno::EIO)
    })
}
