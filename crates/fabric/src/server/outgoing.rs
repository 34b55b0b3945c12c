//! What a client has not read yet: messages wait in its socket, and then here.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rdmux_runtime::socket::{self, MessageError};

/// The client closed its end, or the socket is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// Messages for a client whose socket is full.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    waiting: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Outgoing {
    /// Sends a message, or lets it wait behind the others.
    pub(super) fn send(&mut self, socket: impl AsFd, message: &[u8]) -> Result<(), Lost> {
        if self.waiting.is_empty() && try_send(&socket, message)? {
            return Ok(());
        }
        self.bytes += message.len();
        self.waiting.push_back(message.into());
        Ok(())
    }

    /// Sends what waits, as far as it goes.
    pub(super) fn flush(&mut self, socket: impl AsFd) -> Result<(), Lost> {
        while let Some(message) = self.waiting.front() {
            if !try_send(&socket, message)? {
                break;
            }
            self.bytes -= message.len();
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Bytes that wait here.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Messages that wait here.
    pub(super) fn messages(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits here.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Whether the message went.
fn try_send(socket: &impl AsFd, message: &[u8]) -> Result<bool, Lost> {
    match socket::send_bytes(socket.as_fd(), message, &[]) {
        Ok(()) => Ok(true),
        Err(MessageError::WouldBlock) => Ok(false),
        Err(_) => Err(Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_to_a_full_socket_wait_and_come_in_order() {
        let (ours, theirs) = socket::pair().unwrap();
        socket::set_nonblocking(&ours, true).unwrap();
        let mut out = Outgoing::default();
        let mut sent = 0_u32;
        while out.messages() < 3 {
            out.send(&ours, &sent.to_ne_bytes()).unwrap();
            sent += 1;
        }
        assert_eq!(out.bytes(), 12);
        let (mut buf, mut fds) = ([0; 8], Vec::new());
        for expected in 0..sent {
            let got = socket::recv_bytes(theirs.as_fd(), &mut buf, &mut fds).unwrap();
            assert_eq!(got, expected.to_ne_bytes());
            out.flush(&ours).unwrap();
        }
        assert!(out.is_empty() && out.bytes() == 0);
        drop(theirs);
        assert_eq!(out.send(&ours, b"x"), Err(Lost));
    }
}
