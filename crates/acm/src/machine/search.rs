//! A search: what is being looked for, who waits for it, and where it stands.
//!
//! ```text
//!            +-> Queued -> Asked ------+------------------------> done      route_prot acm
//!            |      ^        | no answer in time                   ^
//!   start ---+      +--------+         |                           |
//!            |                         v                           |
//!            +------------------> RouteQueued -> RouteAsked -------+        route_prot sa, GIDs and LIDs
//!            +-> Checked (to who is known to have it) -------------+
//!            +-> System (RoCE, iWARP) -----------------------------+
//! ```

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;

use crate::cache::Holder;
use crate::{ClientId, EndpointId, RequestId};

/// No request.
pub(super) const NONE: u32 = u32::MAX;

/// A search.
#[derive(Debug)]
pub(super) struct Search {
    /// The transaction ID of its datagrams, and its number as a question.
    pub(super) tid: u64,
    pub(super) endpoint: EndpointId,
    pub(super) what: What,
    /// The hash of the address in the endpoint's cache; 0 for a query.
    pub(super) hash: u64,
    /// Who its requests say asks.
    pub(super) source: Address,
    pub(super) purpose: Purpose,
    pub(super) stage: Stage,
    /// Who has the address, once that is known.
    pub(super) holder: Option<Holder>,
    /// Tries before this one.
    pub(super) tries: u32,
    /// The first of the requests that wait, or [`NONE`].
    pub(super) first: u32,
    /// When to ask again.
    pub(super) timer: Deadline,
    /// How long it goes on although nobody waits.
    pub(super) keep_until: Time,
}

impl Search {
    /// Whether it goes on also when nobody waits any more.
    pub(super) fn is_kept(&self, now: Time) -> bool {
        self.keep_until.0 > now.0.saturating_add(1)
    }

    /// Whether somebody wants to know, or it serves another purpose.
    pub(super) fn is_wanted(&self, now: Time) -> bool {
        self.is_waited_for(now) || self.purpose != Purpose::Resolve
    }

    /// Whether somebody wants to know.
    pub(super) fn is_waited_for(&self, now: Time) -> bool {
        self.first != NONE || self.keep_until > now
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The path to an address.
    Address(Address),
    /// What subnet administration says to a record.
    Query(PathRecord),
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It is not known.
    Resolve,
    /// It will expire.
    Refresh,
    /// This one says that it has the address, which another one has.
    Claim(Holder),
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits to be sent to the group.
    Queued,
    /// It was sent to the group.
    Asked,
    /// It was sent to who is known to have the address.
    Checked,
    /// It waits for its turn to ask subnet administration.
    RouteQueued,
    /// Subnet administration was asked.
    RouteAsked,
    /// The operating system was asked.
    System,
}

/// A client's request that waits.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) client: ClientId,
    pub(super) id: RequestId,
    pub(super) deadline: Deadline,
    /// The search that it waits for, and its neighbours there.
    pub(super) search: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The source, if it was chosen.
    pub(super) chosen: Option<Address>,
}
