//! Endpoints: an id with everything that it needs, in synchronous mode.

use std::ffi::c_int;
use std::ptr;

use rdmux_cm::{EventKind, PathData};

use super::event::{Event, set_event};
use super::id::Id;
use super::take::{complete, rdma_get_cm_event};
use super::{create, option, qp, resolve, srq};
use crate::abi::cma::*;
use crate::abi::verbs::{ibv_pd, ibv_qp_init_attr, ibv_qp_type};
use crate::boundary::{Errno, Result, guarded, status};

/// The most bytes that may precede the program's private data (`ai_connect_len`), whose own length is one byte.
const MAX_CONNECT_DATA: usize = 255;

/// How long an address and a route may take to resolve, in milliseconds.
const TIMEOUT_MS: c_int = 2000;

/// Creates an id from the result of rdma_getaddrinfo(3): bound if the result is passive, otherwise resolved and, if there are
/// attributes, with a queue pair. A passive id keeps them for the queue pairs of [`rdma_get_request`] (rdma_create_ep(3)).
///
/// # Safety
/// `id` is NULL or may be written, `res` NULL or read; `pd` is NULL or a domain; `attr` is NULL or may be read and written, and its pointers are
/// NULL or objects of this library that live as long as the endpoint.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let (id, res, attr) = unsafe { (id.as_mut(), res.as_ref(), attr.as_mut()) };
        let (Some(id), Some(res)) = (id, res) else { return Err(Errno::EINVAL) };
        if res.ai_connect_len > MAX_CONNECT_DATA {
            return Err(Errno::EINVAL);
        }
        let space = res.ai_port_space.cast_unsigned();
        let qp_type = res.ai_qp_type.cast_unsigned();
        // SAFETY: NULL requests a channel of its own.
        let new = unsafe { create::create(ptr::null_mut(), ptr::null_mut(), space, qp_type)? };
        let new = new.into_ptr();
        // SAFETY: it was just created; the caller guarantees the rest.
        let made = unsafe {
            let new = Id::get(new)?;
            if res.ai_flags & RAI_PASSIVE == 0 {
                active(new, res, pd, attr)
            } else {
                passive(new, res, pd, attr.copied(), qp_type)
            }
        };
        // SAFETY: the caller guarantees it; no other thread has seen the id.
        unsafe {
            match made {
                Ok(()) => *id = new,
                Err(_) => destroy(new)?,
            }
        }
        made
    })
}

/// Binds a passive endpoint, and stores the attributes for the queue pairs of its connections.
///
/// # Safety
/// As [`rdma_create_ep`].
unsafe fn passive(
    id: &Id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<ibv_qp_init_attr>,
    qp_type: ibv_qp_type,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe { resolve::bind(id, res.ai_src_addr)? };
    if !pd.is_null() {
        id.set_pd(pd);
    }
    id.lock().qp_init_attr = attr.map(|attr| ibv_qp_init_attr { qp_type, ..attr });
    Ok(())
}

/// Resolves the addresses and the path of an active endpoint, and creates its queue pair if there are attributes.
///
/// # Safety
/// As [`rdma_create_ep`].
unsafe fn active(
    id: &Id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe { resolve::resolve_addr(id, res.ai_src_addr, res.ai_dst_addr, TIMEOUT_MS)? };
    if res.ai_route_len > 0 {
        let (level, name) = (RDMA_OPTION_IB.cast_signed(), RDMA_OPTION_IB_PATH.cast_signed());
        // SAFETY: the caller guarantees it.
        let (taken, is_of_acm) = unsafe {
            let taken = option::set(id, level, name, res.ai_route, res.ai_route_len);
            (taken, may_be_of_acm(res))
        };
        match taken {
            // ACM had not noticed a change yet.
            Err(_) if is_of_acm => resolve::resolve_route(id, TIMEOUT_MS)?,
            taken => {
                taken?;
                complete(id)?;
            }
        }
    } else {
        resolve::resolve_route(id, TIMEOUT_MS)?;
    }
    if let Some(attr) = attr {
        attr.qp_type = id.qp_type();
        // SAFETY: the caller guarantees it.
        unsafe { qp::create_from(id, pd, attr)? };
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        // SAFETY: the caller guarantees it.
        let data =
            unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.lock().connect_data = data.to_vec();
    }
    Ok(())
}

/// Returns whether the route is one path for both directions, the form in which rdma_getaddrinfo(3) returns ACM's paths.
///
/// # Safety
/// As [`rdma_create_ep`].
unsafe fn may_be_of_acm(res: &rdma_addrinfo) -> bool {
    // SAFETY: the caller guarantees it.
    let paths = unsafe { option::path_data(res.ai_route, res.ai_route_len) };
    matches!(paths.as_deref(), Ok([path]) if path.flags == PathData::WHOLE)
}

/// Destroys an endpoint with its queue pair and shared receive queue (rdma_destroy_ep(3)).
///
/// # Safety
/// `id` is an id of this library that is no longer used.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees it.
    let _: Result<()> = guarded(|| unsafe { destroy(id) });
}

/// Destroys an id with its queue pair and its shared receive queue.
///
/// # Safety
/// As [`rdma_destroy_ep`].
unsafe fn destroy(ptr: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let id = Id::get(ptr)?;
        if !id.qp().is_null() {
            qp::destroy(id);
        }
        if !id.srq().is_null() {
            srq::destroy(id);
        }
        create::destroy(ptr)
    }
}

/// Waits for a connection request and returns its id, with a queue pair if the listener was created with attributes. The
/// request is in its `event` (rdma_get_request(3)).
///
/// It waits as [`rdma_get_cm_event`] does, and is a cancellation point, too. So nothing in this frame has a destructor.
///
/// # Safety
/// `listen` is an id of this library that outlives the call; `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    let mut event = ptr::null_mut();
    // SAFETY: the caller guarantees it.
    match guarded(|| unsafe { may_wait(listen, id) }) {
        Ok(channel) => {
            // SAFETY: in synchronous mode the channel is the id's own.
            if unsafe { rdma_get_cm_event(channel, &raw mut event) } != 0 {
                return -1;
            }
        }
        Err(errno) => {
            errno.set();
            return -1;
        }
    }
    // SAFETY: the caller guarantees it, and the event is this call's.
    status(|| unsafe { requested(listen, id, Event::from_ptr(event)) })
}

/// Returns the channel on which a listener waits.
///
/// # Safety
/// As [`rdma_get_request`].
unsafe fn may_wait(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> Result<*mut rdma_event_channel> {
    // SAFETY: the caller guarantees it.
    let listener = unsafe { Id::get(listen)? };
    if id.is_null() || !listener.lock().synchronous {
        return Err(Errno::EINVAL);
    }
    set_event(listener, None);
    Ok(listener.channel())
}

/// Stores the id of a request in `id`, and the event in it. The event is stored in the listener instead if it is of another kind,
/// with an error.
///
/// # Safety
/// As [`rdma_get_request`], and `id` is not NULL.
unsafe fn requested(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
    event: Box<Event>,
) -> Result<()> {
    // SAFETY: the caller guarantees it.
    let listener = unsafe { Id::get(listen)? };
    match take(listener, &event) {
        Ok(new) => {
            // SAFETY: the caller guarantees it, and the request's id is new: only this call has it.
            unsafe {
                set_event(Id::get(new)?, Some(event));
                *id = new;
            }
            Ok(())
        }
        Err(errno) => {
            set_event(listener, Some(event));
            Err(errno)
        }
    }
}

/// Returns the id of a request, with its queue pair.
fn take(listener: &Id, event: &Event) -> Result<*mut rdma_cm_id> {
    match event.outcome() {
        (EventKind::ConnectRequest, 0) => {}
        (EventKind::Rejected, _) => return Err(Errno(libc::ECONNREFUSED)),
        (_, 0) => return Err(Errno::EINVAL),
        (_, status) => return Err(Errno(status.abs())),
    }
    let new = event.request();
    let attr = listener.lock().qp_init_attr;
    if let Some(mut attr) = attr {
        // SAFETY: the targets of the attributes' pointers live as long as the endpoint, and only this call has the new id.
        unsafe { qp::create_from(Id::get(new)?, listener.pd(), &mut attr)? };
    }
    Ok(new)
}
