//! Shared receive queues of ids.

use std::ffi::c_int;
use std::ptr;

use super::id::Id;
use super::qp;
use super::verbs;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, status, zeroed};

/// Creates a shared receive queue, from which the id's queue pair will receive (rdma_create_srq(3)). Without `pd` it uses
/// the id's domain. The actual sizes are stored in `attr`.
///
/// For an id of XRC's receiving end it is a queue of the process's domain, with a completion queue and a channel of its own
/// in `recv_cq` and `recv_cq_channel`. Peers name it by its number (`ibv_get_srq_num`).
///
/// # Safety
/// `id` is an id of this library that outlives the call, `pd` NULL or a domain; `attr` is NULL or may be read and written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller guarantees it; zero is NULL, or no value, in every field; the one structure begins like the other.
    status(|| unsafe {
        let (id, attr) = (Id::get(id)?, attr.as_mut().ok_or(Errno::EINVAL)?);
        let extends = id.qp_type() == IBV_QPT_XRC_RECV;
        let mut extended: ibv_srq_init_attr_ex = zeroed();
        ptr::from_mut(&mut extended).cast::<ibv_srq_init_attr>().write(*attr);
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.srq_type = if extends { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
        extended.pd = pd;
        let created = create(id, &mut extended);
        *attr = ptr::from_ref(&extended).cast::<ibv_srq_init_attr>().read();
        created
    })
}

/// Creates a queue as [`rdma_create_srq`] does, with all that `ibv_create_srq_ex` takes (rdma_create_srq(3)). For an XRC queue, `attr`
/// finally has its domain and completion queue.
///
/// # Safety
/// As [`rdma_create_srq`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { create(Id::get(id)?, attr.as_mut().ok_or(Errno::EINVAL)?) })
}

fn create(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    if !id.srq().is_null() {
        // An id has at most one.
        return Err(Errno::EINVAL);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = id.pd();
    }
    let created = match attr.srq_type {
        IBV_SRQT_XRC => complete(id, attr),
        _ => Ok(()),
    };
    match created.and_then(|()| verbs::create_srq(id.verbs(), attr)) {
        Ok(srq) => id.set_srq(srq),
        Err(errno) => {
            release_cq(id);
            return Err(errno);
        }
    }
    if id.pd().is_null() {
        id.set_pd(attr.pd);
    }
    Ok(())
}

/// Fills in the domain and the completion queue of an XRC queue if the program names none.
fn complete(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.xrcd = id.device().ok_or(Errno::EINVAL)?.default_xrcd()?;
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        if id.recv_cq().is_null() {
            qp::create_recv_cq(id, attr.attr.max_wr)?;
        }
        id.lock().cq_of_srq = true;
        attr.cq = id.recv_cq();
    }
    attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    Ok(())
}

/// Releases the id's completion queue, which the shared receive queue no longer needs.
fn release_cq(id: &Id) {
    id.lock().cq_of_srq = false;
    if !id.qp_receives() {
        qp::destroy_recv_cq(id);
    }
}

/// Destroys the id's shared receive queue (rdma_destroy_srq(3)); its queue pair must be destroyed before.
///
/// # Safety
/// `id` is an id of this library that outlives the call, and its queue is no longer used.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let _: Result<c_int> = guarded(|| {
        // SAFETY: the caller guarantees it.
        destroy(unsafe { Id::get(id)? });
        Ok(0)
    });
}

/// Destroys an id's shared receive queue, if it has one.
pub(super) fn destroy(id: &Id) {
    if !id.srq().is_null() {
        verbs::destroy_srq(id.srq());
        id.set_srq(ptr::null_mut());
    }
    release_cq(id);
    if id.qp().is_null() {
        qp::destroy_cqs(id);
    }
}
