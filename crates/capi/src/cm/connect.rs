//! connect, accept, reject, establish, disconnect, notify.

use std::ffi::{c_int, c_void};

use rdmux_cm::{ConnParam, Ece, IdState};
use rdmux_wire::Qpn;

use super::event::set_event;
use super::id::{Depths, Id};
use super::phase::Phase;
use super::qp;
use super::take::complete;
use crate::abi::cma::*;
use crate::abi::verbs::{IBV_EVENT_COMM_EST, IBV_EVENT_PATH_MIG, ibv_event_type, ibv_qp};
use crate::boundary::{Errno, Result, status};

/// The program's private data in REQ and REP (IBTA 12.6.5, 12.6.8; annex A11.2.1).
const REQ_DATA: usize = 56;
const REP_DATA: usize = 196;
/// Retries of a connection whose program gives none.
const RETRIES: u8 = 7;
/// REJ's reason for a refusal by the program, and for options of ECE that it does not support (IBTA table 108).
const CONSUMER: u16 = 28;
const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;

/// Connects; or, with UD, looks up the peer's queue pair (rdma_connect(3)). ESTABLISHED follows, or REJECTED,
/// UNREACHABLE, CONNECT_ERROR; CONNECT_RESPONSE if the id has no queue pair of its own.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `param` is NULL or parameters whose private data have the given length.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, asked) = unsafe { (Id::get(id)?, param.as_ref()) };
        check(id, asked)?;
        let wanted = depths(asked, most(id), most(id));
        let local = {
            let mut state = id.lock();
            state.depths = wanted;
            state.local_ece
        };
        // SAFETY: the caller guarantees it.
        let param = unsafe { conn_param(id, asked, wanted, local) };
        let client = id.process.client()?;
        let plain = is_plain(id, &param, REQ_DATA);
        if plain && id.goes(Phase::RouteResolved, Phase::Connecting) {
            client.connect_id_soon(id.handle, param)?;
        } else {
            let begins = id.goes(Phase::RouteResolved, Phase::Other);
            let asked = client.connect_id(id.handle, &param);
            if begins && asked.is_err() {
                id.goes(Phase::Other, Phase::RouteResolved);
            }
            asked?;
        }
        id.lock().connect_data.clear();
        complete(id)
    })
}

/// Accepts a connection request (rdma_accept(3)). ESTABLISHED follows, but not with UD. A queue pair of the id's own is in
/// RTS before the peer gets the answer.
///
/// # Safety
/// As [`rdma_connect`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, asked) = unsafe { (Id::get(id)?, param.as_ref()) };
        check(id, asked)?;
        if asked.is_none() && id.qp().is_null() {
            return Err(Errno::EINVAL);
        }
        let (peers, ece) = {
            let state = id.lock();
            let ece = Ece { vendor_id: state.remote_ece.vendor_id, ..state.local_ece };
            (state.depths, ece)
        };
        let wanted = depths(asked, peers, most(id));
        id.lock().depths = wanted;
        if !id.is_ud() {
            qp::bring_up(id, Some(wanted))?;
        }
        // SAFETY: the caller guarantees it.
        let param = unsafe { conn_param(id, asked, wanted, ece) };
        let client = id.process.client()?;
        let plain = is_plain(id, &param, REP_DATA);
        let accepted = if plain && id.goes(Phase::Requested, Phase::Accepting) {
            client.accept_soon(id.handle, param)
        } else {
            id.tries(Phase::Other, || client.accept(id.handle, &param))
        };
        if let Err(error) = accepted {
            let _ = qp::fail(id);
            return Err(error.into());
        }
        if id.is_ud() {
            if id.lock().synchronous {
                set_event(id, None);
            }
            return Ok(());
        }
        complete(id)
    })
}

/// Checks that a connection can be made with these parameters.
fn check(id: &Id, param: Option<&rdma_conn_param>) -> Result<()> {
    if id.verbs().is_null() {
        return Err(Errno::EINVAL);
    }
    if id.ps() != RDMA_PS_TCP {
        return Ok(());
    }
    let Some(param) = param else {
        // Without parameters everything follows from the queue pair.
        return if id.qp().is_null() { Err(Errno::EINVAL) } else { Ok(()) };
    };
    let most = most(id);
    let too_many = |n: u8, special: u32, most: u8| u32::from(n) != special && n > most;
    if too_many(param.responder_resources, RDMA_MAX_RESP_RES, most.responder_resources)
        || too_many(param.initiator_depth, RDMA_MAX_INIT_DEPTH, most.initiator_depth)
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Returns whether the service is sure to accept these parameters.
fn is_plain(id: &Id, param: &ConnParam, private_data: usize) -> bool {
    let most = most(id);
    !id.is_ud()
        && !id.has_streams()
        && param.private_data.len() <= private_data
        && param.responder_resources <= most.responder_resources
        && param.initiator_depth <= most.initiator_depth
}

/// Returns the device's limits.
fn most(id: &Id) -> Depths {
    id.device().map_or_else(Depths::default, |device| Depths {
        responder_resources: device.max_responder_resources,
        initiator_depth: device.max_initiator_depth,
    })
}

/// Returns the depths that the program wants, or `default` where it leaves them open, limited to `most`.
fn depths(param: Option<&rdma_conn_param>, default: Depths, most: Depths) -> Depths {
    let pick = |asked: Option<u8>, special: u32, default: u8, most: u8| match asked {
        Some(asked) if u32::from(asked) != special => asked,
        _ => default.min(most),
    };
    Depths {
        responder_resources: pick(
            param.map(|p| p.responder_resources),
            RDMA_MAX_RESP_RES,
            default.responder_resources,
            most.responder_resources,
        ),
        initiator_depth: pick(
            param.map(|p| p.initiator_depth),
            RDMA_MAX_INIT_DEPTH,
            default.initiator_depth,
            most.initiator_depth,
        ),
    }
}

/// Returns the parameters for the service. The id's own queue pair overrides the program's values.
///
/// # Safety
/// The private data have the given length; the id's queue pair lives.
unsafe fn conn_param(
    id: &Id,
    param: Option<&rdma_conn_param>,
    depths: Depths,
    ece: Ece,
) -> ConnParam {
    let mut private_data = id.lock().connect_data.clone();
    if let Some(param) = param {
        // SAFETY: the caller guarantees it.
        private_data
            .extend_from_slice(unsafe { bytes(param.private_data, param.private_data_len) });
    }
    // SAFETY: the caller guarantees it.
    let (qp_num, srq) = match unsafe { id.qp().as_ref() } {
        Some(ibv_qp { qp_num, srq, .. }) => (*qp_num, !srq.is_null()),
        None => param.map_or((0, false), |p| (p.qp_num, p.srq != 0)),
    };
    ConnParam {
        private_data,
        responder_resources: depths.responder_resources,
        initiator_depth: depths.initiator_depth,
        flow_control: param.is_some_and(|p| p.flow_control != 0),
        retry_count: param.map_or(RETRIES, |p| p.retry_count),
        rnr_retry_count: param.map_or(RETRIES, |p| p.rnr_retry_count),
        srq,
        qp_num: Qpn::new(qp_num),
        qkey: None,
        ece,
        peer_to_peer: None,
    }
}

/// Returns private data as a slice.
///
/// # Safety
/// `data` is NULL or that many bytes, which live as long as the result.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts(data.cast(), len.into()) }
}

/// Refuses a connection request; the peer gets REJECTED with these bytes (rdma_reject(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call; `private_data` is NULL or that many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { reject(id, CONSUMER, bytes(private_data, private_data_len)) })
}

/// Refuses as [`rdma_reject`] does, because of the peer's options of enhanced connection establishment (rdma_reject_ece(3)).
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe {
        reject(id, VENDOR_OPTION_NOT_SUPPORTED, bytes(private_data, private_data_len))
    })
}

/// Refuses a connection request, with the reason of REJ.
///
/// # Safety
/// `id` is an id of this library that outlives the call.
unsafe fn reject(id: *mut rdma_cm_id, reason: u16, private_data: &[u8]) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let id = unsafe { Id::get(id)? };
    id.is_at(Phase::Other);
    Ok(id.process.client()?.reject(id.handle, reason, private_data)?)
}

/// Establishes a connection after CONNECT_RESPONSE, once the program has brought its own queue pair to RTS (rdma_establish(3)).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        if !id.qp().is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(id.process.client()?.establish(id.handle)?)
    })
}

/// Ends a connection, or answers the peer's disconnect; moves the id's own queue pair to the error state (rdma_disconnect(3)). DISCONNECTED
/// follows, unless the connection is not established yet. With iWARP the queue pair first sends the requests that were posted before.
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        if id.verbs().is_null() {
            return Err(Errno::EINVAL);
        }
        if !id.has_streams() {
            qp::fail(id)?;
        }
        let client = id.process.client()?;
        if !id.has_streams() && id.goes(Phase::Connected, Phase::Connected) {
            client.disconnect_soon(id.handle)?;
        } else if let Err(error) = client.disconnect(id.handle) {
            // Before the connection is established there is nothing to send, which on Linux is no error.
            return if !id.has_streams() && has_connection(id) {
                Ok(())
            } else {
                Err(error.into())
            };
        }
        complete(id)
    })
}

/// Returns whether an id connects, has a request, or did so before.
fn has_connection(id: &Id) -> bool {
    let info = id.process.client().and_then(|client| Ok(client.query_id(id.handle)?));
    info.is_ok_and(|info| matches!(info.state, IdState::Connect | IdState::Disconnect))
}

/// Reports an event of the queue pair to the connection manager (rdma_notify(3)). IBV_EVENT_COMM_EST establishes the connection
/// though the peer's last message was lost. IBV_EVENT_PATH_MIG moves the connection manager's messages to the path that the queue
/// pair has migrated to.
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        match event {
            IBV_EVENT_COMM_EST => Ok(id.process.client()?.notify(id.handle)?),
            IBV_EVENT_PATH_MIG => Ok(id.process.client()?.migrated(id.handle)?),
            _ => Err(Errno::EINVAL),
        }
    })
}
