//! Events, acknowledged by dropping them.

use std::fmt;
use std::io;
use std::sync::Arc;

use rdmux_cm::{ConnParam, EventKind, EventParam, Negotiated, Route, UdParam};

use rdmux_wire::cm::CmMad;

use super::core::Core;
use super::id::Id;
use crate::error::{Cause, Error, Result};

/// Something that happened to an id. Dropping it acknowledges it.
pub struct Event {
    event: rdmux_cm::Event,
    /// The id that it happened to; of a CONNECT_REQUEST the listener, if it still exists.
    core: Option<Arc<Core>>,
    new: Option<Id>,
}

impl Event {
    pub(super) fn new(event: rdmux_cm::Event, core: Arc<Core>) -> Self {
        core.event_delivered();
        Self { event, core: Some(core), new: None }
    }

    pub(super) fn request(event: rdmux_cm::Event, new: Id, listener: Option<Arc<Core>>) -> Self {
        if let Some(l) = &listener {
            l.event_delivered();
        }
        Self { event, core: listener, new: Some(new) }
    }

    /// What happened.
    pub fn kind(&self) -> EventKind {
        self.event.kind
    }
    /// 0, a negative errno, or the peer's reason: see [`EventKind`].
    pub fn status(&self) -> i32 {
        self.event.status
    }
    /// Whether it happened to `id`; of a CONNECT_REQUEST, whether `id` is the listener.
    pub fn is_for(&self, id: &Id) -> bool {
        self.core.as_ref().is_some_and(|core| Arc::ptr_eq(core, id.core()))
    }
    /// The new id of a CONNECT_REQUEST, once. If it is not taken it goes with the event, and the
    /// request is refused.
    pub fn take_id(&mut self) -> Option<Id> {
        self.new.take()
    }
    /// The peer's private data. It comes with the full size of its field, padded with zeroes, for
    /// the wire carries no length; over iWARP the wire does.
    pub fn private_data(&self) -> &[u8] {
        self.event.param.private_data()
    }
    /// What the peer of a connection wishes.
    pub fn conn(&self) -> Option<&ConnParam> {
        match &self.event.param {
            EventParam::Conn(param) => Some(param),
            _ => None,
        }
    }
    /// Of an iWARP connection, in CONNECT_REQUEST and ESTABLISHED on both sides: whether either side may
    /// send first. If not, the side that connected must. None over RoCE, where either may.
    pub fn peer_to_peer(&self) -> Option<bool> {
        self.conn().and_then(|param| param.peer_to_peer)
    }
    /// How to reach a datagram peer or a group.
    pub fn ud(&self) -> Option<&UdParam> {
        match &self.event.param {
            EventParam::Ud(param) => Some(param),
            _ => None,
        }
    }
    /// The peer's message that is the cause, of ids with [`CmOption::Messages`](super::CmOption::Messages): see
    /// [`rdmux_cm::Event::message`].
    pub fn message(&self) -> Option<CmMad> {
        self.event.message()
    }
    /// Addresses and path, in ADDR_RESOLVED, ROUTE_RESOLVED and CONNECT_REQUEST.
    pub fn route(&self) -> Option<&Route> {
        self.event.route.as_deref()
    }
    /// What a queue pair needs, in CONNECT_REQUEST, CONNECT_RESPONSE and ESTABLISHED.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.event.negotiated.as_deref()
    }

    /// The event if it is of this kind, else an error that says what happened instead.
    ///
    /// # Errors
    /// [`Cause::Rejected`], [`Cause::Unreachable`], [`Cause::Disconnected`], [`Cause::TimedOut`] or
    /// [`Cause::Os`] for the events that say so.
    pub fn expect(self, kind: EventKind, asked: &'static str) -> Result<Self> {
        if self.kind() == kind {
            return Ok(self);
        }
        let object = self.core.as_ref().map_or_else(|| "an id".to_owned(), ToString::to_string);
        Err(Error::new(object, asked, self.cause()))
    }

    /// What a failure event means.
    fn cause(&self) -> Cause {
        let errno = io::Error::from_raw_os_error(self.status().saturating_neg().max(0));
        let rejected = |sidr| Cause::Rejected {
            reason: u16::try_from(self.status()).unwrap_or(0),
            sidr,
            private_data: self.private_data().to_vec(),
        };
        match self.kind() {
            EventKind::Rejected => rejected(false),
            // The status of a SIDR_REP.
            EventKind::Unreachable if self.status() > 0 => rejected(true),
            EventKind::Unreachable => Cause::Unreachable(errno),
            EventKind::Disconnected | EventKind::TimewaitExit => Cause::Disconnected,
            EventKind::AddrError
            | EventKind::RouteError
            | EventKind::ConnectError
            | EventKind::MulticastError => Cause::from(errno),
            other => Cause::Invalid(format!("{other} came instead (status {})", self.status())),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(core) = &self.core {
            core.event_acknowledged();
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("kind", &self.kind())
            .field("status", &self.status())
            .field("id", &self.event.id)
            .finish_non_exhaustive()
    }
}
