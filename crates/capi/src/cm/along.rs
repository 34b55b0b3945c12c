//! Addresses and paths from the program, in place of resolving them (<rdmux/cm.h>).

use std::ffi::c_int;

use libc::sockaddr;

use super::address;
use super::id::Id;
use super::option::path_data;
use super::phase::Phase;
use super::take::complete;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::ibv_path_data;
use crate::boundary::{Errno, Result, status};

/// Sets a source, a destination and the paths between them without resolving or querying anything. ROUTE_RESOLVED follows.
///
/// # Safety
/// `id` is an id of this library that outlives the call; the addresses are NULL or addresses, and `paths` is NULL or has `count`
/// records.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_resolve_along(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    paths: *const ibv_path_data,
    count: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { resolve_along(Id::get(id)?, src, dst, paths, count) })
}

/// Sets the source, the destination and the path of an id to the program's values.
///
/// # Safety
/// As [`rdmux_resolve_along`].
unsafe fn resolve_along(
    id: &Id,
    src: *const sockaddr,
    dst: *const sockaddr,
    paths: *const ibv_path_data,
    count: usize,
) -> Result<()> {
    let len = count.checked_mul(size_of::<ibv_path_data>()).ok_or(Errno::EINVAL)?;
    // SAFETY: the caller guarantees it.
    let (src, dst, records) = unsafe {
        let src = if src.is_null() { None } else { Some(address::read(src)?) };
        (src, address::read(dst)?, path_data(paths.cast(), len)?)
    };
    let client = id.process.client()?;
    id.lock().has_known_port |= src.is_some_and(|src| src.port() != 0);
    id.tries(Phase::ResolvingRoute, || client.resolve_along(id.handle, src, dst, &records))?;
    address::show_destination(id, dst);
    complete(id)
}
