//! A socket to a process that may be slow: messages that do not fit are queued, up to a limit.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rdmux_runtime::Share;
use rdmux_runtime::closing::Foreign;

use crate::proto::socket::{self, MessageError};

/// Maximum number of bytes queued for one process.
const MAX_WAITING: usize = 8 << 20;

/// The reason why a process can get no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The queue exceeds its limit: the process did not read for too long.
    Slow,
    /// The process closed its end.
    Closed,
}

/// The service's end of a socket on which only the service sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    socket: Foreign,
    waiting: VecDeque<Message>,
    /// The keys of queued messages that need not be queued twice.
    keys: BTreeSet<u16>,
    /// The share for the bytes of those messages.
    bytes: Share,
    /// Maximum number of messages that may be queued.
    limit: usize,
    /// Whether all messages are held back.
    held: bool,
    /// Whether the kernel refused the descriptors of the next message for now, although the socket has room.
    refused: bool,
}

/// A queued message.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Its key, if it need not be queued twice.
    key: Option<u16>,
}

impl Outgoing {
    /// Makes a pair of sockets. Returns this end, as kept by `keep`, and the other end. At most `limit` messages are
    /// queued, of [`MAX_WAITING`] bytes together, and no more than the share `bytes`, which is empty at first, allows its
    /// user.
    pub(super) fn pair(
        limit: usize,
        bytes: Share,
        keep: impl FnOnce(OwnedFd) -> Foreign,
    ) -> std::io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socket::pair()?;
        socket::set_nonblocking(&ours, true)?;
        let (socket, waiting, keys) = (keep(ours), VecDeque::new(), BTreeSet::new());
        let (held, refused) = (false, false);
        Ok((Self { socket, waiting, keys, bytes, limit, held, refused }, theirs))
    }

    /// Sends a message, or queues it.
    pub(super) fn send(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(), Lost> {
        self.send_or_queue(bytes, fds, None)
    }

    /// Sends a message, or queues it unless one with the same key is queued, which then stands for both. Repetitions
    /// therefore do not fill the queue.
    pub(super) fn send_once(&mut self, key: u16, bytes: &[u8]) -> Result<(), Lost> {
        if self.keys.contains(&key) {
            return Ok(());
        }
        self.send_or_queue(bytes, Vec::new(), Some(key))
    }

    /// Makes the next message with this key be queued again, because it must follow the messages queued by now.
    pub(super) fn renew(&mut self, key: u16) {
        self.keys.remove(&key);
    }

    fn send_or_queue(
        &mut self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        key: Option<u16>,
    ) -> Result<(), Lost> {
        if self.is_free() && self.try_send(bytes, &fds)? {
            return Ok(());
        }
        let is_full = self.bytes.count() + bytes.len() > MAX_WAITING;
        if self.waiting.len() >= self.limit || is_full || self.bytes.take(bytes.len()).is_err() {
            return Err(Lost::Slow);
        }
        self.waiting.push_back(Message { bytes: bytes.to_vec(), fds, key });
        self.keys.extend(key);
        Ok(())
    }

    /// Sends a message that may be lost, only if that is possible at once. Returns whether it was sent.
    pub(super) fn offer(&mut self, bytes: &[u8]) -> Result<bool, Lost> {
        if self.is_free() { self.try_send(bytes, &[]) } else { Ok(false) }
    }

    /// Sends queued messages, as many as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        while !self.held
            && let Some(message) = self.waiting.pop_front()
        {
            if !self.try_send(&message.bytes, &message.fds)? {
                self.waiting.push_front(message);
                break;
            }
            self.bytes.set(self.bytes.count() - message.bytes.len());
            if let Some(key) = message.key {
                self.keys.remove(&key);
            }
        }
        Ok(())
    }

    /// Holds back all messages until [`take_waiting`](Self::take_waiting).
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    fn is_free(&self) -> bool {
        !self.held && self.waiting.is_empty()
    }

    /// Returns the queued messages, without their descriptors. Later messages are sent again.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        self.held = false;
        self.refused = false;
        self.bytes.set(0);
        self.keys.clear();
        std::mem::take(&mut self.waiting).into_iter().map(|message| message.bytes)
    }

    /// Returns whether messages wait for the socket to be writable.
    pub(super) fn is_waiting(&self) -> bool {
        !self.held && !self.waiting.is_empty()
    }

    /// Returns whether the kernel refused the descriptors of the next message. That the socket is writable then means nothing.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns how many descriptors are queued with the messages.
    pub(super) fn waiting_descriptors(&self) -> usize {
        self.waiting.iter().map(|message| message.fds.len()).sum()
    }

    fn try_send(&mut self, bytes: &[u8], fds: &[OwnedFd]) -> Result<bool, Lost> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let sent = socket::send_bytes(self.socket.as_fd(), bytes, &fds);
        self.refused = sent.as_ref().is_err_and(is_refused);
        match sent {
            Ok(()) => Ok(true),
            Err(MessageError::WouldBlock) => Ok(false),
            Err(MessageError::Io(e)) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            Err(_) if self.refused => Ok(false),
            Err(_) => Err(Lost::Closed),
        }
    }
}

/// Returns whether a message was not sent because too many descriptors are in flight (unix(7)).
pub(super) fn is_refused(error: &MessageError) -> bool {
    matches!(error, MessageError::Io(e) if e.raw_os_error() == Some(libc::ETOOMANYREFS))
}

impl AsFd for Outgoing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_runtime::Shares;
    use rdmux_runtime::closing::Closer;

    fn pair(limit: usize) -> (Outgoing, OwnedFd) {
        let bytes = Shares::new(usize::MAX).none(1);
        Outgoing::pair(limit, bytes, |fd| Closer::default().socket(0, fd)).unwrap()
    }

    #[test]
    fn messages_beyond_socket_buffer_are_queued_in_order_up_to_a_limit() {
        let (mut out, theirs) = pair(3);
        let message = |n: u32| [&n.to_ne_bytes()[..], &[0; 8192]].concat();
        let mut sent = 0;
        let lost = loop {
            match out.send(&message(sent), Vec::new()) {
                Ok(()) => sent += 1,
                Err(lost) => break lost,
            }
        };
        assert_eq!(lost, Lost::Slow);
        assert_eq!(out.waiting.len(), 3);
        assert_eq!(out.offer(&message(sent)), Ok(false));
        let (mut buf, mut fds) = (vec![0; 16384], Vec::new());
        for n in 0..sent {
            let got = socket::recv_bytes(theirs.as_fd(), &mut buf, &mut fds).unwrap();
            assert_eq!(got[..4], n.to_ne_bytes());
            out.flush().unwrap();
        }
        assert!(!out.is_waiting());
        drop(theirs);
        assert_eq!(out.send(b"x", Vec::new()), Err(Lost::Closed));
    }

    #[test]
    fn queued_messages_are_bounded_in_bytes() {
        let (mut out, theirs) = pair(usize::MAX);
        let message = [0; 8192];
        let fill = |out: &mut Outgoing| {
            let fits = 4 * MAX_WAITING / message.len();
            (0..fits).find_map(|_| out.send(&message, Vec::new()).err())
        };
        assert_eq!(fill(&mut out), Some(Lost::Slow));
        assert_eq!(out.waiting.len(), MAX_WAITING / message.len());
        // Messages that are sent or taken back no longer count.
        let (mut buf, mut fds) = (vec![0; 16384], Vec::new());
        while out.is_waiting() {
            socket::recv_bytes(theirs.as_fd(), &mut buf, &mut fds).unwrap();
            out.flush().unwrap();
        }
        assert_eq!(fill(&mut out), Some(Lost::Slow));
        assert_eq!(out.waiting.len(), MAX_WAITING / message.len());
        out.hold();
        assert_eq!(out.take_waiting().count(), MAX_WAITING / message.len());
        assert_eq!(fill(&mut out), Some(Lost::Slow));
        assert_eq!(out.waiting.len(), MAX_WAITING / message.len());
    }
}
