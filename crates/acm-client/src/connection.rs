//! A nonblocking connection, which sends bytes and receives messages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_wire::acm::client::{Frame, Reply as Message};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::{Error, Reply};

/// The size of a receive call: some hundred answers.
const CHUNK: usize = 32 << 10;

/// A connected socket, with its unsent and its received bytes.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    out: Vec<u8>,
    /// Received bytes. The first `taken` of them have been parsed.
    input: Vec<u8>,
    taken: usize,
}

/// A received message: the number of its request, and the answer.
pub(crate) type Arrived = (u64, Result<Reply, Error>);

impl Connection {
    /// Wraps a nonblocking socket.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, out: Vec::new(), input: Vec::new(), taken: 0 }
    }

    /// Returns whether bytes are waiting to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        !self.out.is_empty()
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Appends a request to the bytes to send.
    pub(crate) fn put(&mut self, request: &[u8]) {
        self.out.extend_from_slice(request);
    }

    /// Sends as much as the socket accepts.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        while !self.out.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &self.out, flags)) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::AGAIN) => break,
                // Answers that it sent before can still be received.
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(e) => return Err(Error::System("cannot send to the ACM service", e)),
            }
        }
        Ok(())
    }

    /// Receives once. Returns whether that was everything available. After an error the connection must not be used
    /// any more.
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
            // Bytes that arrive later make the socket readable again.
            Ok((len, _)) => Ok(len < CHUNK),
            Err(Errno::AGAIN) => Ok(true),
            Err(e) => Err(Error::System("cannot receive from the ACM service", e)),
        }
    }

    /// Returns the next message, if it has been received completely. After an error the connection must not be used
    /// any more.
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

    /// Returns whether nothing has been received since the last message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.input.len() == self.taken && self.out.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
