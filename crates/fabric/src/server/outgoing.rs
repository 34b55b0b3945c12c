//! Messages that a client has not read yet: they are queued in its socket, and then here.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rdmux_runtime::Share;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    MMsgHdr, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmmsg, sendmsg,
};

/// The client closed its end, or the socket is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// Queued messages: the client's socket is full, or they are sent later in the turn.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    waiting: VecDeque<Message>,
    bytes: usize,
    /// The user's share of the bytes that are queued here, if they are limited.
    share: Option<Share>,
    /// Whether the socket was full at the last attempt. Then the next one waits until it has room.
    full: bool,
}

/// A message and its descriptor.
#[derive(Debug)]
struct Message {
    bytes: Box<[u8]>,
    fd: Option<OwnedFd>,
}

/// Maximum number of bytes that are queued for a client, besides those in its socket, if they are limited.
const MAX_WAITING: usize = 16 << 20;
/// Number of these bytes that every client may have, whatever others of its user have.
const FREE: usize = 64 << 10;

/// Maximum number of messages that one call sends.
const AT_ONCE: usize = 32;

impl Outgoing {
    /// Sends a message, or queues it after the others.
    pub(super) fn send(
        &mut self,
        socket: impl AsFd,
        message: &[u8],
        fd: Option<OwnedFd>,
    ) -> Result<(), Lost> {
        self.push_with(message, fd);
        self.try_flush(socket)
    }

    /// Limits what is queued, within the share of its user.
    pub(super) fn limit(&mut self, share: Share) {
        self.share = Some(share);
    }

    /// Returns whether another record of `len` bytes may be queued.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let total = self.bytes.saturating_add(len);
        let has_share = || self.share.as_ref().is_none_or(|share| share.check(len).is_ok());
        (self.bytes == 0 || total <= MAX_WAITING) && (total <= FREE || has_share())
    }

    fn charge(&mut self) {
        if let Some(share) = &mut self.share {
            share.set(self.bytes);
        }
    }

    /// Queues a message.
    pub(super) fn push(&mut self, message: &[u8]) {
        self.push_with(message, None);
    }

    fn push_with(&mut self, message: &[u8], fd: Option<OwnedFd>) {
        self.bytes += message.len();
        self.waiting.push_back(Message { bytes: message.into(), fd });
        self.charge();
    }

    /// Sends queued messages, as many as the socket takes, unless it was full.
    pub(super) fn try_flush(&mut self, socket: impl AsFd) -> Result<(), Lost> {
        if self.full { Ok(()) } else { self.flush(socket) }
    }

    /// Sends queued messages, as many as the socket takes.
    pub(super) fn flush(&mut self, socket: impl AsFd) -> Result<(), Lost> {
        self.full = false;
        while !self.waiting.is_empty() && !self.full {
            // A message with a descriptor is sent alone.
            let alone = self.waiting.iter().take(AT_ONCE).position(|message| message.fd.is_some());
            let tried = alone.map_or(self.waiting.len().min(AT_ONCE), |before| before.max(1));
            let went = try_send(&socket, self.waiting.range(..tried))?;
            self.full = went < tried;
            for message in self.waiting.drain(..went) {
                self.bytes -= message.bytes.len();
            }
            self.charge();
        }
        Ok(())
    }

    /// Returns how many bytes are queued here.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many messages are queued here.
    pub(super) fn messages(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no messages are queued here.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Sends messages. Returns how many were sent, from the first on.
fn try_send<'m>(
    socket: &impl AsFd,
    mut messages: impl ExactSizeIterator<Item = &'m Message>,
) -> Result<usize, Lost> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = match (messages.len(), messages.next()) {
        (1, Some(Message { bytes, fd: Some(fd) })) => {
            let (bytes, fds) = ([IoSlice::new(bytes)], [fd.as_fd()]);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // There is room for one descriptor.
            control.push(SendAncillaryMessage::ScmRights(&fds));
            retry_on_intr(|| sendmsg(socket, &bytes, &mut control, flags)).map(|_| 1)
        }
        (1, Some(message)) => retry_on_intr(|| send(socket, &message.bytes, flags)).map(|_| 1),
        (_, first) => {
            let parts: Vec<_> =
                first.into_iter().chain(messages).map(|m| [IoSlice::new(&m.bytes)]).collect();
            let mut control: Vec<_> = parts.iter().map(|_| Control::default()).collect();
            let headers = parts.iter().zip(&mut control);
            let mut headers: Vec<_> = headers.map(|(part, c)| MMsgHdr::new(part, c)).collect();
            retry_on_intr(|| sendmmsg(socket, &mut headers, flags))
        }
    };
    match sent {
        Err(Errno::AGAIN) => Ok(0),
        sent => sent.map_err(|_| Lost),
    }
}

/// Control data of a message without descriptors.
type Control = SendAncillaryBuffer<'static, 'static, 'static>;

#[cfg(test)]
mod tests {
    use rdmux_runtime::socket;

    use super::*;

    #[test]
    fn messages_to_a_full_socket_wait_and_come_in_order() {
        let (ours, theirs) = socket::pair().unwrap();
        let mut out = Outgoing::default();
        let mut sent = 0_u32;
        while out.messages() < 3 {
            out.send(&ours, &sent.to_ne_bytes(), None).unwrap();
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
        assert_eq!(out.send(&ours, b"x", None), Err(Lost));
    }

    #[test]
    fn queued_records_are_within_the_share_of_their_user() {
        let shares = rdmux_runtime::Shares::of(1000, 2 * MAX_WAITING);
        let (ours, theirs) = socket::pair().unwrap();
        let make = |user| {
            let mut out = Outgoing::default();
            out.limit(shares.none(user));
            out
        };
        let [mut first, mut second, mut third] = [1, 1, 1000].map(make);
        assert!(first.has_room(MAX_WAITING), "a single one may be long");
        let record = vec![7; MAX_WAITING / 2];
        for _ in 0..2 {
            assert!(first.has_room(record.len()));
            first.push(&record);
            third.push(&record);
        }
        assert!(![&first, &third].iter().any(|out| out.has_room(1)), "too much for a connection");
        assert!(second.has_room(FREE) && !second.has_room(FREE + 1));
        second.push(&record[..FREE]);
        assert!(!second.has_room(1));
        assert!(make(1000).has_room(2 * MAX_WAITING) && make(2).has_room(MAX_WAITING / 4));
        drop(first);
        assert!(second.has_room(record.len()));
        second.flush(&ours).unwrap();
        assert!(make(1).has_room(MAX_WAITING));
        drop((second, theirs));
    }

    #[test]
    fn queued_messages_are_flushed_in_order() {
        let (ours, theirs) = socket::pair().unwrap();
        socket::set_nonblocking(&theirs, true).unwrap();
        let mut out = Outgoing::default();
        let count = u8::try_from(AT_ONCE * 2 + 1).unwrap();
        for n in 0..count {
            out.push(&[n; 3]);
        }
        let (mut buf, mut fds) = ([0; 8], Vec::new());
        let mut receive =
            || socket::recv_bytes(theirs.as_fd(), &mut buf, &mut fds).map(<[u8]>::to_vec);
        assert!(receive().is_err());
        assert_eq!((out.messages(), out.bytes()), (count.into(), 3 * usize::from(count)));
        out.try_flush(&ours).unwrap();
        assert!(out.is_empty() && out.bytes() == 0);
        for n in 0..count {
            assert_eq!(receive().unwrap(), [n; 3]);
        }
    }

    #[test]
    fn descriptors_come_with_their_messages_also_through_a_full_socket() {
        let (ours, theirs) = socket::pair().unwrap();
        let mut out = Outgoing::default();
        let mut before = 0;
        while out.is_empty() {
            out.send(&ours, b"before", None).unwrap();
            before += 1;
        }
        for message in [b"with", b"next"] {
            out.send(&ours, message, Some(ours.try_clone().unwrap())).unwrap();
        }
        out.send(&ours, b"last", None).unwrap();
        let (mut buf, mut fds, mut came) = ([0; 8], Vec::new(), Vec::new());
        for _ in 0..before + 3 {
            let got = socket::recv_bytes(theirs.as_fd(), &mut buf, &mut fds).unwrap().to_vec();
            came.push((got, fds.len()));
            out.flush(&ours).unwrap();
        }
        let expected =
            [(&b"with"[..], 1), (b"next", 1), (b"last", 0)].map(|(m, n)| (m.to_vec(), n));
        assert_eq!(came.split_off(before), expected);
        assert!(came.iter().all(|(message, fds)| message == b"before" && *fds == 0));
    }

    #[test]
    fn socket_that_was_full_is_tried_again_only_when_it_has_room() {
        let (ours, theirs) = socket::pair().unwrap();
        let mut out = Outgoing::default();
        while out.is_empty() {
            out.send(&ours, b"x", None).unwrap();
        }
        let (mut buf, mut fds) = ([0; 8], Vec::new());
        socket::recv_bytes(theirs.as_fd(), &mut buf, &mut fds).unwrap();
        out.try_flush(&ours).unwrap();
        assert_eq!(out.messages(), 1, "the poller has not said that there is room");
        out.flush(&ours).unwrap();
        assert!(out.is_empty());
    }
}
