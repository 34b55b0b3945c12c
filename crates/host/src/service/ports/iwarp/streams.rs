//! TCP connections of iWARP, until a queue pair gets them.
//!
//! The connection manager handles MPA startup (`rdmux_cm::iw`); this module has the sockets. It reads from a stream
//! exactly the bytes that the connection manager requests, because the following bytes belong to the process that
//! gets the socket. Listening is in `listening`.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rdmux_cm::error::Command;
use rdmux_cm::iw::{StreamId, StreamWish};
use rdmux_cm::{CmError, IdHandle};
use rdmux_runtime::Share;
use rdmux_transport::Time;
use rdmux_transport::iwarp::StreamParams;
use rdmux_verbs::control::slot_of;
use rdmux_verbs::throttled;
use rdmux_wire::Qpn;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::lingering::Lingering;
use super::listening::AllListening;
use super::tcp;
use crate::proto::Notify;
use crate::service::clients::ClientId;
use crate::service::core::Core;
use crate::service::poller::{Interest, Ready, Token};

/// All sockets of iWARP.
#[derive(Debug)]
pub(in crate::service) struct Streams {
    pub(in crate::service) listening: AllListening,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams for which the connection manager may request other input than before.
    touched: Vec<StreamId>,
    /// Closing connections whose peers may not have read the last message.
    pub(in crate::service) lingering: Lingering,
}

/// A connection that no queue pair has yet.
#[derive(Debug)]
struct Stream {
    socket: OwnedFd,
    connecting: bool,
    interest: Interest,
    /// The share for the socket, charged to the user of the id that connects or listens.
    _share: Option<Share>,
}

impl Streams {
    pub(in crate::service) fn new() -> Self {
        let (streams, touched) = (BTreeMap::new(), Vec::new());
        Self { listening: AllListening::new(), streams, touched, lingering: Lingering::default() }
    }

    /// Returns how many connections are pending.
    pub(in crate::service) fn len(&self) -> usize {
        self.streams.len()
    }
}

/// Returns the error's errno.
pub(in crate::service) fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

impl Core {
    /// Carries out a request of the connection manager to TCP.
    pub(in crate::service) fn do_stream(&mut self, wish: StreamWish) {
        match wish {
            StreamWish::Unlisten(id) => self.unlisten(id),
            StreamWish::Connect { stream, local, remote, tos } => {
                self.connect_stream(stream, local, remote, tos);
            }
            StreamWish::Send { stream, bytes } => self.send_stream(stream, &bytes),
            StreamWish::Close { stream } => self.linger(stream),
            StreamWish::Reset { stream } => {
                if let Some(socket) = self.forget_stream(stream) {
                    tcp::reset(socket);
                }
            }
            StreamWish::HandOver { stream, qpn, params } => self.hand_over(stream, qpn, params),
            StreamWish::CloseQp { stream, qpn } => match self.iwarp_owner(qpn) {
                Some(owner) => {
                    let number = stream.0;
                    self.notify(owner, &Notify::CloseStream { qpn, number }, Vec::new());
                }
                None => self.qp_stream_ended(qpn, stream),
            },
        }
    }

    fn connect_stream(&mut self, stream: StreamId, local: SocketAddr, remote: SocketAddr, tos: u8) {
        let share = self.stream_share(self.manager.id_of_stream(stream));
        let opened = share.and_then(|share| {
            let socket = self.open_connection(local, remote, tos)?;
            self.streams_watch(stream, &socket, Interest::Write)?;
            Ok((socket, share))
        });
        match opened {
            Ok((socket, share)) => {
                let interest = Interest::Write;
                let opened = Stream { socket, connecting: true, interest, _share: share };
                self.streams.streams.insert(stream, opened);
            }
            Err(e) => self.stream_ended(stream, errno(&e)),
        }
    }

    /// Takes a descriptor from the share of an id's user, if it has one.
    pub(super) fn stream_share(&self, id: Option<IdHandle>) -> io::Result<Option<Share>> {
        self.share_of_client(id.and_then(|id| self.client_of(id)))
    }

    /// Takes a descriptor from the share of a client's user.
    pub(super) fn share_of_client(&self, client: Option<ClientId>) -> io::Result<Option<Share>> {
        let share = client.map(|client| self.descriptors_for(client, 1)).transpose();
        share.map_err(|e| {
            throttled!(
                warn,
                "the user's share of descriptors is used up, and a stream gets none: {e}"
            );
            io::Error::from_raw_os_error(libc::EMFILE)
        })
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

    /// Sends at most a few hundred bytes. A socket that cannot take them at once had unsent data already.
    fn send_stream(&mut self, stream: StreamId, bytes: &[u8]) {
        let Some(found) = self.streams.streams.get(&stream) else { return };
        self.streams.touched.push(stream);
        let sent = rustix::net::send(&found.socket, bytes, SendFlags::NOSIGNAL);
        let errno = match sent {
            Ok(n) if n == bytes.len() => return,
            Ok(_) => libc::ENOBUFS,
            Err(rustix::io::Errno::PIPE) => libc::ECONNRESET,
            Err(e) => e.raw_os_error(),
        };
        if self.manager.is_stream_up(stream) {
            // The stream is about to be handed over. The queue pair reads the data that has arrived, and then this
            // end.
            let _ = rustix::net::shutdown(&found.socket, Shutdown::Both);
            return;
        }
        self.end_stream(stream, errno);
    }

    /// Notifies the connection manager that a stream has ended.
    fn end_stream(&mut self, stream: StreamId, errno: i32) {
        if self.forget_stream(stream).is_some() {
            self.stream_ended(stream, errno);
        }
    }

    fn stream_ended(&mut self, stream: StreamId, errno: i32) {
        let now = self.now();
        self.manager.handle_stream_ended(now, stream, errno, &mut self.outbox);
    }

    /// Removes a stream, and returns its socket.
    pub(in crate::service) fn forget_stream(&mut self, stream: StreamId) -> Option<OwnedFd> {
        let found = self.streams.streams.remove(&stream)?;
        self.poller.remove(&found.socket);
        Some(found.socket)
    }

    /// Returns the client whose device has a queue pair, if that is one of iWARP.
    fn iwarp_owner(&self, qpn: Qpn) -> Option<ClientId> {
        let owner = self.slots.owner(slot_of(qpn))?;
        let kind = self.clients.get(owner)?.device_kind()?;
        kind.has_streams().then_some(owner)
    }

    fn hand_over(&mut self, stream: StreamId, qpn: Qpn, params: StreamParams) {
        let (socket, owner) = (self.forget_stream(stream), self.iwarp_owner(qpn));
        let Some((socket, owner)) = socket.zip(owner) else {
            return self.qp_stream_ended(qpn, stream);
        };
        let wait = self.options.config.iwarp.receive_wait_ms;
        let receive_wait = Duration::from_millis(wait.into());
        let notify = Notify::Stream { qpn, number: stream.0, params, receive_wait };
        self.notify(owner, &notify, vec![socket]);
    }

    fn qp_stream_ended(&mut self, qpn: Qpn, stream: StreamId) {
        let now = self.now();
        self.manager.handle_qp_stream_ended(now, qpn, stream, &mut self.outbox);
    }

    /// Handles a process's report that a stream of its queue pair ended.
    pub(in crate::service) fn handle_qp_stream_ended(
        &mut self,
        client: ClientId,
        qpn: Qpn,
        stream: StreamId,
    ) {
        if self.slots.owner(slot_of(qpn)) == Some(client) {
            self.qp_stream_ended(qpn, stream);
            self.drain_outbox();
        }
    }

    /// Checks that an iWARP connection may be for this queue pair: it must be of an iWARP device of the same
    /// process.
    pub(in crate::service) fn check_stream_qp(
        &self,
        client: ClientId,
        id: IdHandle,
        command: Command,
        qpn: Qpn,
    ) -> Result<(), CmError> {
        if !self.manager.is_iwarp(id) {
            return Ok(());
        }
        let is_same = |owner: &ClientId| {
            let both = self.clients.get(*owner).zip(self.clients.get(client));
            *owner == client || both.is_some_and(|(owner, client)| owner.may_be(client))
        };
        match self.iwarp_owner(qpn) {
            Some(owner) if is_same(&owner) => Ok(()),
            _ => {
                let what = "the queue pair is not an iWARP queue pair of this process";
                Err(CmError::Invalid { id, command, what })
            }
        }
    }

    /// Handles an event of a connection.
    pub(in crate::service) fn handle_stream(&mut self, stream: StreamId, ready: &Ready) {
        if self.read_lingering(stream) {
            return;
        }
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
            self.read_all(stream);
        }
        self.drain_outbox();
        self.watch_stream(stream);
    }

    /// Reads what has arrived of a frame. It is read in two parts, because the first has the length.
    fn read_all(&mut self, stream: StreamId) {
        self.read_stream(stream);
        if self.manager.stream_wants(stream) != 0 {
            self.read_stream(stream);
        }
    }

    /// Reads from streams that are about to time out, because input that has arrived takes precedence.
    pub(in crate::service) fn read_due_streams(&mut self, now: Time) {
        for stream in self.manager.due_streams(now) {
            if self.streams.streams.get(&stream).is_some_and(|found| !found.connecting) {
                self.read_all(stream);
            }
        }
    }

    fn read_stream(&mut self, stream: StreamId) {
        let wants = self.manager.stream_wants(stream);
        let Some(found) = self.streams.streams.get(&stream) else { return };
        let mut buf = [0; 1024];
        let room = &mut buf[..wants.min(1024)];
        let end = match room.len() {
            // Only the end is waited for. An earlier event may have been for bytes that are read by now.
            0 if !tcp::is_over(&found.socket) => return,
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

    /// Polls a connection for the events that the connection manager needs.
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

    /// Updates the polling of streams that a command has changed.
    pub(in crate::service) fn watch_streams(&mut self) {
        while let Some(stream) = self.streams.touched.pop() {
            self.watch_stream(stream);
        }
        self.pause_listening();
    }

    /// Resets connections to make room for another peer of a listening socket, unless their request has arrived.
    pub(in crate::service) fn make_room(&mut self, local: SocketAddr) {
        while let Some(stream) = self.manager.stream_to_shed(local) {
            self.shed(stream);
        }
    }

    /// Frees the descriptor of a peer whose connection lingers, or that has not sent its request. Returns whether
    /// there was one.
    pub(in crate::service) fn give_up_one(&mut self) -> bool {
        if self.close_oldest_lingering() {
            return true;
        }
        let found = self.manager.any_stream_to_shed();
        found.inspect(|&stream| self.shed(stream)).is_some()
    }

    fn shed(&mut self, stream: StreamId) {
        self.read_all(stream);
        self.manager.shed_stream(stream, &mut self.outbox);
        self.streams.touched.push(stream);
        self.drain_outbox();
    }

    /// Adds the connection of a peer.
    pub(in crate::service) fn add_stream(
        &mut self,
        socket: OwnedFd,
        local: SocketAddr,
        remote: SocketAddr,
        share: Option<Share>,
    ) {
        let now = self.now();
        let stream = self.manager.handle_stream_accepted(now, local, remote);
        let interest = Interest::Read;
        match self.streams_watch(stream, &socket, interest) {
            Ok(()) => {
                let accepted = Stream { socket, connecting: false, interest, _share: share };
                self.streams.streams.insert(stream, accepted);
            }
            Err(e) => self.stream_ended(stream, errno(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use rdmux_cm::{Addr, ChannelId, PortSpace};
    use rdmux_runtime::Shares;
    use rdmux_transport::attr::QpType;
    use rdmux_wire::iwarp::mpa::{Flags, Kind, Startup};

    use super::*;
    use crate::proto::socket;
    use crate::service::testing;

    /// Waits for the first event of a source of this kind.
    fn next<T>(core: &Core, of: impl Fn(Token) -> Option<T>) -> (T, Ready) {
        let mut ready = Vec::new();
        loop {
            core.poller.wait(Some(Duration::from_secs(20)), &mut ready).unwrap();
            assert!(!ready.is_empty(), "nothing came");
            let found = ready.iter().find_map(|event| Some((of(event.token)?, *event)));
            if let Some(found) = found {
                return found;
            }
        }
    }

    #[test]
    fn stale_poll_event_does_not_close_stream_whose_mpa_request_is_taken() {
        let (mut core, _dir) = testing::core();
        let ip = core.addresses.rows().next().unwrap().1.ip;
        let id = core.manager.create_id(ChannelId(1), PortSpace::Tcp, QpType::Rc, 0).unwrap();
        core.bind(id, SocketAddr::new(ip, 0).into(), true).unwrap();
        let Addr::Ip(at) = core.listen(id, 8).unwrap() else { panic!() };
        let mut peer = TcpStream::connect(at).unwrap();
        let (number, _) = next(&core, |token| match token {
            Token::StreamListener(number) => Some(number),
            _ => None,
        });
        core.accept_streams(number);
        let request = Startup {
            kind: Kind::Request,
            flags: Flags::default(),
            revision: 1,
            enhanced: None,
            private_data: b"",
        };
        let mut bytes = vec![0; request.len()];
        request.emit(&mut bytes);
        peer.write_all(&bytes).unwrap();
        let of_stream = |token| match token {
            Token::Stream(stream) => Some(stream),
            _ => None,
        };
        let (stream, event) = next(&core, of_stream);
        // Another peer connects, and room is made for it.
        core.shed(stream);
        assert_eq!((core.manager.stream_wants(stream), core.streams.len()), (0, 1));
        core.handle_stream(stream, &event);
        assert_eq!(core.streams.len(), 1);
        core.read_due_streams(core.now());
        drop(peer);
        let (stream, event) = next(&core, of_stream);
        core.handle_stream(stream, &event);
        assert_eq!(core.streams.len(), 0);
    }

    /// Peers decide how many connections there are, and the listener's user is charged for them.
    #[test]
    fn peers_beyond_the_share_of_the_listeners_user_are_closed_and_others_keep_theirs() {
        let (mut core, _dir) = testing::core();
        let client = |core: &mut Core, user| {
            let (socket, ours) = socket::pair().unwrap();
            let client = core.add_client(ours).unwrap();
            core.clients.get_mut(client).unwrap().uid = user;
            (client, socket)
        };
        let (greedy, _held) = client(&mut core, 4001);
        let (other, _held_too) = client(&mut core, 4002);
        core.shares.descriptors = Shares::new(16);
        let (channel, _fd) = core.open_channel(greedy).unwrap();
        let id = core.manager.create_id(channel, PortSpace::Tcp, QpType::Rc, 0).unwrap();
        let ip = core.addresses.rows().next().unwrap().1.ip;
        core.bind(id, SocketAddr::new(ip, 0).into(), true).unwrap();
        let Addr::Ip(at) = core.listen(id, 8).unwrap() else { panic!() };
        let mut peers: Vec<_> = (0..10).map(|_| TcpStream::connect(at).unwrap()).collect();
        let (number, _) = next(&core, |token| match token {
            Token::StreamListener(number) => Some(number),
            _ => None,
        });
        core.accept_streams(number);
        // The channel and the listening socket are charged, too.
        assert_eq!(core.streams.len(), 6);
        for peer in &mut peers[6..] {
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        }
        core.open_channel(other).unwrap();
        assert!(core.open_channel(greedy).is_err());
    }
}
