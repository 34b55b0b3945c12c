//! TCP of iWARP: listening sockets, and connections until a queue pair has them.
//!
//! MPA's start-up is the connection manager's (`rdmux_cm::iw`); here are the sockets. Of a stream is
//! read what the machine wants and not a byte more, for what follows belongs to the process that gets
//! the socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rdmux_cm::error::Command;
use rdmux_cm::iw::{StreamId, StreamWish};
use rdmux_cm::{CmError, IdHandle, IdState, StreamListener, Time};
use rdmux_transport::iwarp::StreamParams;
use rdmux_verbs::control::{DeviceKind, slot_of};
use rdmux_wire::Qpn;
use rustix::net::{RecvFlags, SendFlags};

use super::clients::ClientId;
use super::core::Core;
use super::poller::{Interest, Ready, Token};
use super::tcp;
use crate::proto::{ClientKind, Notify};

/// Peers taken from a listening socket before others have their turn.
const ACCEPTS: usize = 64;

/// All sockets.
#[derive(Debug, Default)]
pub(super) struct Streams {
    listening: BTreeMap<u64, Listening>,
    /// Listeners on wildcards, which follow the host's addresses.
    wildcards: BTreeMap<IdHandle, StreamListener>,
    streams: BTreeMap<StreamId, Stream>,
    last_listening: u64,
    /// Whether peers wait in the system's queues, for too many are half-open.
    paused: bool,
    /// A descriptor to give up when there is none left to accept with.
    reserve: Option<File>,
}

/// A listening socket.
#[derive(Debug)]
struct Listening {
    socket: OwnedFd,
    at: SocketAddr,
    /// Nobody for a while after its listener went, for a program that listens again.
    owner: Option<IdHandle>,
    until: Option<Time>,
}

/// A connection that no queue pair has yet.
#[derive(Debug)]
struct Stream {
    socket: OwnedFd,
    connecting: bool,
    interest: Interest,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self { reserve: open_reserve(), ..Self::default() }
    }

    /// When a listening socket that nobody has is to be closed.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.listening.values().filter_map(|l| l.until).min()
    }

    /// How many connections wait for something.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

impl Core {
    /// Does what the connection manager wants of TCP.
    pub(super) fn do_stream(&mut self, wish: StreamWish) {
        match wish {
            StreamWish::Unlisten(id) => self.unlisten(id),
            StreamWish::Connect { stream, local, remote, tos } => {
                self.connect_stream(stream, local, remote, tos);
            }
            StreamWish::Send { stream, bytes } => self.send_stream(stream, &bytes),
            StreamWish::Close { stream } => drop(self.forget_stream(stream)),
            StreamWish::Reset { stream } => {
                if let Some(socket) = self.forget_stream(stream) {
                    tcp::reset(socket);
                }
            }
            StreamWish::HandOver { stream, qpn, params } => self.hand_over(stream, qpn, params),
            StreamWish::CloseQp { qpn } => match self.iwarp_owner(qpn) {
                Some(owner) => self.notify(owner, &Notify::CloseStream { qpn }, Vec::new()),
                None => self.qp_stream_ended(qpn),
            },
        }
    }

    fn connect_stream(&mut self, stream: StreamId, local: SocketAddr, remote: SocketAddr, tos: u8) {
        let opened = self.open_connection(local, remote, tos).and_then(|socket| {
            self.streams_watch(stream, &socket, Interest::Write)?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => {
                let interest = Interest::Write;
                let opened = Stream { socket, connecting: true, interest };
                self.streams.streams.insert(stream, opened);
            }
            Err(e) => self.stream_ended(stream, errno(&e)),
        }
    }

    fn open_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        tos: u8,
    ) -> io::Result<OwnedFd> {
        let row = self.addresses.find(local.ip());
        let row = row.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?;
        let at = |addr: SocketAddr| row.peer(addr.ip(), addr.port());
        tcp::connect(at(local), at(remote), tos)
    }

    fn streams_watch(
        &self,
        stream: StreamId,
        socket: &OwnedFd,
        interest: Interest,
    ) -> io::Result<()> {
        self.poller.add(socket, Token::Stream(stream), interest)
    }

    /// A few hundred bytes at most: a socket that does not take them at once is not one on which
    /// nothing was sent before.
    fn send_stream(&mut self, stream: StreamId, bytes: &[u8]) {
        let Some(found) = self.streams.streams.get(&stream) else { return };
        let sent = rustix::net::send(&found.socket, bytes, SendFlags::NOSIGNAL);
        let errno = match sent {
            Ok(n) if n == bytes.len() => return,
            Ok(_) => libc::ENOBUFS,
            Err(rustix::io::Errno::PIPE) => libc::ECONNRESET,
            Err(e) => e.raw_os_error(),
        };
        self.end_stream(stream, errno);
    }

    /// The machine learns that a stream is over.
    fn end_stream(&mut self, stream: StreamId, errno: i32) {
        if self.forget_stream(stream).is_some() {
            self.stream_ended(stream, errno);
        }
    }

    fn stream_ended(&mut self, stream: StreamId, errno: i32) {
        let now = self.now();
        self.manager.handle_stream_ended(now, stream, errno, &mut self.outbox);
    }

    fn forget_stream(&mut self, stream: StreamId) -> Option<OwnedFd> {
        let found = self.streams.streams.remove(&stream)?;
        self.poller.remove(&found.socket);
        Some(found.socket)
    }

    /// The client whose device has a queue pair, if that is one of iWARP.
    fn iwarp_owner(&self, qpn: Qpn) -> Option<ClientId> {
        let owner = self.slots.owner(slot_of(qpn))?;
        let kind = self.clients.get(owner)?.kind?;
        (kind == ClientKind::Device(DeviceKind::Iwarp)).then_some(owner)
    }

    fn hand_over(&mut self, stream: StreamId, qpn: Qpn, params: StreamParams) {
        let Some(socket) = self.forget_stream(stream) else { return self.qp_stream_ended(qpn) };
        match self.iwarp_owner(qpn) {
            Some(owner) => self.notify(owner, &Notify::Stream { qpn, params }, vec![socket]),
            None => self.qp_stream_ended(qpn),
        }
    }

    fn qp_stream_ended(&mut self, qpn: Qpn) {
        let now = self.now();
        self.manager.handle_qp_stream_ended(now, qpn, &mut self.outbox);
    }

    /// A process says that the stream of a queue pair of its ended.
    pub(super) fn handle_qp_stream_ended(&mut self, client: ClientId, qpn: Qpn) {
        if self.slots.owner(slot_of(qpn)) == Some(client) {
            self.qp_stream_ended(qpn);
            self.settle();
        }
    }

    /// Whether a connection of iWARP may be for this queue pair: it must be of an iWARP device of the
    /// same process.
    pub(super) fn check_stream_qp(
        &self,
        client: ClientId,
        id: IdHandle,
        command: Command,
        qpn: Qpn,
    ) -> Result<(), CmError> {
        if !self.manager.is_iwarp(id) {
            return Ok(());
        }
        let pid = |client| self.clients.get(client).map(|c| c.pid);
        match self.iwarp_owner(qpn) {
            Some(owner) if pid(owner) == pid(client) => Ok(()),
            _ => {
                let what = "the queue pair is none of an iWARP device of this process";
                Err(CmError::Invalid { id, command, what })
            }
        }
    }

    /// A connection has something.
    pub(super) fn handle_stream(&mut self, stream: StreamId, ready: &Ready) {
        let Some(found) = self.streams.streams.get_mut(&stream) else { return };
        if found.connecting {
            match tcp::connected(&found.socket) {
                Ok(local) => {
                    found.connecting = false;
                    let now = self.now();
                    let (manager, outbox) = (&mut self.manager, &mut self.outbox);
                    manager.handle_stream_connected(now, stream, local, outbox);
                }
                Err(e) => self.end_stream(stream, errno(&e)),
            }
        } else if ready.readable {
            self.read_stream(stream);
        }
        self.settle();
        self.watch_stream(stream);
    }

    fn read_stream(&mut self, stream: StreamId) {
        let wants = self.manager.stream_wants(stream);
        let Some(found) = self.streams.streams.get(&stream) else { return };
        let mut buf = [0; 1024];
        let room = &mut buf[..wants.min(1024)];
        let end = match room.len() {
            // Only the end was waited for.
            0 => tcp::connected(&found.socket).err().map_or(0, |e| errno(&e)),
            _ => match rustix::net::recv(&found.socket, room, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => 0,
                Ok((_, n)) => {
                    let now = self.now();
                    let bytes = &buf[..n.min(1024)];
                    let (manager, outbox) = (&mut self.manager, &mut self.outbox);
                    return manager.handle_stream_data(now, stream, bytes, outbox);
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
                Err(e) => e.raw_os_error(),
            },
        };
        self.end_stream(stream, end);
    }

    /// Watches a connection for what the machine wants of it.
    fn watch_stream(&mut self, stream: StreamId) {
        let wants = self.manager.stream_wants(stream);
        let Some(found) = self.streams.streams.get_mut(&stream) else { return };
        let interest = match (found.connecting, wants) {
            (true, _) => Interest::Write,
            (false, 0) => Interest::End,
            (false, _) => Interest::Read,
        };
        if found.interest != interest {
            found.interest = interest;
            self.poller.change(&found.socket, Token::Stream(stream), interest);
        }
    }

    /// Streams of whose state a command changed something.
    pub(super) fn watch_streams(&mut self) {
        let streams: Vec<StreamId> = self.streams.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.watch_stream(stream));
        self.pause_listening();
    }
}

/// Listening.
impl Core {
    /// Lets peers connect, by all transports that the id may have.
    ///
    /// # Errors
    /// Those of [`rdmux_cm::Manager::listen`]. A TCP port that is in use fails only ids that have
    /// nothing else.
    pub(super) fn listen(&mut self, id: IdHandle, backlog: u32) -> Result<SocketAddr, CmError> {
        if self.manager.query(id)?.state == IdState::Idle {
            let any = IpAddr::from([0, 0, 0, 0]);
            self.manager.bind(id, SocketAddr::new(any, 0), false)?;
        }
        let bound = self.manager.query(id)?.state == IdState::AddrBound;
        if let Some(wanted) = self.manager.stream_listener(id).filter(|_| bound)
            && let Err(e) = self.open_listening(id, &wanted)
        {
            self.unlisten_now(id);
            let addr = wanted.local;
            if wanted.only {
                let command = Command::Listen;
                return Err(match errno(&e) {
                    libc::EADDRINUSE => CmError::AddrInUse { id, command, addr },
                    _ => CmError::AddrNotAvailable { id, command, addr },
                });
            }
            tracing::warn!("{id} listens at {addr} without iWARP: {e}");
        }
        let listening = self.manager.listen(id, backlog);
        if listening.is_err() && bound {
            self.unlisten_now(id);
        }
        listening
    }

    /// Opens sockets where there are none yet.
    fn open_listening(&mut self, id: IdHandle, wanted: &StreamListener) -> io::Result<()> {
        if wanted.local.ip().is_unspecified() {
            self.streams.wildcards.insert(id, *wanted);
        }
        for at in self.listening_addresses(wanted) {
            let there = self.streams.listening.values_mut().find(|l| l.at == at);
            match there {
                Some(l) if l.owner == Some(id) => {}
                // Its last listener is just gone.
                Some(l) if l.owner.is_none() => (l.owner, l.until) = (Some(id), None),
                Some(_) => return Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
                None => self.open_listening_socket(id, at)?,
            }
        }
        Ok(())
    }

    fn open_listening_socket(&mut self, id: IdHandle, at: SocketAddr) -> io::Result<()> {
        let row = self.addresses.find(at.ip());
        let row = row.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?;
        let socket = tcp::listen(row.peer(at.ip(), at.port()))?;
        self.streams.last_listening += 1;
        let number = self.streams.last_listening;
        let interest = if self.streams.paused { Interest::End } else { Interest::Read };
        self.poller.add(&socket, Token::StreamListener(number), interest)?;
        let listening = Listening { socket, at, owner: Some(id), until: None };
        self.streams.listening.insert(number, listening);
        Ok(())
    }

    /// A wildcard is each of the host's addresses, for those of other hosts are none of ours.
    fn listening_addresses(&self, wanted: &StreamListener) -> Vec<SocketAddr> {
        let StreamListener { local, v6_only, .. } = *wanted;
        if !local.ip().is_unspecified() {
            return vec![local];
        }
        let covers = |ip: &IpAddr| match (local.is_ipv4(), ip.is_ipv4()) {
            (true, v4) => v4,
            (false, true) => !v6_only,
            (false, false) => true,
        };
        let rows = self.addresses.rows().map(|(_, row)| row.ip).filter(covers);
        rows.map(|ip| SocketAddr::new(ip, local.port())).collect()
    }

    /// The host's addresses changed.
    pub(super) fn follow_addresses(&mut self) {
        let gone: Vec<u64> = (self.streams.listening.iter())
            .filter(|(_, l)| self.addresses.find(l.at.ip()).is_none())
            .map(|(&number, _)| number)
            .collect();
        gone.into_iter().for_each(|number| self.close_listening(number));
        for (id, wanted) in self.streams.wildcards.clone() {
            if let Err(e) = self.open_listening(id, &wanted) {
                tracing::warn!("{id} does not listen for iWARP at all new addresses: {e}");
            }
        }
    }

    /// Nobody listens any more; but perhaps somebody will at once, and until then peers wait.
    fn unlisten(&mut self, id: IdHandle) {
        self.streams.wildcards.remove(&id);
        let until = self.now().after(self.manager.config().listener_grace);
        for l in self.streams.listening.values_mut().filter(|l| l.owner == Some(id)) {
            (l.owner, l.until) = (None, Some(until));
        }
    }

    /// The id could not listen.
    fn unlisten_now(&mut self, id: IdHandle) {
        self.streams.wildcards.remove(&id);
        let of = |(_, l): &(&u64, &Listening)| l.owner == Some(id);
        let numbers: Vec<u64> = self.streams.listening.iter().filter(of).map(|(&n, _)| n).collect();
        numbers.into_iter().for_each(|number| self.close_listening(number));
    }

    fn close_listening(&mut self, number: u64) {
        if let Some(listening) = self.streams.listening.remove(&number) {
            self.poller.remove(&listening.socket);
        }
    }

    /// Closes what nobody listens on any more.
    pub(super) fn close_unused(&mut self, now: Time) {
        let due = |(_, l): &(&u64, &Listening)| l.until.is_some_and(|until| until <= now);
        let numbers: Vec<u64> =
            self.streams.listening.iter().filter(due).map(|(&n, _)| n).collect();
        numbers.into_iter().for_each(|number| self.close_listening(number));
    }

    /// Peers connected.
    pub(super) fn accept_streams(&mut self, number: u64) {
        for _ in 0..ACCEPTS {
            let Some(listening) = self.streams.listening.get(&number) else { return };
            if !self.manager.accepts_streams() {
                break;
            }
            match tcp::accept(&listening.socket) {
                Ok(Some((socket, local, remote))) => self.add_stream(socket, local, remote),
                Ok(None) => break,
                Err(e) => {
                    tracing::warn!("a peer at {} cannot be accepted: {e}", listening.at);
                    // With a descriptor more it can be turned away, so that it does not wait in vain.
                    self.streams.reserve = None;
                    drop(tcp::accept(&listening.socket));
                    self.streams.reserve = open_reserve();
                    break;
                }
            }
        }
        self.settle();
        self.pause_listening();
    }

    fn add_stream(&mut self, socket: OwnedFd, local: SocketAddr, remote: SocketAddr) {
        let now = self.now();
        let stream = self.manager.handle_stream_accepted(now, local, remote);
        let interest = Interest::Read;
        match self.streams_watch(stream, &socket, interest) {
            Ok(()) => {
                let accepted = Stream { socket, connecting: false, interest };
                self.streams.streams.insert(stream, accepted);
            }
            Err(e) => self.stream_ended(stream, errno(&e)),
        }
    }

    /// Lets peers wait in the system's queues while too many are half-open.
    fn pause_listening(&mut self) {
        let paused = !self.manager.accepts_streams();
        if paused != self.streams.paused {
            self.streams.paused = paused;
            let interest = if paused { Interest::End } else { Interest::Read };
            for (&number, l) in &self.streams.listening {
                self.poller.change(l.socket.as_fd(), Token::StreamListener(number), interest);
            }
        }
    }
}
