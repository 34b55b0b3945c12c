//! One connection: bytes out, messages in, never blocking.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_wire::acm::client::{Frame, Reply as Message};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::{Error, Reply};

/// How much is received at once.
const CHUNK: usize = 4096;

/// A connected socket, what waits to be sent, and what has been received of a message.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    out: Vec<u8>,
    input: Vec<u8>,
}

/// A message that has arrived: the number of its request, and the answer.
pub(crate) type Arrived = (u64, Result<Reply, Error>);

impl Connection {
    /// By a socket that does not block.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, out: Vec::new(), input: Vec::new() }
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

    /// The next message, if it is there whole. After an error the connection is of no more use.
    pub(crate) fn receive(&mut self) -> Result<Option<Arrived>, Error> {
        loop {
            if let Frame::Whole(len) = Frame::of_reply(&self.input).map_err(Error::Protocol)? {
                let message = Message::parse(&self.input[..len]).map_err(Error::Protocol)?;
                let arrived = (message.tid, Reply::of(message.answer));
                self.input.drain(..len);
                return Ok(Some(arrived));
            }
            let mut chunk = [0; CHUNK];
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.fd, &mut chunk, RecvFlags::DONTWAIT)
            });
            match received {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(Error::Closed),
                Ok((len, _)) => self.input.extend_from_slice(&chunk[..len.min(CHUNK)]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(Error::System("cannot receive from the ACM service", e)),
            }
        }
    }

    /// Whether nothing has been received since the last message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.input.is_empty() && self.out.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
