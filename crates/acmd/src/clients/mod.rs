//! Clients: who they are, what they send, and what they have not read yet.
//!
//! No client can make the others wait, or the service grow: what it may have outstanding and unread is bounded, and while it is at a bound
//! nothing more is read from it. One that reads nothing for some time is dropped.

mod client;
mod direct;
mod table;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdmux_acm::{ClientId, RequestId, Time};
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

/// How much clients may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Clients.
    pub(crate) clients: usize,
    /// Clients of one user, or of one address. The owner and root may have all.
    pub(crate) of_peer: usize,
    /// Clients of all of these together.
    pub(crate) of_others: usize,
    /// Requests of a client that are not answered.
    pub(crate) requests: usize,
    /// Bytes of answers that a client has not read, before nothing more is read from it.
    pub(crate) unread: usize,
    /// How long a client may read nothing.
    pub(crate) stall: Duration,
}

impl Limits {
    /// For so many clients, of which each may have so many requests that are not answered. The shares are those of [`rdmux_runtime::shares`].
    pub(crate) fn of(clients: usize, requests: usize) -> Self {
        Self {
            clients,
            of_peer: clients.div_ceil(2),
            of_others: clients - clients / 4,
            requests,
            unread: 64 << 10,
            stall: Duration::from_secs(30),
        }
    }
}

/// Who may connect, beside the owner and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Which users of this machine.
    pub(crate) users: Users,
    /// Whether those may of whom the kernel knows no user: hosts of the network.
    pub(crate) unknown: bool,
}

/// What happened to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Those that were accepted.
    pub(crate) accepted: u64,
    /// Those of users who may not connect.
    pub(crate) not_allowed: u64,
    /// Those that were one too many.
    pub(crate) too_many: u64,
    /// Those that were dropped because they read nothing.
    pub(crate) stalled: u64,
    /// Those that were dropped for a message that is none.
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
    /// Those that had a whole message which was not taken when they were settled, in order.
    waiting: Vec<ClientId>,
    /// Those that do not read, and since when.
    stalled: BTreeMap<ClientId, Instant>,
    counters: Counters,
    /// What is read goes through here.
    buffer: Box<[u8; INPUT]>,
    /// Closes what clients pass.
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

    /// Other limits from now on; those who are here stay.
    pub(crate) fn set_limits(&mut self, limits: Limits, access: Access) {
        (self.limits, self.access) = (limits, access);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Notes that a request is on its way, and its transaction ID.
    pub(crate) fn begin(&mut self, id: ClientId, request: RequestId, tid: u64) {
        if let Some(client) = self.all.get_mut(id) {
            client.begin(request, tid);
        }
    }

    /// Notes that a request has its answer; its transaction ID.
    pub(crate) fn end(&mut self, id: ClientId, request: RequestId) -> Option<u64> {
        self.all.get_mut(id)?.end(request)
    }

    /// Whether a client is the service's owner, or root.
    pub(crate) fn is_owner(&self, id: ClientId) -> bool {
        self.all.get(id).is_some_and(|client| owns(client.peer()))
    }

    /// Takes a connection, or turns it away: none then.
    pub(crate) fn admit(
        &mut self,
        socket: OwnedFd,
        kind: Kind,
        poller: &Poller,
    ) -> Option<ClientId> {
        let (peer, process) = peer_of(&socket, kind).ok()?;
        self.admit_peer(socket, peer, process, poller)
    }

    /// The same for a connection of this peer, whose process the kernel may know.
    fn admit_peer(
        &mut self,
        socket: OwnedFd,
        peer: Peer,
        process: Option<i32>,
        poller: &Poller,
    ) -> Option<ClientId> {
        let socket = self.closer.socket(peer.user(), socket);
        if !self.may(peer) {
            self.counters.not_allowed += 1;
            tracing::info!("a client of {peer:?} may not connect");
            return None;
        }
        let count = self.of_peer.get(&peer).copied().unwrap_or(0);
        let has_room = self.has_room(peer) && !self.closer.is_full(peer.user());
        let Some(id) = self.all.next().filter(|_| has_room) else {
            self.counters.too_many += 1;
            tracing::info!(
                "a client of {peer:?} is one too many: {count} of it, {} in all",
                self.all.len()
            );
            return None;
        };
        if let Err(e) = poller.add(&socket, Token::Client(id.0.into()), Interest::Read) {
            tracing::warn!("a client cannot be watched: {e}");
            return None;
        }
        *self.of_peer.entry(peer).or_default() += 1;
        self.counters.accepted += 1;
        tracing::trace!("client {}: {peer:?}, process {process:?}", id.0);
        self.all.insert(Client::new(socket, peer));
        Some(id)
    }

    /// Whether such a client may connect.
    fn may(&self, peer: Peer) -> bool {
        match peer {
            Peer::User(uid) => self.access.users.may(uid),
            Peer::Address(_) => self.access.unknown,
        }
    }

    /// Whether one more client of this peer is not too many.
    fn has_room(&self, peer: Peer) -> bool {
        let others = || self.of_peer.iter().filter(|(peer, _)| !owns(**peer)).map(|(_, n)| n);
        let count = self.of_peer.get(&peer).copied().unwrap_or(0);
        self.all.len() < self.limits.clients
            && (owns(peer)
                || count < self.limits.of_peer && others().sum::<usize>() < self.limits.of_others)
    }

    /// Waits until a source of the poller or a client has something, or until the timeout.
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

    /// Reads what a client has sent, as far as it may.
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

    /// The clients that have a message which may be taken now, of those that were settled.
    pub(crate) fn servable(&self) -> Vec<ClientId> {
        self.waiting.iter().filter(|id| self.is_servable(**id)).copied().collect()
    }

    /// Whether there are such clients.
    pub(crate) fn has_servable(&self) -> bool {
        self.waiting.iter().any(|id| self.is_servable(*id))
    }

    fn is_servable(&self, id: ClientId) -> bool {
        self.all.get(id).is_some_and(|c| c.has_message() && c.may_ask(&self.limits))
    }

    /// Answers the next message of a client, if it has one, may ask now, and the answer is known. Whether that was so.
    pub(crate) fn answer_known(
        &mut self,
        id: ClientId,
        resolver: &mut Resolver,
        now: Time,
    ) -> bool {
        let client = self.all.get_mut(id).filter(|client| client.may_ask(&self.limits));
        client.is_some_and(|client| client.answer_known(resolver, now))
    }

    /// The answer that a client was given last, unless it was sent already.
    pub(crate) fn last_answer(&self, id: ClientId) -> Option<&[u8]> {
        self.all.get(id).map(Client::last_answer)
    }

    /// The next message of a client, if it has one and may ask now.
    pub(crate) fn take(&mut self, id: ClientId) -> Option<Result<Request, Refusal>> {
        let client = self.all.get_mut(id)?;
        if !client.may_ask(&self.limits) {
            return None;
        }
        client.take()
    }

    /// Gives a client an answer, which is sent with all others that it gets until it is [settled](Self::settle).
    pub(crate) fn answer(&mut self, id: ClientId, reply: &Reply<'_>) {
        if let Some(client) = self.all.get_mut(id) {
            client.answer(reply);
        }
    }

    /// Gives a client an answer with one path, in the same way.
    pub(crate) fn answer_path(&mut self, id: ClientId, tid: u64, path: &PathRecord) {
        if let Some(client) = self.all.get_mut(id) {
            client.answer_bytes(&Reply::one_path(tid, path));
        }
    }

    /// After anything was done with a client: sends its answers, has it watched for what it may do next, or drops it if it is through.
    /// Whether it was dropped.
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
        client.watch(Token::Client(id.0.into()), poller, &self.limits);
        let waits = client.has_message();
        if waits || !self.waiting.is_empty() {
            self.set_waiting(id, waits);
        }
        false
    }

    /// Removes a client, which still gets the answers that its socket takes. Whether it was there.
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

    /// When the next client has read nothing for too long.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.stalled.values().min().map(|since| *since + self.limits.stall)
    }

    /// Those that have read nothing for too long, which are to be removed.
    pub(crate) fn stalled(&mut self, now: Instant) -> Vec<ClientId> {
        let late = |since: &Instant| now.duration_since(*since) >= self.limits.stall;
        let all: Vec<ClientId> =
            self.stalled.iter().filter(|(_, since)| late(since)).map(|(id, _)| *id).collect();
        self.counters.stalled += u64::try_from(all.len()).unwrap_or(0);
        all
    }
}

/// Whether a peer is the service's owner, or root.
fn owns(peer: Peer) -> bool {
    peer == Peer::User(0) || peer == Peer::User(rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests;
