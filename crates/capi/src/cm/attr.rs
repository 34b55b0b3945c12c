//! Queue pair attributes from the connection manager, in libibverbs' form.

use std::ffi::c_int;

use rdmux_cm::Negotiated;
use rdmux_transport::attr::{AddressVector, AttrMask, QpAttr, QpState};
use rdmux_wire::{AckTimeout, Mtu, Psn, Qkey, Qpn, RnrTimer};

use super::id::Id;
use crate::abi::cma::rdma_cm_id;
use crate::abi::verbs::ibv_qp_attr;
use crate::boundary::{Errno, Result, status};
use crate::verbs::attr;

/// Returns the attributes that take the queue pair of an id to `state`, and their mask.
///
/// # Errors
/// EINVAL when the id has no device yet, nothing was negotiated for this state, or it is not INIT, RTR or RTS.
pub(super) fn attr_for(id: &Id, state: QpState) -> Result<(QpAttr, AttrMask)> {
    if id.verbs().is_null() || !matches!(state, QpState::Init | QpState::Rtr | QpState::Rts) {
        return Err(Errno::EINVAL);
    }
    let agreed = id.lock().negotiated;
    let known = match agreed {
        Some(agreed) => agreed,
        None if state == QpState::Init || id.is_ud() => before_anything(id)?,
        None => return Err(Errno::EINVAL),
    };
    Ok(known.qp_attr(state))
}

/// Returns the attributes before negotiation: peers have no access, and datagrams have the well-known key. With iWARP peers have
/// full access, because there is no later moment to grant it: the peer can send as soon as the stream arrives.
fn before_anything(id: &Id) -> Result<Negotiated> {
    let device = id.device().ok_or(Errno::EINVAL)?;
    let served = if device.has_streams() { device.max_responder_resources } else { 0 };
    Ok(Negotiated {
        qp_type: attr::qp_type(id.qp_type())?,
        transport: device.kind().transport_type(),
        av: AddressVector { port_num: id.port_num(), ..AddressVector::default() },
        path_mtu: Mtu::M1024,
        pkey_index: 0,
        qkey: Qkey::RDMA_UDP,
        dest_qpn: Qpn::default(),
        rq_psn: Psn::default(),
        sq_psn: Psn::default(),
        max_rd_atomic: 0,
        max_dest_rd_atomic: served,
        min_rnr_timer: RnrTimer::new(0),
        timeout: AckTimeout::default(),
        retry_cnt: 0,
        rnr_retry: 0,
        srq: false,
        alternate: None,
        reloads: false,
    })
}

/// Returns the attributes that take a queue pair of the program's own to `qp_attr->qp_state`, and their mask
/// (rdma_init_qp_attr(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call; the others are NULL or may be read and written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    to: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, to, mask) = unsafe { (Id::get(id)?, to.as_mut(), mask.as_mut()) };
        let (Some(to), Some(mask)) = (to, mask) else { return Err(Errno::EINVAL) };
        let state = attr::state(to.qp_state)?;
        let (set, which) = attr_for(id, state)?;
        *to = attr::to_c(&set);
        *mask = which.bits().cast_signed();
        Ok(())
    })
}
