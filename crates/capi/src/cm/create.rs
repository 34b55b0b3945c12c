//! Creation, migration and destruction of ids.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use rdmux_cm::PortSpace;

use super::channel::Channel;
use super::event::set_event;
use super::id::{Id, New};
use super::phase::Phase;
use super::process::Process;
use super::stale::{forget_events, note_stale};
use crate::abi::cma::*;
use crate::abi::verbs::{IBV_QPT_RC, IBV_QPT_UD, ibv_qp_type};
use crate::boundary::{Errno, Result, status};
use crate::verbs::attr;

/// Creates an id on `channel`, or, if that is NULL, in synchronous mode on a channel of its own.
///
/// # Safety
/// `channel` is NULL or a channel of this library that outlives the id.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<Box<Id>> {
    let code = u16::try_from(space).ok().and_then(PortSpace::from_code).ok_or(Errno::EINVAL)?;
    let transport = attr::qp_type(qp_type)?;
    let own = if channel.is_null() { Some(Channel::open(Process::current()?)?) } else { None };
    let on = match &own {
        Some(own) => own,
        // SAFETY: the caller guarantees it.
        None => unsafe { Channel::get(channel)? },
    };
    let process = on.process();
    let handle =
        process.client()?.create_id_on(&*on.source()?, code, transport, process.only_kind(), 0)?;
    let synchronous = own.is_some();
    let channel = own.map_or(channel, Channel::into_ptr);
    Ok(Id::new(
        process,
        &New { handle, phase: Phase::New, channel, synchronous, context, space, qp_type },
    ))
}

/// Creates an id (rdma_create_id(3)). With a `channel` of NULL its calls complete before they return.
///
/// # Safety
/// `channel` is NULL or a channel of this library that outlives the id; `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    status(|| {
        let datagrams = matches!(ps, RDMA_PS_UDP | RDMA_PS_IPOIB);
        let qp_type = if datagrams { IBV_QPT_UD } else { IBV_QPT_RC };
        // SAFETY: the caller guarantees it.
        unsafe {
            let id = id.as_mut().ok_or(Errno::EINVAL)?;
            *id = create(channel, context, ps, qp_type)?.into_ptr();
        }
        Ok(())
    })
}

/// Destroys an id in any state, after the program has acknowledged its events: waits for that
/// (rdma_destroy_id(3)). The program must destroy its queue pair before.
///
/// # Safety
/// `id` is NULL or an id of this library that is no longer used, except for acknowledging its events.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller guarantees it.
    status(|| unsafe { destroy(id) })
}

/// Destroys an id. Waits until the program has acknowledged its events.
///
/// # Safety
/// As [`rdma_destroy_id`].
pub(super) unsafe fn destroy(ptr: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: not NULL, then an id's.
    let id = unsafe { NonNull::new(ptr.cast::<Id>()).ok_or(Errno::EINVAL)?.as_ref() };
    let Ok(client) = id.process.client() else {
        // The id is the parent's. Its locks may have been held when this process was forked.
        return Ok(());
    };
    // Other ids may wait for this id's port, and later events would refer to an id that no longer exists.
    let waits = {
        let state = id.lock();
        let expects_events = state.phase.expects_events() && !state.is_over;
        let is_at_work = expects_events || state.resolving.under_way;
        state.has_known_port || !state.groups.is_empty() || is_at_work
    };
    // The id may be gone with its channel, or with the service.
    let _ = match waits {
        true => client.destroy_id(id.handle).map(drop),
        false => client.destroy_id_soon(id.handle),
    };
    id.process.remove(id.handle);
    forget_events(id);
    set_event(id, None);
    id.wait_acknowledged(|state| state.unacknowledged > 0);
    // SAFETY: it came from `into_ptr`; events no longer find it, and all that were delivered are acknowledged.
    let id = unsafe { Box::from_raw(ptr.cast::<Id>()) };
    if id.lock().synchronous {
        // SAFETY: the channel was opened for this id.
        unsafe { Channel::destroy(id.channel()) };
    }
    Ok(())
}

/// Moves an id, with its unread events, to another channel, or with NULL to synchronous mode
/// (rdma_migrate_id(3)). Waits until the program has acknowledged the events that it holds.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `channel` is NULL or a channel that outlives the id.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    status(|| {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        // SAFETY: the caller guarantees it.
        unsafe { migrate(id, channel)? };
        id.wait_acknowledged(|state| state.unacknowledged > 0);
        Ok(())
    })
}

/// Moves an id to another channel; with NULL to a channel of its own, in synchronous mode.
///
/// # Safety
/// `channel` is NULL or a channel that outlives the id.
pub(super) unsafe fn migrate(id: &Id, channel: *mut rdma_event_channel) -> Result<()> {
    let was_synchronous = id.lock().synchronous;
    if was_synchronous && channel.is_null() {
        return Err(Errno::EINVAL);
    }
    let own = if channel.is_null() { Some(Channel::open(id.process)?) } else { None };
    // SAFETY: an id's channel outlives it; the caller guarantees it for the other.
    let (from, to) = unsafe {
        let to = own.as_deref().map_or_else(|| Channel::get(channel), Ok)?;
        (Channel::get(id.channel())?, to)
    };
    id.process.client()?.migrate_id(id.handle, &*from.source()?, &*to.source()?)?;
    // Stale events of destroyed groups may have moved with it.
    note_stale(to);
    let old = id.channel();
    id.lock().synchronous = own.is_some();
    id.set_channel(own.map_or(channel, Channel::into_ptr));
    if was_synchronous {
        set_event(id, None);
        // SAFETY: the channel was opened for this id, which has another one now.
        unsafe { Channel::destroy(old) };
    }
    Ok(())
}
