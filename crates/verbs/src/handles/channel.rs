//! Completion channels: a completion queue raises its events on one (`ibv_get_cq_event(3)`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use crate::handles::refs::CqRef;
use crate::objects::cq::{Announced, CqCore};
use crate::objects::error::VerbsError;

/// A completion channel. Its descriptor is readable while an event is queued. [`get_event`](Self::get_event) blocks unless
/// `O_NONBLOCK` is set on it.
#[derive(Clone, Debug)]
pub struct CompChannel(pub(crate) Arc<Announced>);

impl CompChannel {
    /// Creates a channel.
    ///
    /// # Errors
    ///
    /// The operating system's error, when no descriptor is left.
    pub fn new() -> Result<Self, VerbsError> {
        let queue = Announced::new().map_err(VerbsError::os("create a completion channel"))?;
        Ok(Self(Arc::new(queue)))
    }

    /// Takes the next event and returns its completion queue. Each event must be acknowledged, by [`CqRef::ack_events`], before
    /// the queue can be destroyed.
    ///
    /// # Errors
    ///
    /// EAGAIN on a non-blocking channel without an event.
    pub fn get_event(&self) -> Result<CqRef, VerbsError> {
        self.0.get(delivered).map_err(VerbsError::os("wait for a completion event"))
    }

    /// Takes the next event, if there is one, without blocking.
    pub fn try_get_event(&self) -> Option<CqRef> {
        self.0.try_get(delivered)
    }

    /// Takes an event whose eight-byte count the caller has already read from the descriptor. Returns none if the event was
    /// withdrawn meanwhile.
    pub fn take_counted_event(&self) -> Option<CqRef> {
        self.0.take_counted(delivered)
    }

    /// Returns whether a completion queue uses this channel.
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

fn delivered(core: Weak<CqCore>) -> Option<CqRef> {
    let core = core.upgrade()?;
    core.unacked().delivered();
    Some(CqRef(core))
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
