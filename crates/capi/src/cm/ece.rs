//! Enhanced connection establishment: options that vendors' adapters negotiate while they connect (rdma_set_local_ece(3)).
//!
//! REQ and REP carry a vendor and its options. If the id has a queue pair of its own they are that queue pair's, and the program
//! cannot change them; otherwise the program sets and gets them.

use std::ffi::c_int;

use rdmux_cm::Ece;

use super::id::Id;
use super::verbs;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::{ibv_ece, ibv_qp};
use crate::boundary::{Errno, Result, status};

/// Sets the options that the id sends to the peer, for a queue pair of the program's own (rdma_set_local_ece(3)).
///
/// # Safety
/// `id` is NULL or an id of this library that outlives the call; `ece` is NULL or may be read.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, ece) = unsafe { (Id::get(id)?, ece.as_ref().ok_or(Errno::EINVAL)?) };
        if !id.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        id.lock().local_ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        Ok(())
    })
}

/// Returns the peer's options from CONNECT_REQUEST or CONNECT_RESPONSE (rdma_get_remote_ece(3)).
///
/// # Safety
/// `id` is NULL or an id of this library that outlives the call; `ece` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        if !id.qp().is_null() || ece.is_null() {
            return Err(Errno::EINVAL);
        }
        let Ece { vendor_id, options } = id.lock().remote_ece;
        // SAFETY: the caller guarantees it.
        unsafe { *ece = ibv_ece { vendor_id, options, comp_mask: 0 } };
        Ok(())
    })
}

/// Makes the options of a new queue pair those that the id sends. If the peer has sent its options, passes them to the queue pair;
/// those of another vendor count as 0.
pub(super) fn begin(id: &Id, qp: *mut ibv_qp) -> Result<()> {
    let ours = verbs::query_ece(qp)?;
    let theirs = {
        let mut state = id.lock();
        state.local_ece = ours;
        state.remote_ece
    };
    if theirs.vendor_id == 0 {
        return Ok(());
    }
    let options = if theirs.vendor_id == ours.vendor_id { theirs.options } else { 0 };
    verbs::set_ece(qp, Ece { vendor_id: ours.vendor_id, options })
}

/// Passes the peer's answer to the id's queue pair before it enters RTR.
///
/// # Errors
/// EINVAL when the answer names another vendor than the request.
pub(super) fn agree(id: &Id, answer: Ece) -> Result<()> {
    let ours = id.lock().local_ece;
    let options = match answer.vendor_id {
        0 => 0,
        vendor if vendor == ours.vendor_id => answer.options,
        _ => return Err(Errno::EINVAL),
    };
    verbs::set_ece(id.qp(), Ece { vendor_id: ours.vendor_id, options })
}

/// Stores the options to which the id's queue pair has reduced the peer's.
pub(super) fn keep(id: &Id) -> Result<()> {
    if id.lock().remote_ece.vendor_id != 0 {
        let options = verbs::query_ece(id.qp())?.options;
        id.lock().local_ece.options = options;
    }
    Ok(())
}
