//! Requests and replies on one socket: either one reply for each request, or requests without replies.

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

/// Maximum number of bytes of requests that are held back until the next one.
const WITH_NEXT: usize = 1024;

/// A connection to a service, after the greeting.
#[derive(Debug)]
pub(crate) struct Session {
    host: HostName,
    socket: OwnedFd,
    buffers: Mutex<Buffers>,
    gone: AtomicBool,
    /// The process that connected: a forked child shares the socket, but must not use it.
    owner: Pid,
}

#[derive(Debug)]
struct Buffers {
    /// Requests that are held back and sent with the next one.
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

    /// Returns the name of the service's host.
    pub(crate) fn host(&self) -> &HostName {
        &self.host
    }

    /// Returns whether the service was found to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Returns whether this process connected, rather than its parent.
    pub(crate) fn is_ours(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    /// Records that the service is gone.
    pub(crate) fn set_gone(&self) -> HostError {
        self.gone.store(true, Ordering::Relaxed);
        HostError::ServiceGone { host: self.host.clone() }
    }

    /// Sends a request and waits for the reply. `what` names the operation in the error.
    pub(crate) fn call(
        &self,
        request: &Request,
        what: impl FnOnce() -> String,
    ) -> Result<Response, HostError> {
        self.call_with_fds(request, &[], what).map(|(response, _)| response)
    }

    /// Like [`call`](Self::call), with descriptors in both directions.
    pub(crate) fn call_with_fds(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        what: impl FnOnce() -> String,
    ) -> Result<(Response, Vec<OwnedFd>), HostError> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        let Buffers { tx, rx, fds: received } = &mut *buffers;
        if let Err(e) = self.send(request, fds, tx) {
            return Err(self.unsent(&e, what));
        }
        spin_wait::look(|| socket::is_readable(self.socket.as_fd()));
        let bytes = socket::recv_bytes(self.socket.as_fd(), rx, received);
        if let Err(MessageError::FdsCut) = bytes {
            // The reply arrived, but not all of its descriptors. Later requests are unaffected.
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

    /// Sends a request that has no reply.
    pub(crate) fn tell(&self, request: &Request) -> Result<(), HostError> {
        self.check()?;
        let sent = self.send(request, &[], &mut self.buffers.lock().tx);
        sent.map_err(|e| self.unsent(&e, || "tell the service".to_owned()))
    }

    /// Queues a short request to be sent with the next one. The caller must know that the next one follows soon.
    pub(crate) fn tell_with_next(&self, request: &Request) -> Result<(), HostError> {
        self.check()?;
        let mut buffers = self.buffers.lock();
        socket::append(request, &mut buffers.tx).map_err(|e| self.broken(&e))?;
        if buffers.tx.len() > WITH_NEXT { self.send_waiting(&mut buffers.tx) } else { Ok(()) }
    }

    /// Sends the requests that are held back.
    pub(crate) fn flush(&self) -> Result<(), HostError> {
        let mut buffers = self.buffers.lock();
        if buffers.tx.is_empty() {
            return Ok(());
        }
        self.check()?;
        self.send_waiting(&mut buffers.tx)
    }

    /// Sends a request after those that are held back. Nothing of a request that is too long is sent.
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

    /// Makes the error for a reply that does not fit the request.
    pub(crate) fn unexpected(&self, response: &Response) -> HostError {
        let why = format!("a reply that does not match the request: {response:?}");
        HostError::Protocol { host: self.host.clone(), why }
    }

    fn check(&self) -> Result<(), HostError> {
        if self.is_gone() || !self.is_ours() {
            return Err(HostError::ServiceGone { host: self.host.clone() });
        }
        Ok(())
    }

    /// Makes the error for a request that was not sent.
    fn unsent(&self, error: &MessageError, what: impl FnOnce() -> String) -> HostError {
        match error {
            MessageError::TooLong => {
                HostError::Refused { what: what(), why: error.to_string(), errno: libc::EMSGSIZE }
            }
            other => self.broken(other),
        }
    }

    /// Ends the session: after any of these errors, requests and replies can no longer be matched. The service sees that its
    /// client left, releases what this process had, and closes its other sockets, which wakes the threads that wait on them.
    fn broken(&self, error: &MessageError) -> HostError {
        let gone = self.set_gone();
        if self.is_ours() {
            // If the socket is closed already, the service has been notified.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
        match error {
            MessageError::Closed | MessageError::Io(_) => gone,
            // The socket's timeout.
            MessageError::WouldBlock => {
                let timeout = sockopt::socket_timeout(&self.socket, Timeout::Recv).ok().flatten();
                HostError::Unresponsive {
                    host: self.host.clone(),
                    pid: rdmux_link::peer_credentials(&self.socket).ok().and_then(|peer| peer.pid),
                    why: format!("no reply for {:?}", timeout.unwrap_or_default()),
                }
            }
            other => HostError::Protocol { host: self.host.clone(), why: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_verbs::control::{Control as _, ControlError, DeviceKind};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::client::{ConnectOptions, EventChannel};
    use crate::names::{Config, RuntimeDir};
    use crate::service::{Service, ServiceOptions};

    /// Returns a session, and the service's end of its socket.
    fn session() -> (Session, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        let buffers = Buffers { tx: Vec::new(), rx: vec![0; MAX_MESSAGE], fds: Vec::new() };
        let session = Session {
            host: HostName::default(),
            socket: ours,
            buffers: Mutex::new(buffers),
            gone: AtomicBool::new(false),
            owner: rustix::process::getpid(),
        };
        (session, theirs)
    }

    /// Returns the requests of one message that the service received.
    fn received(service: &OwnedFd) -> Result<Vec<Request>, MessageError> {
        let (mut buf, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
        let mut bytes = socket::try_recv_bytes(service.as_fd(), &mut buf, &mut fds)?;
        let mut requests = Vec::new();
        while !bytes.is_empty() {
            let (request, rest) = socket::decode_first(bytes)?;
            requests.push(request);
            bytes = rest;
        }
        Ok(requests)
    }

    #[test]
    fn a_request_that_is_too_long_is_refused_and_the_session_goes_on() {
        let (session, service) = session();
        let too_long = Request::PutBack { events: vec![0; MAX_MESSAGE] };
        session.tell_with_next(&Request::NewSlot).unwrap();
        for told in [
            session.call(&too_long, || "put events back".to_owned()).map(|_| ()),
            session.tell(&too_long),
        ] {
            let error = told.unwrap_err();
            assert!(matches!(error, HostError::Refused { .. }), "{error}");
            assert_eq!(error.errno(), libc::EMSGSIZE);
        }
        assert!(!session.is_gone());
        assert_eq!(received(&service).unwrap(), [Request::NewSlot]);
        let reply: Reply = Ok(Response::Done);
        socket::send(service.as_fd(), &reply, &[], &mut Vec::new()).unwrap();
        let answer = session.call(&Request::Stay, || "have it stay".to_owned());
        assert_eq!(answer.unwrap(), Response::Done);
        assert_eq!(received(&service).unwrap(), [Request::Stay]);
    }

    #[test]
    fn a_service_that_does_not_answer_learns_that_its_client_has_left() {
        let (session, service) = session();
        socket::set_nonblocking(&session.socket, true).unwrap();
        let error = session.call(&Request::Stay, || "have it stay".to_owned()).unwrap_err();
        assert!(matches!(error, HostError::Unresponsive { .. }), "{error}");
        assert!(session.is_gone());
        assert_eq!(received(&service).unwrap(), [Request::Stay]);
        let end = received(&service);
        assert!(matches!(end, Err(MessageError::Closed)), "{end:?}");
    }

    #[test]
    fn a_service_whose_answer_is_none_learns_that_its_client_has_left() {
        let (session, service) = session();
        socket::send_bytes(service.as_fd(), &[0xff; 8], &[]).unwrap();
        let error = session.call(&Request::Stay, || "have it stay".to_owned()).unwrap_err();
        assert!(matches!(error, HostError::Protocol { .. }), "{error}");
        assert_eq!(received(&service).unwrap(), [Request::Stay]);
        let end = received(&service);
        assert!(matches!(end, Err(MessageError::Closed)), "{end:?}");
    }

    #[test]
    fn broken_session_wakes_event_waiters_with_service_gone() {
        let dir = rdmux_testing::temp_dir();
        let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
        std::fs::write(runtime.path().join("registry"), "").unwrap();
        let host = HostName::new("test").unwrap();
        let _service = Service::spawn(ServiceOptions::new(host.clone(), runtime.clone())).unwrap();
        let config = Config::default();
        let options = ConnectOptions { dir: runtime, config, embedded: true, program: None };
        let client = options.connect(&host, DeviceKind::default()).unwrap();
        let channel = EventChannel::open(&client).unwrap();
        client.session.broken(&MessageError::WouldBlock);
        let (patience, channel_fd) = (Timespec { tv_sec: 20, tv_nsec: 0 }, channel.as_fd());
        for socket in [channel_fd, client.notify_fd()] {
            let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience));
            assert_eq!(ready, Ok(1), "it waits");
        }
        assert!(matches!(channel.get_event(), Err(HostError::ServiceGone { .. })));
        assert!(matches!(client.poll_event(), Err(ControlError::Gone)));
    }
}
