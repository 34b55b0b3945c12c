//! Event channels.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rdmux_cm::{EventKind, IdHandle};
use rdmux_host::EventChannel as Source;

use super::core::Core;
use super::event::Event;
use super::id::Id;
use crate::Context;
use crate::error::{Attempt, Result};
use crate::style::{Blocking, Style, block_on};
use crate::wait::{Deadline, Waiter};

/// A channel on which ids report their events. Clones are the same channel.
#[derive(Clone)]
pub struct EventChannel(pub(super) Arc<Inner>);

/// The state that clones of a channel share.
pub(super) struct Inner {
    pub(super) waiter: Waiter<Source>,
    // Last: the connection to the service outlives the channel.
    pub(super) context: Context,
}

/// The ids of a process, by which an event finds its id. Ids remove themselves when they are dropped.
#[derive(Default)]
pub(crate) struct Ids(Mutex<HashMap<IdHandle, Weak<Core>>>);

impl Ids {
    pub(super) fn insert(&self, core: &Arc<Core>) {
        self.lock().insert(core.handle, Arc::downgrade(core));
    }
    pub(super) fn remove(&self, handle: IdHandle) {
        self.lock().remove(&handle);
    }
    fn find(&self, handle: IdHandle) -> Option<Arc<Core>> {
        self.lock().get(&handle).and_then(Weak::upgrade)
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<IdHandle, Weak<Core>>> {
        // No holder of the lock panics, and the map is consistent in any case.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventChannel {
    /// Returns a new channel.
    ///
    /// # Errors
    /// When the host service is gone or its limit is reached.
    pub fn new(context: &Context) -> Result<Self> {
        let source = Source::open(context.client()).on(context, "open an event channel")?;
        source.set_nonblocking(true).on(context, "open an event channel")?;
        Ok(Self(Arc::new(Inner { waiter: Waiter::new(source), context: context.clone() })))
    }

    /// Returns the device whose host the channel belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Waits for the next event, at most for `timeout` (none: without limit), and returns it. Returns none when the
    /// timeout expired.
    ///
    /// # Errors
    /// When the host service is gone, or when the event's queue pair could not follow the event's state change. If the
    /// queue pair could not be attached to a group, the group is not joined.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        block_on(self.next_in::<Blocking>(Deadline::after(timeout)))
    }

    /// Returns the next event if one is pending. Never blocks.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn try_next(&self) -> Result<Option<Event>> {
        loop {
            match self.0.waiter.source().try_get_event().on(self, "take an event")? {
                None => return Ok(None),
                Some(event) => {
                    if let Some(event) = self.deliver(event)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// Awaits the next event.
    ///
    /// # Errors
    /// As for [`next`](Self::next), or outside a tokio runtime.
    #[cfg(feature = "tokio")]
    pub async fn next_async(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.next_in::<crate::style::Tokio>(Deadline::after(None)).await? {
                return Ok(event);
            }
        }
    }

    /// Returns the next event, or none at the deadline.
    pub(crate) async fn next_in<S: Style>(&self, deadline: Deadline) -> Result<Option<Event>> {
        loop {
            let look = self.0.waiter.look();
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            S::one(look, deadline).await.on(self, "wait for an event")?;
        }
    }

    pub(crate) fn waiter(&self) -> &Waiter<Source> {
        &self.0.waiter
    }

    /// Finds the id of an event and applies the event to its queue pair. Events of an id that is being destroyed, or
    /// of a group that was left, are dropped.
    fn deliver(&self, event: rdmux_cm::Event) -> Result<Option<Event>> {
        let ids = &self.0.context.ids();
        if event.kind == EventKind::ConnectRequest {
            let new = Id::requested(self, &event)?;
            let listener = event.listen_id.and_then(|l| ids.find(l));
            return Ok(Some(Event::request(event, new, listener)));
        }
        let Some(core) = ids.find(event.id) else { return Ok(None) };
        core.follow(event)
    }
}

/// The descriptor is readable while an event is pending.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.waiter.source().as_fd()
    }
}

impl fmt::Display for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event channel of {}", self.0.context)
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
