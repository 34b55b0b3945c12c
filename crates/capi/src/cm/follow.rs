//! The effects of an event on its id: the fields that the program reads, and the state of its queue pair.

use std::ffi::c_void;
use std::ptr;

use rdmux_cm::{EventKind, EventParam, UdParam};

use super::channel::Channel;
use super::event::{Delivered, Event};
use super::group;
use super::id::{Depths, Id, New};
use super::phase::Phase;
use super::process::Process;
use super::stale::forget;
use super::{address, create, ece, found, qp};
use crate::boundary::Result;

/// Converts an event of the service to one for the program. None when the program must not see it: the id was destroyed
/// meanwhile, or has failed before.
pub(super) fn follow(process: &'static Process, event: rdmux_cm::Event) -> Option<Box<Event>> {
    if event.kind == EventKind::ConnectRequest {
        return request(process, event);
    }
    let mut delivered = Delivered::by(process, event.id)?;
    let of_group = matches!(event.kind, EventKind::MulticastJoin | EventKind::MulticastError);
    if of_group && !delivered.concerns_group(event.context) {
        return None;
    }
    let ended = matches!(event.kind, EventKind::Rejected | EventKind::Disconnected);
    if ended && delivered.id().lock().failed {
        return None;
    }
    learn(delivered.id(), &event);
    let mut told = Event::new(delivered, event.kind, event.status);
    match event.kind {
        EventKind::AddrResolved => {
            let moved = address_resolved(told.id(), &event);
            or_fail(&mut told, moved, EventKind::AddrError);
        }
        EventKind::RouteResolved => {
            // With paths from the program, no earlier event has reported the address.
            let moved = address_resolved(told.id(), &event);
            if let Some(route) = &event.route {
                address::show_path(told.id(), route);
            }
            or_fail(&mut told, moved, EventKind::RouteError);
        }
        EventKind::ConnectResponse => match responded(told.id(), &event) {
            None => {}
            Some(Ok(())) => told.set_outcome(EventKind::Established, 0),
            Some(failed) => or_fail(&mut told, failed, EventKind::ConnectError),
        },
        EventKind::Established => take_stream(told.id()),
        EventKind::Rejected => {
            // The peer will not answer, so posted requests are flushed. If the queue pair cannot enter the error state,
            // that is left to the program.
            let _ = qp::fail(told.id());
        }
        EventKind::AddrinfoResolved => {
            if let EventParam::Services(services) = &event.param {
                let kept = found::services(services)
                    .map(|found| told.id().lock().resolving.found = Some(found));
                or_fail(&mut told, kept, EventKind::AddrinfoError);
            }
        }
        EventKind::AlternateResponse if event.status == 0 => {
            let loaded = qp::reload(told.id());
            or_fail(&mut told, loaded, EventKind::AlternateResponse);
        }
        EventKind::AddrinfoError => told.id().lock().resolving.end(),
        _ => {}
    }
    let kind = event.kind;
    let group = event.context;
    let param = event.param;
    let context = of_group.then(|| group_context(told.id(), group));
    told.set_mad(event.mad);
    match (kind, &param) {
        (EventKind::MulticastJoin, EventParam::Ud(ud)) => {
            let attached = joined(told.id(), group, ud);
            or_fail(&mut told, attached, EventKind::MulticastError);
        }
        (EventKind::MulticastError, _) => lost(told.id(), group, event.status),
        _ => {}
    }
    told.set_param(param);
    if let Some(context) = context {
        told.set_group_context(context);
    }
    Some(told)
}

/// Waits until the queue pair of an iWARP connection has its stream, before the program gets the event of the connection.
fn take_stream(id: &Id) {
    if let Some(device) = id.device()
        && device.has_streams()
    {
        device.opened.device.sync_control();
    }
}

/// Stores the attributes that queue pairs will need.
fn learn(id: &Id, event: &rdmux_cm::Event) {
    let mut state = id.lock();
    if let Some(negotiated) = &event.negotiated {
        state.negotiated = Some(**negotiated);
    }
    if let Some(route) = &event.route {
        state.route = Some(**route);
    }
    state.phase = state.phase.after(event.kind);
    state.is_over |= event.kind.ends_connection();
    state.removed |= event.kind == EventKind::DeviceRemoval;
}

/// Replaces an event that this process could not follow by one that reports the failure.
fn or_fail(told: &mut Event, outcome: Result<()>, kind: EventKind) {
    if let Err(errno) = outcome {
        told.set_outcome(kind, -errno.0);
    }
}

fn address_resolved(id: &Id, event: &rdmux_cm::Event) -> Result<()> {
    if let Some(route) = &event.route {
        address::show_route(id, route);
        address::bind_device(id, route.device, route.av.port_num)?;
    }
    Ok(())
}

/// Handles the peer's acceptance: takes the id's own queue pair to RTS and establishes the connection. Returns
/// None without such a queue pair, when the program must do all that.
fn responded(id: &Id, event: &rdmux_cm::Event) -> Option<Result<()>> {
    let ece = match &event.param {
        EventParam::Conn(param) => param.ece,
        _ => Default::default(),
    };
    id.lock().remote_ece = ece;
    if id.qp().is_null() {
        return None;
    }
    let outcome = ece::agree(id, ece).and_then(|()| establish(id)).and_then(|()| ece::keep(id));
    if outcome.is_err() {
        let _ = qp::fail(id);
        id.lock().failed = true;
    }
    Some(outcome)
}

fn establish(id: &Id) -> Result<()> {
    qp::bring_up(id, None)?;
    let client = id.process.client()?;
    if id.goes(Phase::Connecting, Phase::Connected) {
        return Ok(client.establish_soon(id.handle)?);
    }
    Ok(client.establish(id.handle)?)
}

/// Handles a successful join: attaches the id's queue pair, unless the id only sends, and opens the group for sending.
fn joined(id: &Id, key: u64, how: &UdParam) -> Result<()> {
    let attached = id.attach(key, how);
    if let Err(why) = attached {
        lost(id, key, why.0);
        // The id is no longer a member, so that it may join again. The error to report is the original one.
        let _ = id.process.client().map(|client| client.leave_multicast(id.handle, key));
    }
    attached
}

/// Handles a failed join or the loss of a group.
fn lost(id: &Id, key: u64, status: i32) {
    id.detach(key);
    id.change_groups(|groups| group::failed(groups, key, group::lost(status)));
}

/// Returns the context that the program gave when it joined.
fn group_context(id: &Id, key: u64) -> *mut c_void {
    let state = id.lock();
    state.groups.iter().find(|g| g.key == key).map_or(ptr::null_mut(), |g| g.context)
}

/// Handles a connection request: creates the new id, like its listener.
fn request(process: &'static Process, event: rdmux_cm::Event) -> Option<Box<Event>> {
    let delivered = event.listen_id.and_then(|listener| Delivered::by(process, listener));
    let Some(delivered) = delivered else {
        forget(process, event.id);
        return None;
    };
    let new = requested(process, delivered.id(), &event);
    let mut told = Event::new(delivered, event.kind, event.status);
    match new {
        Ok(new) => told.set_request(new.into_ptr()),
        Err(error) => {
            tracing::debug!(errno = error.0, "a connection request was dropped");
            return None;
        }
    }
    told.set_param(event.param);
    told.set_mad(event.mad);
    Some(told)
}

fn requested(process: &'static Process, listener: &Id, event: &rdmux_cm::Event) -> Result<Box<Id>> {
    let new = New {
        handle: event.id,
        phase: Phase::Requested,
        channel: listener.channel(),
        synchronous: false,
        context: listener.context(),
        space: listener.ps(),
        qp_type: listener.qp_type(),
    };
    let id = Id::new(process, &new);
    {
        let mut state = id.lock();
        state.negotiated = event.negotiated.as_deref().copied();
        if let EventParam::Conn(param) = &event.param {
            state.depths = Depths {
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
            };
            state.remote_ece = param.ece;
        }
    }
    let outcome = answer_in(&id, listener, event);
    if outcome.is_err() {
        process.remove(id.handle);
        forget(process, id.handle);
        if id.lock().synchronous {
            // SAFETY: the channel was opened for this id, which no other thread has seen.
            unsafe { Channel::destroy(id.channel()) };
        }
    }
    outcome.map(|()| id)
}

fn answer_in(id: &Id, listener: &Id, event: &rdmux_cm::Event) -> Result<()> {
    if listener.lock().synchronous {
        // SAFETY: NULL requests a channel of its own.
        unsafe { create::migrate(id, ptr::null_mut())? };
    }
    if let Some(route) = &event.route {
        address::show_route(id, route);
        address::bind_device(id, route.device, route.av.port_num)?;
        if !id.is_ud() {
            address::show_path(id, route);
        }
    }
    Ok(())
}
