//! TCP connections of iWARP, until a queue pair has them.
//!
//! MPA's start-up is the connection manager's (`rdmux_cm::iw`); here are the sockets. Of a stream is
//! read what the machine wants and not a byte more, for what follows belongs to the process that gets
//! the socket. Listening is in `listening`.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rdmux_cm::error::Command;
use rdmux_cm::iw::{StreamId, StreamWish};
use rdmux_cm::{CmError, IdHandle};
use rdmux_transport::iwarp::StreamParams;
use rdmux_verbs::control::{DeviceKind, slot_of};
use rdmux_wire::Qpn;
use rustix::net::{RecvFlags, SendFlags};

use super::clients::ClientId;
use super::core::Core;
use super::listening::AllListening;
use super::poller::{Interest, Ready, Token};
use super::tcp;
use crate::proto::{ClientKind, Notify};

/// All sockets.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) listening: AllListening,
    streams: BTreeMap<StreamId, Stream>,
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
        Self { listening: AllListening::new(), streams: BTreeMap::new() }
    }

    /// How many connections wait for something.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }
}

/// Its number.
pub(super) fn errno(e: &io::Error) -> i32 {
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

    /// A peer connected.
    pub(super) fn add_stream(&mut self, socket: OwnedFd, local: SocketAddr, remote: SocketAddr) {
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
}
