//! Completion channels: where a completion queue says that it has something (`ibv_get_cq_event(3)`).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use crate::handles::refs::CqRef;
use crate::objects::cq::{Announced, CqCore};
use crate::objects::error::VerbsError;

/// A completion channel. Its descriptor is readable while an event waits, and
/// [`get_event`](Self::get_event) blocks unless `O_NONBLOCK` is set on it.
#[derive(Clone, Debug)]
pub struct CompChannel(pub(crate) Arc<Announced>);

impl CompChannel {
    /// Makes a channel.
    ///
    /// # Errors
    ///
    /// The operating system's, when it has no descriptor left.
    pub fn new() -> Result<Self, VerbsError> {
        let queue = Announced::new().map_err(VerbsError::os("create a completion channel"))?;
        Ok(Self(Arc::new(queue)))
    }

    /// The next completion queue that has something. Each event must be acknowledged, by
    /// [`CqRef::ack_events`], before the queue can be destroyed.
    ///
    /// # Errors
    ///
    /// EAGAIN on a non-blocking channel without an event.
    pub fn get_event(&self) -> Result<CqRef, VerbsError> {
        self.0.get(delivered).map_err(VerbsError::os("wait for a completion event"))
    }

    /// The next one if there is any; never blocks.
    pub fn try_get_event(&self) -> Option<CqRef> {
        self.0.try_get(delivered)
    }

    /// The event that stands for a count of eight bytes which the caller read off the descriptor
    /// itself. None if it was withdrawn meanwhile.
    pub fn take_counted_event(&self) -> Option<CqRef> {
        self.0.take_counted(delivered)
    }

    /// Whether a completion queue uses this channel.
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
