//! The machine: its state, and small things that all of it needs.

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
use crate::cache::{FOREVER, Ticks, Way};
use crate::{ClientId, Counters, EndpointId, Io, Options, PortId, RequestId};

/// Resolves addresses for the clients of a host, and answers other hosts.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    rng: Rng,
    /// When it first learned what time it is.
    epoch: Option<Time>,
    ports: BTreeMap<PortId, PortState>,
    endpoints: BTreeMap<EndpointId, EndpointState>,
    searches: Slab<Search>,
    requests: Slab<Open>,
    /// The requests of each client that waits, in the order of their numbers, and where they are.
    clients: BTreeMap<ClientId, Vec<(RequestId, u32)>>,
    timers: Timers<Timer>,
    /// When [`Timer::Sweep`] runs.
    sweep: rdmux_transport::timers::Deadline,
    /// When it was last forgotten what programs have asked for.
    aged: Time,
    /// What belongs to no endpoint that is there.
    counters: Counters,
}

/// What there is to do at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A client's request is over.
    Request(u32),
    /// A search has had no answer.
    Search(u32),
    /// An endpoint may send its next request.
    Pace(EndpointId),
    /// An endpoint tries to join a group again.
    Join(EndpointId, u8),
    /// What has expired is forgotten.
    Sweep,
}

/// What the operating system knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct System {
    /// Its GID, which stands for its IP address.
    pub gid: Gid,
    /// The GID that packets to it come from; zero for that of the endpoint.
    pub source: Gid,
    /// The MTU of the way.
    pub mtu: Mtu,
    /// The hop limit of packets.
    pub hop_limit: u8,
}

/// A path that was loaded from a file, or an address that leads to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where it leads.
    pub gid: Gid,
    /// The LID; zero if only the GID is known.
    pub lid: Lid,
    /// The whole path, if it is known. GIDs and LIDs of the source that are zero are those of the endpoint.
    pub path: Option<PathRecord>,
}

/// What is known of an address, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The address.
    pub address: Address,
    /// Who has it; zero if nobody has.
    pub gid: Gid,
    /// The LID.
    pub lid: Lid,
    /// The path, if it is known.
    pub path: Option<PathRecord>,
    /// When the address expires; [`Time::NEVER`] if it does not.
    pub until: Time,
    /// When the path does.
    pub route_until: Time,
    /// Whether a client has asked for it of late.
    pub is_used: bool,
    /// Whether it was loaded from a file.
    pub is_loaded: bool,
}

impl Machine {
    /// A machine without ports. The seed makes transaction IDs that strangers cannot guess; two machines have different ones.
    pub fn new(options: Options, seed: [u8; 16]) -> Self {
        Self {
            options,
            rng: Rng::new(seed),
            epoch: None,
            ports: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            searches: Slab::new(),
            requests: Slab::new(),
            clients: BTreeMap::new(),
            timers: Timers::new(),
            sweep: rdmux_transport::timers::Deadline::default(),
            aged: Time::ZERO,
            counters: Counters::default(),
        }
    }

    /// Changes options. What is known stays, groups are joined and left as they say.
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

    /// The number of the present tick: all that is known expires at the end of one. So what was answered from the cache is answered in the same way to the same
    /// request until the next tick, unless the machine is told of something else than requests meanwhile. Who gives such an answer without asking again has it
    /// [counted](Self::repeat).
    pub fn tick(&mut self, now: Time) -> u32 {
        self.ticks(now)
    }

    /// Counts an answer from the cache that was given once more.
    pub fn repeat(&mut self, endpoint: EndpointId) {
        self.count(endpoint, |c| {
            c.resolves += 1;
            c.address_hits += 1;
            c.route_hits += 1;
        });
    }

    /// The time in a cache's units: quarters of a second.
    fn ticks(&mut self, now: Time) -> Ticks {
        let epoch = *self.epoch.get_or_insert(now);
        let ticks = now.0.saturating_sub(epoch.0) / TICK_NANOS;
        // The last is for what does not expire.
        Ticks::try_from(ticks).unwrap_or(FOREVER).min(FOREVER - 1)
    }

    /// When something expires that is known for so long from now on.
    fn end(&mut self, now: Time, life: Duration) -> Ticks {
        let life = life.as_nanos() / TICK.as_nanos();
        let end = u128::from(self.ticks(now)) + life;
        Ticks::try_from(end).unwrap_or(FOREVER)
    }

    /// The time of an end.
    fn time(&self, end: Ticks) -> Time {
        match end {
            FOREVER => Time::NEVER,
            end => self.epoch.unwrap_or_default().after(TICK * end),
        }
    }

    /// Counts for an endpoint.
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

/// A place in a slab as a number that is small.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
