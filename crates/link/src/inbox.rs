//! Messages of a socket that keeps their borders, several with one system call.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// Buffers for what one call brings. Descriptors that come along with a message are closed by the kernel.
pub struct Inbox {
    data: Box<[u8]>,
    /// None for a message that was too long.
    lengths: Box<[Option<usize>]>,
    /// How many came.
    filled: usize,
}

impl Inbox {
    /// Room for `messages` messages, up to 64, of `bytes` bytes each.
    pub fn new(messages: usize, bytes: usize) -> Self {
        let messages = messages.min(sys::MAX_MESSAGES);
        Self {
            data: vec![0; messages * bytes].into_boxed_slice(),
            lengths: vec![None; messages].into_boxed_slice(),
            filled: 0,
        }
    }

    /// Receives what there is, without blocking, in place of what was there; how many messages, zero when none waits. At
    /// the end of the stream they are empty.
    ///
    /// # Errors
    /// Those of `recvmmsg(2)`; nothing is there then.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.filled = 0;
        self.filled = sys::receive_messages(socket, &mut self.data, &mut self.lengths)?;
        Ok(self.filled)
    }

    /// The messages of the last [`receive`](Self::receive), in order; None in place of one that was too long.
    pub fn messages(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let share = self.data.len() / self.lengths.len().max(1);
        let buffers = self.data.chunks_exact(share.max(1));
        let messages = buffers.zip(&self.lengths).take(self.filled);
        messages.map(|(buffer, length)| length.and_then(|length| buffer.get(..length)))
    }

    /// Whether the last [`receive`](Self::receive) filled all buffers, so that more may wait.
    pub fn is_full(&self) -> bool {
        self.filled == self.lengths.len()
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("lengths", &&self.lengths[..self.filled]).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    #[test]
    fn messages_keep_their_borders_and_one_that_is_too_long_is_told() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut inbox = Inbox::new(3, 8);
        assert_eq!((inbox.receive(&ours).unwrap(), inbox.messages().count()), (0, 0));
        let sent: [&[u8]; 4] = [b"a", b"12345678", b"123456789", b"last"];
        for message in sent {
            send(&theirs, message, SendFlags::empty()).unwrap();
        }
        assert_eq!(inbox.receive(&ours).unwrap(), 3);
        let got: Vec<_> = inbox.messages().collect();
        assert_eq!(got, [Some(sent[0]), Some(sent[1]), None]);
        assert!(inbox.is_full());
        assert_eq!(inbox.receive(&ours).unwrap(), 1);
        assert_eq!(inbox.messages().collect::<Vec<_>>(), [Some(sent[3])]);
        assert!(!inbox.is_full());
        drop(theirs);
        assert_ne!(inbox.receive(&ours).unwrap(), 0);
        assert!(inbox.messages().all(|message| message == Some(&[][..])), "{inbox:?}");
    }

    #[test]
    fn descriptors_that_come_along_are_closed() {
        let flags = SocketFlags::CLOEXEC;
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let ((ours, theirs), (kept, passed)) = (pair(), pair());
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let passing = [passed.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&passing)));
        let bytes = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&theirs, &bytes, &mut control, SendFlags::empty()).unwrap();
        drop(passed);
        let mut inbox = Inbox::new(2, 8);
        assert_eq!(inbox.receive(&ours).unwrap(), 1);
        assert_eq!(inbox.messages().next(), Some(Some(&b"x"[..])));
        // Nobody has the other end any more.
        let e = send(&kept, b"x", SendFlags::NOSIGNAL).unwrap_err();
        assert_eq!(e, rustix::io::Errno::PIPE);
    }
}
