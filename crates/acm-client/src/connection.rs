//! One connection: bytes out, messages in, never blocking.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_wire::acm::client::{Frame, Reply as Message};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::{Error, Reply};

/// How much is received at once: some hundred answers.
const CHUNK: usize = 32 << 10;

/// A connected socket, what waits to be sent, and what has been received.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    out: Vec<u8>,
    /// Received bytes, of which the first `taken` have been parsed.
    input: Vec<u8>,
    taken: usize,
}

/// A message that has arrived: the number of its request, and the answer.
pub(crate) type Arrived = (u64, Result<Reply, Error>);

impl Connection {
    /// By a socket that does not block.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, out: Vec::new(), input: Vec::new(), taken: 0 }
    }

    /// Whether something waits to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        !self.out.is_empty()
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Puts a request behind what waits.
    pub(crate) fn put(&mut self, request: &[u8]) {
        self.out.extend_from_slice(request);
    }

    /// Sends as much as there is room for.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        while !self.out.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &self.out, flags)) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::AGAIN) => break,
                // What it has answered before is still there to be received.
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(e) => return Err(Error::System("cannot send to the ACM service", e)),
            }
        }
        Ok(())
    }

    /// Receives once. Returns whether that was all that is there. After an error the connection is of no more use.
    pub(crate) fn receive(&mut self) -> Result<bool, Error> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let received = rustix::io::retry_on_intr(|| {
            self.input.reserve(CHUNK);
            let room = rustix::buffer::spare_capacity(&mut self.input);
            rustix::net::recv(&self.fd, room, RecvFlags::DONTWAIT)
        });
        match received {
            Ok((0, _)) | Err(Errno::CONNRESET) => Err(Error::Closed),
            // What comes later makes the socket readable again.
            Ok((len, _)) => Ok(len < CHUNK),
            Err(Errno::AGAIN) => Ok(true),
            Err(e) => Err(Error::System("cannot receive from the ACM service", e)),
        }
    }

    /// The next message, if it has been received whole. After an error the connection is of no more use.
    pub(crate) fn take(&mut self) -> Result<Option<Arrived>, Error> {
        let waiting = &self.input[self.taken..];
        if let Frame::Whole(len) = Frame::of_reply(waiting).map_err(Error::Protocol)? {
            let message = Message::parse(&waiting[..len]).map_err(Error::Protocol)?;
            let arrived = (message.tid, Reply::of(message.answer));
            self.taken += len;
            return Ok(Some(arrived));
        }
        Ok(None)
    }

    /// Whether nothing has been received since the last message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.input.len() == self.taken && self.out.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
