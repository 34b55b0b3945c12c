//! The machine: its state, and helpers that all of it uses.

mod endpoint;
mod groups;
mod inspect;
mod known;
mod pace;
mod ports;
mod receive;
mod request;
mod rng;
mod route;
mod search;
mod searching;
mod send;
mod timeout;
mod users;
mod waiting;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::timers::Timers;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid, Mtu};
use slab::Slab;

use self::endpoint::{EndpointState, PortState};
use self::rng::Rng;
use self::search::{Open, Search};
use self::users::Users;
use crate::cache::{FOREVER, Ticks, Way};
use crate::{Counters, EndpointId, Io, Options, PortId};

/// Resolves addresses for the clients of a host, and answers remote endpoints.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    rng: Rng,
    /// The time of the first call.
    epoch: Option<Time>,
    ports: BTreeMap<PortId, PortState>,
    endpoints: BTreeMap<EndpointId, EndpointState>,
    searches: Slab<Search>,
    /// The number of searches that no request waits for.
    unwaited: usize,
    requests: Slab<Open>,
    /// The clients and their users, with their waiting requests.
    users: Users,
    timers: Timers<Timer>,
    /// Time at which [`Timer::Sweep`] runs.
    sweep: rdmux_transport::timers::Deadline,
    /// Time when the marks of entries that programs have requested were last cleared.
    aged: Time,
    /// Counters of removed endpoints.
    counters: Counters,
}

/// Timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A client's request times out.
    Request(u32),
    /// A search gets no answer.
    Search(u32),
    /// An endpoint may send its next request.
    Pace(EndpointId),
    /// An endpoint retries to join a group, after a failure or without an answer.
    Join(EndpointId, u8),
    /// Expired entries are removed.
    Sweep,
}

/// The operating system's answer about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// The GID that represents the IP address.
    pub gid: Gid,
    /// The source GID of packets to it; zero for that of the endpoint.
    pub source: Gid,
    /// The path MTU.
    pub mtu: Mtu,
    /// The packets' hop limit.
    pub hop_limit: u8,
}

/// A path loaded from a file, or an address that maps to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The destination.
    pub gid: Gid,
    /// The LID; zero if only the GID is known.
    pub lid: Lid,
    /// The whole path, if it is known. Zero GIDs and LIDs of the source stand for those of the endpoint.
    pub path: Option<PathRecord>,
}

/// A cache entry, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The address.
    pub address: Address,
    /// The holder's GID; zero if no endpoint has the address.
    pub gid: Gid,
    /// The LID.
    pub lid: Lid,
    /// The path, if it is known.
    pub path: Option<PathRecord>,
    /// Time when the address expires, or [`Time::NEVER`].
    pub until: Time,
    /// Time when the path expires.
    pub route_until: Time,
    /// Whether a client has requested the address recently.
    pub is_used: bool,
    /// Whether the address was loaded from a file.
    pub is_loaded: bool,
}

impl Machine {
    /// Returns a machine without ports. The seed makes transaction IDs unpredictable for remote endpoints; each machine needs
    /// its own.
    pub fn new(options: Options, seed: [u8; 16]) -> Self {
        Self {
            options,
            rng: Rng::new(seed),
            epoch: None,
            ports: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            searches: Slab::new(),
            unwaited: 0,
            requests: Slab::new(),
            users: Users::default(),
            timers: Timers::new(),
            sweep: rdmux_transport::timers::Deadline::default(),
            aged: Time::ZERO,
            counters: Counters::default(),
        }
    }

    /// Changes options. The cache is kept as far as it may be as large; groups are joined and left accordingly.
    pub fn set_options(&mut self, now: Time, options: Options, io: &mut impl Io) {
        let is_other_protocol = self.options.route_protocol != options.route_protocol;
        self.options = options;
        for id in self.endpoint_ids() {
            if is_other_protocol {
                self.drop_routes_if(id, |way| *way == Way::Group, io);
            }
            if let Some(state) = self.endpoints.get_mut(&id) {
                state.cache.max = self.options.max_entries.max(1);
            }
            self.evict_surplus(now, id, io);
            self.plan_groups(now, id, io);
            self.pump(now, id, io);
        }
        let ports: Vec<_> = self.ports.keys().copied().collect();
        for port in ports {
            self.pump_routes(now, port, io);
        }
    }

    fn endpoint_ids(&self) -> Vec<EndpointId> {
        self.endpoints.keys().copied().collect()
    }

    /// Returns the number of the current tick. Entries expire only at the end of a tick, so an answer from the cache remains valid for the
    /// same request until the next tick, unless the machine is called for anything other than requests meanwhile. A driver that repeats
    /// such an answer without calling the machine must [count](Self::repeat) it.
    pub fn tick(&mut self, now: Time) -> u32 {
        self.ticks(now)
    }

    /// Counts a repeated answer from the cache.
    pub fn repeat(&mut self, endpoint: EndpointId) {
        self.count(endpoint, |c| {
            c.resolves += 1;
            c.address_hits += 1;
            c.route_hits += 1;
        });
    }

    /// Returns the time in the cache's unit, quarters of a second.
    fn ticks(&mut self, now: Time) -> Ticks {
        let epoch = *self.epoch.get_or_insert(now);
        let ticks = now.0.saturating_sub(epoch.0) / TICK_NANOS;
        // The last value is reserved for entries that do not expire.
        Ticks::try_from(ticks).unwrap_or(FOREVER).min(FOREVER - 1)
    }

    /// Returns the expiry of an entry with this lifetime.
    fn end(&mut self, now: Time, life: Duration) -> Ticks {
        let life = life.as_nanos() / TICK.as_nanos();
        let end = u128::from(self.ticks(now)) + life;
        Ticks::try_from(end).unwrap_or(FOREVER)
    }

    /// Returns the time of an expiry.
    fn time(&self, end: Ticks) -> Time {
        match end {
            FOREVER => Time::NEVER,
            end => self.epoch.unwrap_or_default().after(TICK * end),
        }
    }

    /// Updates the counters of an endpoint.
    fn count(&mut self, endpoint: EndpointId, count: impl FnOnce(&mut Counters)) {
        match self.endpoints.get_mut(&endpoint) {
            Some(state) => count(&mut state.counters),
            None => count(&mut self.counters),
        }
    }
}

/// The unit of expiry.
const TICK: Duration = Duration::from_nanos(TICK_NANOS);
const TICK_NANOS: u64 = 250_000_000;

/// Converts an index of a slab, which is small, to a number.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
