//! The C library's functions that the functions of this library replace.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a function after this library's, in the order in which libraries are searched.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function's address, looked up on first use; NULL when the C library has none.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut address = self.found.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: the name is a string; RTLD_NEXT means the libraries after this one.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(address, Ordering::Relaxed);
        }
        address
    }
}

/// The return type of a function that may be missing, which is reported in errno.
pub(crate) trait Absent {
    /// The return value of a failure.
    const FAILED: Self;
}

impl Absent for i32 {
    const FAILED: Self = -1;
}
impl Absent for isize {
    const FAILED: Self = -1;
}
impl<T> Absent for *mut T {
    const FAILED: Self = ptr::null_mut();
}

/// Returns the failure of a missing function, with errno ENOSYS.
pub(crate) fn absent<T: Absent>() -> T {
    // SAFETY: the C library gives each thread an errno of its own that may be written at any time.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::FAILED
}
