//! Events, acknowledged by dropping them.

use std::fmt;
use std::io;
use std::sync::Arc;

use rdmux_cm::{ConnParam, EventKind, EventParam, Negotiated, Route, UdParam};

use rdmux_wire::cm::CmMad;

use super::core::Core;
use super::id::Id;
use crate::error::{Cause, Error, Result};

/// An event of an id. Dropping it acknowledges it.
pub struct Event {
    event: rdmux_cm::Event,
    /// The id of the event; for a CONNECT_REQUEST the listener, if it still exists.
    core: Option<Arc<Core>>,
    new: Option<Id>,
}

impl Event {
    pub(super) fn new(event: rdmux_cm::Event, core: Arc<Core>) -> Self {
        core.event_delivered();
        Self { event, core: Some(core), new: None }
    }

    /// Creates the event of a CONNECT_REQUEST, with its new id.
    pub(super) fn request(event: rdmux_cm::Event, new: Id, listener: Option<Arc<Core>>) -> Self {
        if let Some(l) = &listener {
            l.event_delivered();
        }
        Self { event, core: listener, new: Some(new) }
    }

    /// Returns the kind of event.
    pub fn kind(&self) -> EventKind {
        self.event.kind
    }
    /// Returns 0, a negative errno, or the peer's reason: see [`EventKind`].
    pub fn status(&self) -> i32 {
        self.event.status
    }
    /// Returns whether the event is of `id`; for a CONNECT_REQUEST, whether `id` is the listener.
    pub fn is_for(&self, id: &Id) -> bool {
        self.core.as_ref().is_some_and(|core| Arc::ptr_eq(core, id.core()))
    }
    /// Takes the new id of a CONNECT_REQUEST, once. An id that is not taken is dropped with the event, and the
    /// request is rejected.
    pub fn take_id(&mut self) -> Option<Id> {
        self.new.take()
    }
    /// Returns the peer's private data. Over InfiniBand and RoCE they have the full size of their field, padded with
    /// zeroes, because the message carries no length; over iWARP it does.
    pub fn private_data(&self) -> &[u8] {
        self.event.param.private_data()
    }
    /// Returns the connection parameters that the peer requests.
    pub fn conn(&self) -> Option<&ConnParam> {
        match &self.event.param {
            EventParam::Conn(param) => Some(param),
            _ => None,
        }
    }
    /// Returns whether either side of an iWARP connection may send first, in CONNECT_REQUEST and ESTABLISHED on both
    /// sides. If not, the connecting side must. None over RoCE and InfiniBand, where either side may.
    pub fn peer_to_peer(&self) -> Option<bool> {
        self.conn().and_then(|param| param.peer_to_peer)
    }
    /// Returns the address of a datagram peer or a group.
    pub fn ud(&self) -> Option<&UdParam> {
        match &self.event.param {
            EventParam::Ud(param) => Some(param),
            _ => None,
        }
    }
    /// Returns the peer's message that caused the event, for ids with
    /// [`CmOption::Messages`](super::CmOption::Messages): see [`rdmux_cm::Event::message`].
    pub fn message(&self) -> Option<CmMad> {
        self.event.message()
    }
    /// Returns the addresses and the path, in ADDR_RESOLVED, ROUTE_RESOLVED and CONNECT_REQUEST.
    pub fn route(&self) -> Option<&Route> {
        self.event.route.as_deref()
    }
    /// Returns the queue pair's negotiated attributes, in CONNECT_REQUEST, CONNECT_RESPONSE and ESTABLISHED.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.event.negotiated.as_deref()
    }

    /// Returns the event if it is of this kind, otherwise an error that reports the event that arrived instead.
    ///
    /// # Errors
    /// [`Cause::Rejected`], [`Cause::Unreachable`], [`Cause::Disconnected`], [`Cause::TimedOut`] or
    /// [`Cause::Os`] for the events that report these.
    pub fn expect(self, kind: EventKind, asked: &'static str) -> Result<Self> {
        if self.kind() == kind {
            return Ok(self);
        }
        let object = self.core.as_ref().map_or_else(|| "an id".to_owned(), ToString::to_string);
        Err(Error::new(object, asked, self.cause()))
    }

    /// Returns the cause that a failure event reports.
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
            other => {
                Cause::Invalid(format!("got event {other} instead (status {})", self.status()))
            }
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
