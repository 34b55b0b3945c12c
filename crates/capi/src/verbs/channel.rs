//! Completion channels (`ibv_create_comp_channel(3)`, `ibv_get_cq_event(3)`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};

use rdmux_verbs as verbs;

use super::objects::{CompChannel, Context, Cq, Object, Users};
use super::wait;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, code, guarded, pointer};

/// `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: the caller guarantees it.
        let opened = unsafe { Context::get(context)? }.opened.clone();
        let channel = verbs::CompChannel::new()?;
        let fd = channel.as_fd().as_raw_fd();
        let public = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Ok(Box::new(CompChannel { public, opened, channel, users: Users::default() }).into_ptr())
    })
}

/// `ibv_destroy_comp_channel(3)`: EBUSY while a completion queue uses it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(ptr: *mut ibv_comp_channel) -> c_int {
    code(|| {
        // SAFETY: the caller guarantees it.
        let channel = unsafe { CompChannel::peek(ptr)? };
        if !channel.opened.is_ours() {
            return Ok(());
        }
        channel.users.check_none()?;
        // SAFETY: a destroyed channel is no longer used.
        drop(unsafe { CompChannel::take(ptr) });
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`: waits, unless `O_NONBLOCK` is set on the descriptor; returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees it.
    wait::taken(unsafe { begin(channel, cq, cq_context) }, || unsafe {
        take(channel, cq, cq_context)
    })
}

/// Returns the descriptor to wait on.
///
/// # Safety
/// The pointers are NULL, or a channel's and variables'.
unsafe fn begin(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    wait::descriptor(|| {
        // SAFETY: the caller guarantees it.
        let channel = unsafe { CompChannel::get(channel)? };
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(channel.channel.as_fd().as_raw_fd())
    })
}

/// Takes the event whose count was read, unless it was withdrawn.
///
/// # Safety
/// As for [`begin`], and none is NULL.
unsafe fn take(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Result<bool> {
    // SAFETY: the caller guarantees it.
    let channel = unsafe { &CompChannel::get(channel)?.channel };
    let Some(taken) = channel.take_counted_event() else { return Ok(false) };
    let object = Cq::of_context(taken.context());
    // SAFETY: the queue cannot be destroyed before the event is acknowledged, and the rest are the caller's
    // variables.
    unsafe {
        cq.write(object);
        cq_context.write((*object).cq_context);
    }
    Ok(true)
}

/// `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    let _ = guarded(|| {
        // SAFETY: the caller guarantees it.
        unsafe { Cq::get(cq)? }.cq.ack_events(nevents);
        Ok(())
    });
}
