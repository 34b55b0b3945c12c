//! What a lookup has found: a list in the C library's memory.

use crate::abi::cma::rdma_addrinfo;
use crate::boundary::{Errno, Result};

/// An answer that is being put together; freed unless it is handed out.
pub(super) struct Found(pub(super) *mut rdma_addrinfo);

impl Found {
    pub(super) fn new() -> Result<Self> {
        // SAFETY: zero is NULL, or nothing, in every field.
        let info = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
        if info.is_null() { Err(Errno::ENOMEM) } else { Ok(Self(info.cast())) }
    }

    pub(super) fn into_ptr(self) -> *mut rdma_addrinfo {
        let info = self.0;
        std::mem::forget(self);
        info
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: it is ours, and all in it came from the C library.
        unsafe { free(self.0) };
    }
}

/// Frees what a lookup found, and all that follows it.
///
/// # Safety
/// The pointer is NULL or such a list, once.
pub(super) unsafe fn free(mut next: *mut rdma_addrinfo) {
    while !next.is_null() {
        // SAFETY: as promised, each is of the C library's memory, with all in it.
        unsafe {
            let info = next;
            next = (*info).ai_next;
            libc::free((*info).ai_connect);
            libc::free((*info).ai_route);
            libc::free((*info).ai_src_canonname.cast());
            libc::free((*info).ai_dst_canonname.cast());
            libc::free((*info).ai_src_addr.cast());
            libc::free((*info).ai_dst_addr.cast());
            libc::free(info.cast());
        }
    }
}

/// A lookup that tells by event.
#[derive(Default)]
pub(super) struct Resolving {
    pub(super) under_way: bool,
    pub(super) found: Option<Found>,
}

impl Resolving {
    /// It failed, or its answer was taken.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}
