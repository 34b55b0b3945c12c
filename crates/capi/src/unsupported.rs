//! Functions that are exported only so that programs load, and that this device does not support.
//!
//! The tables in `exports/` name these as targets: `private.txt` for symbols that vendor drivers import from the
//! library, `old.txt` for the versions of 2005. Each is correct for any arguments, because in the C calling
//! convention the caller removes them.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::boundary::Errno;

/// Returns EOPNOTSUPP and sets errno, for functions that return 0 or an error number.
pub(crate) extern "C" fn code() -> c_int {
    Errno::EOPNOTSUPP.set();
    libc::EOPNOTSUPP
}

/// Returns -1 with EOPNOTSUPP in errno.
pub(crate) extern "C" fn status() -> c_int {
    Errno::EOPNOTSUPP.set();
    -1
}

/// Returns NULL, or a 0 of any width, with EOPNOTSUPP in errno.
pub(crate) extern "C" fn null() -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// Does nothing. Replaces functions without a return value.
pub(crate) extern "C" fn ignore() {}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_after<T>(f: impl FnOnce() -> T) -> (T, c_int) {
        Errno(0).set();
        let result = f();
        (result, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    #[test]
    fn unsupported_calls_return_eopnotsupp_in_each_convention() {
        let unsupported = libc::EOPNOTSUPP;
        assert_eq!(errno_after(|| code()), (unsupported, unsupported));
        assert_eq!(errno_after(|| status()), (-1, unsupported));
        assert_eq!(errno_after(|| null()), (ptr::null_mut(), unsupported));
        assert_eq!(errno_after(|| ignore()), ((), 0));
    }
}
