//! Event channels.
//!
//! Programs destroy a channel while one of their threads waits for its events, or is about to: rping does so at its end. With
//! the reference implementation that thread sleeps in the kernel for ever. This library does the same, whatever the thread
//! is doing: it closes the socket once no thread takes an event from it, and keeps the memory for a while.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rdmux_cm::IdHandle;
use rdmux_host::EventChannel;

use super::process::Process;
use crate::abi::cma::rdma_event_channel;
use crate::boundary::{Errno, Result, guarded, pointer};
use crate::verbs::process::keep;

/// `rdma_event_channel`. Its descriptor is a socket from the host service: readable while an event waits.
#[repr(C)]
pub(super) struct Channel {
    public: UnsafeCell<rdma_event_channel>,
    process: &'static Process,
    /// Whether the program destroyed the channel; read by a thread that still waits.
    destroyed: Arc<AtomicBool>,
    /// The number of ids and groups of this channel that were destroyed: it may still have events of them.
    losses: AtomicU64,
    /// The number of these losses whose events were purged from the channel.
    cleaned: AtomicU64,
    /// The ids whose removal remains to be reported, once the service has ended.
    removed: Mutex<Option<std::vec::IntoIter<IdHandle>>>,
    /// The source of events. None when the channel is destroyed.
    source: Mutex<Option<Arc<EventChannel>>>,
}

/// A pointer from [`Channel::into_ptr`] that is not freed.
struct Destroyed(*mut Channel);

// SAFETY: any thread may free it, and any thread may use its contents.
unsafe impl Send for Destroyed {}

impl Drop for Destroyed {
    fn drop(&mut self) {
        // SAFETY: it came from `into_ptr`, and only the call that took the channel's source created this.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

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
            removed: Mutex::new(None),
            source,
        }))
    }

    /// Passes the channel to the program.
    pub(super) fn into_ptr(self: Box<Self>) -> *mut rdma_event_channel {
        Box::into_raw(self).cast()
    }

    /// Returns the channel behind a pointer.
    ///
    /// # Errors
    /// EINVAL for NULL, ENODEV for one inherited over a fork.
    ///
    /// # Safety
    /// The pointer is NULL or a channel's that is not destroyed, or was destroyed only recently while the reference is used.
    pub(super) unsafe fn get<'a>(ptr: *mut rdma_event_channel) -> Result<&'a Self> {
        // SAFETY: not NULL, then a channel's, whose address is that of its first field.
        let channel = unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)?;
        channel.process.client().map(|_| channel)
    }

    /// Closes a channel. The service then destroys the ids that are still on it. Does nothing if it is destroyed already.
    ///
    /// # Safety
    /// The pointer is NULL or a channel's that is not destroyed, except by a concurrent call.
    pub(super) unsafe fn destroy(ptr: *mut rdma_event_channel) {
        let ptr = ptr.cast::<Self>();
        // SAFETY: not NULL, then a channel's, whose memory is kept for longer than this takes.
        let Some(channel) = (unsafe { ptr.as_ref() }) else { return };
        channel.destroyed.store(true, Ordering::Release);
        // A thread that is taking an event from it closes it afterwards. Of a channel inherited over a fork, the lock may be held
        // by a thread of the parent.
        let source = if channel.process.is_ours() {
            channel.source.lock().take()
        } else {
            channel.source.try_lock().and_then(|mut source| source.take())
        };
        if source.is_some() {
            keep(Destroyed(ptr));
        }
    }

    /// Returns whether a pointer is the channel's.
    pub(super) fn is_at(&self, ptr: *mut rdma_event_channel) -> bool {
        ptr == self.public.get()
    }

    /// Returns the source of its events.
    ///
    /// # Errors
    /// EBADF when it is destroyed.
    pub(super) fn source(&self) -> Result<Arc<EventChannel>> {
        self.source.lock().clone().ok_or(Errno(libc::EBADF))
    }

    /// Returns the flag that it was destroyed, for threads that wait for its events.
    pub(super) fn destroyed(&self) -> Arc<AtomicBool> {
        self.destroyed.clone()
    }

    /// Returns whether the channel may have events of ids or groups that are destroyed.
    pub(super) fn has_lost_ids(&self) -> bool {
        self.cleaned.load(Ordering::SeqCst) < self.losses.load(Ordering::SeqCst)
    }

    /// Records such a loss.
    pub(super) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many losses were recorded.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Records that it had no stale events after so many losses.
    pub(super) fn note_cleaned(&self, losses: u64) {
        self.cleaned.fetch_max(losses, Ordering::SeqCst);
    }

    /// Returns the next id whose removal remains to be reported: of `all` at the first call, those that `is_left` still selects. Called when
    /// the service has ended, so no further id comes to the channel.
    pub(super) fn next_removed(
        &self,
        all: impl FnOnce() -> Vec<IdHandle>,
        is_left: impl Fn(IdHandle) -> bool,
    ) -> Option<IdHandle> {
        self.removed.lock().get_or_insert_with(|| all().into_iter()).find(|id| is_left(*id))
    }

    /// Returns the process that its ids belong to.
    pub(super) fn process(&self) -> &'static Process {
        self.process
    }
}

/// Creates an event channel (rdma_create_event_channel(3)).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| Channel::open(Process::current()?).map(Channel::into_ptr))
}

/// Closes an event channel (rdma_destroy_event_channel(3)).
///
/// # Safety
/// `channel` is NULL or a channel of this library that is no longer used.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    let _ = guarded(|| {
        // SAFETY: the caller guarantees it.
        unsafe { Channel::destroy(channel) };
        Ok(())
    });
}
