//! Messages of a socket that preserves message boundaries, several with one system call.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;

/// Buffers for the messages of one call.
pub struct Inbox {
    data: Box<[u8]>,
    /// Room for the descriptors that are passed with each message.
    rights: Box<[sys::Rights]>,
    /// The lengths of the messages. None for a message that was too long.
    lengths: Box<[Option<usize>]>,
    /// The number of received messages.
    filled: usize,
}

impl Inbox {
    /// Creates buffers for `messages` messages, up to 64, of `bytes` bytes each.
    pub fn new(messages: usize, bytes: usize) -> Self {
        let messages = messages.min(sys::MAX_MESSAGES);
        Self {
            data: vec![0; messages * bytes].into_boxed_slice(),
            rights: vec![sys::Rights::new(); messages].into_boxed_slice(),
            lengths: vec![None; messages].into_boxed_slice(),
            filled: 0,
        }
    }

    /// Receives the available messages, without blocking, and replaces the previous ones. Returns how many it received, zero if
    /// none is queued. At the end of the stream messages are empty. Passes received descriptors to `keep`. The kernel truncates
    /// none, as closing it might block.
    ///
    /// # Errors
    /// Those of `recvmmsg(2)`. No message is received then.
    pub fn receive(&mut self, socket: impl AsFd, keep: impl FnMut(OwnedFd)) -> io::Result<usize> {
        self.filled = 0;
        let (data, rights) = (&mut self.data, &mut self.rights);
        self.filled = sys::receive_messages(socket, data, &mut self.lengths, rights, keep)?;
        Ok(self.filled)
    }

    /// Returns the messages of the last [`receive`](Self::receive), in order; none in place of one that was too long.
    pub fn messages(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let share = self.data.len() / self.lengths.len().max(1);
        let buffers = self.data.chunks_exact(share.max(1));
        let messages = buffers.zip(&self.lengths).take(self.filled);
        messages.map(|(buffer, length)| length.and_then(|length| buffer.get(..length)))
    }

    /// Returns whether the last [`receive`](Self::receive) filled all buffers, so that more may be queued.
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
    fn inbox_keeps_message_boundaries_and_reports_a_too_long_message() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut inbox = Inbox::new(3, 8);
        let none = |fd| panic!("{fd:?} came along");
        assert_eq!((inbox.receive(&ours, none).unwrap(), inbox.messages().count()), (0, 0));
        let sent: [&[u8]; 4] = [b"a", b"12345678", b"123456789", b"last"];
        for message in sent {
            send(&theirs, message, SendFlags::empty()).unwrap();
        }
        assert_eq!(inbox.receive(&ours, none).unwrap(), 3);
        let got: Vec<_> = inbox.messages().collect();
        assert_eq!(got, [Some(sent[0]), Some(sent[1]), None]);
        assert!(inbox.is_full());
        assert_eq!(inbox.receive(&ours, none).unwrap(), 1);
        assert_eq!(inbox.messages().collect::<Vec<_>>(), [Some(sent[3])]);
        assert!(!inbox.is_full());
        drop(theirs);
        assert_ne!(inbox.receive(&ours, none).unwrap(), 0);
        assert!(inbox.messages().all(|message| message == Some(&[][..])), "{inbox:?}");
    }

    #[test]
    fn passed_descriptors_are_received_with_close_on_exec() {
        let flags = SocketFlags::CLOEXEC;
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let ((ours, theirs), (near, passed)) = (pair(), pair());
        let mut inbox = Inbox::new(4, 8);
        // As many as the kernel permits in a message (unix(7)), twice, since the room is reused.
        for counts in [[0, 1, 253], [2, 0, 1]] {
            for count in counts {
                let passing = vec![passed.as_fd(); count];
                let mut space =
                    [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
                let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
                if count > 0 {
                    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&passing)));
                }
                let bytes = [io::IoSlice::new(b"x")];
                rustix::net::sendmsg(&theirs, &bytes, &mut control, SendFlags::empty()).unwrap();
            }
            let mut kept = Vec::new();
            assert_eq!(inbox.receive(&ours, |fd| kept.push(fd)).unwrap(), 3);
            assert!(inbox.messages().all(|message| message == Some(&b"x"[..])));
            assert_eq!(kept.len(), counts.iter().sum::<usize>());
            let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
            for fd in &kept {
                assert_eq!(inode(fd), inode(&passed));
                let flags = rustix::io::fcntl_getfd(fd).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            }
        }
        // Only descriptors that were kept are still open.
        drop(passed);
        let e = send(&near, b"x", SendFlags::NOSIGNAL).unwrap_err();
        assert_eq!(e, rustix::io::Errno::PIPE);
    }
}
