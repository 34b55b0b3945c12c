//! Requests and replies on one socket: one for one, or requests without replies.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdmux_link::spin_wait;
use rustix::net::sockopt::{self, Timeout};
use rustix::process::Pid;

use crate::error::HostError;
use crate::names::HostName;
use crate::proto::socket::{self, MAX_MESSAGE, MessageError};
use crate::proto::{ClientKind, Reply, Request, Response, VERSION, Welcome};

/// The most bytes of requests that wait for the next one.
const WITH_NEXT: usize = 1024;

/// A connection to a service, after the greeting.
#[derive(Debug)]
pub(crate) struct Session {
    host: HostName,
    socket: OwnedFd,
    buffers: Mutex<Buffers>,
    gone: AtomicBool,
    /// Who connected: a forked child shares the socket, but must not speak on it.
    owner: Pid,
}

#[derive(Debug)]
struct Buffers {
    /// Requests that wait for the next one, to go with it.
    tx: Vec<u8>,
    rx: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Session {
    /// Greets the service behind `socket`.
    pub(crate) fn open(
        host: &HostName,
        socket: OwnedFd,
        kind: ClientKind,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Self, Welcome, Vec<OwnedFd>), HostError> {
        let session = Self {
            host: host.clone(),
            socket,
            buffers: Mutex::new(Buffers {
                tx: Vec::new(),
                rx: vec![0; MAX_MESSAGE],
                fds: Vec::new(),
            }),
            gone: AtomicBool::new(false),
            owner: rustix::process::getpid(),
        };
        let hello = Request::Hello { version: VERSION, kind };
        let (response, fds) = session.call_with_fds(&hello, fds, || "greet the service".into())?;
        match response {
            Response::Welcome(welcome) if welcome.version == VERSION => {
                Ok((session, *welcome, fds))
            }
            Response::Welcome(welcome) => Err(HostError::Version {
                host: host.clone(),
                ours: VERSION,
                theirs: welcome.version,
            }),
            other => Err(session.unexpected(&other)),
        }
    }

    /// Whose service it is.
    pub(crate) fn host(&self) -> &HostName {
        &self.host
    }

    /// Whether the service was found to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether this process has connected, and not its parent.
    pub(crate) fn is_ours(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    /// Remembers that the service is gone.
    pub(crate) fn set_gone(&self) -> HostError {
        self.gone.store(true, Ordering::Relaxed);
        HostError::ServiceGone { host: self.host.clone() }
    }

    /// Asks, and waits for the answer. `what` is for the error: what was tried.
    pub(crate) fn call(
        &self,
        request: &Request,
        what: impl FnOnce() -> String,
    ) -> Result<Response, HostError> {
        self.call_with_fds(request, &[], what).map(|(response, _)| response)
    }

    /// As [`call`](Self::call), with descriptors both ways.
    pub(crate) fn call_with_fds(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        what: impl FnOnce() -> String,
    ) -> Result<(Response, Vec<OwnedFd>), HostError> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let Buffers { tx, rx, fds: received } = &mut *buffers;
        self.send(request, fds, tx).map_err(|e| self.broken(&e))?;
        spin_wait::look(|| socket::is_readable(self.socket.as_fd()));
        let bytes = socket::recv_bytes(self.socket.as_fd(), rx, received);
        if let Err(MessageError::FdsCut) = bytes {
            // The answer came, but not all that came with it: the next request is answered as ever.
            received.clear();
            return Err(HostError::io(what(), rustix::io::Errno::MFILE));
        }
        let reply: Reply = bytes.and_then(socket::decode).map_err(|e| self.broken(&e))?;
        match reply {
            Ok(response) => Ok((response, std::mem::take(received))),
            Err(failure) => {
                Err(HostError::Refused { what: what(), why: failure.why, errno: failure.errno })
            }
        }
    }

    /// Tells, without an answer. What is too long for a message is dropped.
    pub(crate) fn tell(&self, request: &Request) -> Result<(), HostError> {
        self.check()?;
        match self.send(request, &[], &mut self.buffers.lock().tx) {
            Err(MessageError::TooLong) | Ok(()) => Ok(()),
            Err(e) => Err(self.broken(&e)),
        }
    }

    /// Tells together with the next request, which the caller knows to come soon. For short ones.
    pub(crate) fn tell_with_next(&self, request: &Request) -> Result<(), HostError> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        socket::append(request, &mut buffers.tx).map_err(|e| self.broken(&e))?;
        if buffers.tx.len() > WITH_NEXT { self.send_waiting(&mut buffers.tx) } else { Ok(()) }
    }

    /// Sends what waits for the next request.
    pub(crate) fn flush(&self) -> Result<(), HostError> {
        let mut buffers = self.buffers.lock();
        if buffers.tx.is_empty() {
            return Ok(());
        }
        self.check()?;
        self.send_waiting(&mut buffers.tx)
    }

    /// Sends a request behind those that wait.
    fn send(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        tx: &mut Vec<u8>,
    ) -> Result<(), MessageError> {
        let waiting = tx.len();
        socket::append(request, tx)?;
        if waiting > 0 && tx.len() > MAX_MESSAGE {
            socket::send_bytes(self.socket.as_fd(), &tx[..waiting], &[])?;
            tx.drain(..waiting);
        }
        let sent = socket::send_bytes(self.socket.as_fd(), tx, fds);
        tx.clear();
        sent
    }

    fn send_waiting(&self, tx: &mut Vec<u8>) -> Result<(), HostError> {
        let sent = socket::send_bytes(self.socket.as_fd(), tx, &[]);
        tx.clear();
        sent.map_err(|e| self.broken(&e))
    }

    /// An answer that does not belong to the request.
    pub(crate) fn unexpected(&self, response: &Response) -> HostError {
        let why = format!("an answer that does not belong to the question: {response:?}");
        HostError::Protocol { host: self.host.clone(), why }
    }

    fn check(&self) -> Result<(), HostError> {
        if self.is_gone() || !self.is_ours() {
            return Err(HostError::ServiceGone { host: self.host.clone() });
        }
        Ok(())
    }

    /// After any of these, requests and replies can no longer be told apart.
    fn broken(&self, error: &MessageError) -> HostError {
        let gone = self.set_gone();
        match error {
            MessageError::Closed | MessageError::Io(_) => gone,
            // The socket's timeout.
            MessageError::WouldBlock => {
                let timeout = sockopt::socket_timeout(&self.socket, Timeout::Recv).ok().flatten();
                HostError::Unresponsive {
                    host: self.host.clone(),
                    pid: rdmux_link::peer_credentials(&self.socket).ok().and_then(|peer| peer.pid),
                    why: format!("it said nothing for {:?}", timeout.unwrap_or_default()),
                }
            }
            other => HostError::Protocol { host: self.host.clone(), why: other.to_string() },
        }
    }
}
