//! InfiniBand connection management beyond a connection's parameters (<rdmux/cm.h>): refusals with all fields, MRA, alternate
//! paths, and the peer's messages, field by field.

use std::ffi::{c_int, c_uint, c_void};

use rdmux_cm::{Courtesy, Redirect, Refusal};
use rdmux_wire::cm::{CmMad, Message, Path, RejReason, Rep, Req, SidrStatus};
use rdmux_wire::{Gid, Lid, Pkey};

use super::event::Event;
use super::id::Id;
use super::option::path_data;
use super::phase::Phase;
use super::qp;
use super::take::complete;
use crate::abi::cma::{rdma_cm_event, rdma_cm_id};
use crate::abi::rdmux_cm::*;
use crate::abi::verbs::{ibv_gid, ibv_path_data};
use crate::boundary::{Errno, Result, status, zeroed};

/// Copies bytes of the program.
///
/// # Safety
/// `data` is NULL or that many bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

/// Refuses a request for any reason, with additional information.
///
/// # Safety
/// `id` is an id of this library that outlives the call; the others are NULL or that many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_reject(
    id: *mut rdma_cm_id,
    reason: u16,
    info: *const c_void,
    info_len: u8,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, info, private_data) =
            unsafe { (Id::get(id)?, bytes(info, info_len), bytes(private_data, private_data_len)) };
        refuse(id, Refusal { reason, info, private_data })
    })
}

fn refuse(id: &Id, refusal: Refusal) -> Result<()> {
    id.is_at(Phase::Other);
    Ok(id.process.client()?.reject_with(id.handle, refusal)?)
}

/// Redirects the peer of a request.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `to` is NULL or may be read, `private_data` NULL or that many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_redirect(
    id: *mut rdma_cm_id,
    to: *const rdmux_cm_redirect,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, to, private_data) =
            unsafe { (Id::get(id)?, to.as_ref(), bytes(private_data, private_data_len)) };
        let to = to.ok_or(Errno::EINVAL)?;
        let to = Redirect {
            // SAFETY: every bit pattern is a GID.
            gid: Gid(unsafe { to.gid.raw }),
            lid: Lid(to.lid),
            pkey: Pkey(to.pkey),
            sl: to.sl,
            tclass: to.tclass,
            flow_label: to.flow_label,
        };
        let of_datagrams = u16::from(SidrStatus::REDIRECT.0);
        let reason = if id.is_ud() { of_datagrams } else { RejReason::PORT_CM_REDIRECT.0 };
        refuse(id, Refusal { reason, info: to.to_info().to_vec(), private_data })
    })
}

/// Asks the peer for time before a request, a response or an alternate path is answered.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `private_data` is NULL or that many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_ask_for_time(
    id: *mut rdma_cm_id,
    service_timeout: u8,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, private_data) = unsafe { (Id::get(id)?, bytes(private_data, private_data_len)) };
        Ok(id.process.client()?.ask_for_time(id.handle, service_timeout, &private_data)?)
    })
}

/// Sets the private data of RTU, DREQ or DREP.
///
/// # Safety
/// As [`rdmux_ask_for_time`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_set_private_data(
    id: *mut rdma_cm_id,
    message: c_uint,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, private_data) = unsafe { (Id::get(id)?, bytes(private_data, private_data_len)) };
        let of = match message {
            RDMUX_CM_RTU => Courtesy::Rtu,
            RDMUX_CM_DREQ => Courtesy::Dreq,
            RDMUX_CM_DREP => Courtesy::Drep,
            _ => return Err(Errno::EINVAL),
        };
        Ok(id.process.client()?.set_private_data(id.handle, of, &private_data)?)
    })
}

/// Asks the peer of a connection to load another alternate path.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `paths` is NULL or has `count` records, `private_data` is NULL or that
/// many bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_load_alternate(
    id: *mut rdma_cm_id,
    paths: *const ibv_path_data,
    count: usize,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        let len = count.checked_mul(size_of::<ibv_path_data>()).ok_or(Errno::EINVAL)?;
        // SAFETY: the caller guarantees it.
        let (id, records, private_data) = unsafe {
            (Id::get(id)?, path_data(paths.cast(), len)?, bytes(private_data, private_data_len))
        };
        id.process.client()?.load_alternate(id.handle, &records, &private_data)?;
        complete(id)
    })
}

/// Answers the peer's request for another alternate path. With status 0 it first loads the path into the id's queue pair.
///
/// # Safety
/// As [`rdmux_reject`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_answer_alternate(
    id: *mut rdma_cm_id,
    apr_status: u8,
    info: *const c_void,
    info_len: u8,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, info, private_data) =
            unsafe { (Id::get(id)?, bytes(info, info_len), bytes(private_data, private_data_len)) };
        if apr_status == 0 {
            qp::reload(id)?;
        }
        let answer = Refusal { reason: apr_status.into(), info, private_data };
        Ok(id.process.client()?.answer_alternate(id.handle, answer)?)
    })
}

/// Returns the peer's message that caused an event.
///
/// # Safety
/// `event` is NULL or an event of rdma_get_cm_event(3) that is not acknowledged; `message` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_get_message(
    event: *const rdma_cm_event,
    message: *mut rdmux_cm_message,
) -> c_int {
    status(|| {
        if event.is_null() || message.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        let mad = unsafe { Event::mad_of(event) }.ok_or(Errno(libc::ENODATA))?;
        let mad = CmMad::parse(mad).map_err(|_| Errno(libc::ENODATA))?;
        // SAFETY: the caller guarantees it.
        unsafe { message.write(told(&mad)) };
        Ok(())
    })
}

fn path(path: &Path) -> rdmux_cm_path {
    let gid = |gid: Gid| ibv_gid { raw: gid.0 };
    rdmux_cm_path {
        local_gid: gid(path.local_gid),
        remote_gid: gid(path.remote_gid),
        flow_label: path.flow_label,
        local_lid: path.local_lid.0,
        remote_lid: path.remote_lid.0,
        rate: path.rate,
        tclass: path.tclass,
        hop_limit: path.hop_limit,
        sl: path.sl,
        subnet_local: path.subnet_local.into(),
        ack_timeout: path.ack_timeout.code(),
        reserved: [0; 2],
    }
}

/// Converts a message field by field. Fields that it does not have are zero.
fn told(mad: &CmMad) -> rdmux_cm_message {
    // SAFETY: zero is a value of every field.
    let mut m: rdmux_cm_message = unsafe { zeroed() };
    (m.kind, m.tid) = (mad.message.attr_id().into(), mad.tid);
    match &mad.message {
        Message::Req(req) => m.tell_req(req, mad.attr_mod),
        Message::Rep(rep) => m.tell_rep(rep, mad.attr_mod),
        Message::Mra(mra) => {
            m.tell_ids(mra.local_comm_id, mra.remote_comm_id);
            (m.answered, m.service_timeout) = (mra.message as u8, mra.service_timeout);
            m.tell_private(&mra.private_data);
        }
        Message::Rej(rej) => {
            m.tell_ids(rej.local_comm_id, rej.remote_comm_id);
            (m.answered, m.reason) = (rej.message as u8, rej.reason.0);
            (m.info_len, m.info) = (rej.ari_len, rej.ari);
            m.tell_private(&rej.private_data);
        }
        Message::Rtu(rtu) => {
            m.tell_ids(rtu.local_comm_id, rtu.remote_comm_id);
            m.tell_private(&rtu.private_data);
        }
        Message::Dreq(dreq) => {
            m.tell_ids(dreq.local_comm_id, dreq.remote_comm_id);
            m.qpn = dreq.remote_qpn.get();
            m.tell_private(&dreq.private_data);
        }
        Message::Drep(drep) => {
            m.tell_ids(drep.local_comm_id, drep.remote_comm_id);
            m.tell_private(&drep.private_data);
        }
        Message::SidrReq(req) => {
            (m.local_comm_id, m.service_id) = (req.request_id, req.service_id.0);
            m.pkey = req.pkey.0;
            m.tell_private(&req.private_data);
        }
        Message::SidrRep(rep) => {
            (m.remote_comm_id, m.service_id) = (rep.request_id, rep.service_id.0);
            (m.vendor_id, m.ece_options) = (rep.vendor_id, mad.attr_mod);
            (m.qpn, m.qkey, m.status) = (rep.qpn.get(), rep.qkey.0, rep.status.0);
            (m.info_len, m.info) = (rep.info_len, rep.info);
            m.tell_private(&rep.private_data);
        }
        Message::Lap(lap) => {
            m.tell_ids(lap.local_comm_id, lap.remote_comm_id);
            m.qpn = lap.remote_qpn.get();
            m.remote_response_timeout = lap.remote_cm_response_timeout;
            m.alternate = path(&lap.alternate);
            m.tell_private(&lap.private_data);
        }
        Message::Apr(apr) => {
            m.tell_ids(apr.local_comm_id, apr.remote_comm_id);
            m.status = apr.status.0;
            (m.info_len, m.info) = (apr.info_len, apr.info);
            m.tell_private(&apr.private_data);
        }
    }
    m
}

impl rdmux_cm_message {
    fn tell_ids(&mut self, local: u32, remote: u32) {
        (self.local_comm_id, self.remote_comm_id) = (local, remote);
    }

    fn tell_private(&mut self, data: &[u8]) {
        self.private_data[..data.len()].copy_from_slice(data);
        self.private_data_len = u8::try_from(data.len()).unwrap_or(0);
    }

    fn tell_req(&mut self, req: &Req, options: u32) {
        (self.local_comm_id, self.service_id) = (req.local_comm_id, req.service_id.0);
        (self.vendor_id, self.ece_options) = (req.vendor_id, options);
        (self.ca_guid, self.qkey) = (req.local_ca_guid.0, req.local_qkey.0);
        (self.qpn, self.starting_psn) = (req.local_qpn.get(), req.starting_psn.get());
        self.responder_resources = req.responder_resources;
        self.initiator_depth = req.initiator_depth;
        self.remote_response_timeout = req.remote_cm_response_timeout;
        self.local_response_timeout = req.local_cm_response_timeout;
        self.transport = req.transport.code();
        self.flow_control = req.end_to_end_flow_control.into();
        (self.retry_count, self.rnr_retry_count) = (req.retry_count, req.rnr_retry_count);
        (self.pkey, self.path_mtu) = (req.pkey.0, req.path_mtu);
        (self.max_retries, self.srq) = (req.max_cm_retries, req.srq.into());
        (self.primary, self.alternate) = (path(&req.primary), path(&req.alternate));
        (self.local_eecn, self.remote_eecn) = (req.local_eecn, req.remote_eecn);
        self.rdc_exists = req.rdc_exists.into();
        self.tell_private(&req.private_data);
    }

    fn tell_rep(&mut self, rep: &Rep, options: u32) {
        self.tell_ids(rep.local_comm_id, rep.remote_comm_id);
        (self.vendor_id, self.ece_options) = (rep.vendor_id, options);
        (self.ca_guid, self.qkey) = (rep.local_ca_guid.0, rep.local_qkey.0);
        // With XRC the queue pair is in the field of the end-to-end context.
        (self.qpn, self.local_eecn) = match (rep.local_qpn.get(), rep.local_eecn) {
            (0, qpn) => (qpn, 0),
            of_itself => of_itself,
        };
        self.starting_psn = rep.starting_psn.get();
        self.responder_resources = rep.responder_resources;
        self.initiator_depth = rep.initiator_depth;
        self.target_ack_delay = rep.target_ack_delay;
        self.failover_accepted = rep.failover_accepted;
        self.flow_control = rep.end_to_end_flow_control.into();
        (self.rnr_retry_count, self.srq) = (rep.rnr_retry_count, rep.srq.into());
        self.tell_private(&rep.private_data);
    }
}
