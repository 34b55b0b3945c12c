//! Queue pairs of ids.

use std::ffi::c_int;
use std::ptr;

use rdmux_transport::attr::QpState;

use super::attr::attr_for;
use super::ece;
use super::id::{Depths, Id};
use super::verbs;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, guarded, status, zeroed};
use crate::verbs::attr;

/// Creates a queue pair for the id: in INIT, so that receives can be posted, or with UD in RTS (rdma_create_qp(3)). Without `pd`
/// it uses the id's domain. Completion queues that `attr` does not name are created, each with a channel. The actual sizes
/// are stored in `attr`.
///
/// The sending end of XRC gets no completion queue for receives. The receiving end gets none at all: messages arrive in the shared
/// receive queues of its domain, which is the process's own if `attr` names none.
///
/// # Safety
/// `id` is an id of this library that outlives the call, `pd` NULL or a domain; `attr` is NULL or may be read and written, and its
/// pointers are NULL or objects of this library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { create_from(Id::get(id)?, pd, attr.as_mut().ok_or(Errno::EINVAL)?) })
}

/// Creates an id's queue pair from basic attributes.
///
/// # Safety
/// As [`rdma_create_qp`].
pub(super) unsafe fn create_from(
    id: &Id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: zero is NULL, or no value, in every field; the one structure begins like the other.
    unsafe {
        let mut extended: ibv_qp_init_attr_ex = zeroed();
        ptr::from_mut(&mut extended).cast::<ibv_qp_init_attr>().write(*attr);
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        let created = create(id, &mut extended);
        *attr = ptr::from_ref(&extended).cast::<ibv_qp_init_attr>().read();
        created
    }
}

/// Creates a queue pair as [`rdma_create_qp`] does, with all that `ibv_create_qp_ex` takes (rdma_create_qp_ex(3)).
///
/// # Safety
/// As [`rdma_create_qp`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { create(Id::get(id)?, attr.as_mut().ok_or(Errno::EINVAL)?) })
}

/// Creates an id's queue pair, with completion queues for those that are missing.
///
/// # Safety
/// As [`rdma_create_qp`].
unsafe fn create(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    if !id.qp().is_null() || id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = id.pd();
    // SAFETY: not NULL, then a domain.
    } else if unsafe { (*attr.pd).context } != id.verbs() {
        return Err(Errno::EINVAL);
    }
    let differ = |ours: *mut ibv_cq, theirs: *mut ibv_cq| {
        !ours.is_null() && !theirs.is_null() && ours != theirs
    };
    if differ(id.recv_cq(), attr.recv_cq) || differ(id.send_cq(), attr.send_cq) {
        return Err(Errno::EINVAL);
    }
    match attr.qp_type {
        IBV_QPT_XRC_SEND => (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0),
        IBV_QPT_XRC_RECV => for_any_queue(id, attr)?,
        _ if attr.srq.is_null() => attr.srq = id.srq(),
        _ => {}
    }
    let created = create_cqs(id, attr).and_then(|()| {
        let qp = verbs::create_qp(id.verbs(), attr)?;
        let ready = ece::begin(id, qp).and_then(|()| first_states(id, qp));
        if ready.is_err() {
            verbs::destroy_qp(qp);
        }
        ready.map(|()| qp)
    });
    match created {
        Ok(qp) => {
            id.set_pd(attr.pd);
            id.set_qp(qp);
            ece::keep(id)
        }
        Err(errno) => {
            destroy_cqs(id);
            Err(errno)
        }
    }
}

/// Prepares the attributes for XRC's receiving end: no queues, but a domain of the queues that requests may name.
fn for_any_queue(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    (attr.cap.max_send_wr, attr.cap.max_send_sge) = (0, 0);
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge) = (0, 0);
    if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = id.device().ok_or(Errno::EINVAL)?.default_xrcd()?;
    }
    Ok(())
}

/// Creates the completion queues that neither the id nor the program has. Their context is the id.
fn create_cqs(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    if attr.recv_cq.is_null() && id.recv_cq().is_null() && attr.cap.max_recv_wr > 0 {
        create_recv_cq(id, attr.cap.max_recv_wr)?;
    }
    if attr.send_cq.is_null() && id.send_cq().is_null() && attr.cap.max_send_wr > 0 {
        id.set_send_cq_channel(verbs::create_comp_channel(id.verbs())?);
        let size = attr.cap.max_send_wr;
        id.set_send_cq(create_cq(id, size, id.send_cq_channel())?);
    }
    let receives = !matches!(attr.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV);
    if attr.recv_cq.is_null() && receives {
        attr.recv_cq = id.recv_cq();
    }
    if attr.send_cq.is_null() {
        attr.send_cq = id.send_cq();
    }
    Ok(())
}

/// Creates a completion queue whose context is the id.
fn create_cq(id: &Id, size: u32, channel: *mut ibv_comp_channel) -> Result<*mut ibv_cq> {
    verbs::create_cq(id.verbs(), size, id.public().cast(), channel)
}

/// Creates the id's completion queue for receives, with its channel.
pub(super) fn create_recv_cq(id: &Id, size: u32) -> Result<()> {
    id.set_recv_cq_channel(verbs::create_comp_channel(id.verbs())?);
    id.set_recv_cq(create_cq(id, size, id.recv_cq_channel())?);
    Ok(())
}

/// Destroys the completion queues of [`create_cqs`].
pub(super) fn destroy_cqs(id: &Id) {
    let (send, channel) = (id.send_cq(), id.send_cq_channel());
    id.set_send_cq(ptr::null_mut());
    id.set_send_cq_channel(ptr::null_mut());
    if send != id.recv_cq() {
        verbs::destroy_cq(send);
    }
    if channel != id.recv_cq_channel() {
        verbs::destroy_comp_channel(channel);
    }
    if !id.lock().cq_of_srq {
        destroy_recv_cq(id);
    }
}

/// Destroys the completion queue of [`create_recv_cq`].
pub(super) fn destroy_recv_cq(id: &Id) {
    let (cq, channel) = (id.recv_cq(), id.recv_cq_channel());
    id.set_recv_cq(ptr::null_mut());
    id.set_recv_cq_channel(ptr::null_mut());
    verbs::destroy_cq(cq);
    verbs::destroy_comp_channel(channel);
}

/// Takes a new queue pair through the states before a connection.
fn first_states(id: &Id, qp: *mut ibv_qp) -> Result<()> {
    step(id, qp, QpState::Init, None)?;
    if id.is_ud() {
        step(id, qp, QpState::Rtr, None)?;
        step(id, qp, QpState::Rts, None)?;
    }
    Ok(())
}

/// Takes the id's queue pair to RTS as negotiated, with these depths if the program has others. Does nothing without one.
pub(super) fn bring_up(id: &Id, depths: Option<Depths>) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    // INIT once more: the peer's access depends on what was negotiated.
    step(id, qp, QpState::Init, depths)?;
    if id.has_streams() {
        // The further states of the queue pair follow when the stream arrives.
        return Ok(());
    }
    step(id, qp, QpState::Rtr, depths)?;
    step(id, qp, QpState::Rts, depths)
}

/// Loads the negotiated alternate path into the id's queue pair, which is in RTS, and arms it for migration. Does nothing
/// without one.
pub(super) fn reload(id: &Id) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    if !id.lock().negotiated.is_some_and(|agreed| agreed.reloads) {
        return Err(Errno::EINVAL);
    }
    step(id, qp, QpState::Rts, None)
}

/// Makes one transition, with the attributes of rdma_init_qp_attr(3).
fn step(id: &Id, qp: *mut ibv_qp, state: QpState, depths: Option<Depths>) -> Result<()> {
    let (agreed, mask) = attr_for(id, state)?;
    let mut attr = attr::to_c(&agreed);
    if let Some(depths) = depths {
        attr.max_dest_rd_atomic = depths.responder_resources;
        attr.max_rd_atomic = depths.initiator_depth;
    }
    verbs::modify_qp(qp, &mut attr, mask.bits())
}

/// Moves the id's queue pair to the error state, which flushes all posted requests. Does nothing without one.
pub(super) fn fail(id: &Id) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    // SAFETY: zero is a value of every field.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = IBV_QPS_ERR;
    verbs::modify_qp(qp, &mut attr, IBV_QP_STATE)
}

/// Destroys the id's queue pair, and the completion queues that were created for it (rdma_destroy_qp(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call, and its queue pair is no longer used.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let _: Result<c_int> = guarded(|| {
        // SAFETY: the caller guarantees it.
        destroy(unsafe { Id::get(id)? });
        Ok(0)
    });
}

/// Destroys an id's queue pair, if it has one, after detaching it from all groups.
pub(super) fn destroy(id: &Id) {
    if !id.qp().is_null() {
        // An attached queue pair cannot be destroyed, and a later one is not attached in its place.
        let attached = |id: &Id| id.lock().groups.iter().find(|g| g.attached).map(|g| g.key);
        while let Some(key) = attached(id) {
            id.detach(key);
        }
        // Address handles are in the domain of the queue pair, which the program may deallocate afterwards.
        id.change_groups(|groups| {
            for way in groups.iter_mut().filter_map(|group| group.way.as_mut().ok()) {
                *way = way.again();
            }
        });
        verbs::destroy_qp(id.qp());
        id.set_qp(ptr::null_mut());
    }
    destroy_cqs(id);
}
