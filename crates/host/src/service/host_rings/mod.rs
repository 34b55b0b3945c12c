//! Rings between processes of two hosts of one user, on InfiniBand. Ports of a subnet have no IP network between them that rings
//! would have to imitate.
//!
//! `pairs` decides which processes get rings; this module communicates with the other host's service. It finds that service by the address
//! where the host receives packets, from the fabric's table, and by the registry of hosts. The service must be of the same user, by the
//! credentials of both ends of the socket. Each pair has a connection, which lives as long as the pair: when it closes, the process at the
//! other end has exited. Nothing here waits for the other service. A process that requests rings waits for its own service.
//!
//! The offerer makes the rings and the socket pair for wakeups. Each service passes its end on to its process, and also the
//! boards and pidfds by which the two access each other's memory, if both belong to the services' user and allow it.

mod pairs;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_link::ring::{DEFAULT_CAPACITY, RingFds};
use rdmux_link::{PeerBell, RingPair};
use rdmux_runtime::Share;
use rdmux_runtime::closing::Foreign;
use rdmux_runtime::connect::connect_nonblocking;
use rdmux_verbs::control::DeviceKind;

use self::pairs::{Asked, Ends, Offered, Pair, PairId, Pairs};
use super::clients::{Client, ClientId, Gone};
use super::core::Core;
use super::poller::{Interest, Token};
use super::ports::ib::PortAt;
use crate::names::{HostName, Registry};
use crate::proto::socket::{self, MAX_MESSAGE, MessageError};
use crate::proto::{ClientKind, Notify, Reply, Request, Response, RingOffer, VERSION};

/// Messages that are read from another service before other sources get their turn.
const MAX_ROW: usize = 8;

/// The rings between processes of this host and of other hosts.
#[derive(Debug)]
pub(super) struct HostRings {
    pairs: Pairs<Link>,
    /// A random offset that makes process numbers differ from those of other services.
    nonce: u64,
    /// Offers that are held until this service's offer to the same process is decided.
    held: Vec<(PairId, ClientId, RingOffer, Vec<Foreign>)>,
}

/// The descriptors of a pair.
#[derive(Debug)]
struct Link {
    tx: OwnedFd,
    rx: OwnedFd,
    bell: Bell,
    reach: Option<Reach>,
    connection: Connection,
    /// The share for all of these, charged to the local process's user.
    _share: Share,
}

/// Descriptors that the service uses for a pair.
const DESCRIPTORS: usize = 6;

/// The local process's end of a doorbell.
#[derive(Debug)]
enum Bell {
    Ours(PeerBell),
    Theirs(Foreign),
}

/// The board and a pidfd of the other process.
#[derive(Debug)]
struct Reach {
    board: OwnedFd,
    pidfd: OwnedFd,
}

#[derive(Debug)]
enum Connection {
    /// The connection that this service made for its offer.
    Ours(OwnedFd),
    /// The connection of a client. The client is the other service.
    Theirs(ClientId),
}

impl HostRings {
    pub(super) fn new(nonce: u64) -> Self {
        Self { pairs: Pairs::default(), nonce, held: Vec::new() }
    }

    /// Returns how many pairs there are.
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    pub(super) fn poll_timeout(&self) -> Option<rdmux_cm::Time> {
        self.pairs.poll_timeout()
    }

    /// Returns the number of a process, which is unique among all services.
    fn process(&self, id: ClientId) -> u64 {
        self.nonce.wrapping_add(id.0)
    }
}

impl Link {
    /// Returns the descriptors for the local process.
    fn descriptors(&self) -> std::io::Result<Vec<OwnedFd>> {
        let bell = match &self.bell {
            Bell::Ours(bell) => bell.duplicate()?,
            Bell::Theirs(bell) => bell.as_fd().try_clone_to_owned()?,
        };
        let mut all = vec![self.tx.try_clone()?, self.rx.try_clone()?, bell];
        if let Some(Reach { board, pidfd }) = &self.reach {
            all.extend([board.try_clone()?, pidfd.try_clone()?]);
        }
        Ok(all)
    }
}

/// The answer to a request for rings.
pub(super) enum Found {
    /// The response, with its descriptors.
    Now(Response, Vec<OwnedFd>),
    /// The response follows later.
    Later,
}

const NO_RING: Found = Found::Now(Response::NoRing, Vec::new());

impl Core {
    /// Handles a process's request for rings to the process that has a slot of the host at this address.
    pub(super) fn find_host_ring(&mut self, id: ClientId, host: SocketAddr, slot: u16) -> Found {
        let Some(local) = self.may_have_host_rings(id) else { return NO_RING };
        let now = self.now();
        let ends = Ends { local, host, slot };
        match self.host_rings.pairs.ask(now, ends) {
            Asked::Up(pair) => self.ring_of(pair),
            Asked::Wait(_) => Found::Later,
            Asked::No => NO_RING,
            Asked::New => match self.offer_ring(id, ends) {
                Some(()) => Found::Later,
                None => {
                    self.host_rings.pairs.refuse(ends);
                    NO_RING
                }
            },
        }
    }

    /// Returns the first slot of a process that may have rings to other hosts.
    fn may_have_host_rings(&self, id: ClientId) -> Option<u16> {
        let client = self.clients.get(id).filter(|client| client.host_rings)?;
        let on_fabric = client.device_kind().is_some_and(DeviceKind::is_on_fabric);
        client.slots.first().copied().filter(|_| on_fabric && client.device.is_some())
    }

    /// Returns the response with a pair's rings.
    fn ring_of(&self, id: PairId) -> Found {
        let Some(pair) = self.host_rings.pairs.get(id) else { return NO_RING };
        match pair.link.descriptors() {
            Ok(fds) => {
                let (peer, known_as) = (pair.number, pair.known_as);
                Found::Now(Response::Ring { peer, known_as }, fds)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot pass rings to a process");
                NO_RING
            }
        }
    }

    /// Offers rings to another host's service. None if that is not possible.
    fn offer_ring(&mut self, id: ClientId, ends: Ends) -> Option<()> {
        let from = self.own_address().filter(|own| *own != ends.host)?;
        let share = self.descriptors_for(id, DESCRIPTORS).ok()?;
        let connection = self.connect_to_host(ends.host)?;
        let ((ours, theirs), bells) =
            (RingPair::create(DEFAULT_CAPACITY).ok()?, PeerBell::pair().ok()?);
        let bell = bells.1.duplicate().ok()?;
        bells.1.leave();
        let mut passed = vec![theirs.tx, theirs.rx, bell];
        passed.extend(self.reach_of_own(id)?.into_iter().flatten());
        let process = self.host_rings.process(id);
        let RingFds { tx, rx } = ours;
        let bell = Bell::Ours(bells.0);
        let fd = connection.try_clone().ok()?;
        let connection = Connection::Ours(connection);
        let link = Link { tx, rx, bell, reach: None, connection, _share: share };
        let now = self.now();
        let (pair, number) = self.host_rings.pairs.offer(now, ends, link)?;
        let Ends { local, host, slot } = ends;
        let offer = RingOffer { from, to: host, process, slot: local, peer: slot, number };
        let hello = Request::Hello { version: VERSION, kind: ClientKind::Host };
        let sent = tell(&fd, &hello, &[])
            .and_then(|()| tell(&fd, &Request::OfferRing(offer), &passed))
            .and_then(|()| {
                let watched = self.poller.add(&fd, Token::HostRing(pair.0), Interest::Read);
                watched.map_err(MessageError::Io)
            });
        if let Err(error) = sent {
            tracing::debug!(%host, %error, "cannot offer rings to another host's service");
            self.host_rings.pairs.withdraw(pair);
            return None;
        }
        Some(())
    }

    /// Returns the address by which other hosts identify this one: that at which its first port receives packets.
    fn own_address(&mut self) -> Option<SocketAddr> {
        self.open_data(PortAt::FIRST).map(|endpoint| endpoint.addr)
    }

    /// Connects to the service of the host that receives packets at an address, if it is of this user and in this runtime
    /// directory.
    fn connect_to_host(&self, host: SocketAddr) -> Option<OwnedFd> {
        let name = if host.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) {
            HostName::default()
        } else {
            Registry::name_of(&self.options.dir, host.ip())?
        };
        let dir = self.options.dir.host(&name).ok()?;
        let socket = connect_nonblocking(&dir).inspect_err(
            |error| tracing::debug!(%name, %error, "cannot connect to another host's service"),
        );
        let socket = socket.ok()??;
        let peer = rdmux_link::peer_credentials(&socket).ok()?;
        (peer.uid == rustix::process::geteuid().as_raw()).then_some(socket)
    }

    /// Returns what is needed to access the memory of a process of this host. The inner option is none if the process does
    /// not belong to the service's user or does not allow it, the outer one if the descriptors cannot be passed on.
    fn reach_of_own(&self, id: ClientId) -> Option<Option<[OwnedFd; 2]>> {
        let own = |client: &&Client| client.uid == rustix::process::geteuid().as_raw();
        let Some(client) = self.clients.get(id).filter(own) else { return Some(None) };
        let board = client.device.as_ref().and_then(|device| device.board.as_ref());
        match board.zip(client.pidfd.as_ref()) {
            Some((board, pidfd)) => Some(Some([board.try_clone().ok()?, pidfd.try_clone().ok()?])),
            None => Some(None),
        }
    }

    /// Handles a message of the service to which rings were offered, or the end of the connection.
    pub(super) fn host_ring_event(&mut self, number: u64) {
        let id = PairId(number);
        let user = rustix::process::geteuid().as_raw();
        let mut buf = vec![0; MAX_MESSAGE];
        for _ in 0..MAX_ROW {
            let Some(Connection::Ours(fd)) = self.connection_of(id) else { return };
            let mut fds = Vec::new();
            let keep = |fd| fds.push(self.closer.foreign(user, fd));
            let said = match socket::try_recv_each(fd.as_fd(), &mut buf, keep) {
                Ok(bytes) => socket::decode::<Reply>(bytes),
                Err(MessageError::WouldBlock) => return,
                Err(error) => Err(error),
            };
            match said {
                Ok(Ok(Response::Welcome(welcome))) if welcome.version == VERSION => {}
                Ok(Ok(Response::RingTaken { peer, number })) => {
                    self.offer_taken(id, peer, number, fds)
                }
                Ok(Ok(Response::RingKnown { peer })) => self.offer_known(id, peer),
                Ok(Ok(Response::NoRing)) => {
                    if let Some(pair) = self.host_rings.pairs.refused(id) {
                        self.end_pair(id, pair, false);
                    }
                }
                _ => self.host_ring_gone(id),
            }
        }
    }

    fn connection_of(&self, id: PairId) -> Option<&Connection> {
        self.host_rings.pairs.get(id).map(|pair| &pair.link.connection)
    }

    /// Handles that the other service took an offer of this one: commits, and informs the process.
    fn offer_taken(&mut self, id: PairId, peer: u16, number: u16, fds: Vec<Foreign>) {
        let Some(Connection::Ours(fd)) = self.connection_of(id) else { return };
        let reach = match reach_from(fds) {
            Ok(reach) => reach,
            Err(()) => return self.host_ring_gone(id),
        };
        if tell(fd, &Request::CommitRing, &[]).is_err() {
            return self.host_ring_gone(id);
        }
        let Some(pair) = self.host_rings.pairs.taken(id, peer, number) else {
            return self.host_ring_gone(id);
        };
        pair.link.reach = reach;
        self.pair_is_up(id);
    }

    /// Handles the answer that the process has rings to the local one already.
    fn offer_known(&mut self, id: PairId, peer: u16) {
        let Some((pair, other)) = self.host_rings.pairs.known(id, peer) else { return };
        let (local, waiting) = (pair.ends.local, pair.waiting);
        let up = other.filter(|id| self.host_rings.pairs.get(*id).is_some_and(Pair::is_up));
        self.close_pair(id, pair);
        match (other, up) {
            // The requests wait for the existing pair.
            (Some(_), None) => {}
            (_, up) => self.answer_waiting(local, waiting, up),
        }
    }

    /// Notifies the local process of a pair that both processes may use now.
    fn pair_is_up(&mut self, id: PairId) {
        self.release_held(id);
        let Some(pair) = self.host_rings.pairs.get_mut(id) else { return };
        let (local, waiting) = (pair.ends.local, std::mem::take(&mut pair.waiting));
        if waiting > 0 {
            return self.answer_waiting(local, waiting, Some(id));
        }
        let Found::Now(Response::Ring { peer, known_as }, fds) = self.ring_of(id) else { return };
        if let Some(owner) = self.slots.owner(local) {
            self.notify(owner, &Notify::Ring { peer, known_as }, fds);
        }
    }

    /// Answers the waiting requests of a local process.
    fn answer_waiting(&mut self, local: u16, waiting: u32, pair: Option<PairId>) {
        let Some(owner) = self.slots.owner(local) else { return };
        for _ in 0..waiting {
            if let Found::Now(response, fds) = pair.map_or(NO_RING, |pair| self.ring_of(pair)) {
                self.reply(owner, &Ok(response), fds);
            }
        }
    }

    /// Handles the death of the other process of a pair, or the end of its service.
    fn host_ring_gone(&mut self, id: PairId) {
        if let Some((pair, was_up)) = self.host_rings.pairs.gone(id) {
            self.end_pair(id, pair, was_up);
        }
    }

    /// Closes a pair, and notifies the local process, which may be waiting for it.
    fn end_pair(&mut self, id: PairId, pair: Pair<Link>, was_up: bool) {
        let (local, number, waiting) = (pair.ends.local, pair.number, pair.waiting);
        self.close_pair(id, pair);
        if let Some(owner) = self.slots.owner(local).filter(|_| was_up) {
            self.notify(owner, &Notify::PeerGone { slot: number }, Vec::new());
        }
        self.answer_waiting(local, waiting, None);
    }

    fn close_pair(&mut self, id: PairId, pair: Pair<Link>) {
        match pair.link.connection {
            Connection::Ours(fd) => {
                self.poller.remove(&fd);
                // Closing is not enough if a forked process has a duplicate.
                let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Both);
            }
            Connection::Theirs(client) => self.doom(client, Gone::Closed),
        }
        self.release_held(id);
    }

    /// Answers offers that were held while an offer of this service was pending.
    fn release_held(&mut self, id: PairId) {
        let held = self.host_rings.held.extract_if(.., |(pair, ..)| *pair == id);
        for (_, client, offer, fds) in held.collect::<Vec<_>>() {
            if let Some(reply) = self.take_offer(client, offer, fds) {
                self.reply(client, &Ok(reply.0), reply.1);
            }
        }
    }

    /// Handles an offer of another host's service. None if the answer follows later.
    pub(super) fn take_offer(
        &mut self,
        client: ClientId,
        offer: RingOffer,
        fds: Vec<Foreign>,
    ) -> Option<(Response, Vec<OwnedFd>)> {
        const NO: Option<(Response, Vec<OwnedFd>)> = Some((Response::NoRing, Vec::new()));
        let RingOffer { from, to, process, slot, peer, number } = offer;
        let user = self.clients.get(client).map(|client| client.uid);
        let is_own = user == Some(rustix::process::geteuid().as_raw());
        let has_pair = self.pair_of_client(client).is_some();
        let own = self.own_address();
        let own = own.filter(|own| is_own && !has_pair && *own == to && *own != from);
        let (Some(own), Some(owner)) = (own, self.slots.owner(peer)) else { return NO };
        let Some(local) = self.may_have_host_rings(owner) else { return NO };
        let ends = Ends { local, host: from, slot };
        let waiting = match self.host_rings.pairs.offered(ends, process, own < from) {
            Offered::Known => return Some((Response::RingKnown { peer: local }, Vec::new())),
            Offered::No => return NO,
            Offered::Hold(pair) => {
                self.host_rings.held.push((pair, client, offer, fds));
                return None;
            }
            Offered::Take { instead } => {
                let withdrawn =
                    instead.and_then(|id| Some((id, self.host_rings.pairs.withdraw(id)?)));
                withdrawn.map_or(0, |(id, pair)| {
                    let waiting = pair.waiting;
                    self.close_pair(id, pair);
                    waiting
                })
            }
        };
        let taken = self.link_of(client, owner, fds).and_then(|(link, reach)| {
            let now = self.now();
            let who = (process, number);
            let (id, number) = self.host_rings.pairs.take(now, ends, who, link)?;
            Some((id, Response::RingTaken { peer: local, number }, reach))
        });
        let Some((id, response, reach)) = taken else {
            self.host_rings.pairs.refuse(ends);
            self.answer_waiting(local, waiting, None);
            return NO;
        };
        if let Some(pair) = self.host_rings.pairs.get_mut(id) {
            pair.waiting = waiting;
        }
        Some((response, reach))
    }

    /// Makes a pair from the descriptors of another service. Also returns the descriptors by which that service's
    /// process accesses the local process's memory.
    fn link_of(
        &self,
        client: ClientId,
        owner: ClientId,
        fds: Vec<Foreign>,
    ) -> Option<(Link, Vec<OwnedFd>)> {
        let share = self.descriptors_for(owner, DESCRIPTORS).ok()?;
        let mut fds = fds.into_iter();
        let (tx, rx) = (fds.next()?.into_memfd()?, fds.next()?.into_memfd()?);
        let bell = Bell::Theirs(fds.next()?);
        let theirs = reach_from(fds.collect()).ok()?;
        // Either both memories can be accessed or neither.
        let ours = if theirs.is_some() { self.reach_of_own(owner)? } else { None };
        let reach = theirs.filter(|_| ours.is_some());
        let connection = Connection::Theirs(client);
        let link = Link { tx, rx, bell, reach, connection, _share: share };
        Some((link, ours.into_iter().flatten().collect()))
    }

    /// Finds the pair that a client, which is another service, has offered.
    fn pair_of_client(&self, client: ClientId) -> Option<PairId> {
        let is_its = |pair: &Pair<Link>| matches!(pair.link.connection, Connection::Theirs(id) if id == client);
        self.host_rings.pairs.find(is_its)
    }

    /// Handles the other service's commit to rings that it offered.
    pub(super) fn commit_ring(&mut self, client: ClientId) {
        if let Some(id) = self.pair_of_client(client)
            && self.host_rings.pairs.committed(id).is_some()
        {
            self.pair_is_up(id);
        }
    }

    /// Handles the end of a client that may have been another service.
    pub(super) fn offering_client_gone(&mut self, client: ClientId) {
        self.host_rings.held.retain(|(_, held, ..)| *held != client);
        if let Some(id) = self.pair_of_client(client) {
            self.host_ring_gone(id);
        }
    }

    /// Handles the release of a local process's slot.
    pub(super) fn host_rings_slot_gone(&mut self, slot: u16) {
        for (id, pair) in self.host_rings.pairs.local_gone(slot) {
            self.close_pair(id, pair);
        }
    }

    /// Gives up pairs whose other service did not answer in time.
    pub(super) fn expire_host_rings(&mut self) {
        while let Some((id, _)) = self.host_rings.pairs.expired(self.now()) {
            if let Some(&Connection::Theirs(client)) = self.connection_of(id)
                && self.is_committed_after_all(id, client)
            {
                continue;
            }
            self.host_ring_gone(id);
        }
    }

    /// Returns whether the commit to a pair has arrived. If not, the offerer can no longer send it.
    fn is_committed_after_all(&mut self, id: PairId, client: ClientId) -> bool {
        if let Some(client) = self.clients.get(client) {
            let _ = rustix::net::shutdown(&client.rpc, rustix::net::Shutdown::Read);
        }
        // An offerer sends nothing else. Only the end that this service just made can follow it.
        self.serve_next(client, &mut vec![0; MAX_MESSAGE]);
        let is_up = self.host_rings.pairs.get(id).is_some_and(Pair::is_up);
        if is_up && let Some(there) = self.clients.get(client) {
            // The kernel reports the offerer's end, whatever the socket is polled for.
            self.poller.change(&there.rpc, Token::Rpc(client), Interest::Nothing);
        }
        is_up
    }
}

/// Sends a request to another service. Never blocks.
fn tell(fd: impl AsFd, request: &Request, passed: &[OwnedFd]) -> Result<(), MessageError> {
    let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    socket::send(fd.as_fd(), request, &passed, &mut Vec::new())
}

/// Returns the board and pidfd that another service passed, if any. Anything else is an error.
fn reach_from(fds: Vec<Foreign>) -> Result<Option<Reach>, ()> {
    let n = fds.len();
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next()) {
        (None, _) => Ok(None),
        (Some(board), Some(pidfd)) if n == 2 => {
            let board = board.into_memfd().ok_or(())?;
            Ok(Some(Reach { board, pidfd: pidfd.into_pidfd().ok_or(())? }))
        }
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests;
