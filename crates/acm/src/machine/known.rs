//! The cache: lookups, changes, and publishing to the driver's own cache.

use rdmux_transport::Time;
use rdmux_wire::Qpn;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;

use super::endpoint::PortState;
use super::search::Purpose;
use super::{Known, Machine, Timer};
use crate::cache::{By, FOREVER, Hashed, Holder, Ticks, Way};
use crate::{EndpointId, Forget, Io, RouteProtocol};

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The path to the address.
    Path(PathRecord),
    /// No endpoint has the address.
    Nobody,
    /// The address or the path to it is not cached.
    Nothing,
}

/// The cache has no room for another entry.
struct NoRoom;

impl Machine {
    /// Returns an address with its hash at an endpoint.
    pub(super) fn hashed<'a>(
        &self,
        endpoint: EndpointId,
        address: &'a Address,
    ) -> Option<Hashed<'a>> {
        self.endpoints.get(&endpoint).map(|state| state.cache.hashed(address))
    }

    /// Looks up an address for a program.
    pub(super) fn look_up(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        io: &mut impl Io,
    ) -> Lookup {
        let ticks = self.ticks(now);
        let protocol = self.options.route_protocol;
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return Lookup::Nothing };
        let Some(port) = self.ports.get(&state.endpoint.port) else { return Lookup::Nothing };
        let Some(at) = state.cache.find(address) else { return Lookup::Nothing };
        if state.cache.is_expired(at, ticks) {
            state.counters.expired += 1;
            self.drop_entry(endpoint, at, io);
            return Lookup::Nothing;
        }
        if state.cache.is_negative(at) {
            state.counters.negative_hits += 1;
            return Lookup::Nobody;
        }
        state.counters.address_hits += 1;
        state.cache.set_used(at);
        let Some(path) = state.path(&port.port, protocol, at, ticks) else {
            return Lookup::Nothing;
        };
        state.counters.route_hits += 1;
        self.publish(now, endpoint, (at, address), &path, io);
        self.consider_refresh(now, endpoint, (at, address), io);
        Lookup::Path(path)
    }

    /// Publishes an entry to the driver's cache. It expires there when it is time to confirm it, so that a program
    /// requests it again.
    pub(super) fn publish(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        (at, address): (usize, &Hashed<'_>),
        path: &PathRecord,
        io: &mut impl Io,
    ) {
        let Some(state) = self.endpoints.get(&endpoint) else { return };
        let (ends, was) = (state.cache.ends(at), state.cache.is_up_to_date(at));
        let end = ends.0.min(ends.1);
        let ticks = self.ticks(now);
        if was && !self.ends_soon(end, ticks) {
            return;
        }
        let confirm = self.refresh_at(end, address.hash);
        let is_due = confirm <= ticks;
        if was && !is_due {
            return;
        }
        let until = self.time(if is_due { end } else { confirm });
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        state.cache.set_published(at, true);
        io.publish(endpoint, address.address, path, until);
    }

    /// Returns whether an entry that expires at `end` may need confirmation, which is never before the last quarter. This check does
    /// not need the entry's address.
    fn ends_soon(&self, end: Ticks, now: Ticks) -> bool {
        now >= end.saturating_sub(self.quarter())
    }

    /// Returns a quarter of an entry's lifetime.
    fn quarter(&self) -> Ticks {
        let life = self.options.address_timeout.min(self.options.route_timeout);
        let life =
            life.as_secs().saturating_mul(4).saturating_add(u64::from(life.subsec_millis()) / 250);
        Ticks::try_from(life / 4).unwrap_or(0)
    }

    /// Returns when to confirm an entry that expires at `end`: at a time within the last quarter that depends on the address's hash, before
    /// the last half second.
    fn refresh_at(&self, end: Ticks, hash: u64) -> Ticks {
        let quarter = self.quarter();
        if end == FOREVER || !self.options.refresh || quarter < 4 {
            return end;
        }
        let spread = hash % u64::from(quarter - 2);
        end.saturating_sub(2 + Ticks::try_from(spread).unwrap_or(0))
    }

    /// Starts confirming an entry that programs use when it is time.
    fn consider_refresh(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        (at, address): (usize, &Hashed<'_>),
        io: &mut impl Io,
    ) {
        let ticks = self.ticks(now);
        let Some(state) = self.endpoints.get(&endpoint) else { return };
        let (end, route_end) = state.cache.ends(at);
        if !self.ends_soon(end.min(route_end), ticks) {
            return;
        }
        let is_loaded = state.cache.is_loaded(at);
        let due = self.refresh_at(end.min(route_end), address.hash);
        let is_open = self.search_for(endpoint, address).is_some();
        if due > ticks || is_open || is_loaded || due == end.min(route_end) {
            return;
        }
        if self.searches.len() < self.options.max_requests {
            self.search_address(now, endpoint, address, (Purpose::Refresh, None), io);
        }
    }

    /// Returns the cache entry of an address, unless it has expired.
    pub(super) fn entry(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
    ) -> Option<usize> {
        let ticks = self.ticks(now);
        let cache = &self.endpoints.get(&endpoint)?.cache;
        cache.find(address).filter(|at| !cache.is_expired(*at, ticks))
    }

    /// Returns whether the holder of an address was loaded from a file.
    pub(super) fn is_loaded(&self, endpoint: EndpointId, at: usize) -> bool {
        self.endpoints.get(&endpoint).is_some_and(|state| state.cache.is_loaded(at))
    }

    /// Stores the holder of an address. For an entry from a file, stores only a missing path. Returns none if the cache
    /// has no room.
    pub(super) fn remember(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        (holder, way): (&Holder, &Way),
        by: By,
        io: &mut impl Io,
    ) -> Option<usize> {
        let until = self.end(now, self.options.address_timeout);
        let path_until = self.end(now, self.options.route_timeout);
        let ticks = self.ticks(now);
        let known = self.make_room(now, endpoint, address, by, io).ok()?;
        let state = self.endpoints.get_mut(&endpoint)?;
        if let Some(at) = known.filter(|at| state.cache.is_loaded(*at)) {
            if matches!(way, Way::Path(_)) && state.cache.way(at, ticks) == Way::None {
                state.cache.set_way(at, way, path_until);
            }
            return Some(at);
        }
        let before = known.map(|at| state.cache.holder(at));
        let mut holder = *holder;
        if let (Some(before), Some(port)) = (before, self.ports.get(&state.endpoint.port))
            && before.gid == holder.gid
            && port.port.is_one_port(before.lid, holder.lid)
        {
            // Received from another of its LIDs: the path to the known LID is still valid.
            holder.lid = before.lid;
        }
        let at = state.cache.put(address, &holder, until)?;
        state.counters.learned += u64::from(known.is_none());
        let place = |holder: &Holder| (holder.gid, holder.lid, holder.group);
        let is_same_way =
            matches!((way, state.cache.way(at, 0)), (Way::None, _) | (Way::Group, Way::Group));
        let is_other =
            before.is_some_and(|before| place(&before) != place(&holder)) || !is_same_way;
        if *way != Way::None {
            state.cache.set_way(at, way, path_until);
        }
        if state.cache.is_published(at) {
            if is_other {
                state.cache.set_published(at, false);
                io.withdraw(endpoint, address.address);
            } else {
                state.cache.set_outdated(at);
            }
        }
        self.start_sweep(now);
        Some(at)
    }

    /// Stores that no endpoint has an address, unless the entry is from a file.
    pub(super) fn remember_nobody(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        io: &mut impl Io,
    ) {
        if self.options.negative_timeout.is_zero() {
            return;
        }
        let until = self.end(now, self.options.negative_timeout);
        let Ok(known) = self.make_room(now, endpoint, address, By::Us, io) else { return };
        if known.is_some_and(|at| self.is_loaded(endpoint, at)) {
            return;
        }
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        if known.is_some_and(|at| state.cache.is_published(at)) {
            io.withdraw(endpoint, address.address);
        }
        state.cache.put_negative(address, until);
        self.start_sweep(now);
    }

    /// Makes room for an address and returns its entry if it has one. An error if no entry may be evicted.
    fn make_room(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        by: By,
        io: &mut impl Io,
    ) -> Result<Option<usize>, NoRoom> {
        let ticks = self.ticks(now);
        let state = self.endpoints.get_mut(&endpoint).ok_or(NoRoom)?;
        let known = state.cache.find(address);
        if known.is_some() {
            return Ok(known);
        }
        match state.cache.victim(by, ticks) {
            Ok(None) => {}
            Ok(Some(at)) => {
                state.counters.evicted += 1;
                self.drop_entry(endpoint, at, io);
            }
            Err(()) => {
                state.counters.no_room += 1;
                return Err(NoRoom);
            }
        }
        Ok(None)
    }

    /// Evicts the entries beyond the maximum, which has become smaller. Entries from files stay.
    pub(super) fn evict_surplus(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        let ticks = self.ticks(now);
        while let Some(state) = self.endpoints.get_mut(&endpoint)
            && state.cache.len() > state.cache.max
            && let Ok(Some(at)) = state.cache.victim(By::Us, ticks)
        {
            state.counters.evicted += 1;
            self.drop_entry(endpoint, at, io);
        }
    }

    /// Removes an entry.
    pub(super) fn drop_entry(&mut self, endpoint: EndpointId, at: usize, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        if state.cache.is_published(at) {
            io.withdraw(endpoint, &state.cache.address(at));
        }
        state.cache.remove(at);
    }

    /// Invalidates cache entries. Searches continue.
    pub fn forget(&mut self, now: Time, what: Forget, io: &mut impl Io) {
        self.ticks(now);
        for id in self.endpoint_ids() {
            if matches!(what, Forget::Endpoint(only) if only != id) {
                continue;
            }
            if what == Forget::Routes {
                self.drop_routes(id, io);
                continue;
            }
            let Some(state) = self.endpoints.get(&id) else { continue };
            // Backwards, because the last entry takes the place of a removed one.
            for at in (0..state.cache.len()).rev() {
                self.forget_if(id, at, &what, io);
            }
        }
    }

    fn forget_if(&mut self, id: EndpointId, at: usize, what: &Forget, io: &mut impl Io) {
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        let holder = state.cache.holder(at);
        let goes = match what {
            Forget::All | Forget::Endpoint(_) => true,
            Forget::Address(address) => state.cache.address(at) == *address,
            Forget::Gid(gid) => holder.gid == *gid,
            Forget::Lid(lid) => holder.lid == *lid,
            Forget::Routes => false,
        };
        if goes && !state.cache.is_loaded(at) {
            state.counters.invalidated += 1;
            self.drop_entry(id, at, io);
        }
    }

    /// Invalidates the paths from subnet administration, and withdraws everything published.
    pub(super) fn drop_routes(&mut self, id: EndpointId, io: &mut impl Io) {
        self.drop_routes_if(id, |_| true, io);
    }

    /// Invalidates the paths for which `goes` returns true, like [`drop_routes`](Self::drop_routes).
    pub(super) fn drop_routes_if(
        &mut self,
        id: EndpointId,
        goes: impl Fn(&Way) -> bool,
        io: &mut impl Io,
    ) {
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        for at in 0..state.cache.len() {
            let way = state.cache.way(at, 0);
            if !goes(&way) {
                continue;
            }
            if state.cache.is_published(at) {
                state.cache.set_published(at, false);
                io.withdraw(id, &state.cache.address(at));
            }
            if matches!(way, Way::Path(_)) && !state.cache.is_loaded(at) {
                state.counters.invalidated += 1;
                state.cache.set_way(at, &Way::None, 0);
            }
        }
    }

    /// Loads an address from a file: it does not expire until it is [unloaded](Self::unload), and no claim replaces it. Load paths
    /// by LID and GID first, then addresses, which take the path of their GID if it is known. Returns false if the cache has no room: it is
    /// full of loaded addresses.
    pub fn load(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: Address,
        known: &Known,
        io: &mut impl Io,
    ) -> bool {
        let Some(hashed) = self.hashed(endpoint, &address) else { return false };
        if self.make_room(now, endpoint, &hashed, By::Us, io).is_err() {
            return false;
        }
        let ticks = self.ticks(now);
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return false };
        let path = known.path.or_else(|| {
            let at = state.cache.find(&state.cache.hashed(&Address::Gid(known.gid)))?;
            match state.cache.way(at, ticks) {
                Way::Path(path) => Some(path),
                _ => None,
            }
        });
        let lid = path.map_or(known.lid, |path| path.dlid);
        let holder = Holder { gid: known.gid, lid, qpn: Qpn::new(0), group: None };
        let Some(at) = state.cache.put(&hashed, &holder, FOREVER) else { return false };
        state.cache.set_way(at, &path.map_or(Way::None, Way::Path), FOREVER);
        let at = state.cache.set_loaded(at);
        if state.cache.is_published(at) {
            state.cache.set_published(at, false);
            io.withdraw(endpoint, &address);
        }
        true
    }

    /// Handles that the driver's cache was emptied: entries are published again when they are requested.
    pub fn published_nothing(&mut self) {
        for state in self.endpoints.values_mut() {
            (0..state.cache.len()).for_each(|at| state.cache.set_published(at, false));
        }
    }

    /// Removes what was loaded, before files are loaded again.
    pub fn unload(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        self.ticks(now);
        let Some(state) = self.endpoints.get(&endpoint) else { return };
        for at in (0..state.cache.len()).rev() {
            if self.is_loaded(endpoint, at) {
                self.drop_entry(endpoint, at, io);
            }
        }
    }

    /// Invalidates the entries that contradict the answer of subnet administration to a query of `endpoint`: `answer` is the record, or
    /// `None` if there is no such path.
    ///
    /// LIDs are valid on one subnet only, so entries of other ports stay. A query may be refused because of any of its fields: "no such
    /// path" contradicts only entries whose path is among those queried.
    pub(super) fn contradicted(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        question: &PathRecord,
        answer: Option<&PathRecord>,
        io: &mut impl Io,
    ) {
        let Some(asked) = self.endpoints.get(&endpoint).map(|state| state.endpoint.port) else {
            return;
        };
        let refused = super::route::paths_of(question);
        let (ticks, protocol) = (self.ticks(now), self.options.route_protocol);
        for id in self.endpoint_ids() {
            let Some(state) = self.endpoints.get(&id) else { continue };
            for at in (0..state.cache.len()).rev() {
                let Some(state) = self.endpoints.get_mut(&id) else { break };
                let Some(PortState { port, .. }) = self.ports.get(&state.endpoint.port) else {
                    break;
                };
                let is_told = state.cache.is_negative(at) || state.cache.is_loaded(at);
                if is_told || state.endpoint.port != asked {
                    continue;
                }
                let holder = state.cache.holder(at);
                let is_wrong = match answer {
                    Some(to) if to.dgid == holder.gid => !port.is_one_port(to.dlid, holder.lid),
                    Some(to) => port.is_one_port(to.dlid, holder.lid) && !to.dgid.is_zero(),
                    None => {
                        let path = state.path(port, protocol, at, ticks);
                        refused.matches(&path.unwrap_or_else(|| state.ends(port, &holder)))
                    }
                };
                if is_wrong {
                    state.counters.invalidated += 1;
                    self.drop_entry(id, at, io);
                }
            }
        }
    }

    /// Schedules the sweep if it is not scheduled.
    pub(super) fn start_sweep(&mut self, now: Time) {
        if self.sweep.at().is_none() {
            let pause = (self.options.address_timeout / 8)
                .clamp(core::time::Duration::from_secs(1), core::time::Duration::from_secs(3600));
            self.timers.set(&mut self.sweep, Timer::Sweep, now.after(pause));
        }
    }

    /// Removes expired entries, and periodically clears the marks of entries that programs have requested.
    pub(super) fn handle_sweep(&mut self, now: Time, io: &mut impl Io) {
        self.sweep = rdmux_transport::timers::Deadline::default();
        let ticks = self.ticks(now);
        let ages = now.since(self.aged) >= self.options.address_timeout / 2;
        let mut left = 0;
        for id in self.endpoint_ids() {
            let Some(state) = self.endpoints.get(&id) else { continue };
            for at in (0..state.cache.len()).rev() {
                let Some(state) = self.endpoints.get_mut(&id) else { break };
                if state.cache.is_expired(at, ticks) {
                    state.counters.expired += u64::from(!state.cache.is_negative(at));
                    self.drop_entry(id, at, io);
                }
            }
            let Some(state) = self.endpoints.get_mut(&id) else { continue };
            left += state.cache.len();
            if ages {
                state.cache.clear_used();
            }
        }
        if ages {
            self.aged = now;
        }
        if left > 0 {
            self.start_sweep(now);
        }
    }

    /// Returns whether paths are built from groups.
    pub(super) fn by_groups(&self) -> bool {
        self.options.route_protocol == RouteProtocol::Acm
    }
}
