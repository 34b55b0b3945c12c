//! rdma_set_option.

use std::ffi::{c_int, c_void};

use rdmux_cm::IdOption;
use rdmux_wire::Gid;

use super::id::Id;
use super::phase::Phase;
use crate::abi::cma::*;
use crate::abi::verbs::{ibv_path_data, ibv_path_record};
use crate::boundary::{Errno, Result, status};

/// A path record that is the way there and back of both data and management: the one kind that can be set
/// (<infiniband/sa.h>: GMP, PRIMARY, BIDIRECTIONAL).
const EVERYTHING: u32 = 1 | 1 << 1 | 1 << 5;

/// Sets an option (rdma_set_option(3)): of level RDMA_OPTION_ID all, of RDMA_OPTION_IB the path; and that of <rdmux/iwarp.h>.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `value` is NULL or that many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: as promised.
    status(|| unsafe { set(Id::get(id)?, level, name, value, len) })
}

/// # Safety
/// `value` is NULL or `len` bytes.
pub(super) unsafe fn set(
    id: &Id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> Result<()> {
    let (Ok(level), Ok(name)) = (u32::try_from(level), u32::try_from(name)) else {
        return Err(Errno(libc::ENOSYS));
    };
    // SAFETY: as promised.
    let option = unsafe {
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => IdOption::Tos(read(value, len)?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                IdOption::ReuseAddr(read::<c_int>(value, len)? != 0)
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                IdOption::AfOnly(read::<c_int>(value, len)? != 0)
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => IdOption::AckTimeout(read(value, len)?),
            (RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER) => {
                IdOption::PeerToPeer(either(read(value, len)?)?)
            }
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return set_path(id, value, len),
            _ => return Err(Errno(libc::ENOSYS)),
        }
    };
    Ok(id.process.client()?.set_option(id.handle, option)?)
}

/// A switch, of which nothing but 0 and 1 makes sense.
fn either(value: c_int) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// The value, if it has the right size.
///
/// # Safety
/// `value` is NULL or `len` bytes, of which any are a `T`.
unsafe fn read<T>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as promised, and there are enough.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Takes a path from the program instead of asking for it; ROUTE_RESOLVED follows. On RoCE the path follows from the addresses,
/// so all that counts is that it leads from the id's to the peer's.
///
/// # Safety
/// `value` is NULL or `len` bytes.
unsafe fn set_path(id: &Id, value: *const c_void, len: usize) -> Result<()> {
    const SIZE: usize = size_of::<ibv_path_data>();
    if value.is_null() || len == 0 || !len.is_multiple_of(SIZE) {
        return Err(Errno::EINVAL);
    }
    let records = value.cast::<ibv_path_data>();
    // SAFETY: as promised, and there are that many.
    let mut all = (0..len / SIZE).map(|i| unsafe { records.add(i).read_unaligned() });
    let path = all.find(|r| r.flags == EVERYTHING).ok_or(Errno::EINVAL)?.path;
    let (local, remote) = ends(&path);
    id.is_at(Phase::Other);
    Ok(id.process.client()?.set_path(id.handle, local, remote)?)
}

/// From where to where a path leads.
fn ends(path: &ibv_path_record) -> (Gid, Gid) {
    // SAFETY: any bytes are a GID.
    unsafe { (Gid(path.sgid.raw), Gid(path.dgid.raw)) }
}
