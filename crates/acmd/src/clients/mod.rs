//! Clients: admission, limits, and their input and output.
//!
//! No client can delay the others or make the service grow: its outstanding requests and unread answers are bounded, and at a bound its
//! socket is not read. A client that reads nothing for some time is dropped. Where there are too many clients, the connection of one that
//! is idle is closed for a new one: its program connects again when it needs the service. The machine gives users shares of the requests that it may
//! have outstanding.

mod client;
mod direct;
mod table;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdmux_acm::{ClientId, RequestId, Time, User};
use rdmux_acm_client::Users;
use rdmux_runtime::closing::Closer;
use rdmux_wire::acm::client::{Refusal, Reply, Request};
use rdmux_wire::sa::PathRecord;

use self::client::{Client, INPUT};
use self::direct::Direct;
use self::table::Table;
use crate::listen::{Kind, Peer, peer_of};
use crate::poller::{Interest, Poller, Ready, Token};
use crate::resolver::Resolver;

/// The limits of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The number of clients.
    pub(crate) clients: usize,
    /// The number of clients of one user, or of one address. The owner and root may use all.
    pub(crate) of_peer: usize,
    /// The number of clients of all users and addresses except the owner and root.
    pub(crate) of_others: usize,
    /// The outstanding requests of a client.
    pub(crate) requests: usize,
    /// The bytes of answers that a client has not read, before its socket is not read any more.
    pub(crate) unread: usize,
    /// Time that a client may go without reading.
    pub(crate) stall: Duration,
    /// Time that a client has at least been idle before its connection is closed for another client.
    pub(crate) idle: Duration,
}

impl Limits {
    /// Returns limits for this many clients, each with this many outstanding requests. The shares are those of `rdmux_runtime::shares`.
    pub(crate) fn of(clients: usize, requests: usize) -> Self {
        Self {
            clients,
            of_peer: clients.div_ceil(2),
            of_others: clients - clients / 4,
            requests,
            unread: 64 << 10,
            stall: Duration::from_secs(30),
            idle: Duration::from_secs(5),
        }
    }
}

/// The users who may connect, besides the owner and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The users of this machine.
    pub(crate) users: Users,
    /// Whether peers without a user known to the kernel may connect: hosts of the network.
    pub(crate) unknown: bool,
}

/// Counters of admitted and dropped clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Accepted clients.
    pub(crate) accepted: u64,
    /// Connections of users who may not connect.
    pub(crate) not_allowed: u64,
    /// Connections beyond a limit.
    pub(crate) too_many: u64,
    /// Idle clients whose connections were closed to make room for others.
    pub(crate) idle: u64,
    /// Clients dropped because they read nothing.
    pub(crate) stalled: u64,
    /// Clients dropped for an invalid message.
    pub(crate) malformed: u64,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    limits: Limits,
    access: Access,
    all: Table<Client>,
    direct: Direct,
    of_peer: HashMap<Peer, usize>,
    /// The clients that had a complete message left when they were settled, in order.
    waiting: Vec<ClientId>,
    /// The clients that do not read, and since when.
    stalled: BTreeMap<ClientId, Instant>,
    counters: Counters,
    /// The buffer for all reads.
    buffer: Box<[u8; INPUT]>,
    /// Closes descriptors that clients pass.
    closer: Closer,
}

impl Clients {
    pub(crate) fn new(limits: Limits, access: Access) -> Self {
        Self {
            limits,
            access,
            all: Table::new(),
            direct: Direct::default(),
            of_peer: HashMap::new(),
            waiting: Vec::new(),
            stalled: BTreeMap::new(),
            counters: Counters::default(),
            buffer: Box::new([0; INPUT]),
            closer: Closer::default(),
        }
    }

    /// Sets other limits; connected clients stay.
    pub(crate) fn set_limits(&mut self, limits: Limits, access: Access) {
        (self.limits, self.access) = (limits, access);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Records an outstanding request and its transaction ID.
    pub(crate) fn begin(&mut self, id: ClientId, request: RequestId, tid: u64) {
        if let Some(client) = self.all.get_mut(id) {
            client.begin(request, tid);
        }
    }

    /// Removes a request that is answered. Returns its transaction ID.
    pub(crate) fn end(&mut self, id: ClientId, request: RequestId) -> Option<u64> {
        self.all.get_mut(id)?.end(request)
    }

    /// Returns the identity of a client, if it exists.
    pub(crate) fn peer(&self, id: ClientId) -> Option<Peer> {
        self.all.get(id).map(Client::peer)
    }

    /// Returns the user of a client, by whom the machine limits requests.
    pub(crate) fn user(&self, id: ClientId) -> User {
        match self.peer(id) {
            Some(peer) if owns(peer) => User::Owner,
            Some(Peer::User(user)) => User::Local(user),
            Some(Peer::Address(address)) => User::Remote(address),
            None => User::default(),
        }
    }

    /// Returns whether a client is the service's owner, or root.
    pub(crate) fn is_owner(&self, id: ClientId) -> bool {
        self.all.get(id).is_some_and(|client| owns(client.peer()))
    }

    /// Admits a connection, or refuses it and returns none. May close connections of idle clients for it, which `closed` gets.
    pub(crate) fn admit(
        &mut self,
        socket: OwnedFd,
        kind: Kind,
        (poller, now): (&Poller, Instant),
        closed: impl FnMut(ClientId),
    ) -> Option<ClientId> {
        let (peer, process) = peer_of(&socket, kind).ok()?;
        self.admit_peer(socket, (peer, process), (poller, now), closed)
    }

    /// Admits a connection of this peer. The kernel may know its process.
    fn admit_peer(
        &mut self,
        socket: OwnedFd,
        (peer, process): (Peer, Option<i32>),
        (poller, now): (&Poller, Instant),
        mut closed: impl FnMut(ClientId),
    ) -> Option<ClientId> {
        let socket = self.closer.socket(peer.user(), socket);
        if !self.may(peer) {
            self.counters.not_allowed += 1;
            tracing::info!("refused a client of {peer:?}, which may not connect");
            return None;
        }
        while !self.has_room(peer)
            && !self.closer.is_full(peer.user())
            && let Some(idle) = self.idle_for(peer, now)
        {
            self.counters.idle += 1;
            tracing::debug!("client {} is idle and makes room for one of {peer:?}", idle.0);
            self.remove(idle, poller);
            closed(idle);
        }
        let count = self.count_of(peer);
        let has_room = self.has_room(peer) && !self.closer.is_full(peer.user());
        let Some(id) = self.all.next().filter(|_| has_room) else {
            self.counters.too_many += 1;
            tracing::info!(
                "refused a client of {peer:?}: too many clients, {count} of this peer and {} in all",
                self.all.len()
            );
            return None;
        };
        if let Err(e) = poller.add(&socket, Token::Client(id.0.into()), Interest::Read) {
            tracing::warn!(
                "closed a client's connection, because its socket cannot be watched: {e}"
            );
            return None;
        }
        *self.of_peer.entry(peer).or_default() += 1;
        self.counters.accepted += 1;
        tracing::trace!("accepted client {}: {peer:?}, process {process:?}", id.0);
        self.all.insert(Client::new(socket, peer, now));
        Some(id)
    }

    /// Returns whether this peer may connect.
    fn may(&self, peer: Peer) -> bool {
        match peer {
            Peer::User(uid) => self.access.users.may(uid),
            Peer::Address(_) => self.access.unknown,
        }
    }

    /// Returns whether the limits allow one more client of this peer.
    fn has_room(&self, peer: Peer) -> bool {
        self.all.len() < self.limits.clients
            && (owns(peer) || self.count_of(peer) < self.limits.of_peer && self.others_have_room())
    }

    /// Returns whether the limits allow one more client of all users except the owner and root.
    fn others_have_room(&self) -> bool {
        let others = self.of_peer.iter().filter(|(peer, _)| !owns(**peer)).map(|(_, n)| n);
        others.sum::<usize>() < self.limits.of_others
    }

    fn count_of(&self, peer: Peer) -> usize {
        self.of_peer.get(&peer).copied().unwrap_or(0)
    }

    /// Returns the client whose connection makes room for one of this peer: of the peer itself if it has its share, otherwise of a peer
    /// with as many clients (any, for the owner and root), of the one with the most first, and of these the one that has been idle longest.
    fn idle_for(&self, peer: Peer, now: Instant) -> Option<ClientId> {
        let most = self.count_of(peer);
        let has_share = !owns(peer) && most >= self.limits.of_peer;
        let must_be_other = !owns(peer) && !self.others_have_room();
        let goes = |of: Peer| match () {
            () if has_share => of == peer,
            () if owns(peer) => true,
            () => self.count_of(of) >= most && !(must_be_other && owns(of)),
        };
        let idle = self.all.iter().filter_map(|(id, client)| {
            let since = client.idle_since().filter(|_| goes(client.peer()))?;
            let is_long = now.saturating_duration_since(since) >= self.limits.idle;
            is_long.then(|| (Reverse(self.count_of(client.peer())), since, id))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable();
        let rests = |id: &ClientId| self.all.get(*id).is_some_and(|c| !c.has_unread_input());
        idle.into_iter().map(|(.., id)| id).find(rests)
    }

    /// Waits until a source of the poller or a client is ready, or until the timeout.
    ///
    /// # Errors
    /// Those of epoll_wait(2) and poll(2).
    pub(crate) fn wait(
        &mut self,
        poller: &Poller,
        timeout: Option<Duration>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        self.direct.wait(&mut self.all, poller, timeout, ready)
    }

    /// Reads a client's socket, as far as the limits allow.
    pub(crate) fn fill(&mut self, id: ClientId) {
        if let Some(client) = self.all.get_mut(id)
            && client.fill(&self.limits, &mut self.buffer, &self.closer)
        {
            self.direct.came(client);
        }
    }

    fn set_waiting(&mut self, id: ClientId, waits: bool) {
        match self.waiting.binary_search(&id) {
            Ok(at) if !waits => drop(self.waiting.remove(at)),
            Err(at) if waits => self.waiting.insert(at, id),
            _ => {}
        }
    }

    /// Returns the settled clients that have a message which may be taken now.
    pub(crate) fn servable(&self) -> Vec<ClientId> {
        self.waiting.iter().filter(|id| self.is_servable(**id)).copied().collect()
    }

    /// Returns whether there are such clients.
    pub(crate) fn has_servable(&self) -> bool {
        self.waiting.iter().any(|id| self.is_servable(*id))
    }

    fn is_servable(&self, id: ClientId) -> bool {
        self.all.get(id).is_some_and(|c| c.has_message() && c.may_ask(&self.limits))
    }

    /// Answers the next message of a client, if it has one, may send requests now, and the answer is cached. Returns
    /// whether it did.
    pub(crate) fn answer_known(
        &mut self,
        id: ClientId,
        resolver: &mut Resolver,
        now: Time,
    ) -> bool {
        let client = self.all.get_mut(id).filter(|client| client.may_ask(&self.limits));
        client.is_some_and(|client| client.answer_known(resolver, now))
    }

    /// Returns the last answer to a client, unless it was sent already.
    pub(crate) fn last_answer(&self, id: ClientId) -> Option<&[u8]> {
        self.all.get(id).map(Client::last_answer)
    }

    /// Removes and returns the next message of a client, if it has one and may send requests now.
    pub(crate) fn take(&mut self, id: ClientId) -> Option<Result<Request, Refusal>> {
        let client = self.all.get_mut(id)?;
        if !client.may_ask(&self.limits) {
            return None;
        }
        client.take()
    }

    /// Queues an answer to a client, which is sent with its other answers when it is [settled](Self::settle).
    pub(crate) fn answer(&mut self, id: ClientId, reply: &Reply<'_>) {
        if let Some(client) = self.all.get_mut(id) {
            client.answer(reply);
        }
    }

    /// Queues an answer with one path to a client.
    pub(crate) fn answer_path(&mut self, id: ClientId, tid: u64, path: &PathRecord) {
        if let Some(client) = self.all.get_mut(id) {
            client.answer_bytes(&Reply::one_path(tid, path));
        }
    }

    /// Finishes work on a client: sends its answers and updates its polling, or drops it if it is done. Returns whether it was
    /// dropped.
    pub(crate) fn settle(&mut self, id: ClientId, poller: &Poller, now: Instant) -> bool {
        let Some(client) = self.all.get_mut(id) else { return false };
        client.flush();
        if client.is_malformed() {
            self.counters.malformed += 1;
            return self.remove(id, poller);
        }
        if client.is_through() {
            return self.remove(id, poller);
        }
        let (took, unread) = (client.took_some(), client.has_unread());
        if (took || !unread) && !self.stalled.is_empty() {
            self.stalled.remove(&id);
        }
        if unread {
            self.stalled.entry(id).or_insert(now);
        }
        client.note_time(now);
        client.watch(Token::Client(id.0.into()), poller, &self.limits);
        let waits = client.has_message();
        if waits || !self.waiting.is_empty() {
            self.set_waiting(id, waits);
        }
        false
    }

    /// Removes a client, which still gets the answers that its socket accepts. Returns whether it existed.
    pub(crate) fn remove(&mut self, id: ClientId, poller: &Poller) -> bool {
        let Some(mut client) = self.all.remove(id) else { return false };
        client.flush();
        self.set_waiting(id, false);
        self.stalled.remove(&id);
        if let Some(count) = self.of_peer.get_mut(&client.peer()) {
            *count -= 1;
            if *count == 0 {
                self.of_peer.remove(&client.peer());
            }
        }
        poller.remove(&client);
        true
    }

    /// Returns when the next client will have read nothing for too long.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.stalled.values().min().map(|since| *since + self.limits.stall)
    }

    /// Returns the clients that have read nothing for too long, to be removed.
    pub(crate) fn stalled(&mut self, now: Instant) -> Vec<ClientId> {
        let late = |since: &Instant| now.duration_since(*since) >= self.limits.stall;
        let all: Vec<ClientId> =
            self.stalled.iter().filter(|(_, since)| late(since)).map(|(id, _)| *id).collect();
        self.counters.stalled += u64::try_from(all.len()).unwrap_or(0);
        all
    }
}

/// Returns whether a peer is the service's owner, or root.
fn owns(peer: Peer) -> bool {
    peer == Peer::User(0) || peer == Peer::User(rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests;
