//! bind, listen, resolve: local addresses, and the route to the peer.

use std::ffi::c_int;
use std::time::Duration;

use libc::sockaddr;

use super::address;
use super::id::Id;
use super::phase::Phase;
use super::take::complete;
use crate::abi::cma::rdma_cm_id;
use crate::boundary::{Errno, Result, status};

/// Binds an id to an address: one of the host's or a wildcard, and a port, where 0 takes a free one (rdma_bind_addr(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call; `addr` is NULL or an address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { bind(Id::get(id)?, addr) })
}

/// Binds an id to an address.
///
/// # Safety
/// `addr` is NULL or an address.
pub(super) unsafe fn bind(id: &Id, addr: *const sockaddr) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let addr = unsafe { address::read(addr)? };
    let client = id.process.client()?;
    id.is_at(Phase::Other);
    id.lock().has_known_port = true;
    let (bound, device) = client.bind_addr_at(id.handle, addr)?;
    id.is_at(Phase::Bound);
    address::show_bound(id, bound, device.as_deref())
}

/// Listens for connection requests, of which at most `backlog` wait (rdma_listen(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        // An invalid backlog means the largest that the host allows.
        let backlog = u32::try_from(backlog).unwrap_or(0);
        id.is_at(Phase::Other);
        id.lock().has_known_port = true;
        let bound = id.process.client()?.listen(id.handle, backlog)?;
        address::show_source(id, bound);
        Ok(())
    })
}

/// Resolves the local address and device for `dst`, bound to `src` if that is not NULL
/// (rdma_resolve_addr(3)). ADDR_RESOLVED or ADDR_ERROR follows.
///
/// # Safety
/// `id` is an id of this library that outlives the call; the others are NULL or addresses.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { resolve_addr(Id::get(id)?, src, dst, timeout_ms) })
}

/// Resolves an address.
///
/// # Safety
/// The pointers are NULL or addresses.
pub(super) unsafe fn resolve_addr(
    id: &Id,
    src: *const sockaddr,
    dst: *const sockaddr,
    timeout_ms: c_int,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let (src, dst) = unsafe {
        let dst = address::read(dst)?;
        (if src.is_null() { None } else { Some(address::read(src)?) }, dst)
    };
    let (client, timeout) = (id.process.client()?, timeout(timeout_ms));
    let names_a_host = dst.socket().is_some_and(|dst| !dst.ip().to_canonical().is_unspecified());
    let plain = src.is_none() && names_a_host;
    if plain && id.goes(Phase::New, Phase::ResolvingAddr) {
        client.resolve_addr_soon(id.handle, dst, timeout)?;
    } else {
        let mut before = [Phase::New, Phase::Bound].into_iter();
        let before = before.find(|&phase| id.goes(phase, Phase::ResolvingAddr));
        id.lock().has_known_port |= src.is_some_and(|src| src.port() != 0);
        client.resolve_addr(id.handle, src, dst, timeout).inspect_err(|_| {
            if let Some(phase) = before {
                id.is_at(phase);
            }
        })?;
    }
    address::show_destination(id, dst);
    complete(id)
}

/// Resolves the path to the resolved address (rdma_resolve_route(3)). ROUTE_RESOLVED or ROUTE_ERROR follows. It queries ACM
/// first (`RDMA_CM_USE_IB_ACM`).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| resolve_route(unsafe { Id::get(id)? }, timeout_ms))
}

/// Resolves the path to the resolved address.
pub(super) fn resolve_route(id: &Id, timeout_ms: c_int) -> Result<()> {
    if id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    let (client, timeout) = (id.process.client()?, timeout(timeout_ms));
    let route = id.lock().route;
    if let Some(route) = route
        && id.goes(Phase::AddrResolved, Phase::ResolvingRoute)
    {
        client.find_route_soon(id.handle, &route, timeout)?;
    } else {
        client.resolve_route(id.handle, timeout)?;
    }
    complete(id)
}

/// Converts milliseconds. The kernel's driver takes them as an unsigned number: a negative one is longer than a program will wait.
fn timeout(ms: c_int) -> Duration {
    Duration::from_millis(ms.cast_unsigned().into())
}
