//! Requests that arrive between two listeners of a port.
//!
//! A program that exchanges parameters over one connection and then listens again on the same port races its
//! peer, which connects at once: perftest's `-R` does so. With hardware the listener wins, because an adapter takes milliseconds to
//! create queue pairs. Here nothing takes that long. So a request for a port whose listener has just closed
//! is held briefly for the next one, before it is refused like any other without a listener.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_wire::ServiceId;
use rdmux_wire::cm::CmMad;

use super::Manager;
use crate::ib::{State, Upcall};
use crate::ports::PortSpace;
use crate::sink::Sink;

/// How long after its listener's end a port counts as recently listened to. Drivers keep its
/// listening sockets open as long, so that iWARP requests can be held too.
pub const LISTEN_GRACE: Duration = Duration::from_secs(5);
/// The most requests held, and the most ports remembered. A bound is needed because peers decide how many there could be.
const MOST: usize = 256;

/// A port, in any port space: programs exchange parameters by messages and continue with datagrams.
type Port = u16;

/// Ports that were listened to recently, and the requests held for their next listener.
#[derive(Debug, Default)]
pub(super) struct Held {
    ended: BTreeMap<Port, Time>,
    waiting: VecDeque<Waiting>,
}

/// A held request, and the time until which it is held.
#[derive(Debug)]
struct Waiting {
    port: Port,
    until: Time,
    request: Box<Upcall>,
}

impl Held {
    /// Records that the listener of a port closed.
    pub(super) fn listener_ended(&mut self, now: Time, port: Port) {
        self.ended.retain(|_, ended| now.since(*ended) < LISTEN_GRACE);
        if self.ended.len() < MOST {
            self.ended.insert(port, now);
        }
    }

    /// Records a new listener of a port: requests held for it are due.
    pub(super) fn listener_came(&mut self, port: Port) {
        self.ended.remove(&port);
        self.waiting.iter_mut().filter(|w| w.port == port).for_each(|w| w.until = Time(0));
    }

    /// Returns whether a port had a listener until recently.
    pub(super) fn was_listened_to(&self, now: Time, port: Port) -> bool {
        self.ended.get(&port).is_some_and(|ended| now.since(*ended) < LISTEN_GRACE)
    }

    /// Holds a request without a listener, or returns it as the error.
    fn hold(
        &mut self,
        now: Time,
        grace: Duration,
        request: Box<Upcall>,
    ) -> Result<(), Box<Upcall>> {
        let port = service_of(&request).map(|(_, port)| port);
        let recently = port.is_some_and(|port| self.was_listened_to(now, port));
        match port.filter(|_| recently && !grace.is_zero() && self.waiting.len() < MOST) {
            Some(port) => {
                let until = now.after(grace);
                self.waiting.push_back(Waiting { port, until, request });
                Ok(())
            }
            None => Err(request),
        }
    }

    fn pop_due(&mut self, now: Time) -> Option<Box<Upcall>> {
        let due = self.waiting.iter().position(|w| w.until <= now)?;
        self.waiting.remove(due).map(|w| w.request)
    }

    /// Returns the earliest deadline.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.waiting.iter().map(|w| w.until).min()
    }

    /// Returns how many requests are held.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Manager {
    /// Handles a connection request or a lookup. Without a listener it may be held briefly.
    pub(super) fn handle_wish(&mut self, now: Time, request: Upcall, sink: &mut impl Sink) {
        let listened = service_of(&request).is_none_or(|(ps, port)| {
            self.ports.get(&ps).is_some_and(|table| table.is_listened_to(port))
        });
        if listened {
            return self.dispatch(now, request, false, sink);
        }
        let grace = self.cm.config.listener_grace;
        if let Err(request) = self.held.hold(now, grace, Box::new(request)) {
            self.dispatch(now, *request, false, sink);
        }
    }

    /// Dispatches held requests that have expired or whose port has a listener now.
    pub(super) fn release_held(&mut self, now: Time, sink: &mut impl Sink) {
        while let Some(request) = self.held.pop_due(now) {
            let wanted = match &*request {
                Upcall::Request { conn, .. } => self.cm.state(*conn) == Some(State::ReqRcvd),
                Upcall::SidrRequest { key, .. } => self.cm.is_asked(*key),
                Upcall::ToOwner { .. } => false,
            };
            if wanted {
                self.dispatch(now, *request, true, sink);
                self.arrived.clear();
            }
        }
    }

    /// Dispatches a request. `held` is true for a request that arrived some time ago.
    fn dispatch(&mut self, now: Time, request: Upcall, held: bool, sink: &mut impl Sink) {
        match request {
            Upcall::Request { conn, path, req, options } => {
                if held {
                    self.arrived.again(&CmMad {
                        tid: 0,
                        attr_mod: options,
                        message: (*req).into(),
                    });
                }
                self.handle_request(now, conn, &path, (&req, options), sink);
            }
            Upcall::SidrRequest { key, path, req } => {
                if held {
                    self.arrived.again(&CmMad::new(0, (*req).into()));
                }
                self.handle_lookup(now, key, &path, &req, sink);
            }
            Upcall::ToOwner { .. } => {}
        }
    }
}

/// Returns the port space and port that a request is for, if it is for one.
fn service_of(request: &Upcall) -> Option<(PortSpace, Port)> {
    let service_id: ServiceId = match request {
        Upcall::Request { req, .. } => req.service_id,
        Upcall::SidrRequest { req, .. } => req.service_id,
        Upcall::ToOwner { .. } => return None,
    };
    let (ps, port) = service_id.port()?;
    Some((PortSpace::from_code(ps)?, port))
}
