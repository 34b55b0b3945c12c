//! Event channels.
//!
//! Programs destroy a channel while a thread of theirs waits for its events, or is about to: rping does so at its end. With
//! the reference implementation that thread sleeps in the kernel, and never comes back. So it is here, whatever the thread
//! is doing: the socket is closed once nobody takes an event from it, and the memory is kept for a while.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rdmux_host::EventChannel;

use super::process::Process;
use crate::abi::cma::rdma_event_channel;
use crate::boundary::{Errno, Result, guarded, pointer};

/// `rdma_event_channel`. Its descriptor is a socket from the host service: readable while an event waits.
#[repr(C)]
pub(super) struct Channel {
    public: UnsafeCell<rdma_event_channel>,
    process: &'static Process,
    /// Whether the program destroyed it; for a thread of its that waits all the same.
    destroyed: Arc<AtomicBool>,
    /// How often ids or groups of it have gone: events of them may still be in it.
    losses: AtomicU64,
    /// How many of these times it has none of since.
    cleaned: AtomicU64,
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
        Ok(Box::new(Self {
            public: UnsafeCell::new(public),
            process,
            destroyed,
            losses: AtomicU64::new(0),
            cleaned: AtomicU64::new(0),
            source,
        }))
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
        // A thread that is taking an event from it closes it afterwards.
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

    /// Whether it was destroyed, for who waits for its events.
    pub(super) fn destroyed(&self) -> Arc<AtomicBool> {
        self.destroyed.clone()
    }

    /// Whether it may have events of ids or groups that are gone.
    pub(super) fn has_lost_ids(&self) -> bool {
        self.cleaned.load(Ordering::SeqCst) < self.losses.load(Ordering::SeqCst)
    }

    /// Notes that it may have.
    pub(super) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// How often that was noted.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Notes that it was seen without any after so many losses.
    pub(super) fn note_cleaned(&self, losses: u64) {
        self.cleaned.fetch_max(losses, Ordering::SeqCst);
    }

    /// Whose ids it tells of.
    pub(super) fn process(&self) -> &'static Process {
        self.process
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
