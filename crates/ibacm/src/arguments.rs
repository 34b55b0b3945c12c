//! Conversion between C's addresses and paths, and those of the crate.

use std::ffi::{CStr, c_char, c_int};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{PathData, Paths};
use rdmux_wire::sa::PathRecord;

use crate::boundary::{Errno, Result};

/// `ACM_FLAGS_NODELAY`.
const NODELAY: u32 = 1 << 30;
/// `ACM_FLAGS_QUERY_SA`.
pub(crate) const QUERY_SA: u32 = 1 << 31;

/// Returns whether only cached paths are requested.
pub(crate) fn cached_only(flags: u32) -> bool {
    flags & NODELAY != 0
}

/// `struct ibv_path_data`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CPath {
    flags: u32,
    reserved: u32,
    pub(crate) record: [u8; 64],
}

impl CPath {
    pub(crate) const EMPTY: Self = Self { flags: 0, reserved: 0, record: [0; 64] };
}

impl From<&PathData> for CPath {
    fn from(path: &PathData) -> Self {
        Self { flags: path.flags.bits(), reserved: 0, record: path.path.to_bytes() }
    }
}

/// Converts a name; none for a null pointer.
///
/// # Safety
/// `text` is null or a C string.
pub(crate) unsafe fn name(text: *const c_char) -> Result<Option<Address>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as promised.
    let text = unsafe { CStr::from_ptr(text) };
    Address::name(text.to_bytes()).map(Some).ok_or(Errno::EINVAL)
}

/// Converts an IPv4 or IPv6 address; none for a null pointer.
///
/// # Safety
/// `at` is null or points to an address of its family's full length.
pub(crate) unsafe fn ip(at: *const sockaddr) -> Result<Option<Address>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: as promised. It may be unaligned.
    let family = unsafe { ptr::read_unaligned(&raw const (*at).sa_family) };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: as promised.
            let address = unsafe { ptr::read_unaligned(at.cast::<sockaddr_in>()) };
            Ok(Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: as promised.
            let address = unsafe { ptr::read_unaligned(at.cast::<sockaddr_in6>()) };
            Ok(Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into()))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Converts a path record.
///
/// # Safety
/// `at` is null or points to 64 bytes.
pub(crate) unsafe fn record(at: *const u8) -> Result<PathRecord> {
    if at.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as promised.
    Ok(PathRecord::from_bytes(&unsafe { ptr::read_unaligned(at.cast::<[u8; 64]>()) }))
}

/// Copies items to an array that the caller frees by free(3); never null.
pub(crate) fn allocated<T: Copy>(items: &[T]) -> Result<*mut T> {
    let bytes = size_of_val(items).max(1);
    // SAFETY: only allocates memory, which is aligned for all types of C.
    let array = unsafe { libc::malloc(bytes) }.cast::<T>();
    if array.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the memory is new and large enough.
    unsafe { ptr::copy_nonoverlapping(items.as_ptr(), array, items.len()) };
    Ok(array)
}

/// Stores paths for the caller in an allocated array.
///
/// # Safety
/// Both pointers may be written to.
pub(crate) unsafe fn give(found: &Paths, paths: *mut *mut CPath, count: *mut c_int) -> Result<()> {
    let all: Vec<CPath> = found.paths.iter().map(CPath::from).collect();
    // SAFETY: as promised.
    unsafe { give_array(&all, paths, count) }
}

/// Stores an array for the caller in allocated memory.
///
/// # Safety
/// Both pointers may be written to.
pub(crate) unsafe fn give_array<T: Copy>(
    all: &[T],
    array: *mut *mut T,
    count: *mut c_int,
) -> Result<()> {
    let (given, number) = (allocated(all)?, c_int::try_from(all.len()).unwrap_or(0));
    // SAFETY: as promised.
    unsafe {
        *array = given;
        *count = number;
    }
    Ok(())
}
