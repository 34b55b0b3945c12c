//! Waiting for an event as the reference implementation does: in read(2), which respects `O_NONBLOCK`, restarts
//! after a signal or not as its handler was installed, and is a point where a thread can be cancelled (pthread_cancel(3)).
//!
//! A cancellation unwinds the stack, which works only for frames without destructors: these, and those of the functions that
//! call [`taken`], which therefore are `extern "C-unwind"`. Everything else happens in [`guarded`].

use std::ffi::{c_int, c_void};

use crate::boundary::{Result, guarded};

unsafe extern "C-unwind" {
    /// read(2), which unwinds, although libc declares that it does not.
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
}

/// Returns a descriptor to wait on, or -1 with errno set.
pub(super) fn descriptor(find: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(find).unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// Reads event counts from a descriptor until `take` gets an event; returns 0, or -1 with errno set.
pub(super) fn taken(fd: c_int, take: impl Fn() -> Result<bool>) -> c_int {
    if fd < 0 {
        return -1;
    }
    loop {
        let mut count = 0_u64;
        // SAFETY: room for the eight bytes of an eventfd's count.
        if unsafe { read(fd, (&raw mut count).cast(), size_of::<u64>()) } < 0 {
            return -1;
        }
        match guarded(&take) {
            Ok(true) => return 0,
            Ok(false) => {}
            Err(errno) => {
                errno.set();
                return -1;
            }
        }
    }
}
