//! Listening sockets of iWARP.
//!
//! A wildcard has a socket on each of the host's addresses. A socket outlives its listener for as long as the
//! connection manager lets requests wait for a program that listens again, unless the program ends earlier.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rdmux_cm::error::Command;
use rdmux_cm::id::LISTEN_GRACE;
use rdmux_cm::{Addr, CmError, IdHandle, IdState, StreamListener, Time};
use rdmux_runtime::Share;
use rdmux_verbs::throttled;

use super::streams::errno;
use super::tcp;
use crate::service::clients::ClientId;
use crate::service::core::Core;
use crate::service::poller::{Interest, Token};

/// Peers accepted from a listening socket before other sources get their turn.
const ACCEPTS: usize = 64;

/// Pauses before a listener's sockets that could not be opened are tried again: the first one, and the longest. Each is twice as long as
/// the one before, until the host's addresses change.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// All listening sockets.
#[derive(Debug)]
pub(in crate::service) struct AllListening {
    sockets: BTreeMap<u64, Listening>,
    /// All listeners. Their sockets follow the host's addresses.
    listeners: BTreeMap<IdHandle, StreamListener>,
    last: u64,
    /// When sockets that could not be opened are tried again, and the pause before.
    retry: Option<(Time, Duration)>,
    /// A spare descriptor, closed when none is left to accept with.
    reserve: Option<File>,
}

/// A listening socket.
#[derive(Debug)]
struct Listening {
    socket: OwnedFd,
    at: SocketAddr,
    /// The listener. None for a while after it has ended.
    owner: Option<IdHandle>,
    /// The client of the present or last listener.
    client: Option<ClientId>,
    until: Option<Time>,
    /// Whether peers wait in the kernel's queue because the listener's program is behind.
    paused: bool,
    /// The share for the socket, charged to the listener's user.
    share: Option<Share>,
}

impl AllListening {
    pub(in crate::service) fn new() -> Self {
        Self {
            sockets: BTreeMap::new(),
            listeners: BTreeMap::new(),
            last: 0,
            retry: None,
            reserve: open_reserve(),
        }
    }

    /// Returns when a socket without a listener must be closed, or one that could not be opened is tried again.
    pub(in crate::service) fn poll_timeout(&self) -> Option<Time> {
        let retry = self.retry.map(|(at, _)| at);
        self.sockets.values().filter_map(|l| l.until).chain(retry).min()
    }
}

/// Returns whether no descriptors are left.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(errno(error), libc::EMFILE | libc::ENFILE)
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

impl Core {
    /// Binds an id to an address. If the id requests any port and may listen for iWARP, the port is one that is
    /// free in TCP, too.
    ///
    /// # Errors
    /// Those of [`rdmux_cm::Manager::bind`].
    pub(in crate::service) fn bind(
        &mut self,
        id: IdHandle,
        addr: Addr,
        privileged: bool,
    ) -> Result<Addr, CmError> {
        let Addr::Ip(addr) = addr else { return self.manager.bind(id, addr, privileged) };
        let wanted = StreamListener { local: addr, v6_only: false, only: false };
        let at: Vec<SocketAddr> = (self.listening_addresses(&wanted).iter())
            .filter_map(|at| Some(self.addresses.find(at.ip())?.peer(at.ip(), 0)))
            .collect();
        let free = |port| {
            at.iter().all(|&at| {
                let mut at = at;
                at.set_port(port);
                tcp::is_free(at)
            })
        };
        self.manager.bind_where(id, addr, privileged, free)
    }

    /// Lets peers connect, over all transports that the id may use.
    ///
    /// # Errors
    /// Those of [`rdmux_cm::Manager::listen`]. A TCP port that is in use is an error only for ids that have no
    /// other transport.
    pub(in crate::service) fn listen(
        &mut self,
        id: IdHandle,
        backlog: u32,
    ) -> Result<Addr, CmError> {
        if self.manager.query(id)?.state == IdState::Idle {
            let any = IpAddr::from([0, 0, 0, 0]);
            self.bind(id, SocketAddr::new(any, 0).into(), false)?;
        }
        let bound = self.manager.query(id)?.state == IdState::AddrBound;
        if let Some(wanted) = self.manager.stream_listener(id).filter(|_| bound)
            && let Err(e) = self.open_listening(id, &wanted)
        {
            self.unlisten_now(id);
            let addr = wanted.local.into();
            if wanted.only {
                let command = Command::Listen;
                return Err(match errno(&e) {
                    libc::EADDRINUSE => CmError::AddrInUse { id, command, addr },
                    _ => CmError::AddrNotAvailable { id, command, addr },
                });
            }
            throttled!(warn, "{id} listens at {addr}, but not for iWARP: {e}");
        }
        let listening = self.manager.listen(id, backlog);
        if listening.is_err() && bound {
            self.unlisten_now(id);
        }
        listening
    }

    /// Opens the listener's sockets that are missing. After an error at one address, the others are opened nevertheless.
    fn open_listening(&mut self, id: IdHandle, wanted: &StreamListener) -> io::Result<()> {
        self.streams.listening.listeners.insert(id, *wanted);
        let mut outcome = Ok(());
        for at in self.listening_addresses(wanted) {
            outcome = outcome.and(self.open_listening_at(id, at));
        }
        outcome
    }

    /// Opens a listener's socket at an address, if it is missing.
    fn open_listening_at(&mut self, id: IdHandle, at: SocketAddr) -> io::Result<()> {
        let there = self.streams.listening.sockets.iter().find(|(_, l)| l.at == at);
        match there.map(|(&number, l)| (number, l.owner)) {
            Some((_, owner)) if owner == Some(id) => Ok(()),
            // Its last listener has just ended.
            Some((number, None)) => {
                let (share, client) = (self.stream_share(Some(id))?, self.client_of(id));
                if let Some(l) = self.streams.listening.sockets.get_mut(&number) {
                    (l.owner, l.client, l.until) = (Some(id), client, None);
                    l.share = share;
                }
                Ok(())
            }
            Some(_) => Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            None => {
                let share = self.stream_share(Some(id))?;
                self.open_listening_socket(id, at, share)
            }
        }
    }

    fn open_listening_socket(
        &mut self,
        id: IdHandle,
        at: SocketAddr,
        share: Option<Share>,
    ) -> io::Result<()> {
        let row = self.addresses.find(at.ip());
        let row = row.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?;
        let socket = tcp::listen(row.peer(at.ip(), at.port()))?;
        self.streams.listening.last += 1;
        let number = self.streams.listening.last;
        self.poller.add(&socket, Token::StreamListener(number), Interest::Read)?;
        let client = self.client_of(id);
        let (owner, until, paused) = (Some(id), None, false);
        let listening = Listening { socket, at, owner, client, until, paused, share };
        self.streams.listening.sockets.insert(number, listening);
        Ok(())
    }

    /// Returns the addresses to listen on. For a wildcard these are the host's, because all others are other
    /// hosts'.
    fn listening_addresses(&self, wanted: &StreamListener) -> Vec<SocketAddr> {
        let StreamListener { local, v6_only, .. } = *wanted;
        if !local.ip().is_unspecified() {
            // The scope of a link-local address is that of its interface.
            return vec![SocketAddr::new(local.ip(), local.port())];
        }
        let covers = |ip: &IpAddr| match (local.is_ipv4(), ip.is_ipv4()) {
            (true, v4) => v4,
            (false, true) => !v6_only,
            (false, false) => true,
        };
        let rows = self.addresses.rows().map(|(_, row)| row.ip).filter(covers);
        rows.map(|ip| SocketAddr::new(ip, local.port())).collect()
    }

    /// Follows a change of the host's addresses.
    pub(in crate::service) fn follow_addresses(&mut self) {
        let gone: Vec<u64> = (self.streams.listening.sockets.iter())
            .filter(|(_, l)| self.addresses.find(l.at.ip()).is_none())
            .map(|(&number, _)| number)
            .collect();
        gone.into_iter().for_each(|number| self.close_listening(number));
        self.open_missing(RETRY.0);
    }

    /// Opens all listeners' sockets that are missing. If one cannot be opened, it is tried again after a pause.
    fn open_missing(&mut self, pause: Duration) {
        let mut complete = true;
        for (id, wanted) in self.streams.listening.listeners.clone() {
            let local = wanted.local.ip();
            if !local.is_unspecified() && self.addresses.find(local).is_none() {
                continue;
            }
            if let Err(e) = self.open_listening(id, &wanted) {
                throttled!(warn, "{id} cannot listen for iWARP at one of its addresses: {e}");
                complete = false;
            }
        }
        self.streams.listening.retry = (!complete).then(|| (self.now().after(pause), pause));
    }

    /// Tries again to open sockets that could not be opened, if it is time.
    pub(in crate::service) fn retry_listening(&mut self, now: Time) {
        if let Some((_, pause)) = self.streams.listening.retry.filter(|(at, _)| *at <= now) {
            self.open_missing((2 * pause).min(RETRY.1));
        }
    }

    /// Handles the end of a listener. Peers wait for a while, because a program may listen again at once.
    pub(in crate::service) fn unlisten(&mut self, id: IdHandle) {
        self.streams.listening.listeners.remove(&id);
        let until = self.now().after(LISTEN_GRACE);
        for l in self.streams.listening.sockets.values_mut().filter(|l| l.owner == Some(id)) {
            (l.owner, l.until) = (None, Some(until));
        }
    }

    /// Handles the end of a client, which will not listen again.
    pub(in crate::service) fn listening_client_gone(&mut self, client: ClientId) {
        let of = |(_, l): &(&u64, &Listening)| l.owner.is_none() && l.client == Some(client);
        let numbers: Vec<u64> =
            self.streams.listening.sockets.iter().filter(of).map(|(&n, _)| n).collect();
        numbers.into_iter().for_each(|number| self.close_listening(number));
    }

    pub(in crate::service) fn client_of(&self, id: IdHandle) -> Option<ClientId> {
        let channel = self.manager.channel_of(id)?;
        self.channels.get(&channel).map(|channel| channel.owner)
    }

    /// Closes the sockets of an id that could not listen.
    fn unlisten_now(&mut self, id: IdHandle) {
        self.streams.listening.listeners.remove(&id);
        let of = |(_, l): &(&u64, &Listening)| l.owner == Some(id);
        let numbers: Vec<u64> =
            self.streams.listening.sockets.iter().filter(of).map(|(&n, _)| n).collect();
        numbers.into_iter().for_each(|number| self.close_listening(number));
    }

    fn close_listening(&mut self, number: u64) {
        if let Some(listening) = self.streams.listening.sockets.remove(&number) {
            self.poller.remove(&listening.socket);
        }
    }

    /// Closes sockets whose time without a listener is over.
    pub(in crate::service) fn close_unused(&mut self, now: Time) {
        let due = |(_, l): &(&u64, &Listening)| l.until.is_some_and(|until| until <= now);
        let numbers: Vec<u64> =
            self.streams.listening.sockets.iter().filter(due).map(|(&n, _)| n).collect();
        numbers.into_iter().for_each(|number| self.close_listening(number));
    }

    /// Accepts peers.
    pub(in crate::service) fn accept_streams(&mut self, number: u64) {
        for _ in 0..ACCEPTS {
            let Some(at) = self.streams.listening.sockets.get(&number).map(|l| l.at) else {
                return;
            };
            if !self.manager.accepts_streams(at) {
                break;
            }
            self.make_room(at);
            let Some(listening) = self.streams.listening.sockets.get(&number) else { return };
            let client = listening.client;
            match tcp::accept(&listening.socket) {
                Ok(Some((socket, local, remote))) => {
                    // A peer beyond the share is closed.
                    if let Ok(share) = self.share_of_client(client) {
                        self.add_stream(socket, local, remote, share);
                    }
                }
                Ok(None) => break,
                // The descriptor of another peer was freed for this one.
                Err(e) if is_exhausted(&e) && self.give_up_one() => {}
                Err(e) => {
                    throttled!(warn, "cannot accept a peer at {at}: {e}");
                    // With the reserved descriptor the peer is accepted and closed, so that it does not wait until
                    // its timeout.
                    self.streams.listening.reserve = None;
                    if let Some(listening) = self.streams.listening.sockets.get(&number) {
                        drop(tcp::accept(&listening.socket));
                    }
                    self.streams.listening.reserve = open_reserve();
                    break;
                }
            }
        }
        self.drain_outbox();
        self.pause_listening();
    }

    /// Leaves a listener's peers in the kernel's queue while too many of its requests wait for its program.
    pub(in crate::service) fn pause_listening(&mut self) {
        for (&number, l) in &mut self.streams.listening.sockets {
            let paused = !self.manager.accepts_streams(l.at);
            if paused != l.paused {
                l.paused = paused;
                let interest = if paused { Interest::End } else { Interest::Read };
                self.poller.change(l.socket.as_fd(), Token::StreamListener(number), interest);
            }
        }
    }
}
