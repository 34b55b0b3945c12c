//! Paths from subnet administration.

use rdmux_transport::Time;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::{PathRecord, PathRecordMask, Pattern};
use rdmux_wire::{Gid, Lid, Qpn};

use super::search::{Purpose, Stage, What};
use super::send::Queue;
use super::waiting::Ticket;
use super::{Machine, Timer};
use crate::cache::{By, Hashed, Holder, Way};
use crate::{Contradiction, EndpointId, Failure, Io, PortId, QuestionId, SaFailure};

impl Machine {
    /// Queues a search for a query to subnet administration.
    pub(super) fn ask_route(&mut self, now: Time, at: u32, io: &mut impl Io) {
        self.leave_stage(at);
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        search.stage = Stage::RouteQueued;
        let (endpoint, tid) = (search.endpoint, search.tid);
        let Some(id) = self.endpoints.get(&endpoint).map(|state| state.endpoint.port) else {
            return;
        };
        self.keep(now, at);
        if let Some(port) = self.ports.get_mut(&id) {
            port.routes.push((at, tid));
        }
        self.pump_routes(now, id, io);
    }

    /// Sends queued queries to subnet administration, up to the limit of outstanding ones.
    pub(super) fn pump_routes(&mut self, now: Time, id: PortId, io: &mut impl Io) {
        let end = now.after(self.question_timeout());
        loop {
            let Some(port) = self.ports.get(&id) else { return };
            if port.routes_asked >= self.options.sa_depth.max(1) || port.routes.len() == 0 {
                return;
            }
            let next = self.next_of_clients(Queue::Routes(id), None);
            let Some((at, tid)) = next.or_else(|| self.take_route(id)) else { return };
            let question = self.route_question(at);
            if question.dgid.is_zero() && question.dlid == Lid::NONE {
                // A client may request anything, but a query for any path at all is not sent.
                self.conclude(now, at, Err(Failure::NoData), io);
                continue;
            }
            self.leave_stage(at);
            let (Some(search), Some(port)) =
                (self.searches.get_mut(at as usize), self.ports.get_mut(&id))
            else {
                return;
            };
            search.stage = Stage::RouteAsked;
            self.timers.set(&mut search.timer, Timer::Search(at), end);
            port.routes_asked += 1;
            let endpoint = search.endpoint;
            self.count(endpoint, |c| c.route_queries += 1);
            io.ask_paths(id, QuestionId(tid), &question, mask_of(&question));
        }
    }

    /// Returns the search that has waited longest for its turn to query subnet administration.
    fn take_route(&mut self, id: PortId) -> Option<Ticket> {
        let searches = &self.searches;
        let waits = |(at, tid): &Ticket| {
            let search = searches.get(*at as usize);
            search.is_some_and(|s| s.tid == *tid && s.stage == Stage::RouteQueued)
        };
        self.ports.get_mut(&id)?.routes.take(None, waits)
    }

    /// Repeats the open queries to subnet administration, whose answers will be outdated.
    pub(super) fn ask_routes_again(&mut self, now: Time, endpoint: EndpointId, io: &mut impl Io) {
        let open = self
            .searches
            .iter()
            .filter(|(_, search)| search.endpoint == endpoint && search.stage == Stage::RouteAsked);
        let open: alloc::vec::Vec<_> = open.map(|(at, _)| super::place(at)).collect();
        for at in open {
            self.renumber(at);
            self.ask_route(now, at, io);
        }
    }

    /// Removes a search from its stage. Answers to its earlier queries do not count any more.
    pub(super) fn renumber(&mut self, at: u32) {
        self.leave_stage(at);
        let tid = self.rng.next() << 32 | u64::from(at);
        if let Some(search) = self.searches.get_mut(at as usize) {
            search.tid = tid;
        }
    }

    /// Returns the query of a search.
    fn route_question(&self, at: u32) -> PathRecord {
        let Some(search) = self.searches.get(at as usize) else { return PathRecord::default() };
        let endpoint = search.endpoint;
        let (Some(state), Some(port)) = (self.endpoints.get(&endpoint), self.port_of(endpoint))
        else {
            return PathRecord::default();
        };
        let address = match search.what {
            What::Query(record) => return record,
            What::Address(address) => address,
        };
        let gid = match (search.purpose, search.holder, address) {
            (Purpose::Claim(claim), _, _) => claim.gid,
            _ if self.owns(state, &address) => port.gid(),
            (_, Some(holder), _) if holder.gid.guid().0 != 0 => holder.gid,
            (_, _, Address::Gid(gid)) => gid,
            _ => Gid::ZERO,
        };
        let base = PathRecord {
            reversible: true,
            numb_path: 1,
            pkey: state.endpoint.pkey,
            ..PathRecord::default()
        };
        match (gid.is_zero(), address) {
            (true, Address::Lid(dlid)) => PathRecord { dlid, slid: port.lid, ..base },
            _ => PathRecord { dgid: gid, sgid: port.gid(), ..base },
        }
    }

    /// Handles the answer to [`Io::ask_paths`]: the first record, or a failure.
    pub fn handle_paths(
        &mut self,
        now: Time,
        question: QuestionId,
        answer: Result<&PathRecord, SaFailure>,
        io: &mut impl Io,
    ) {
        self.ticks(now);
        let Some(at) = self.search_of(question.0) else { return };
        let Some(search) = self.searches.get(at as usize) else { return };
        if search.stage != Stage::RouteAsked {
            return;
        }
        let (endpoint, what, purpose) = (search.endpoint, search.what, search.purpose);
        let hash = search.hash;
        let asked = self.route_question(at);
        let answer = answer.and_then(|path| check(&asked, path));
        match (what, purpose) {
            (What::Query(_), _) => {
                let refused = matches!(answer, Err(SaFailure::Status(NO_RECORDS)));
                if answer.is_ok() || refused {
                    self.contradicted(now, endpoint, &asked, answer.ok(), io);
                }
                self.finish(now, at, answer.copied().map_err(failure), io);
            }
            (What::Address(address), Purpose::Claim(claim)) => {
                let address = Hashed::again(&address, hash);
                let port = self.port_of(endpoint);
                let is_there = answer.is_ok_and(|path| {
                    port.is_some_and(|port| port.is_one_port(path.dlid, claim.lid))
                });
                self.judge(now, endpoint, &address, &claim, is_there, io);
                let entry = self.entry(now, endpoint, &address);
                let holder = entry.and_then(|entry| {
                    self.endpoints.get(&endpoint).map(|state| state.cache.holder(entry))
                });
                self.end_claim(at);
                let search = self.searches.get(at as usize);
                let is_wanted = search.is_some_and(|search| search.is_wanted(now));
                match holder {
                    Some(holder) => self.found(now, at, &holder, io),
                    // The entry was evicted meanwhile.
                    None if is_wanted => self.ask_anew(now, at, io),
                    None => self.finish(now, at, Err(Failure::NoData), io),
                }
            }
            (What::Address(address), _) => {
                let address = Hashed::again(&address, hash);
                self.handle_route(now, at, (endpoint, &address), answer, io)
            }
        }
    }

    /// Handles the answer for the path to an address.
    fn handle_route(
        &mut self,
        now: Time,
        at: u32,
        (endpoint, address): (EndpointId, &Hashed<'_>),
        answer: Result<&PathRecord, SaFailure>,
        io: &mut impl Io,
    ) {
        let known = self.entry(now, endpoint, address);
        if let Some(holder) = self.moved_to(at, endpoint, known) {
            self.renumber(at);
            return self.found(now, at, &holder, io);
        }
        match answer {
            Ok(path) => {
                let path = &self.with_source(endpoint, path);
                let is_port = matches!(address.address, Address::Gid(_) | Address::Lid(_));
                self.know_route(now, endpoint, address, (known, is_port), path, io);
                self.finish(now, at, Ok(*path), io);
            }
            Err(error) => {
                // Entries from files stay: the port may be back at the next request.
                let is_loaded = known.is_some_and(|at| self.is_loaded(endpoint, at));
                if error == SaFailure::Status(NO_RECORDS) && !is_loaded {
                    // The endpoint that claimed the address has no port here.
                    if let Some(entry) = known {
                        self.count(endpoint, |c| c.invalidated += 1);
                        self.drop_entry(endpoint, entry, io);
                    }
                    self.remember_nobody(now, endpoint, address, io);
                }
                self.finish(now, at, Err(failure(error)), io);
            }
        }
    }

    /// Returns the current holder of a search's address, if it is not the one in the query to subnet administration.
    fn moved_to(&self, at: u32, endpoint: EndpointId, known: Option<usize>) -> Option<Holder> {
        let asked = self.searches.get(at as usize)?.holder?;
        let cache = &self.endpoints.get(&endpoint)?.cache;
        let known = known.filter(|&at| !cache.is_negative(at) && !cache.is_loaded(at))?;
        Some(cache.holder(known)).filter(|holder| holder.gid != asked.gid)
    }

    /// Returns a path with its source, which subnet administration may omit if the query did not request it.
    fn with_source(&self, endpoint: EndpointId, path: &PathRecord) -> PathRecord {
        let port = self.port_of(endpoint);
        let (gid, lid) = port.map_or((path.sgid, path.slid), |port| (port.gid(), port.lid));
        PathRecord {
            sgid: if path.sgid.is_zero() { gid } else { path.sgid },
            slid: if path.slid == Lid::NONE { lid } else { path.slid },
            ..*path
        }
    }

    /// Stores a path. An address whose holder is known keeps its lifetime. The holder of a GID or LID is that in the record.
    fn know_route(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        (known, is_port): (Option<usize>, bool),
        path: &PathRecord,
        io: &mut impl Io,
    ) {
        let end = self.end(now, self.options.route_timeout);
        let state = self.endpoints.get_mut(&endpoint);
        match (known, state) {
            // The entry was evicted meanwhile. A new one would live too long for the information about the address.
            (None, _) if !is_port => {}
            // Files name another holder by now.
            (Some(entry), Some(state))
                if state.cache.is_loaded(entry) && state.cache.holder(entry).gid != path.dgid => {}
            (Some(entry), Some(state)) if !is_port && !state.cache.is_negative(entry) => {
                state.cache.set_way(entry, &Way::Path(*path), end);
                if state.cache.is_published(entry) {
                    state.cache.set_published(entry, false);
                    io.withdraw(endpoint, address.address);
                }
            }
            _ => {
                let holder =
                    Holder { gid: path.dgid, lid: path.dlid, qpn: Qpn::new(0), group: None };
                self.remember(now, endpoint, address, (&holder, &Way::Path(*path)), By::Us, io);
            }
        }
    }

    /// Decides whether the claimant gets an address whose holder has not answered.
    fn judge(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        address: &Hashed<'_>,
        claim: &Holder,
        is_there: bool,
        io: &mut impl Io,
    ) {
        let Some(entry) = self.entry(now, endpoint, address) else { return };
        let Some(state) = self.endpoints.get_mut(&endpoint) else { return };
        let holder = state.cache.holder(entry);
        let is_believed = is_there && !state.cache.is_loaded(entry);
        let [holder_gid, claimant] = [holder.gid, claim.gid];
        if is_believed {
            state.counters.replaced += 1;
            let way = if self.by_groups() { Way::Group } else { Way::None };
            self.remember(now, endpoint, address, (claim, &way), By::Stranger, io);
        }
        io.contradiction(
            endpoint,
            &Contradiction { address: address.address, holder: holder_gid, claimant, is_believed },
        );
    }
}

/// The status of an answer without records (IBTA 15.2.3.1): ERR_NO_RECORDS.
const NO_RECORDS: u16 = 0x0300;

/// Checks that a path is valid and is the one that was queried.
fn check<'a>(asked: &PathRecord, path: &'a PathRecord) -> Result<&'a PathRecord, SaFailure> {
    let is_other = (!asked.dgid.is_zero() && path.dgid != asked.dgid)
        || (asked.dlid != Lid::NONE && path.dlid != asked.dlid);
    let is_local = path.dlid.is_unicast() && !path.dgid.is_zero();
    if is_other || !is_local { Err(SaFailure::Silent) } else { Ok(path) }
}

fn failure(error: SaFailure) -> Failure {
    match error {
        SaFailure::Silent => Failure::TimedOut,
        SaFailure::Status(status) => match status.to_be_bytes() {
            // Not a status of the class: the datagram was wrong, or subnet administration is busy.
            [0, _] => Failure::TimedOut,
            [class, _] => Failure::Sa(class),
        },
    }
}

/// Returns the paths that a query requests, as a pattern. The maximum number of paths in the query is ignored.
pub(super) fn paths_of(question: &PathRecord) -> Pattern {
    Pattern::new((mask_of(question) - PathRecordMask::NUMB_PATH).bits(), question)
}

/// Returns the component mask of a query: the components that are not zero.
fn mask_of(record: &PathRecord) -> PathRecordMask {
    use PathRecordMask as M;
    let fields = [
        (record.service_id.0 != 0, M::SERVICE_ID_MSB | M::SERVICE_ID_LSB),
        (!record.dgid.is_zero(), M::DGID),
        (!record.sgid.is_zero(), M::SGID),
        (record.dlid != Lid::NONE, M::DLID),
        (record.slid != Lid::NONE, M::SLID),
        (record.flow_label != 0, M::FLOW_LABEL),
        (record.hop_limit != 0, M::HOP_LIMIT),
        (record.tclass != 0, M::TCLASS),
        (record.reversible, M::REVERSIBLE),
        (record.numb_path != 0, M::NUMB_PATH),
        (record.pkey.0 != 0, M::PKEY),
        (record.qos_class != 0, M::QOS_CLASS),
        (record.sl != 0, M::SL),
        (record.mtu != 0, M::MTU_SELECTOR | M::MTU),
        (record.rate.0 != 0, M::RATE_SELECTOR | M::RATE),
        (record.packet_life_time != 0, M::PACKET_LIFE_TIME_SELECTOR | M::PACKET_LIFE_TIME),
    ];
    let mut mask = M::empty();
    for (_, bits) in fields.into_iter().filter(|(counts, _)| *counts) {
        mask |= bits;
    }
    mask
}
