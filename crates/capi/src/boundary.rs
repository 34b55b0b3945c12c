//! What every exported function goes through: no panic crosses it, and errors leave as C wants them.
//!
//! A thread may be cancelled while it is here (pthread_cancel(3)). That unwinds the stack at the next
//! cancellation point, which Rust's frames cannot bear, so [`guarded`] puts it off. The functions that may
//! wait for ever are cancellation points as in the reference implementation: they are `extern "C-unwind"` and
//! wait in a frame without destructors.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use rdmux_host::HostError;
use rdmux_link::cancel::Uncancelled;
use rdmux_verbs::VerbsError;

/// An error as the C interface tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);
    pub(crate) const ENOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const EIO: Self = Self(libc::EIO);
    pub(crate) const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);

    /// The calling thread's errno.
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
        tracing::debug!(%error, "answered with an errno");
        Self(error.errno())
    }
}

impl From<HostError> for Errno {
    fn from(error: HostError) -> Self {
        tracing::debug!(%error, "answered with an errno");
        Self(error.errno())
    }
}

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// A structure of C, all zero.
///
/// # Safety
/// Zero is a value of every field.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: as promised.
    unsafe { std::mem::MaybeUninit::zeroed().assume_init() }
}

/// For functions that return 0 or the error number, as most of libibverbs do.
pub(crate) fn code(f: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// As [`code`], for the data path.
pub(crate) fn hot(f: impl FnOnce() -> Result<()>) -> c_int {
    caught(f).map_or_else(
        |errno| {
            errno.set();
            errno.0
        },
        |()| 0,
    )
}

/// For functions that return 0, or -1 with errno set, as those of librdmacm do.
pub(crate) fn status(f: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// For functions that return a number, or -1 with errno set.
pub(crate) fn number(f: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(f).unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// For functions that return a number, or the negative error number, as most of libibumad do. It is in errno, too.
pub(crate) fn negative(f: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(f).unwrap_or_else(|errno| {
        errno.set();
        -errno.0
    })
}

/// For functions that return a pointer, or NULL with errno set.
pub(crate) fn pointer<T>(f: impl FnOnce() -> Result<*mut T>) -> *mut T {
    match guarded(f) {
        Ok(pointer) => pointer,
        Err(errno) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

/// Turns a panic, which would be a bug of ours, into an error, and puts a cancellation of the thread off.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let _uncancelled = Uncancelled::new();
    caught(f)
}

/// As [`guarded`], for the data path: it must not reach a cancellation point.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic: Box<dyn Any + Send>| {
        // Dropping what was thrown might panic again.
        std::mem::forget(panic);
        Err(Errno::EIO)
    })
}
