//! Client requests: their sources, cached answers, and waiting.

use core::net::IpAddr;

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid, Pkey};

use super::endpoint::EndpointState;
use super::known::Lookup;
use super::search::{NONE, Open, Purpose, Stage, What};
use super::users::share;
use super::{Machine, Timer, place};
use crate::cache::Hashed;
use crate::{
    ClientId, Dest, EndpointId, Failure, Io, PortKind, QuestionId, Request, RequestId, Resolved,
    User,
};

impl Machine {
    /// Sets the user of a new client, which is [`User::Owner`] otherwise, until the client is [removed](Self::remove_client). Ignored while
    /// requests of the client wait.
    pub fn set_user(&mut self, client: ClientId, user: User) {
        self.users.set(client, user);
    }

    /// Handles a client's request. [`Io::answer`] follows, once, at the latest when its time is over, unless the request
    /// is cancelled.
    pub fn request(
        &mut self,
        now: Time,
        client: ClientId,
        id: RequestId,
        request: &Request,
        io: &mut impl Io,
    ) {
        self.ticks(now);
        match self.admit(now, client, id, request, io) {
            Ok(Some(resolved)) => io.answer(client, id, Ok(resolved)),
            Ok(None) => {}
            Err(failure) => io.answer(client, id, Err(failure)),
        }
    }

    /// Answers a request from the cache, or makes it wait.
    fn admit(
        &mut self,
        now: Time,
        client: ClientId,
        id: RequestId,
        request: &Request,
        io: &mut impl Io,
    ) -> Result<Option<Resolved>, Failure> {
        let found = self.begin(request);
        let Ok((endpoint, chosen, what)) = found else {
            self.counters.resolves += 1;
            self.counters.errors += 1;
            return found.map(|_| None);
        };
        self.count(endpoint, |c| c.resolves += 1);
        let result = self.resolve(now, (client, id), (endpoint, chosen, what), request, io);
        if let Err(failure) = result {
            self.count(endpoint, |c| match failure {
                Failure::NoData => c.no_data += 1,
                _ => c.errors += 1,
            });
        }
        result
    }

    fn resolve(
        &mut self,
        now: Time,
        (client, id): (ClientId, RequestId),
        (endpoint, chosen, what): (EndpointId, Option<Address>, What),
        request: &Request,
        io: &mut impl Io,
    ) -> Result<Option<Resolved>, Failure> {
        let Some(state) = self.endpoints.get(&endpoint).filter(|state| state.is_up) else {
            return Err(Failure::NotConnected);
        };
        let hashed = match &what {
            What::Address(address) => Some(state.cache.hashed(address)),
            What::Query(_) => None,
        };
        if let Some(address) = &hashed {
            let own = self.loopback(endpoint, address.address);
            let known = match own {
                Some(path) => Lookup::Path(path),
                None => self.look_up(now, endpoint, address, io),
            };
            match known {
                Lookup::Path(path) => {
                    let is_cached = own.is_none();
                    return Ok(Some(Resolved { endpoint, path, source: chosen, is_cached }));
                }
                Lookup::Nobody if request.no_delay => return Err(Failure::NoData),
                Lookup::Nobody => return Err(Failure::TimedOut),
                Lookup::Nothing => {}
            }
        }
        self.check_room(client, id, request, endpoint, hashed.as_ref())?;
        let timeout = request.timeout.unwrap_or(self.options.deadline).min(self.options.deadline);
        let deadline = now.after(timeout);
        let user = Some(self.users.user_of(client));
        let search = match &hashed {
            Some(address) => {
                self.count(endpoint, |c| c.address_queries += 1);
                self.search_address(now, endpoint, address, (Purpose::Resolve, user), io)
            }
            None => self.new_search(now, endpoint, (what, 0), (Purpose::Resolve, user)),
        };
        let Some(search) = search else { return Err(Failure::NoData) };
        if request.no_delay {
            if let Some(search) = self.searches.get_mut(search as usize) {
                search.keep_until = search.keep_until.max(deadline);
            }
            self.keep(now, search);
        } else {
            self.wait(client, id, search, chosen, deadline);
            if let Some(search) = self.searches.get(search as usize)
                && hashed.is_some()
                && search.stage == Stage::System
            {
                io.waits(QuestionId(search.tid), client);
            }
        }
        if hashed.is_none() {
            self.ask_route(now, search, io);
        }
        if request.no_delay { Err(Failure::NoData) } else { Ok(None) }
    }

    fn check_room(
        &self,
        client: ClientId,
        id: RequestId,
        request: &Request,
        endpoint: EndpointId,
        address: Option<&Hashed<'_>>,
    ) -> Result<(), Failure> {
        let options = &self.options;
        if self.users.request(client, id).is_some() {
            return Err(Failure::Invalid);
        }
        let is_open =
            || address.is_some_and(|address| self.search_for(endpoint, address).is_some());
        let (user, most) = (self.users.user_of(client), options.max_requests);
        let room = self.users.room(user, most);
        if self.users.requests(client).len() >= options.max_requests_per_client
            || self.requests.len() >= most
            || room.requests == 0
            || ((self.searches.len() >= most || room.searches == 0) && !is_open())
        {
            return Err(Failure::TooMany);
        }
        // Searches that no client waits for leave room for others.
        let is_much = self.unwaited >= most.div_ceil(2)
            || self.users.open(user).searches >= share(user, most).div_ceil(2);
        if request.no_delay && is_much && !is_open() {
            return Err(Failure::NoData);
        }
        Ok(())
    }

    /// Makes a request wait for a search.
    fn wait(
        &mut self,
        client: ClientId,
        id: RequestId,
        search: u32,
        chosen: Option<Address>,
        deadline: Time,
    ) {
        let Some(of) = self.searches.get_mut(search as usize) else { return };
        let first = of.first;
        let request = place(self.requests.insert(Open {
            client,
            id,
            deadline: Deadline::default(),
            search,
            prev: NONE,
            next: first,
            chosen,
        }));
        of.first = request;
        self.unwaited = self.unwaited.saturating_sub(usize::from(first == NONE));
        if let Some(next) = self.requests.get_mut(first as usize) {
            next.prev = request;
        }
        self.users.add_request(client, id, request);
        if let Some(open) = self.requests.get_mut(request as usize) {
            self.timers.set(&mut open.deadline, Timer::Request(request), deadline);
        }
    }

    /// Removes a waiting request.
    pub(super) fn take_request(&mut self, at: u32) -> Option<Open> {
        let mut open = self.requests.try_remove(at as usize)?;
        self.timers.clear(&mut open.deadline, Timer::Request(at));
        self.users.remove_request(open.client, open.id);
        match self.requests.get_mut(open.prev as usize) {
            Some(prev) => prev.next = open.next,
            None => {
                if let Some(search) = self.searches.get_mut(open.search as usize) {
                    search.first = open.next;
                    self.unwaited += usize::from(open.next == NONE);
                }
            }
        }
        if let Some(next) = self.requests.get_mut(open.next as usize) {
            next.prev = open.prev;
        }
        Some(open)
    }

    /// Cancels a client's request. The search continues for other clients.
    pub fn cancel(&mut self, client: ClientId, id: RequestId) {
        if let Some(at) = self.users.request(client, id) {
            self.abandon(at);
        }
    }

    /// Removes a client and its requests.
    pub fn remove_client(&mut self, client: ClientId) {
        for (_, at) in self.users.remove_client(client) {
            self.abandon(at);
        }
    }

    /// Ends a search after a request was removed, if only that request waited for it and it was not sent yet.
    fn abandon(&mut self, at: u32) {
        let Some(open) = self.take_request(at) else { return };
        let Some(search) = self.searches.get(open.search as usize) else { return };
        let is_kept = search.first != NONE || search.timer.at().is_some();
        if search.stage.is_unsent() && search.purpose == Purpose::Resolve && !is_kept {
            self.drop_search(open.search);
        }
    }

    /// Returns the endpoint where a request begins, the source if it had to be chosen, and what it searches.
    fn begin(&self, request: &Request) -> Result<(EndpointId, Option<Address>, What), Failure> {
        let (what, record) = match request.dest {
            Dest::Address(address) => (What::Address(address), None),
            Dest::Path(record) => (What::Address(dest_of(&record)?), Some(record)),
            Dest::Query(record) => (What::Query(record), Some(record)),
        };
        let (endpoint, chosen) = match (request.source, record) {
            (Some(source), _) => (self.endpoint_of(&source).ok_or(Failure::SourceAddress)?, None),
            (None, Some(record)) => {
                (self.endpoint_by_path(&record).ok_or(Failure::SourceAddress)?, None)
            }
            (None, None) => match what {
                What::Address(dest) => self.choose_source(&dest)?,
                What::Query(_) => return Err(Failure::Invalid),
            },
        };
        let kind = self.port_of(endpoint).map(|port| port.kind);
        let is_possible = match (what, kind) {
            (What::Address(dest), Some(kind)) => is_destination(&dest, kind),
            (What::Query(_), Some(kind)) => !kind.is_ip(),
            (_, None) => false,
        };
        if is_possible { Ok((endpoint, chosen, what)) } else { Err(Failure::DestAddress) }
    }

    /// Returns the endpoint that has the address, which may be its port's GID or LID; one that is up if several match.
    pub fn endpoint_of(&self, address: &Address) -> Option<EndpointId> {
        self.best_endpoint(|state| self.owns(state, address).then_some(0))
    }

    /// Returns whether an endpoint's port is active and has its P_Key. Of several endpoints with the same address, the first one
    /// that is up is chosen.
    pub fn is_up(&self, id: EndpointId) -> bool {
        self.endpoints.get(&id).is_some_and(|state| state.is_up)
    }

    /// Returns whether an address is one of the endpoint's.
    pub(super) fn owns(&self, state: &EndpointState, address: &Address) -> bool {
        let port = self.ports.get(&state.endpoint.port);
        state.own.binary_search(address).is_ok()
            || port.is_some_and(|state| match address {
                Address::Gid(gid) => state.port.gids.contains(gid),
                Address::Lid(lid) => state.port.has_lid(*lid),
                _ => false,
            })
    }

    /// Returns the endpoint with the highest score. Endpoints that are up take precedence, and of equal ones the first.
    fn best_endpoint(&self, score: impl Fn(&EndpointState) -> Option<u32>) -> Option<EndpointId> {
        let scores = self.endpoints.iter().filter_map(|(id, state)| {
            Some(((state.is_up, score(state)?), core::cmp::Reverse(*id)))
        });
        scores.max().map(|(_, id)| id.0)
    }

    fn endpoint_by_path(&self, record: &PathRecord) -> Option<EndpointId> {
        let fits = |state: &EndpointState| {
            let port = &self.ports.get(&state.endpoint.port)?.port;
            let is_partition =
                record.pkey == Pkey(0) || record.pkey.0 & 0x7fff == state.endpoint.pkey.0 & 0x7fff;
            let score = if !record.sgid.is_zero() {
                port.gids.contains(&record.sgid).then_some(3)
            } else if record.slid != Lid::NONE {
                port.has_lid(record.slid).then_some(3)
            } else if port.gids.contains(&record.dgid) {
                Some(2)
            } else if record.dgid.is_zero() || same_subnet(port.gid(), record.dgid) {
                Some(1)
            } else {
                None
            };
            score.filter(|_| is_partition)
        };
        self.best_endpoint(fits)
    }

    /// Returns the source of a request that has none: the address that has the most leading bits in common with the
    /// destination. For a GID, an InfiniBand port of its subnet takes precedence.
    pub(super) fn choose_source(
        &self,
        dest: &Address,
    ) -> Result<(EndpointId, Option<Address>), Failure> {
        let score = |state: &EndpointState| {
            let port = &self.ports.get(&state.endpoint.port)?.port;
            let common = state.endpoint.addresses.iter().map(|own| closeness(own, dest)).max();
            Some(match dest {
                Address::Gid(gid) if port.kind.is_ip() => {
                    port.gids.iter().map(|own| common_bits(*own, *gid)).max().unwrap_or(0)
                }
                Address::Gid(gid) if same_subnet(port.gid(), *gid) => u32::MAX,
                Address::Gid(_) => 0,
                Address::Lid(_) => (port.kind == PortKind::InfiniBand).then_some(1)?,
                _ => common.unwrap_or(0),
            })
        };
        let endpoint = self.best_endpoint(score).ok_or(Failure::SourceAddress)?;
        Ok((endpoint, self.own_address(endpoint, dest)))
    }

    /// Returns the local address with which an endpoint requests a destination: of the same kind, because others look it up
    /// by that kind.
    pub(super) fn own_address(&self, endpoint: EndpointId, dest: &Address) -> Option<Address> {
        let state = self.endpoints.get(&endpoint)?;
        let port = self.port_of(endpoint)?;
        let all = &state.endpoint.addresses;
        let alike = all.iter().copied().filter(|own| own.kind() == dest.kind());
        let best = match dest {
            Address::Gid(_) => Some(Address::Gid(port.gid())).filter(|_| !port.gids.is_empty()),
            Address::Lid(_) => Some(Address::Lid(port.lid)).filter(|_| port.lid.is_unicast()),
            _ => alike.max_by_key(|own| closeness(own, dest)),
        };
        let any = all.first().copied();
        best.or(any).or_else(|| Some(Address::Gid(port.gid())).filter(|_| !port.gids.is_empty()))
    }

    /// Returns the path to an address of the same port, which needs no query.
    fn loopback(&self, endpoint: EndpointId, dest: &Address) -> Option<PathRecord> {
        let state = self.endpoints.get(&endpoint)?;
        let port = self.port_of(endpoint)?;
        let is_own = self
            .endpoints
            .values()
            .any(|other| other.endpoint.port == state.endpoint.port && self.owns(other, dest));
        if !is_own || !self.options.local_loopback {
            return None;
        }
        let dgid = match dest {
            Address::Gid(gid) => *gid,
            Address::Ip4(ip) if port.kind.is_ip() => (*ip).into(),
            Address::Ip6(ip) if port.kind.is_ip() => (*ip).into(),
            _ => port.gid(),
        };
        let path = port.path_to(state.endpoint.pkey, dgid, port.lid);
        Some(if port.kind.is_ip() { PathRecord { sgid: dgid, ..path } } else { path })
    }
}

/// Returns the destination of a requested path.
fn dest_of(record: &PathRecord) -> Result<Address, Failure> {
    if record.dlid != Lid::NONE {
        return Ok(Address::Lid(record.dlid));
    }
    if record.dgid.is_zero() { Err(Failure::DestAddress) } else { Ok(Address::Gid(record.dgid)) }
}

/// Returns whether an address can exist, on a port of this kind.
fn is_destination(dest: &Address, kind: PortKind) -> bool {
    match dest {
        Address::Name(_) => true,
        Address::Ip4(ip) => !ip.is_multicast() && !ip.is_unspecified() && !ip.is_broadcast(),
        Address::Ip6(ip) => !ip.is_multicast() && !ip.is_unspecified(),
        Address::Gid(gid) => !gid.is_zero() && gid.0[0] != 0xff,
        Address::Lid(lid) => lid.is_unicast() && !kind.is_ip(),
    }
}

fn same_subnet(one: Gid, other: Gid) -> bool {
    one.prefix() == other.prefix() || other.prefix() == Gid::DEFAULT_PREFIX
}

/// Returns how many leading bits two GIDs have in common.
fn common_bits(one: Gid, other: Gid) -> u32 {
    (u128::from_be_bytes(one.0) ^ u128::from_be_bytes(other.0)).leading_zeros()
}

/// Returns how well a local address suits a destination: the leading bits in common, and more if both are of one
/// kind.
fn closeness(own: &Address, dest: &Address) -> u32 {
    let ip = |address: &Address| match address {
        Address::Ip4(ip) => Some(IpAddr::V4(*ip)),
        Address::Ip6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    };
    match (ip(own), ip(dest)) {
        (Some(IpAddr::V4(own)), Some(IpAddr::V4(dest))) => {
            1 + (own.to_bits() ^ dest.to_bits()).leading_zeros()
        }
        (Some(IpAddr::V6(own)), Some(IpAddr::V6(dest))) => {
            1 + (own.to_bits() ^ dest.to_bits()).leading_zeros()
        }
        _ => u32::from(own.kind() == dest.kind()),
    }
}
