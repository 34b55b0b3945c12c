//! A client's socket, with its buffered input and output.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rdmux_acm::{RequestId, Time};
use rdmux_runtime::closing::{Closer, Foreign};
use rdmux_runtime::socket;
use rdmux_wire::acm::client::{Frame, Header, Refusal, Reply, Request};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Limits;
use crate::listen::Peer;
use crate::poller::{Interest, Poller, Token};
use crate::resolver::Resolver;

/// Number of bytes that are read at once and buffered at most: some hundred messages.
pub(super) const INPUT: usize = 16 << 10;
/// The capacity that a client's buffers keep while they are not in use.
const KEPT: usize = 4096;

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    socket: Foreign,
    peer: Peer,
    /// The bytes read. `taken` of them are processed.
    input: Vec<u8>,
    taken: usize,
    /// The length of the next message, if it has arrived completely.
    next: Option<usize>,
    /// The bytes of answers to send. `sent` of them are sent.
    output: Vec<u8>,
    sent: usize,
    /// The start of the last answer in `output`.
    last: usize,
    /// The outstanding requests, in the order of their numbers, with their transaction IDs.
    requests: Vec<(RequestId, u64)>,
    interest: Interest,
    /// Whether the client's socket is polled directly, not by the poller.
    direct: bool,
    /// Whether the client will send nothing more.
    ended: bool,
    /// Whether the client's socket has failed.
    broken: bool,
    /// Whether the client sent an invalid message.
    malformed: bool,
    /// Whether the client has read something since the last check.
    took: bool,
    /// Whether the client has sent requests, and all of them had transaction IDs: see [`idle_since`](Self::idle_since).
    reconnects: Option<bool>,
    /// The time since which the client has been idle, if it is, and whether it has been busy since the last check.
    since: Instant,
    was_busy: bool,
}

impl Client {
    pub(super) fn new(socket: Foreign, peer: Peer, now: Instant) -> Self {
        Self {
            socket,
            peer,
            input: Vec::new(),
            taken: 0,
            next: None,
            output: Vec::new(),
            sent: 0,
            last: 0,
            requests: Vec::new(),
            interest: Interest::Read,
            direct: false,
            ended: false,
            broken: false,
            malformed: false,
            took: false,
            reconnects: None,
            since: now,
            was_busy: false,
        }
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Records an outstanding request. Its number is higher than all before.
    pub(super) fn begin(&mut self, request: RequestId, tid: u64) {
        self.requests.push((request, tid));
    }

    /// Removes a request that is answered. Returns its transaction ID.
    pub(super) fn end(&mut self, request: RequestId) -> Option<u64> {
        let at = self.requests.binary_search_by_key(&request, |(id, _)| *id).ok()?;
        Some(self.requests.remove(at).1)
    }

    /// Reads available bytes through a buffer that all clients share, up to the limit of what is buffered ahead. Returns false if
    /// there was nothing to read, not even an end or an error.
    pub(super) fn fill(
        &mut self,
        limits: &Limits,
        buffer: &mut [u8; INPUT],
        closer: &Closer,
    ) -> bool {
        if !self.may_read(limits) {
            return false;
        }
        self.input.drain(..self.taken);
        self.taken = 0;
        let room = INPUT - self.input.len();
        let (user, mut passed) = (self.peer.user(), false);
        let keep = |fd| {
            passed = true;
            drop(closer.foreign(user, fd));
        };
        match socket::try_read(self.socket.as_fd(), &mut buffer[..room], keep) {
            // No request carries descriptors.
            Ok(_) if passed => self.malformed = true,
            Ok(0) => self.ended = true,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return false,
            Err(_) => self.broken = true,
        }
        // Only the first message can be invalid now; the others are checked in their turn.
        self.find_next();
        true
    }

    /// Returns whether a complete message is buffered.
    pub(super) fn has_message(&self) -> bool {
        self.next.is_some()
    }

    fn find_next(&mut self) {
        let frame = Frame::of_request(&self.input[self.taken..]);
        self.malformed |= frame.is_err();
        self.next = match frame {
            Ok(Frame::Whole(len)) if !self.malformed => Some(len),
            _ => None,
        };
    }

    /// Returns whether the client's next message may be taken: its outstanding requests and unread answers are not too many.
    pub(super) fn may_ask(&self, limits: &Limits) -> bool {
        self.requests.len() < limits.requests && self.unread() < limits.unread && !self.broken
    }

    fn may_read(&self, limits: &Limits) -> bool {
        let room = self.input.len() - self.taken < INPUT;
        room && !self.ended && !self.malformed && self.may_ask(limits)
    }

    /// Takes the next message.
    pub(super) fn take(&mut self) -> Option<Result<Request, Refusal>> {
        let message = self.input.get(self.taken..self.taken + self.next?)?;
        let (request, len) = (Request::parse(message), message.len());
        self.step(len);
        Some(request)
    }

    /// Answers the next message if its answer is cached, and removes it. Returns whether it did.
    pub(super) fn answer_known(&mut self, resolver: &mut Resolver, now: Time) -> bool {
        let next = self.next.and_then(|len| self.input.get(self.taken..self.taken + len));
        let Some(message) = next else { return false };
        let Some(answer) = resolver.known(now, message) else { return false };
        let (len, last) = (message.len(), self.output.len());
        self.output.extend_from_slice(answer);
        self.output[last..][Header::TID].copy_from_slice(&message[Header::TID]);
        self.last = last;
        self.step(len);
        true
    }

    /// Returns the last answer, unless it was sent already.
    pub(super) fn last_answer(&self) -> &[u8] {
        self.output.get(self.last..).unwrap_or_default()
    }

    /// Advances past the next message, which has this length.
    fn step(&mut self, len: usize) {
        let tid = self.input.get(self.taken..self.taken + len).and_then(|m| m.get(Header::TID));
        let has_tid = tid.is_some_and(|tid| tid.iter().any(|byte| *byte != 0));
        self.reconnects = Some(self.reconnects.unwrap_or(true) && has_tid);
        self.was_busy = true;
        self.taken += len;
        if self.taken == self.input.len() {
            self.taken = 0;
            self.next = None;
            self.input.clear();
            self.input.shrink_to(KEPT);
        } else {
            self.find_next();
        }
    }

    /// Appends an answer to the output.
    pub(super) fn answer(&mut self, reply: &Reply<'_>) {
        self.last = self.output.len();
        self.output.resize(self.last + reply.wire_len(), 0);
        reply.emit(&mut self.output[self.last..]);
    }

    /// Appends an encoded answer to the output.
    pub(super) fn answer_bytes(&mut self, message: &[u8]) {
        self.last = self.output.len();
        self.output.extend_from_slice(message);
    }

    /// Sends as much of the output as the socket accepts, by one call if it accepts everything.
    pub(super) fn flush(&mut self) {
        while self.unread() > 0 {
            let output = std::mem::take(&mut self.output);
            let sent = self.send(&output[self.sent..]);
            self.output = output;
            self.sent += sent;
            if sent == 0 {
                return;
            }
        }
        self.output.clear();
        self.output.shrink_to(KEPT);
        self.sent = 0;
    }

    /// Sends without blocking and without a signal. Returns how many bytes the socket accepted.
    fn send(&mut self, bytes: &[u8]) -> usize {
        if self.broken {
            return 0;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.socket, bytes, flags) {
            Ok(count) => {
                self.took |= count > 0;
                self.was_busy |= count > 0;
                count
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => {
                self.broken = true;
                0
            }
        }
    }

    /// Returns the bytes of answers that the client has not read.
    fn unread(&self) -> usize {
        self.output.len() - self.sent
    }

    pub(super) fn has_unread(&self) -> bool {
        self.unread() > 0
    }

    /// Returns whether the client has read something since the last call.
    pub(super) fn took_some(&mut self) -> bool {
        std::mem::take(&mut self.took)
    }

    /// Records the time if the client was busy since the last call.
    pub(super) fn note_time(&mut self, now: Instant) {
        if std::mem::take(&mut self.was_busy) {
            self.since = now;
        }
    }

    /// Returns the time since which the client has been idle; none if it is not, or would not connect again after its connection was
    /// closed.
    ///
    /// librdmacm of rdma-core keeps its connection for the program's life, does not connect again, and sends without MSG_NOSIGNAL, so that
    /// SIGPIPE would end the program. Its requests have the transaction ID 0.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let rests = self.requests.is_empty() && self.unread() == 0 && self.input.is_empty();
        (rests && !self.was_busy && self.reconnects == Some(true)).then_some(self.since)
    }

    /// Returns whether bytes have arrived that are not read.
    pub(super) fn has_unread_input(&self) -> bool {
        rustix::io::ioctl_fionread(&self.socket).is_ok_and(|count| count > 0)
    }

    pub(super) fn is_malformed(&self) -> bool {
        self.malformed
    }

    /// Returns whether the client can be removed.
    pub(super) fn is_through(&self) -> bool {
        let rests = self.requests.is_empty() && self.unread() == 0;
        self.broken || self.ended && rests && !self.has_message()
    }

    /// Updates the poller's registration to what the client may do next.
    pub(super) fn watch(&mut self, token: Token, poller: &Poller, limits: &Limits) {
        let interest = Interest::of(self.may_read(limits), self.unread() > 0);
        if interest != self.interest {
            self.interest = interest;
            if !self.direct {
                poller.change(&self.socket, token, interest);
            }
        }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Moves its socket from the poller to direct polling, or back. Returns whether that succeeded.
    pub(super) fn set_direct(&mut self, direct: bool, token: Token, poller: &Poller) -> bool {
        if direct {
            poller.remove(&self.socket);
        } else if let Err(e) = poller.add(&self.socket, token, self.interest) {
            tracing::warn!("cannot watch a client's socket: {e}");
            return false;
        }
        self.direct = direct;
        true
    }

    /// Returns the client's socket and events, for poll(2).
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let flags = match self.interest {
            Interest::Nothing | Interest::End => PollFlags::empty(),
            Interest::Read => PollFlags::IN,
            Interest::ReadWrite => PollFlags::IN | PollFlags::OUT,
            Interest::Write => PollFlags::OUT,
        };
        PollFd::new(&self.socket, flags)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
