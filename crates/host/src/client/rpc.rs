//! Requests and replies on one socket: either one reply for each request, or requests without replies. Only threads that wait for a reply
//! themselves wait for that of another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdmux_link::spin_wait;
use rustix::net::sockopt::{self, Timeout};
use rustix::process::Pid;

use super::reports::{Reports, Wakeups, Worth};
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
    /// Locked from a request until its reply.
    replies: Mutex<Replies>,
    /// Requests that are held back and sent with the next one. Locked while something is sent. A thread that has both locks took this one
    /// last.
    tx: Mutex<Vec<u8>>,
    reports: Reports,
    /// What wakes the thread that sends reports when there is room for them.
    wakeups: Option<Wakeups>,
    gone: AtomicBool,
    /// The process that connected: a forked child shares the socket, but must not use it.
    owner: Pid,
}

#[derive(Debug)]
struct Replies {
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
        let session = Self::new(host, socket);
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

    fn new(host: &HostName, socket: OwnedFd) -> Self {
        Self {
            host: host.clone(),
            socket,
            replies: Mutex::new(Replies { rx: vec![0; MAX_MESSAGE], fds: Vec::new() }),
            tx: Mutex::default(),
            reports: Reports::default(),
            wakeups: None,
            gone: AtomicBool::new(false),
            owner: rustix::process::getpid(),
        }
    }

    /// Makes `wakeups` readable when reports wait and the service has room for them.
    pub(super) fn wake_by(&mut self, wakeups: Wakeups) {
        self.wakeups = Some(wakeups);
    }

    /// Returns what was passed to [`wake_by`](Self::wake_by).
    pub(super) fn wakeups(&self) -> Option<&Wakeups> {
        self.wakeups.as_ref()
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
        let mut replies = self.replies.lock();
        let Replies { rx, fds: received } = &mut *replies;
        if let Err(e) = self.send(|tx| self.send_request(request, fds, tx)) {
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
        let sent = self.send(|tx| self.send_request(request, &[], tx));
        sent.map_err(|e| self.unsent(&e, || "tell the service".to_owned()))
    }

    /// Queues a short request to be sent with the next one. The caller must know that the next one follows soon.
    pub(crate) fn tell_with_next(&self, request: &Request) -> Result<(), HostError> {
        self.check()?;
        let sent = self.send(|tx| {
            socket::append(request, tx)?;
            if tx.len() > WITH_NEXT { self.send_waiting(tx) } else { Ok(()) }
        });
        sent.map_err(|e| self.broken(&e))
    }

    /// Sends the requests that are held back.
    pub(crate) fn flush(&self) -> Result<(), HostError> {
        let sent = self.send(|tx| match tx.is_empty() {
            true => Ok(()),
            false if self.check().is_err() => Err(MessageError::Closed),
            false => self.send_waiting(tx),
        });
        sent.map_err(|e| self.broken(&e))
    }

    /// Makes a report, a request that has no reply, without waiting: not for room in the socket, and not for another thread. Returns
    /// false if too many reports wait and this one was dropped.
    pub(super) fn report(&self, report: &Request, worth: Worth) -> bool {
        if self.check().is_err() {
            // The service releases what this process had.
            return true;
        }
        let is_kept = self.reports.push(report, worth);
        self.send_reports();
        is_kept
    }

    /// Sends the reports that wait, as far as there is room. Does not wait.
    pub(super) fn send_reports(&self) {
        while self.reports.is_waiting() {
            // The thread that has the lock will call this function.
            let Some(_sending) = self.tx.try_lock() else { return };
            match self.send_reports_now() {
                Ok(true) => {}
                Ok(false) => return,
                // The rest is discarded.
                Err(e) => drop(self.broken(&e)),
            }
        }
    }

    /// Sends the reports that wait. The caller has the lock for sending. Returns false if there is no room for some of them.
    fn send_reports_now(&self) -> Result<bool, MessageError> {
        if !self.reports.is_waiting() {
            return Ok(true);
        }
        // A forked child shares `wakeups`, too.
        if !self.is_ours() {
            return Ok(false);
        }
        let (socket, wakeups) = (self.socket.as_fd(), self.wakeups());
        while let Some(message) = self.reports.take(socket, wakeups) {
            // After the end of the service, this empties the queue.
            if self.is_gone() {
                continue;
            }
            match socket::try_send_bytes(socket, &message) {
                Ok(()) => {}
                Err(MessageError::WouldBlock) => {
                    self.reports.put_back(message, socket, wakeups);
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Locks the socket for sending, and calls `send`. Reports that wait are sent before, if there is room, and after.
    fn send(
        &self,
        send: impl FnOnce(&mut Vec<u8>) -> Result<(), MessageError>,
    ) -> Result<(), MessageError> {
        let sent = {
            let mut tx = self.tx.lock();
            self.send_reports_now().and_then(|_| send(&mut tx))
        };
        // Those that other threads made meanwhile.
        self.send_reports();
        sent
    }

    /// Sends a request after those that are held back. Nothing of a request that is too long is sent.
    fn send_request(
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

    fn send_waiting(&self, tx: &mut Vec<u8>) -> Result<(), MessageError> {
        let sent = socket::send_bytes(self.socket.as_fd(), tx, &[]);
        tx.clear();
        sent
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
        (Session::new(&HostName::default(), ours), theirs)
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

    /// Waits until `fd` is readable. Returns false if that takes too long.
    fn becomes_readable(fd: BorrowedFd<'_>) -> bool {
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)) == Ok(1)
    }

    fn stream_ended(number: u64) -> Request {
        Request::StreamEnded { qpn: rdmux_wire::Qpn::QP1, number }
    }

    #[test]
    fn report_does_not_wait_for_the_reply_to_another_thread() {
        let (session, service) = session();
        std::thread::scope(|threads| {
            threads.spawn(|| session.call(&Request::Stay, || "have it stay".to_owned()).unwrap());
            assert!(becomes_readable(service.as_fd()));
            assert_eq!(received(&service).unwrap(), [Request::Stay]);
            threads.spawn(|| assert!(session.report(&stream_ended(1), Worth::Needed)));
            let is_reported = becomes_readable(service.as_fd());
            socket::send(service.as_fd(), &Reply::Ok(Response::Done), &[], &mut Vec::new())
                .unwrap();
            assert!(is_reported, "it waits");
        });
        assert_eq!(received(&service).unwrap(), [stream_ended(1)]);
    }

    #[test]
    fn report_without_room_does_not_wait_and_is_sent_when_there_is_room() {
        let (mut session, service) = session();
        let (_notify, notified) = socket::pair().unwrap();
        session.wake_by(Wakeups::new(notified.as_fd()).unwrap());
        let is_woken = || socket::is_readable(session.wakeups().unwrap().as_fd());
        let (src, dst) = (([192, 0, 2, 1], 4791).into(), [192, 0, 2, 2].into());
        let stray = Request::Stray { src, dst, bytes: vec![0; 4096] };
        // With the socket full, some strays are queued, and then they are dropped.
        let kept = (0..1000).take_while(|_| session.report(&stray, Worth::Droppable)).count();
        assert!((1..1000).contains(&kept), "{kept}");
        // These are queued in any case.
        let ended: Vec<_> = (0..10_000).map(stream_ended).collect();
        assert!(ended.iter().all(|ended| session.report(ended, Worth::Needed)));
        assert!(!is_woken());

        let mut all = Vec::new();
        loop {
            match received(&service) {
                Ok(requests) => all.extend(requests),
                Err(MessageError::WouldBlock) if is_woken() => session.send_reports(),
                Err(e) => break assert!(matches!(e, MessageError::WouldBlock), "{e}"),
            }
        }
        let (strays, others) = all.split_at(kept);
        assert!(strays.iter().all(|request| *request == stray));
        assert!(others == ended);
        assert!(!session.reports.is_waiting());
    }

    #[test]
    fn reports_of_an_ended_session_are_discarded() {
        let (mut session, service) = session();
        let (_notify, notified) = socket::pair().unwrap();
        session.wake_by(Wakeups::new(notified.as_fd()).unwrap());
        let is_waiting = || session.reports.is_waiting();
        assert!((0..1_000_000).map(stream_ended).any(|ended| {
            session.report(&ended, Worth::Needed);
            is_waiting()
        }));
        drop(service);
        assert!(socket::is_readable(session.wakeups().unwrap().as_fd()));
        session.send_reports();
        assert!(session.is_gone() && !is_waiting());
        assert!(!socket::is_readable(session.wakeups().unwrap().as_fd()));
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
