//! rdma_set_option.

use std::ffi::{c_int, c_void};

use rdmux_cm::{CmOption, Failover, IdOption, PathData};
use rdmux_wire::Mtu;
use rdmux_wire::sa::PathRecord;

use super::id::Id;
use super::membership;
use super::phase::Phase;
use crate::abi::cma::*;
use crate::abi::rdmux_cm::*;
use crate::abi::verbs::ibv_path_data;
use crate::boundary::{Errno, Result, status};

/// The most records that a connection can have: the connection manager's path, and the primary and the alternate one in both
/// directions; and one more, for records that are given twice with other flags.
const MAX_PATHS: usize = 6;

/// Sets an option (rdma_set_option(3)): all of level RDMA_OPTION_ID, the path of RDMA_OPTION_IB, and those of <rdmux/iwarp.h>,
/// <rdmux/cm.h> and <rdmux/multicast.h>.
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
    // SAFETY: the caller guarantees it.
    status(|| unsafe { set(Id::get(id)?, level, name, value, len) })
}

/// Sets an option from the program's value.
///
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
    // SAFETY: the caller guarantees it.
    let option = unsafe {
        match (level, name) {
            (RDMA_PROTO_IP | RDMA_PROTO_IB, _) => {
                return membership::set(id, level, name, value, len);
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => IdOption::Tos(read(value, len)?),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                IdOption::ReuseAddr(read::<c_int>(value, len)? != 0)
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                IdOption::AfOnly(read::<c_int>(value, len)? != 0)
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => IdOption::AckTimeout(read(value, len)?),
            (RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER) => {
                IdOption::PeerToPeer(either(read::<u32>(value, len)?)?)
            }
            (RDMUX_OPTION_CM, name) => return set_of_cm(id, name, read(value, len)?),
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return set_path(id, value, len),
            _ => return Err(Errno(libc::ENOSYS)),
        }
    };
    Ok(id.process.client()?.set_option(id.handle, option)?)
}

/// Sets an option of <rdmux/cm.h>.
fn set_of_cm(id: &Id, name: u32, value: u32) -> Result<()> {
    let option = of_cm(name, value)?;
    id.process.client()?.set_option(id.handle, IdOption::Cm(option))?;
    if let Some(negotiated) = &mut id.lock().negotiated {
        negotiated.take_option(option);
    }
    Ok(())
}

/// Returns an option of <rdmux/cm.h>.
fn of_cm(name: u32, value: u32) -> Result<CmOption> {
    let byte = u8::try_from(value).map_err(|_| Errno::EINVAL);
    Ok(match name {
        RDMUX_OPTION_CM_REMOTE_RESPONSE_TIMEOUT => CmOption::RemoteResponseTimeout(byte?),
        RDMUX_OPTION_CM_LOCAL_RESPONSE_TIMEOUT => CmOption::LocalResponseTimeout(byte?),
        RDMUX_OPTION_CM_MAX_RETRIES => CmOption::MaxRetries(byte?),
        RDMUX_OPTION_CM_STARTING_PSN => CmOption::StartingPsn(value),
        RDMUX_OPTION_CM_PATH_MTU => CmOption::PathMtu(Mtu::from_code(byte?).ok_or(Errno::EINVAL)?),
        RDMUX_OPTION_CM_LOCAL_QKEY => CmOption::LocalQkey(value),
        RDMUX_OPTION_CM_TARGET_ACK_DELAY => CmOption::TargetAckDelay(byte?),
        RDMUX_OPTION_CM_FAILOVER_ACCEPTED => {
            CmOption::Failover(Failover::from_code(byte?).ok_or(Errno::EINVAL)?)
        }
        RDMUX_OPTION_CM_SERVICE_TIMEOUT => CmOption::ServiceTimeout(byte?),
        RDMUX_OPTION_CM_MAX_REDIRECTS => CmOption::MaxRedirects(byte?),
        RDMUX_OPTION_CM_MESSAGES => CmOption::Messages(either(value)?),
        RDMUX_OPTION_CM_LOCAL_EECN => CmOption::LocalEecn(value),
        RDMUX_OPTION_CM_REMOTE_EECN => CmOption::RemoteEecn(value),
        RDMUX_OPTION_CM_RDC_EXISTS => CmOption::RdcExists(either(value)?),
        _ => return Err(Errno(libc::ENOSYS)),
    })
}

/// Converts a switch, which must be 0 or 1.
fn either(value: u32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads the value, if it has the right size.
///
/// # Safety
/// `value` is NULL or `len` bytes, and any bytes are a valid `T`.
unsafe fn read<T>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller guarantees it, and the length was checked.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Sets path records from the program in place of a query; ROUTE_RESOLVED follows.
///
/// # Safety
/// `value` is NULL or `len` bytes.
unsafe fn set_path(id: &Id, value: *const c_void, len: usize) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let records = unsafe { path_data(value, len)? };
    let client = id.process.client()?;
    Ok(id.tries(Phase::ResolvingRoute, || client.set_paths(id.handle, &records))?)
}

/// Reads path records and their flags, an array of `struct ibv_path_data`.
///
/// # Errors
/// EINVAL for NULL, and for a length that is not that of one to [`MAX_PATHS`] records.
///
/// # Safety
/// `value` is NULL or `len` bytes.
pub(super) unsafe fn path_data(value: *const c_void, len: usize) -> Result<Vec<PathData>> {
    const SIZE: usize = size_of::<ibv_path_data>();
    let is_array = (SIZE..=SIZE * MAX_PATHS).contains(&len) && len.is_multiple_of(SIZE);
    if value.is_null() || !is_array {
        tracing::debug!(
            len,
            is_null = value.is_null(),
            "not an array of 1 to {MAX_PATHS} path records"
        );
        return Err(Errno::EINVAL);
    }
    let records = value.cast::<[u8; SIZE]>();
    let read = |i| {
        // SAFETY: the caller guarantees that there are that many.
        let bytes = unsafe { records.add(i).read_unaligned() };
        let [f0, f1, f2, f3, _, _, _, _, record @ ..] = bytes;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        PathData { flags, record: PathRecord::from_bytes(&record) }
    };
    Ok((0..len / SIZE).map(read).collect())
}
