//! The history of one id, and the events that it must not get.

use std::collections::BTreeMap;

use rdmux_cm::{ChannelId, Event, EventKind};

use rdmux_wire::Qpn;

use super::migration::Ways;
use crate::net::NodeId;

/// The role of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Active,
    Passive,
    /// The active side of a request for an unserved transport.
    Stray,
    Asking,
    Answering,
}

/// One id, except listeners.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) node: NodeId,
    pub(super) channel: ChannelId,
    pub(super) role: Role,
    /// Whether the connection uses iWARP.
    pub(super) iwarp: bool,
    /// The private data of the request, by which both sides identify the connection.
    pub(super) token: u64,
    /// Whether the program called connect or accept successfully.
    pub(super) said_yes: bool,
    /// The queue pair that it named then.
    pub(super) qpn: Option<Qpn>,
    /// Whether the program called establish successfully.
    pub(super) established: bool,
    /// Whether the program rejected, destroyed the id, or died.
    pub(super) ended_here: bool,
    /// Whether the id is destroyed.
    pub(super) destroyed: bool,
    /// Whether the id rejected its peer with a redirection.
    pub(super) redirected: bool,
    /// Unanswered LAPs that it sent.
    pub(super) laps: u32,
    /// Alternate paths that its peer has accepted.
    pub(super) loaded: u32,
    /// Alternate paths of its peer that it has accepted.
    pub(super) taken: u32,
    /// Its paths.
    pub(super) ways: Ways,
    gave_up: bool,
    got: BTreeMap<EventKind, u32>,
}

impl Life {
    pub(super) fn new(node: NodeId, channel: ChannelId, role: Role, token: u64) -> Self {
        Self {
            node,
            channel,
            role,
            iwarp: false,
            token,
            said_yes: false,
            qpn: None,
            established: false,
            ended_here: false,
            destroyed: false,
            redirected: false,
            laps: 0,
            loaded: 0,
            taken: 0,
            ways: Ways::default(),
            gave_up: false,
            got: BTreeMap::new(),
        }
    }

    /// Returns whether an event of this kind was reported.
    pub(super) fn has(&self, kind: EventKind) -> bool {
        self.got.contains_key(&kind)
    }

    /// Returns whether an event has reported that the connection is over.
    pub(super) fn told_over(&self) -> bool {
        [EventKind::Rejected, EventKind::Unreachable, EventKind::Disconnected]
            .iter()
            .any(|&kind| self.has(kind))
    }

    /// Returns whether the connection is over, by its own decision or the peer's.
    pub(super) fn over(&self) -> bool {
        self.ended_here || self.told_over()
    }

    /// Returns whether the connection is established as far as this side knows.
    pub(super) fn up(&self) -> bool {
        (self.established || self.has(EventKind::Established)) && !self.over()
    }

    /// Returns whether the id gave up because no answer arrived. A refused lookup is reported by the same event.
    pub(super) fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Checks and records an event.
    pub(super) fn take(&mut self, event: &Event) -> Result<(), String> {
        let kind = event.kind;
        if self.destroyed {
            return Err(format!("{kind} for an id that was destroyed"));
        }
        if [EventKind::AlternateRequest, EventKind::AlternateResponse, EventKind::MoreTime]
            .contains(&kind)
        {
            return self.take_word(event);
        }
        let count = self.got.entry(kind).or_default();
        *count += 1;
        // A program may query its path again.
        if *count > 1 && kind != EventKind::RouteError {
            return Err(format!("{kind} came {count} times"));
        }
        self.gave_up |= kind == EventKind::Unreachable && event.status < 0;
        let fits = match kind {
            EventKind::AddrResolved | EventKind::RouteResolved => !self.said_yes,
            EventKind::RouteError => !self.said_yes && !self.has(EventKind::RouteResolved),
            EventKind::ConnectResponse => {
                self.role == Role::Active && self.said_yes && !self.told_over() && !self.iwarp
            }
            EventKind::Established => match self.role {
                Role::Passive | Role::Asking => self.said_yes && !self.told_over(),
                Role::Active => self.iwarp && self.said_yes && !self.told_over(),
                Role::Stray | Role::Answering => false,
            },
            EventKind::Rejected | EventKind::Unreachable => {
                let too_late = self.iwarp && self.has(EventKind::Established);
                self.role != Role::Answering && !self.has(EventKind::Disconnected) && !too_late
            }
            EventKind::Disconnected => {
                let connected = match self.role {
                    Role::Active => self.established || self.has(EventKind::Established),
                    Role::Passive => self.said_yes,
                    Role::Stray | Role::Asking | Role::Answering => false,
                };
                connected && !self.has(EventKind::Rejected) && !self.has(EventKind::Unreachable)
            }
            EventKind::TimewaitExit => self.has(EventKind::Disconnected) && !self.iwarp,
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("{kind} does not fit what came before: {self:?}")) }
    }

    /// Checks an event that may occur any number of times.
    fn take_word(&mut self, event: &Event) -> Result<(), String> {
        let kind = event.kind;
        let is_up = self.has(EventKind::Established) || self.established;
        let fits = match kind {
            EventKind::AlternateRequest => self.role == Role::Passive && is_up,
            EventKind::AlternateResponse => self.role == Role::Active && self.laps > 0,
            _ => self.said_yes && self.role.connects(),
        };
        if !fits || self.has(EventKind::Disconnected) {
            return Err(format!("{kind} does not fit what came before: {self:?}"));
        }
        if kind == EventKind::AlternateResponse {
            self.laps -= 1;
            self.loaded += u32::from(event.status == 0);
        }
        Ok(())
    }

    /// Checks the final state, whatever the network did.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let outcome = self.told_over()
            || self.has(EventKind::Established)
            || self.has(EventKind::ConnectResponse);
        let routed = self.has(EventKind::RouteResolved) || self.has(EventKind::RouteError);
        if self.has(EventKind::AddrResolved) && !routed && !self.ended_here {
            return Err(format!("waits for a path for ever: {self:?}"));
        }
        if self.laps > 0 && !self.over() {
            return Err(format!("waits for APR for ever: {self:?}"));
        }
        match self.role {
            Role::Active | Role::Stray | Role::Asking | Role::Passive
                if self.said_yes && !self.ended_here && !outcome =>
            {
                Err(format!("waits for ever: {self:?}"))
            }
            Role::Active
                if self.has(EventKind::ConnectResponse) && !self.established && !self.over() =>
            {
                Err(format!("did not decide: {self:?}"))
            }
            _ => Ok(()),
        }
    }
}
