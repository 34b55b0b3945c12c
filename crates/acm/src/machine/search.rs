//! A search: its target, the requests that wait for it, and its stage.
//!
//! ```text
//!            +-> Queued -> Asked ------+------------------------> done      route_prot acm
//!            |      ^        | no answer in time                   ^
//!   start ---+      +--------+         |                           |
//!            |                         v                           |
//!            +------------------> RouteQueued -> RouteAsked -------+        route_prot sa, GIDs and LIDs
//!            +-> Checked (request to the known holder) ------------+
//!            +-> Joining (the known holder's group) ---------------+        or to RouteQueued, if the join fails
//!            +-> System (RoCE, iWARP) -----------------------------+
//! ```

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;

use crate::cache::Holder;
use crate::{ClientId, EndpointId, RequestId, User};

/// No request.
pub(super) const NONE: u32 = u32::MAX;

/// A search.
#[derive(Debug)]
pub(super) struct Search {
    /// The transaction ID of its datagrams, which is also its query number.
    pub(super) tid: u64,
    pub(super) endpoint: EndpointId,
    /// The target of the search.
    pub(super) what: What,
    /// The hash of the address in the endpoint's cache; 0 for a query.
    pub(super) hash: u64,
    /// The source address in its requests.
    pub(super) source: Address,
    pub(super) purpose: Purpose,
    /// The user whose request has started the search; none if the machine has.
    pub(super) user: Option<User>,
    pub(super) stage: Stage,
    /// The holder of the address, once it is known.
    pub(super) holder: Option<Holder>,
    /// The number of earlier attempts.
    pub(super) tries: u32,
    /// The first of the waiting requests, or [`NONE`].
    pub(super) first: u32,
    /// Time at which to send the request again.
    pub(super) timer: Deadline,
    /// Time until which the search continues although no request waits.
    pub(super) keep_until: Time,
}

impl Stage {
    /// Returns whether nothing has been sent, so that the search ends when no request waits for it any more.
    pub(super) fn is_unsent(self) -> bool {
        matches!(self, Self::Queued | Self::RouteQueued | Self::Joining)
    }
}

impl Search {
    /// Returns whether the search continues even if no request waits any more.
    pub(super) fn is_kept(&self, now: Time) -> bool {
        self.keep_until.0 > now.0.saturating_add(1)
    }

    /// Returns whether a request waits, or the search serves another purpose.
    pub(super) fn is_wanted(&self, now: Time) -> bool {
        self.is_waited_for(now) || self.purpose != Purpose::Resolve
    }

    /// Returns whether a request waits.
    pub(super) fn is_waited_for(&self, now: Time) -> bool {
        self.first != NONE || self.keep_until > now
    }
}

/// The target of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The path to an address.
    Address(Address),
    /// Subnet administration's answer to a record.
    Query(PathRecord),
}

/// The purpose of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The address is not cached.
    Resolve,
    /// The entry is about to expire.
    Refresh,
    /// This endpoint claims the address, which another one has.
    Claim(Holder),
}

/// The stage of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Queued for a request to the group.
    Queued,
    /// A request was sent to the group.
    Asked,
    /// A request was sent to the known holder.
    Checked,
    /// The holder is known, and the path to it will be when this endpoint has joined their common group again.
    Joining,
    /// Queued for a query to subnet administration.
    RouteQueued,
    /// A query was sent to subnet administration.
    RouteAsked,
    /// The operating system was queried.
    System,
}

/// A waiting request of a client.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) client: ClientId,
    pub(super) id: RequestId,
    pub(super) deadline: Deadline,
    /// The search that the request waits for, and the request's neighbours in that search's list.
    pub(super) search: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    /// The source, if it was chosen.
    pub(super) chosen: Option<Address>,
}
