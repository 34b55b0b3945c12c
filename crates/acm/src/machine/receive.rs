//! Handling of datagrams of other endpoints: learning from them, and answering.
//!
//! The network identifies the sender: its GID, LID and queue pair are those of the packet, not of the datagram. Which addresses it has
//! is its own claim.

use rdmux_transport::Time;
use rdmux_wire::acm::{Address, Datagram, Request, Response};
use rdmux_wire::{Gid, Qpn};

use super::Machine;
use super::endpoint::EndpointState;
use super::search::{Purpose, Stage, What};
use crate::cache::{By, Hashed, Holder, Way};
use crate::{ClaimPolicy, Contradiction, EndpointId, Io, Peer};

/// The maximum number of claims that an endpoint verifies at a time. Others are not believed.
const MAX_CLAIMS: u32 = 16;

impl Machine {
    /// Handles a datagram that the endpoint's queue pair received, without its GRH. Returns whether a party waits for
    /// the outcome: the datagram is an answer, or a request for a local address.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        endpoint: EndpointId,
        from: &Peer,
        bytes: &[u8],
        io: &mut impl Io,
    ) -> bool {
        self.ticks(now);
        let Some(state) = self.endpoints.get_mut(&endpoint).filter(|state| state.is_up) else {
            return false;
        };
        let Some(port) = self.ports.get(&state.endpoint.port) else { return false };
        let datagram = Datagram::parse(bytes);
        let Ok(datagram) = datagram else {
            state.counters.malformed += 1;
            return false;
        };
        let is_own = port.port.gids.contains(&from.gid) && from.qpn == state.endpoint.qpn;
        if is_own {
            return true;
        }
        let is_possible = from.lid.is_unicast()
            && from.gid.guid().0 != 0
            && from.gid.0[0] != 0xff
            && from.gid.prefix() == port.port.gid().prefix()
            && from.qpn.get() > 1
            && from.qpn != Qpn::MULTICAST;
        if !is_possible {
            state.counters.refused += 1;
            return false;
        }
        match datagram {
            Datagram::Request(request) => self.handle_request(now, endpoint, from, &request, io),
            Datagram::Response(response) => {
                self.handle_response(now, endpoint, from, &response, io);
                true
            }
        }
    }

    /// Learns the sender's address, and answers if a local address is requested. Returns whether it is.
    fn handle_request(
        &mut self,
        now: Time,
        id: EndpointId,
        from: &Peer,
        request: &Request,
        io: &mut impl Io,
    ) -> bool {
        let is_sample = self.options.leaves_to_chance(from.lid);
        let Some(state) = self.endpoints.get(&id) else { return false };
        let (is_for_us, is_from_us) =
            (self.owns(state, &request.dest), self.is_ours(state, &request.source));
        let Some(state) = self.endpoints.get_mut(&id) else { return false };
        state.counters.received_requests += 1;
        state.pace.heard(is_sample);
        let Some(group) = state.groups.best(&request.groups) else {
            state.counters.refused += 1;
            return is_for_us;
        };
        let is_truth = match request.source {
            Address::Gid(gid) => gid == from.gid,
            Address::Lid(lid) => lid == from.lid,
            _ => true,
        };
        if !is_truth {
            state.counters.refused += 1;
            return is_for_us;
        }
        let source = state.cache.hashed(&request.source);
        self.consider_groups(now, id, &request.groups, io);
        let holder = Holder { gid: from.gid, lid: from.lid, qpn: from.qpn, group: Some(group) };
        if is_from_us {
            self.contradict(id, &request.source, from.gid, false, io);
            return is_for_us;
        }
        self.learn(now, id, &source, &holder, io);
        if is_for_us {
            self.answer(id, from, request.tid, group, io);
            self.tell_all(now, id, request.dest, io);
        }
        is_for_us
    }

    /// Returns whether an address belongs to a local endpoint on the same subnet, so that no remote endpoint can have
    /// it.
    fn is_ours(&self, state: &EndpointState, address: &Address) -> bool {
        let port = state.endpoint.port;
        self.endpoints.values().any(|s| s.endpoint.port == port && self.owns(s, address))
    }

    /// Announces an address once a second request for it arrives: an endpoint that has sent no requests is unknown,
    /// and all others query it.
    fn tell_all(&mut self, now: Time, id: EndpointId, address: Address, io: &mut impl Io) {
        let is_known = self.was_told(now, id) || !self.options.announce;
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        if is_known || state.is_blocked || state.pace.queue.len() > 0 {
            return;
        }
        state.asked_for += 1;
        if state.asked_for >= 2 {
            state.asked_for = 0;
            self.send_announcement(now, id, address, io);
        }
    }

    fn answer(&mut self, id: EndpointId, to: &Peer, tid: u64, group: u8, io: &mut impl Io) {
        let Some(record) = self.endpoints.get(&id).and_then(|state| state.groups.record(group))
        else {
            return;
        };
        let peer = Peer { sl: record.sl, ..*to };
        let groups = core::iter::once(record.mgid).collect();
        let response = Response { tid, status: 0, groups };
        self.send_answer(id, peer, Datagram::Response(response), io);
    }

    fn handle_response(
        &mut self,
        now: Time,
        id: EndpointId,
        from: &Peer,
        response: &Response,
        io: &mut impl Io,
    ) {
        self.count(id, |c| c.received_answers += 1);
        let search = self.search_of(response.tid).and_then(|at| {
            let search = self.searches.get(at as usize)?;
            (search.endpoint == id).then_some((at, search))
        });
        let group =
            response.group().and_then(|group| self.endpoints.get(&id)?.groups.best(&[group]));
        let (Some((at, search)), Some(group)) = (search, group) else {
            return self.count(id, |c| c.unsolicited += 1);
        };
        let (purpose, stage, sought) = (search.purpose, search.stage, search.holder);
        let What::Address(address) = search.what else {
            return self.count(id, |c| c.unsolicited += 1);
        };
        let hashed = Hashed::again(&address, search.hash);
        let holder = Holder { gid: from.gid, lid: from.lid, qpn: from.qpn, group: Some(group) };
        let is_truth = match address {
            Address::Gid(gid) => gid == from.gid,
            Address::Lid(lid) => lid == from.lid,
            _ => true,
        };
        // A second answer to a request that is already answered is redundant, unless it comes from another endpoint.
        if !is_truth || !matches!(stage, Stage::Asked | Stage::Checked | Stage::Queued) {
            return self.count(id, |c| c.refused += 1);
        }
        if let Some(state) = self.endpoints.get_mut(&id) {
            state.groups.listed(now, &response.groups);
            if stage == Stage::Asked {
                state.pace.answered();
            }
        }
        let before = self.entry(now, id, &hashed).and_then(|entry| {
            let cache = &self.endpoints.get(&id)?.cache;
            (!cache.is_negative(entry)).then(|| cache.holder(entry).gid)
        });
        match (purpose, before) {
            // Even if the entry was evicted meanwhile.
            (Purpose::Claim(_), before)
                if before.or(sought.map(|holder| holder.gid)) == Some(from.gid) =>
            {
                self.remember_holder(now, id, &hashed, &holder, By::Us, io);
                self.refuse_claim(at, from.gid, io);
                self.found(now, at, &holder, io);
            }
            (Purpose::Claim(_), _) => self.count(id, |c| c.refused += 1),
            (Purpose::Refresh, Some(gid)) if gid != from.gid => {
                self.learn(now, id, &hashed, &holder, io);
            }
            (_, before) => {
                if before.is_some() {
                    self.count(id, |c| c.refreshed += 1);
                }
                self.remember_holder(now, id, &hashed, &holder, By::Us, io);
                self.found(now, at, &holder, io);
            }
        }
    }

    /// Stores the holder of an address, with the path through its group if paths are built from groups. Returns false if there is no
    /// room.
    fn remember_holder(
        &mut self,
        now: Time,
        id: EndpointId,
        address: &Hashed<'_>,
        holder: &Holder,
        by: By,
        io: &mut impl Io,
    ) -> bool {
        let way = if self.by_groups() { Way::Group } else { Way::None };
        self.remember(now, id, address, (holder, &way), by, io).is_some()
    }

    /// Learns an address that an endpoint claims.
    fn learn(
        &mut self,
        now: Time,
        id: EndpointId,
        hashed: &Hashed<'_>,
        holder: &Holder,
        io: &mut impl Io,
    ) {
        let address = hashed.address;
        let known = self.entry(now, id, hashed).and_then(|entry| {
            let cache = &self.endpoints.get(&id)?.cache;
            let is_known = !cache.is_negative(entry);
            is_known.then(|| (cache.holder(entry), cache.is_loaded(entry)))
        });
        let is_port = matches!(address, Address::Gid(_) | Address::Lid(_));
        match known {
            Some((before, true)) => {
                if before.gid != holder.gid {
                    self.contradict(id, address, holder.gid, false, io);
                }
                return;
            }
            Some((before, false)) if !is_port && before.gid != holder.gid => {
                match self.options.claims {
                    ClaimPolicy::Newest => self.contradict(id, address, holder.gid, true, io),
                    ClaimPolicy::First => {
                        return self.contradict(id, address, holder.gid, false, io);
                    }
                    ClaimPolicy::Verified => return self.find_out(now, id, hashed, holder, io),
                }
            }
            _ => {}
        }
        if self.remember_holder(now, id, hashed, holder, By::Stranger, io)
            && let Some(at) = self.search_for(id, hashed)
        {
            self.overheard(now, at, holder, io);
        }
    }

    /// Ends a search whose answer was overheard.
    fn overheard(&mut self, now: Time, at: u32, holder: &Holder, io: &mut impl Io) {
        let Some(search) = self.searches.get_mut(at as usize) else { return };
        let (endpoint, is_claim) = (search.endpoint, matches!(search.purpose, Purpose::Claim(_)));
        match search.stage {
            Stage::Queued | Stage::Asked | Stage::Checked => {
                if let Some(state) = self.endpoints.get_mut(&endpoint) {
                    state.counters.overheard += 1;
                    state.pace.overheard(now);
                }
            }
            // Subnet administration's answer about the claimant does not matter any more.
            Stage::RouteQueued | Stage::RouteAsked if is_claim => self.renumber(at),
            // Subnet administration is queried for this holder then.
            Stage::RouteQueued => {
                search.holder = Some(*holder);
                return;
            }
            Stage::Joining => {}
            Stage::RouteAsked | Stage::System => return,
        }
        if is_claim {
            self.refuse_claim(at, holder.gid, io);
        }
        self.found(now, at, holder, io);
    }

    /// Refuses a claim, because the holder of the address still has it.
    fn refuse_claim(&mut self, at: u32, holder: Gid, io: &mut impl Io) {
        let Some(claim) = self.end_claim(at) else { return };
        let Some(search) = self.searches.get(at as usize) else { return };
        let (What::Address(address), claimant) = (search.what, claim.gid) else { return };
        if claimant != holder {
            let refused = Contradiction { address: &address, holder, claimant, is_believed: false };
            io.contradiction(search.endpoint, &refused);
        }
    }

    /// Counts a contradiction, and reports it to the driver.
    fn contradict(
        &mut self,
        id: EndpointId,
        address: &Address,
        claimant: Gid,
        is_believed: bool,
        io: &mut impl Io,
    ) {
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        state.counters.contradictions += 1;
        state.counters.replaced += u64::from(is_believed);
        let known = state.cache.find(&state.cache.hashed(address));
        let known = known.map(|at| state.cache.holder(at).gid);
        let own = self.ports.get(&state.endpoint.port).map(|state| state.port.gid());
        let holder = known.or(own).unwrap_or_default();
        io.contradiction(id, &Contradiction { address, holder, claimant, is_believed });
    }

    /// Verifies a claim: queries the first holder whether it still has the address, and subnet administration whether the claimant's
    /// GID and LID match.
    fn find_out(
        &mut self,
        now: Time,
        id: EndpointId,
        address: &Hashed<'_>,
        claim: &Holder,
        io: &mut impl Io,
    ) {
        self.count(id, |c| c.contradictions += 1);
        let is_open = self.search_for(id, address).is_some();
        let can_ask = self.own_address(id, address.address).is_some();
        let Some(state) = self.endpoints.get_mut(&id) else { return };
        if is_open
            || !can_ask
            || state.claims >= MAX_CLAIMS
            || self.searches.len() >= self.options.max_requests
        {
            return;
        }
        state.claims += 1;
        self.search_address(now, id, address, (Purpose::Claim(*claim), None), io);
    }
}
