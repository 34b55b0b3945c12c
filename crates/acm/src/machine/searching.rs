//! The life of searches: they start, change stages, and end with an answer for all waiting requests.

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Qpn};

use super::search::{NONE, Purpose, Search, Stage, What};
use super::{Machine, Timer, place};
use crate::cache::{By, Hashed, Holder, Way};
use crate::{ClientId, EndpointId, Failure, Io, Port, QuestionId, Resolved, User};

impl Machine {
    /// Returns the search for an address, which is started if none is running, for a user or for none. None if the endpoint has no source
    /// address for it.
    pub(super) fn search_address(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        (purpose, user): (Purpose, Option<User>),
        io: &mut impl Io,
    ) -> Option<u32> {
        if let Some(at) = self.search_for(endpoint, address) {
            return Some(at);
        }
        let (what, hash) = (What::Address(*address.address), address.hash);
        let at = self.new_search(now, endpoint, (what, hash), (purpose, user))?;
        let searches = &self.searches;
        let hash_of = |at: &u32| searches.get(*at as usize).map_or(0, |search| search.hash);
        self.endpoints.get_mut(&endpoint)?.searches.insert_unique(hash, at, hash_of);
        self.begin_search(now, at, address, io);
        self.searches.contains(at as usize).then_some(at)
    }

    /// Returns the open search for an address.
    pub(super) fn search_for(&self, endpoint: EndpointId, address: &Hashed<'_>) -> Option<u32> {
        let is = |at: &u32| {
            let search = self.searches.get(*at as usize);
            search.is_some_and(
                |search| matches!(&search.what, What::Address(a) if a == address.address),
            )
        };
        self.endpoints.get(&endpoint)?.searches.find(address.hash, is).copied()
    }

    /// Starts a search. It is kept for this instant, and then for its waiting requests.
    pub(super) fn new_search(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        (what, hash): (What, u64),
        (purpose, user): (Purpose, Option<User>),
    ) -> Option<u32> {
        let source = match what {
            What::Address(dest) => self.own_address(endpoint, &dest)?,
            What::Query(_) => Address::Lid(rdmux_wire::Lid::NONE),
        };
        let at = place(self.searches.vacant_key());
        let tid = self.rng.next() << 32 | u64::from(at);
        self.unwaited += 1;
        if let Some(user) = user {
            self.users.add_search(user);
        }
        Some(place(self.searches.insert(Search {
            tid,
            endpoint,
            what,
            hash,
            source,
            purpose,
            user,
            stage: Stage::System,
            holder: None,
            tries: 0,
            first: NONE,
            timer: Deadline::default(),
            keep_until: Time(now.0.saturating_add(1)),
        })))
    }

    /// Returns the search with this transaction ID or query number.
    pub(super) fn search_of(&self, tid: u64) -> Option<u32> {
        let at = u32::try_from(tid & u64::from(u32::MAX)).ok()?;
        self.searches.get(at as usize).filter(|search| search.tid == tid).map(|_| at)
    }

    fn begin_search(&mut self, now: Time, at: u32, hashed: &Hashed<'_>, io: &mut impl Io) {
        let Some(search) = self.searches.get(at as usize) else { return };
        let address = hashed.address;
        let (endpoint, purpose, tid) = (search.endpoint, search.purpose, search.tid);
        let Some(kind) = self.port_of(endpoint).map(|port| port.kind) else { return };
        if kind.is_ip() {
            let end = now.after(self.question_timeout());
            if let Some(search) = self.searches.get_mut(at as usize) {
                self.timers.set(&mut search.timer, Timer::Search(at), end);
            }
            return io.ask_system(endpoint, QuestionId(tid), address);
        }
        let known = self.entry(now, endpoint, hashed).and_then(|entry| {
            let cache = &self.endpoints.get(&endpoint)?.cache;
            let (end, route_end) = cache.ends(entry);
            (!cache.is_negative(entry)).then(|| (cache.holder(entry), route_end < end))
        });
        let is_port = matches!(address, Address::Gid(_) | Address::Lid(_));
        if let Some(search) = self.searches.get_mut(at as usize) {
            search.holder = known.map(|(holder, _)| holder);
        }
        let is_own = self.endpoints.get(&endpoint).is_some_and(|own| self.owns(own, address));
        match (purpose, known) {
            // Without local loopback, subnet administration knows the path back to the port, and to all other ports. The group is
            // queried only for the port that has an address, and not every service answers for its GIDs and LIDs (ibacm does not).
            _ if is_own || is_port => self.ask_route(now, at, io),
            (Purpose::Refresh, Some((_, true))) => self.ask_route(now, at, io),
            // Unless all others must receive this endpoint's address again anyway.
            (Purpose::Refresh, Some((holder, _)))
                if holder.qpn != Qpn::new(0) && self.was_told(now, endpoint) =>
            {
                self.ask_holder(now, at, io);
            }
            (Purpose::Claim(_), Some(_)) => self.ask_holder(now, at, io),
            (Purpose::Resolve, Some(_)) => self.need_path(now, at, io),
            _ => self.enqueue(now, at, io),
        }
    }

    /// Starts a search again at the group, because the cached holder does not help.
    pub(super) fn ask_anew(&mut self, now: Time, at: u32, io: &mut impl Io) {
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        (search.holder, search.tries) = (None, 0);
        let endpoint = search.endpoint;
        self.enqueue(now, at, io);
        if let Some(port) = self.endpoints.get(&endpoint).map(|state| state.endpoint.port) {
            self.pump_routes(now, port, io);
        }
    }

    /// Returns whether all other endpoints learned this one's address within the first half of its lifetime.
    pub(super) fn was_told(&self, now: Time, endpoint: EndpointId) -> bool {
        let told = self.endpoints.get(&endpoint).and_then(|state| state.told);
        told.is_some_and(|told| now.since(told) < self.options.address_timeout / 2)
    }

    /// Leaves a stage and releases its resources.
    pub(super) fn leave_stage(&mut self, at: u32) {
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        self.timers.clear(&mut search.timer, Timer::Search(at));
        let (stage, endpoint) = (search.stage, search.endpoint);
        search.stage = Stage::System;
        let searches = &self.searches;
        let is_in = |stage: Stage| {
            move |(at, tid): &(u32, u64)| {
                let search = searches.get(*at as usize);
                search.is_some_and(|search| search.tid == *tid && search.stage == stage)
            }
        };
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        match stage {
            Stage::Queued => state.pace.queue.left(is_in(Stage::Queued)),
            Stage::Asked => state.pace.asked = state.pace.asked.saturating_sub(1),
            Stage::RouteQueued | Stage::RouteAsked => {
                let Some(port) = self.ports.get_mut(&state.endpoint.port) else { return };
                match stage {
                    Stage::RouteQueued => port.routes.left(is_in(Stage::RouteQueued)),
                    _ => port.routes_asked = port.routes_asked.saturating_sub(1),
                }
            }
            Stage::Joining => state.joining = state.joining.saturating_sub(1),
            Stage::Checked | Stage::System => {}
        }
    }

    /// Continues a search whose holder is known, but not the path: waits for the join of their common group if it is under way, else
    /// queries subnet administration. All endpoints of a subnet may lose their groups at once, and then have no need to ask for each path.
    fn need_path(&mut self, now: Time, at: u32, io: &mut impl Io) {
        if !self.joins_group_of(at) {
            return self.ask_route(now, at, io);
        }
        self.leave_stage(at);
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.stage = Stage::Joining;
        let endpoint = search.endpoint;
        self.keep(now, at);
        if let Some(state) = self.endpoints.get_mut(&endpoint) {
            state.joining += 1;
        }
    }

    /// Returns whether the endpoint is about to join the group that it shares with the holder of a search's address.
    fn joins_group_of(&self, at: u32) -> bool {
        let joins = || {
            let search = self.searches.get(at as usize)?;
            let group = search.holder?.group?;
            Some(self.endpoints.get(&search.endpoint)?.groups.is_joining(group))
        };
        self.by_groups() && joins().unwrap_or(false)
    }

    /// Makes searches that wait for a group that the endpoint drops independent of it: another may get its index.
    pub(super) fn forget_group_of_searches(&mut self, endpoint: EndpointId, group: u8) {
        let of_endpoint =
            |search: &&mut Search| search.endpoint == endpoint && search.stage == Stage::Joining;
        for search in self.searches.iter_mut().map(|(_, search)| search).filter(of_endpoint) {
            if let Some(holder) =
                search.holder.as_mut().filter(|holder| holder.group == Some(group))
            {
                holder.group = None;
            }
        }
    }

    /// Continues the searches that need not wait for a join any more.
    pub(super) fn joins_changed(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        if self.endpoints.get(&endpoint).is_none_or(|state| state.joining == 0) {
            return;
        }
        let waits = |search: &Search| search.endpoint == endpoint && search.stage == Stage::Joining;
        let all = self.searches.iter().filter(|(_, search)| waits(search));
        let all: Vec<_> = all.map(|(at, search)| (place(at), search.tid)).collect();
        for (at, tid) in all {
            let search = self.searches.get(at as usize).filter(|search| search.tid == tid);
            if let Some(holder) = search.filter(|search| waits(search)).and_then(|s| s.holder)
                && !self.joins_group_of(at)
            {
                self.found(now, at, &holder, io);
            }
        }
    }

    /// Continues after the holder of the address was found: with the path, or with a query to subnet administration.
    pub(super) fn found(&mut self, now: Time, at: u32, holder: &Holder, io: &mut impl Io) {
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.holder = Some(*holder);
        let What::Address(address) = search.what else { return };
        let address = Hashed::again(&address, search.hash);
        let (endpoint, purpose) = (search.endpoint, search.purpose);
        let is_wanted = search.is_waited_for(now);
        let path = self.path_to(now, endpoint, &address).or_else(|| {
            // If there was no room to store it.
            let state = self.endpoints.get(&endpoint).filter(|_| self.by_groups())?;
            state.group_path(self.port_of(endpoint)?, holder)
        });
        match path {
            Some(path) => self.finish(now, at, Ok(path), io),
            None if is_wanted || purpose == Purpose::Refresh => self.need_path(now, at, io),
            None => self.finish(now, at, Err(Failure::NoData), io),
        }
    }

    /// Returns the path to an address, if it is cached.
    pub(super) fn path_to(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
    ) -> Option<PathRecord> {
        let at = self.entry(now, endpoint, address)?;
        let ticks = self.ticks(now);
        let state = self.endpoints.get(&endpoint)?;
        state.path(self.port_of(endpoint)?, self.options.route_protocol, at, ticks)
    }

    /// Ends a search, answers all waiting requests, and lets the next searches proceed.
    pub(super) fn finish(
        &mut self,
        now: Time,
        at: u32,
        result: Result<PathRecord, Failure>,
        io: &mut impl Io,
    ) {
        let Some(endpoint) = self.searches.get(at as usize).map(|search| search.endpoint) else {
            return;
        };
        self.conclude(now, at, result, io);
        if let Some(port) = self.endpoints.get(&endpoint).map(|state| state.endpoint.port) {
            self.pump_routes(now, port, io);
        }
        self.pump(now, endpoint, io);
    }

    /// Ends a search, and answers all waiting requests.
    pub(super) fn conclude(
        &mut self,
        now: Time,
        at: u32,
        result: Result<PathRecord, Failure>,
        io: &mut impl Io,
    ) {
        self.leave_stage(at);
        let Some(search) = self.searches.get(at as usize) else { return };
        let (endpoint, purpose) = (search.endpoint, search.purpose);
        let mut waited = false;
        while let Some(first) =
            self.searches.get(at as usize).map(|s| s.first).filter(|f| *f != NONE)
        {
            let Some(open) = self.take_request(first) else { break };
            waited = true;
            if result.is_err() {
                self.count(endpoint, |c| c.errors += 1);
            }
            let source = open.chosen;
            let resolved = |path| Resolved { endpoint, path, source, is_cached: false };
            let answer = result.map(resolved);
            io.answer(open.client, open.id, answer);
        }
        self.end_claim(at);
        let Some(search) = self.drop_search(at) else { return };
        if let What::Address(address) = &search.what {
            let address = Hashed::again(address, search.hash);
            if let Ok(path) = result
                && (waited || purpose == Purpose::Refresh)
                && let Some(entry) = self.entry(now, endpoint, &address)
            {
                if let Some(state) = self.endpoints.get_mut(&endpoint) {
                    state.cache.set_used(entry);
                }
                // Files may name another holder by now.
                if self.path_to(now, endpoint, &address) == Some(path) {
                    self.publish(now, endpoint, (entry, &address), &path, io);
                }
            }
        }
    }

    /// Ends the verification of a claim, and continues the search for waiting requests. Returns the claim, if there
    /// was one.
    pub(super) fn end_claim(&mut self, at: u32) -> Option<Holder> {
        let search = self.searches.get_mut(at as usize)?;
        let Purpose::Claim(claim) = search.purpose else { return None };
        search.purpose = Purpose::Resolve;
        if let Some(state) = self.endpoints.get_mut(&search.endpoint) {
            state.claims = state.claims.saturating_sub(1);
        }
        Some(claim)
    }

    /// Removes a search for which no request waits any more.
    pub(super) fn drop_search(&mut self, at: u32) -> Option<Search> {
        self.leave_stage(at);
        let search = self.searches.try_remove(at as usize)?;
        self.unwaited = self.unwaited.saturating_sub(usize::from(search.first == NONE));
        if let Some(user) = search.user {
            self.users.remove_search(user);
        }
        if let (What::Address(_), Some(state)) =
            (search.what, self.endpoints.get_mut(&search.endpoint))
            && let Ok(found) = state.searches.find_entry(search.hash, |other| *other == at)
        {
            found.remove();
        }
        Some(search)
    }

    /// Handles the timeout of the last attempt.
    pub(super) fn give_up(&mut self, now: Time, at: u32, io: &mut impl Io) {
        let Some(search) = self.searches.get(at as usize) else { return };
        let (endpoint, purpose, stage) = (search.endpoint, search.purpose, search.stage);
        let is_waited_for = search.is_waited_for(now);
        let What::Address(address) = search.what else { return };
        let address = Hashed::again(&address, search.hash);
        self.count(endpoint, |c| c.timeouts += 1);
        match purpose {
            // The holder does not answer any more. Check whether the claimant exists.
            Purpose::Claim(_) => self.ask_route(now, at, io),
            // Requests that wait by now did not request the cached entry: the group may know another holder.
            Purpose::Refresh if is_waited_for && stage != Stage::Asked => {
                if let Some(search) = self.searches.get_mut(at as usize) {
                    search.purpose = Purpose::Resolve;
                }
                self.ask_anew(now, at, io);
            }
            Purpose::Refresh => self.finish(now, at, Err(Failure::TimedOut), io),
            Purpose::Resolve => {
                self.remember_nobody(now, endpoint, &address, io);
                self.finish(now, at, Err(Failure::TimedOut), io);
            }
        }
    }

    /// Returns the clients that wait for the answer to a query of [`Io::ask_system`], once for each of their requests; none if no client
    /// waits for it.
    pub fn clients_of(&self, question: QuestionId) -> impl Iterator<Item = ClientId> {
        let search = self.search_of(question.0).and_then(|at| self.searches.get(at as usize));
        let open = |at: u32| self.requests.get(at as usize);
        let first = search.and_then(|search| open(search.first));
        core::iter::successors(first, move |request| open(request.next)).map(|open| open.client)
    }

    /// Returns whether the answer to a query of [`Io::ask_system`] is still needed. If not, the query has ended, and the driver need not
    /// send it. A later request for the same address starts a new query.
    pub fn is_wanted(&mut self, now: Time, question: QuestionId) -> bool {
        let Some(at) = self.search_of(question.0) else { return false };
        let search = self.searches.get(at as usize);
        let is_over = search.is_some_and(|s| s.stage == Stage::System && !s.is_wanted(now));
        if is_over {
            self.drop_search(at);
        }
        !is_over
    }

    /// Handles the answer to [`Io::ask_system`], which is none if the operating system does not have the address.
    pub fn handle_system(
        &mut self,
        now: Time,
        question: QuestionId,
        answer: Option<&super::System>,
        io: &mut impl Io,
    ) {
        self.ticks(now);
        let Some(at) = self.search_of(question.0) else { return };
        let Some(search) = self.searches.get(at as usize) else { return };
        let What::Address(address) = search.what else { return };
        let address = Hashed::again(&address, search.hash);
        let endpoint = search.endpoint;
        let Some(port) = self.port_of(endpoint).filter(|port| port.kind.is_ip()) else { return };
        let Some(answer) = answer else {
            self.count(endpoint, |c| c.timeouts += 1);
            self.remember_nobody(now, endpoint, &address, io);
            return self.finish(now, at, Err(Failure::TimedOut), io);
        };
        let path = self.system_path(port, endpoint, answer);
        let holder = Holder { gid: answer.gid, lid: path.dlid, qpn: Qpn::new(0), group: None };
        self.remember(now, endpoint, &address, (&holder, &Way::Path(path)), By::Us, io);
        self.finish(now, at, Ok(path), io);
    }

    /// Handles that the driver has no room for a query of [`Io::ask_system`]: all waiting requests fail with [`Failure::TooMany`]. Nothing
    /// is cached of the address, so the next request for it causes a new query.
    pub fn refuse_system(&mut self, now: Time, question: QuestionId, io: &mut impl Io) {
        self.ticks(now);
        let at = self.search_of(question.0);
        let stage = at.and_then(|at| self.searches.get(at as usize)).map(|search| search.stage);
        if let Some(at) = at.filter(|_| stage == Some(Stage::System)) {
            self.finish(now, at, Err(Failure::TooMany), io);
        }
    }

    fn system_path(&self, port: &Port, endpoint: EndpointId, answer: &super::System) -> PathRecord {
        let own = self.endpoints.get(&endpoint).into_iter().flat_map(|s| &s.endpoint.addresses);
        let mut sources = own.filter_map(|address| match address {
            Address::Ip4(ip) => Some(Gid::from(*ip)),
            Address::Ip6(ip) => Some(Gid::from(*ip)),
            _ => None,
        });
        let alike = sources.find(|gid| gid.ip().is_ipv4() == answer.gid.ip().is_ipv4());
        let source =
            if answer.source.is_zero() { alike.unwrap_or(port.gid()) } else { answer.source };
        PathRecord {
            sgid: source,
            mtu: answer.mtu.min(port.mtu).code(),
            hop_limit: answer.hop_limit,
            ..port.path_to(rdmux_wire::Pkey::DEFAULT, answer.gid, port.lid)
        }
    }
}
