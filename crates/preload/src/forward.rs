//! The functions whose place ours take.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next function of a name after ours, in the order in which libraries are searched.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address, looked up the first time; NULL when the C library has none.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut address = self.found.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: the name is a string; RTLD_NEXT means what comes after this library.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(address, Ordering::Relaxed);
        }
        address
    }
}

/// What a function returns that does not exist: errno says so.
pub(crate) trait Absent {
    /// The value that means failure.
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

/// The failure of a function that does not exist.
pub(crate) fn absent<T: Absent>() -> T {
    // SAFETY: the C library gives each thread an errno of its own that may be written at any time.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::FAILED
}
