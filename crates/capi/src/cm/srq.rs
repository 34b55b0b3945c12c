//! Shared receive queues of ids.

use std::ffi::c_int;
use std::ptr;

use super::id::Id;
use super::qp;
use super::verbs::{self, zeroed};
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, status};

/// Makes a shared receive queue, which the id's queue pair will receive from (rdma_create_srq(3)). Without `pd` it is in
/// the id's. The sizes that it got are put into `attr`.
///
/// # Safety
/// `id` is an id of this library that outlives the call, `pd` NULL or a domain; `attr` is NULL or may be read and written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: as promised; zero is NULL, or nothing, in every field; the one structure begins as the other.
    status(|| unsafe {
        let attr = attr.as_mut().ok_or(Errno::EINVAL)?;
        let mut extended: ibv_srq_init_attr_ex = zeroed();
        ptr::from_mut(&mut extended).cast::<ibv_srq_init_attr>().write(*attr);
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.srq_type = IBV_SRQT_BASIC;
        extended.pd = pd;
        let created = create(Id::get(id)?, &mut extended);
        *attr = ptr::from_ref(&extended).cast::<ibv_srq_init_attr>().read();
        created
    })
}

/// As [`rdma_create_srq`], with all that `ibv_create_srq_ex` takes (rdma_create_srq(3)).
///
/// # Safety
/// As [`rdma_create_srq`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: as promised.
    status(|| unsafe { create(Id::get(id)?, attr.as_mut().ok_or(Errno::EINVAL)?) })
}

fn create(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = id.pd();
    }
    id.set_srq(verbs::create_srq(id.verbs(), attr)?);
    if id.pd().is_null() {
        id.set_pd(attr.pd);
    }
    Ok(())
}

/// Destroys the id's shared receive queue (rdma_destroy_srq(3)); its queue pair must be gone.
///
/// # Safety
/// `id` is an id of this library that outlives the call, and nobody uses the queue any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let _: Result<c_int> = guarded(|| {
        // SAFETY: as promised.
        destroy(unsafe { Id::get(id)? });
        Ok(0)
    });
}

pub(super) fn destroy(id: &Id) {
    if !id.srq().is_null() {
        verbs::destroy_srq(id.srq());
        id.set_srq(ptr::null_mut());
    }
    if id.qp().is_null() {
        qp::destroy_cqs(id);
    }
}
