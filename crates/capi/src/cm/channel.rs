//! Event channels.
//!
//! Programs destroy a channel while a thread of theirs waits for its events, or is about to: rping does so at its end. With
//! the reference implementation that thread sleeps in the kernel, and never comes back. So it is here, whatever the thread
//! is doing: the socket is closed once nobody takes an event from it, and the memory is kept for a while.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdmux_host::EventChannel;
use rustix::net::RecvFlags;

use super::event::Event;
use super::follow;
use super::process::Process;
use crate::abi::cma::{rdma_cm_event, rdma_event_channel};
use crate::boundary::{Errno, Result, guarded, pointer};

/// `rdma_event_channel`. Its descriptor is a socket from the host service: readable while an event waits.
#[repr(C)]
pub(super) struct Channel {
    public: UnsafeCell<rdma_event_channel>,
    process: &'static Process,
    /// Whether the program destroyed it; for a thread of its that waits all the same.
    destroyed: Arc<AtomicBool>,
    /// None when it is destroyed.
    source: Mutex<Option<Arc<EventChannel>>>,
}

/// Channels that were destroyed, the oldest first.
static DESTROYED: Mutex<VecDeque<Destroyed>> = Mutex::new(VecDeque::new());
/// So many are kept, some hundred bytes each. A thread that comes later still has no memory to look at.
const KEPT: usize = 256;

/// What came from [`Channel::into_ptr`], and is not freed.
struct Destroyed(*mut Channel);

// SAFETY: any thread may free it, and all that is in it may be used by any.
unsafe impl Send for Destroyed {}

impl Channel {
    pub(super) fn open(process: &'static Process) -> Result<Box<Self>> {
        let source = EventChannel::open(process.client()?)?;
        let public = rdma_event_channel { fd: source.as_fd().as_raw_fd() };
        let (destroyed, source) = (Arc::default(), Mutex::new(Some(Arc::new(source))));
        Ok(Box::new(Self { public: UnsafeCell::new(public), process, destroyed, source }))
    }

    /// Gives the channel to the program.
    pub(super) fn into_ptr(self: Box<Self>) -> *mut rdma_event_channel {
        Box::into_raw(self).cast()
    }

    /// The channel behind a pointer.
    ///
    /// # Errors
    /// EINVAL for NULL, ENODEV for one inherited over a fork.
    ///
    /// # Safety
    /// The pointer is NULL or a channel's that is not destroyed, or has not been for long while the reference is used.
    pub(super) unsafe fn get<'a>(ptr: *mut rdma_event_channel) -> Result<&'a Self> {
        // SAFETY: not NULL, then a channel's, whose address is that of its first field.
        let channel = unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)?;
        channel.process.client().map(|_| channel)
    }

    /// Closes a channel; the service then destroys the ids that are still on it. One that is destroyed stays so.
    ///
    /// # Safety
    /// The pointer is NULL or a channel's that is not destroyed, or only by a thread that is faster.
    pub(super) unsafe fn destroy(ptr: *mut rdma_event_channel) {
        let ptr = ptr.cast::<Self>();
        // SAFETY: not NULL, then a channel's, whose memory is kept for longer than this takes.
        let Some(channel) = (unsafe { ptr.as_ref() }) else { return };
        channel.destroyed.store(true, Ordering::Release);
        // Whoever is taking an event from it closes it afterwards.
        let Some(_source) = channel.source.lock().take() else { return };
        let mut destroyed = DESTROYED.lock();
        destroyed.push_back(Destroyed(ptr));
        if destroyed.len() > KEPT
            && let Some(Destroyed(oldest)) = destroyed.pop_front()
        {
            // SAFETY: it came from `into_ptr`, and was put there once, by who took its source.
            drop(unsafe { Box::from_raw(oldest) });
        }
    }

    /// Where its events come from.
    ///
    /// # Errors
    /// EBADF when it is destroyed.
    pub(super) fn source(&self) -> Result<Arc<EventChannel>> {
        self.source.lock().clone().ok_or(Errno(libc::EBADF))
    }

    /// Whose ids it tells of.
    pub(super) fn process(&self) -> &'static Process {
        self.process
    }

    /// The next event, if there is one. Those that do not concern the program are passed over.
    fn try_next(&self, source: &EventChannel) -> Result<Option<Box<Event>>> {
        while let Some(event) = source.try_get_event()? {
            if let Some(event) = follow::follow(self.process, event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The next event. EAGAIN if there is none and the program has set the descriptor not to block.
    pub(super) fn next(&self) -> Result<Box<Event>> {
        let source = self.source()?;
        loop {
            if let Some(event) = self.try_next(&source)? {
                return Ok(event);
            }
            // Waits without taking it, if the descriptor blocks.
            rustix::net::recv(&*source, &mut [0; 1], RecvFlags::PEEK)
                .map_err(|e| Errno(e.raw_os_error()))?;
        }
    }
}

/// A new event channel (rdma_create_event_channel(3)).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| Channel::open(Process::current()?).map(Channel::into_ptr))
}

/// Closes an event channel (rdma_destroy_event_channel(3)).
///
/// # Safety
/// `channel` is NULL or a channel of this library that nobody uses any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let _ = guarded(|| {
        // SAFETY: as promised.
        unsafe { Channel::destroy(channel) };
        Ok(())
    });
}

unsafe extern "C-unwind" {
    /// A cancellation point, which libc's declaration denies.
    fn recv(socket: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize;
    /// Likewise.
    fn pause() -> c_int;
}

/// How an attempt to take an event went. Plain data, for the frame below.
#[derive(Clone, Copy)]
enum Attempt {
    Event(*mut rdma_cm_event),
    Failed(Errno),
    /// There is none yet; this socket will tell. With it comes what tells whether the channel still is
    /// there, to be given to [`is_destroyed`].
    Wait(c_int, *const AtomicBool),
    /// There will be none: the channel is destroyed.
    Never,
}

/// The next event; waits for it unless the channel's descriptor is set not to block, when EAGAIN says that there is none
/// (rdma_get_cm_event(3)). To be acknowledged by [`rdma_ack_cm_event`](super::event::rdma_ack_cm_event).
///
/// It waits as the reference implementation does in write(2): it looks at `O_NONBLOCK`, goes on after a signal or not as
/// the handler was installed, and is a cancellation point (pthreads(7)). So nothing in this frame has a destructor.
/// And as there, a thread that waits while another destroys the channel waits for ever.
///
/// # Safety
/// `channel` is a channel of this library that is not destroyed, or has not been for long; `event` is NULL or may be
/// written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let mut byte = 0_u8;
    loop {
        // SAFETY: as promised.
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
                // SAFETY: it comes from the attempt, and is not used again.
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
        // SAFETY: it waits for a signal and no more.
        unsafe { pause() };
    }
}

/// Takes an event if there is one.
///
/// # Safety
/// `channel` is NULL or a channel of this library that is not destroyed, or has not been for long.
unsafe fn attempt(channel: *mut rdma_event_channel, wanted: bool) -> Attempt {
    let attempt = guarded(|| {
        if !wanted {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as promised.
        let channel = unsafe { Channel::get(channel)? };
        let Ok(source) = channel.source() else { return Ok(Attempt::Never) };
        if let Some(event) = channel.try_next(&source)? {
            return Ok(Attempt::Event(event.into_ptr()));
        }
        let mark = Arc::into_raw(channel.destroyed.clone());
        Ok(Attempt::Wait(source.as_fd().as_raw_fd(), mark))
    });
    attempt.unwrap_or_else(Attempt::Failed)
}

/// Whether a channel was destroyed meanwhile. Leaves `errno` as it is.
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
