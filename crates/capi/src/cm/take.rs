//! Reading of events, by the program and by synchronous calls.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdmux_cm::{EventKind, EventParam};
use rdmux_host::EventChannel;
use rustix::net::RecvFlags;

use super::channel::Channel;
use super::event::{Event, set_event};
use super::follow::follow;
use super::id::Id;
use super::stale::drop_stale;
use crate::abi::cma::{rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::boundary::{Errno, Result, guarded};

/// Returns the next event, if there is one. Skips those that do not concern the program.
fn try_next(channel: &Channel, source: &EventChannel) -> Result<Option<Box<Event>>> {
    while let Some(event) = source.try_get_event()? {
        if let Some(event) = follow(channel.process(), event) {
            if channel.has_lost_ids() {
                drop_stale(channel);
            }
            return Ok(Some(event));
        }
    }
    Ok(None)
}

/// Returns the DEVICE_REMOVAL of the next id of a channel whose service has ended. None when each has had one.
fn next_removal(channel: &Channel) -> Option<Box<Event>> {
    let process = channel.process();
    // SAFETY: an id that lives as long as the call.
    let of = |id: NonNull<rdma_cm_id>| unsafe { id.cast::<Id>().as_ref() };
    let is_left = |id| !of(id).lock().removed;
    loop {
        let all = || process.select(|id| channel.is_at(of(id).channel()) && is_left(id));
        let id = channel.next_removed(all, |id| process.find(id, is_left).unwrap_or(false))?;
        let removal = rdmux_cm::Event {
            id,
            context: 0,
            listen_id: None,
            kind: EventKind::DeviceRemoval,
            status: 0,
            param: EventParam::None,
            route: None,
            negotiated: None,
            mad: None,
        };
        // None if the id was destroyed meanwhile.
        if let Some(event) = follow(process, removal) {
            return Some(event);
        }
    }
}

/// Returns the next event. EAGAIN if there is none and the program has set the descriptor not to block.
fn next(channel: &Channel) -> Result<Box<Event>> {
    let source = channel.source()?;
    loop {
        if let Some(event) = try_next(channel, &source)? {
            return Ok(event);
        }
        // Waits without taking it, if the descriptor blocks.
        rustix::net::recv(&*source, &mut [0; 1], RecvFlags::PEEK)
            .map_err(|e| Errno(e.raw_os_error()))?;
    }
}

/// Waits, in synchronous mode, for the event that reports the outcome of the call, and keeps it in `event`.
///
/// # Errors
/// The failure that the event reports: ECONNREFUSED when the peer refused, otherwise its errno.
pub(super) fn complete(id: &Id) -> Result<()> {
    outcome(id, None)
}

/// Waits, in synchronous mode, for the outcome of joining the group with this key, as [`complete`] does.
///
/// # Errors
/// The errno that the event reports.
pub(super) fn complete_join(id: &Id, key: u64) -> Result<()> {
    outcome(id, Some(key))
}

/// Waits, in synchronous mode, for the event that reports the outcome of a call, which concerns `group` or no group.
fn outcome(id: &Id, group: Option<u64>) -> Result<()> {
    if !id.lock().synchronous {
        return Ok(());
    }
    set_event(id, None);
    // SAFETY: in synchronous mode the channel is the id's own.
    let channel = unsafe { Channel::get(id.channel())? };
    let event = loop {
        let event = next(channel)?;
        // An event in front of it, such as the loss of a group, is the outcome of no call. The id has followed it.
        if event.group() == group {
            break event;
        }
    };
    let (kind, status) = event.outcome();
    set_event(id, Some(event));
    match (kind, status) {
        (_, 0) => Ok(()),
        (EventKind::Rejected, _) => Err(Errno(libc::ECONNREFUSED)),
        // A datagram service's refusal.
        (EventKind::Unreachable, 1..) => Err(Errno(libc::ECONNREFUSED)),
        // The peer refused the path.
        (EventKind::AlternateResponse, 1..) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

unsafe extern "C-unwind" {
    /// A cancellation point, which unwinds, although libc declares that it does not.
    fn recv(socket: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    /// pause(2), likewise.
    fn pause() -> c_int;
}

/// The result of an attempt to take an event. Plain data, for the frame below.
#[derive(Clone, Copy)]
enum Attempt {
    Event(*mut rdma_cm_event),
    Failed(Errno),
    /// There is no event yet. This socket will be readable. The flag holds whether the channel is
    /// destroyed, and must be passed to [`is_destroyed`].
    Wait(c_int, *const AtomicBool),
    /// There will be no event: the channel is destroyed.
    Never,
}

/// Returns the next event. Waits for it unless the channel's descriptor is set not to block, when it fails with EAGAIN
/// (rdma_get_cm_event(3)). [`rdma_ack_cm_event`](super::event::rdma_ack_cm_event) acknowledges the event.
///
/// It waits as the reference implementation does in write(2): it respects `O_NONBLOCK`, restarts after a signal or not as
/// the handler was installed, and is a cancellation point (pthreads(7)). So nothing in this frame has a destructor.
/// As there, a thread that waits while another destroys the channel waits for ever.
///
/// When the host service has ended, each id of the channel gets DEVICE_REMOVAL. After these events the call fails with EIO.
///
/// # Safety
/// `channel` is a channel of this library that is not destroyed, or was only recently; `event` is NULL or may be
/// written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let mut byte = 0_u8;
    loop {
        // SAFETY: the caller guarantees it.
        match unsafe { attempt(channel, !event.is_null()) } {
            Attempt::Event(new) => {
                // SAFETY: not NULL, or the attempt would have failed.
                unsafe { *event = new };
                return 0;
            }
            Attempt::Failed(errno) => {
                errno.set();
                return -1;
            }
            Attempt::Wait(fd, mark) => {
                // SAFETY: room for the one byte.
                let got = unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
                // SAFETY: it is the attempt's, and is not used again.
                if unsafe { is_destroyed(mark) } {
                    break;
                }
                if got < 0 {
                    return -1;
                }
            }
            Attempt::Never => break,
        }
    }
    loop {
        // SAFETY: it only waits for a signal.
        unsafe { pause() };
    }
}

/// Takes an event if there is one.
///
/// # Safety
/// `channel` is NULL or a channel of this library that is not destroyed, or was only recently.
unsafe fn attempt(channel: *mut rdma_event_channel, wanted: bool) -> Attempt {
    let attempt = guarded(|| {
        if !wanted {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        let channel = unsafe { Channel::get(channel)? };
        let Ok(source) = channel.source() else { return Ok(Attempt::Never) };
        let event = match try_next(channel, &source) {
            // No event of the service is left, but the program has to learn of the end of each id.
            Err(errno) if channel.process().is_gone() => Some(next_removal(channel).ok_or(errno)?),
            event => event?,
        };
        if let Some(event) = event {
            return Ok(Attempt::Event(event.into_ptr()));
        }
        let mark = Arc::into_raw(channel.destroyed());
        Ok(Attempt::Wait(source.as_fd().as_raw_fd(), mark))
    });
    attempt.unwrap_or_else(Attempt::Failed)
}

/// Returns whether a channel was destroyed meanwhile. Preserves `errno`.
///
/// # Safety
/// `mark` is of an [`Attempt::Wait`], and used once.
unsafe fn is_destroyed(mark: *const AtomicBool) -> bool {
    let errno = Errno::last();
    // SAFETY: it came from `Arc::into_raw`.
    let mark = unsafe { Arc::from_raw(mark) };
    let destroyed = mark.load(Ordering::Acquire);
    drop(mark);
    errno.set();
    destroyed
}
