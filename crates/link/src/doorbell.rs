//! Doorbells that wake a sleeping thread: rung by a thread of its own process ([`Doorbell`]), or by another process
//! ([`PeerBell`]).
//!
//! The file status flags of a descriptor belong to the open file description, so a process that holds a duplicate can clear
//! `O_NONBLOCK`, fill the queue behind it, or empty it. Therefore two processes share no description: each holds one end of a
//! pair of datagram sockets, and each call requests non-blocking operation itself (`MSG_DONTWAIT`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, Shutdown, SocketFlags,
    SocketType,
};

use crate::sys;

/// A file descriptor that becomes readable when a thread rings, until it is [`clear`](Self::clear)ed: an eventfd
/// (`eventfd(2)`).
///
/// Ringing is idempotent and never blocks, as long as no other process has the descriptor. Between processes, use [`PeerBell`].
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// Creates a doorbell that is not ringing, close-on-exec.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Creates another handle of the same doorbell, for another thread.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// Rings the bell.
    ///
    /// # Errors
    ///
    /// Those of `write(2)`. A bell that already rings is not an error.
    pub fn ring(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Clears the bell. Returns whether it rang.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        loop {
            match rustix::io::read(&self.fd, &mut count) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Waits until it rings and clears it. `None` waits without limit. Returns whether it rang.
    ///
    /// # Errors
    ///
    /// Those of `poll(2)`, except an interruption, after which it waits again.
    pub fn wait(&self, timeout: Option<Timespec>) -> io::Result<bool> {
        Ok(wait_readable(self.as_fd(), timeout)? && self.clear())
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One end of a doorbell between two processes: a connected pair of Unix datagram sockets (`unix(7)`).
///
/// Each process has one end. A process cannot harm the other through its own end, or through a descriptor that it passes as one:
/// neither [`ring`](Self::ring) nor [`clear`](Self::clear) blocks, no other process can take the datagrams that wake this side,
/// and a process that fills the queue or shuts its end down only loses its own wakeups. Only one peer must have the other end: a
/// peer that shuts it down would silence others.
#[derive(Debug)]
pub struct PeerBell {
    socket: Arc<OwnedFd>,
    /// Whether the kernel permits datagrams to carry descriptors here (Linux before 6.16). See [`holds_descriptors`].
    ///
    /// [`holds_descriptors`]: Self::holds_descriptors
    takes_descriptors: bool,
}

/// The socket option that permits descriptors in messages (`SO_PASSRIGHTS`, Linux 6.16).
const SO_PASSRIGHTS: i32 = 83;

impl PeerBell {
    /// The maximum number of datagrams that are taken out of a socket before it is closed: more than its peer can queue, unless
    /// the peer may exceed the kernel's limits.
    const QUEUE: usize = 1024;

    /// Creates a connected pair that is not ringing, close-on-exec.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self::new(a), Self::new(b)))
    }

    /// Takes over an end that another process passed.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for anything other than a Unix datagram socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let is_one = socket_domain(&fd) == Ok(AddressFamily::UNIX)
            && socket_type(&fd) == Ok(SocketType::DGRAM);
        if !is_one {
            let why = "not a Unix datagram socket, so it cannot be a doorbell";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Self::new(fd))
    }

    fn new(socket: OwnedFd) -> Self {
        let refused = sys::set_int(&socket, libc::SOL_SOCKET, SO_PASSRIGHTS, 0);
        Self { socket: Arc::new(socket), takes_descriptors: refused.is_err() }
    }

    /// Returns a duplicate, to be passed to the process whose end it is.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Gives up this handle, and leaves the end as it is for other handles of it, here or in other processes. A handle that is
    /// dropped instead ends the bell, on kernels before Linux 6.16 for all of them.
    pub fn leave(mut self) {
        // No descriptors in the queue are closed: the others have the same socket.
        self.takes_descriptors = false;
    }

    /// Rings the bell at the other end. Never blocks.
    ///
    /// # Errors
    ///
    /// Those of `send(2)` when the peer closed its end or shut it down. A full queue is not an error: the bell already rings.
    pub fn ring(&self) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(&self.socket, &[1], flags) {
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Takes one ring from this end, without blocking. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// An error if the end is no longer usable, so that the caller must not wait on it any more: the peer sent a message
    /// that no honest peer sends.
    pub fn clear(&self) -> io::Result<bool> {
        match self.take() {
            // The peer connected its end to something else.
            Ok(true) | Err(Errno::CONNRESET) => Ok(true),
            // Honest datagrams are not empty: this is the end of the stream, or a dishonest peer.
            Ok(false) => Err(io::ErrorKind::InvalidData.into()),
            Err(Errno::AGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes a datagram, unless it carries descriptors. Returns whether it was a valid ring.
    fn take(&self) -> rustix::io::Result<bool> {
        if self.takes_descriptors && self.holds_descriptors()? {
            return Ok(false);
        }
        let recv = || rustix::net::recv(&self.socket, &mut [0u8; 1], RecvFlags::DONTWAIT);
        rustix::io::retry_on_intr(recv).map(|(_, len)| len != 0)
    }

    /// Waits until the bell rings, and takes one ring. `None` waits without limit. Returns whether the bell rang.
    ///
    /// # Errors
    ///
    /// As for [`Doorbell::wait`] and [`clear`](Self::clear).
    pub fn wait(&self, timeout: Option<Timespec>) -> io::Result<bool> {
        Ok(wait_readable(self.as_fd(), timeout)? && self.clear()?)
    }

    /// Returns whether the next datagram carries descriptors. It must not be received then: the thread that closes the last
    /// descriptor of a TCP socket may block for as long as its sender has set (`SO_LINGER`, `socket(7)`).
    fn holds_descriptors(&self) -> rustix::io::Result<bool> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut none = RecvAncillaryBuffer::default();
        let peek = || rustix::net::recvmsg(&self.socket, &mut [], &mut none, flags);
        Ok(rustix::io::retry_on_intr(peek)?.flags.contains(ReturnFlags::CTRUNC))
    }

    /// Empties the socket permanently. Returns whether it can be closed without closing descriptors that a peer has put in.
    fn is_harmless(&self) -> bool {
        // No datagram arrives after this. The queued ones are followed by empty reads.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        (0..Self::QUEUE).all(|_| {
            let _ = self.take();
            self.holds_descriptors() != Ok(true)
        })
    }
}

impl Drop for PeerBell {
    fn drop(&mut self) {
        if self.takes_descriptors && !self.is_harmless() {
            // The kernel closes it at the end of the process, without waiting.
            std::mem::forget(self.socket.clone());
        }
    }
}

impl AsFd for PeerBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Timespec>) -> io::Result<bool> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    loop {
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => return Ok(ready != 0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::fs::OFlags;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

    use super::*;

    #[test]
    fn doorbell_rung_several_times_is_cleared_once() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.clear());
        bell.ring().unwrap();
        bell.ring().unwrap();
        assert!(bell.clear());
        assert!(!bell.clear());
    }

    #[test]
    fn cloned_doorbell_rings_the_original() {
        let bell = Doorbell::new().unwrap();
        bell.try_clone().unwrap().ring().unwrap();
        assert!(bell.wait(None).unwrap());
    }

    #[test]
    fn doorbell_with_full_eventfd_counter_still_rings() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell.fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(bell.clear());
    }

    fn silence(bell: &PeerBell) {
        while bell.clear().unwrap() {}
    }

    #[test]
    fn peer_bell_rings_the_other_end_only() {
        let (a, b) = PeerBell::pair().unwrap();
        assert!(!a.clear().unwrap());
        b.ring().unwrap();
        assert!(!b.clear().unwrap());
        assert!(a.wait(None).unwrap());
        assert!(!a.clear().unwrap());
        PeerBell::from_fd(a.duplicate().unwrap()).unwrap().ring().unwrap();
        assert!(b.wait(None).unwrap());
    }

    /// A pair whose peer has attacked through a duplicate of its own end, before any ring.
    fn attacked(attack: impl Fn(BorrowedFd<'_>)) -> (PeerBell, PeerBell) {
        let (victim, peer) = PeerBell::pair().unwrap();
        attack(peer.as_fd());
        (victim, peer)
    }

    #[test]
    fn peer_bell_set_to_blocking_by_the_peer_does_not_block() {
        let (victim, peer) = attacked(|end| {
            rustix::fs::fcntl_setfl(end, OFlags::empty()).unwrap();
        });
        // Nothing blocks, neither without a queued ring nor without room in either direction.
        assert!(!victim.clear().unwrap());
        for _ in 0..10_000 {
            victim.ring().unwrap();
            peer.ring().unwrap();
        }
        assert!(victim.wait(None).unwrap());
        silence(&victim);
        peer.ring().unwrap();
        assert!(victim.clear().unwrap(), "it is heard again");
    }

    #[test]
    fn peer_clearing_its_own_end_does_not_consume_the_ring() {
        let (victim, peer) = PeerBell::pair().unwrap();
        peer.ring().unwrap();
        assert!(!peer.clear().unwrap());
        assert!(victim.clear().unwrap());
    }

    #[test]
    fn peer_bell_shut_down_by_the_peer_does_not_ring_or_stay_readable() {
        let (victim, peer) = attacked(|end| rustix::net::shutdown(end, Shutdown::Both).unwrap());
        victim.ring().unwrap_err();
        peer.ring().unwrap_err();
        assert!(!wait_readable(victim.as_fd(), Some(Timespec::default())).unwrap());
    }

    #[test]
    fn peer_bell_of_a_closed_peer_fails_to_ring() {
        let (victim, peer) = PeerBell::pair().unwrap();
        drop(peer);
        victim.ring().unwrap_err();
        assert!(!victim.clear().unwrap());
    }

    #[test]
    fn peer_bell_refuses_an_empty_datagram() {
        let (victim, _peer) = attacked(|end| {
            rustix::net::send(end, &[], SendFlags::DONTWAIT).unwrap();
        });
        victim.clear().unwrap_err();
    }

    #[test]
    fn peer_bell_accepts_a_long_datagram_as_one_ring() {
        let (victim, _peer) = attacked(|end| {
            rustix::net::send(end, &[7; 10_000], SendFlags::DONTWAIT).unwrap();
        });
        assert!(victim.clear().unwrap());
        assert!(!victim.clear().unwrap());
    }

    #[test]
    fn peer_bell_from_other_than_unix_datagram_socket_is_refused() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let kind = SocketType::STREAM;
        let (stream, _) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
        let file = std::fs::File::open("/dev/null").unwrap().into();
        for fd in [read, write, stream, udp, file] {
            let refused = PeerBell::from_fd(fd).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }

    fn pass(end: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed = [descriptor];
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
        let bytes = [io::IoSlice::new(&[1])];
        sendmsg(end, &bytes, &mut control, SendFlags::DONTWAIT)
    }

    /// An end in the form that kernels that do not refuse descriptors create.
    fn old(end: PeerBell) -> PeerBell {
        let mut old = PeerBell::from_fd(end.duplicate().unwrap()).unwrap();
        let _ = sys::set_int(&old, libc::SOL_SOCKET, SO_PASSRIGHTS, 1);
        old.takes_descriptors = true;
        end.leave();
        old
    }

    /// Both processes may request a ring at once. Each then gets its end in a reply and in an event.
    #[test]
    fn duplicate_handle_that_is_left_keeps_the_peer_bell_working() {
        let (a, b) = PeerBell::pair().unwrap();
        let a = old(a);
        let second = old(PeerBell::from_fd(a.duplicate().unwrap()).unwrap());
        b.ring().unwrap();
        second.leave();
        assert!(a.clear().unwrap(), "what had come");
        b.ring().unwrap();
        assert!(a.clear().unwrap(), "what comes");
        a.ring().unwrap();
        assert!(b.clear().unwrap());
        drop(a);
        b.ring().unwrap_err();
    }

    /// The service leaves an end that it has passed on, and a process one that it cannot use yet.
    #[test]
    fn peer_bell_that_is_left_works_for_another_holder_of_its_end() {
        let (a, b) = PeerBell::pair().unwrap();
        let (a, b) = (old(a), old(b));
        let passed = b.duplicate().unwrap();
        b.leave();
        let b = PeerBell::from_fd(passed).unwrap();
        b.ring().unwrap();
        assert!(a.clear().unwrap());
        a.ring().unwrap();
        assert!(b.clear().unwrap());
    }

    /// Returns whether a pipe's other end is still open somewhere.
    fn is_held(read: &OwnedFd) -> bool {
        rustix::io::ioctl_fionbio(read, true).unwrap();
        rustix::io::read(read, &mut [0u8; 1]) == Err(Errno::AGAIN)
    }

    #[test]
    fn descriptor_passed_with_a_ring_is_not_received() {
        let (victim, peer) = PeerBell::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        if !victim.takes_descriptors {
            assert_eq!(pass(peer.as_fd(), write.as_fd()), Err(Errno::PERM));
        }
        let victim = old(victim);
        peer.ring().unwrap();
        pass(peer.as_fd(), write.as_fd()).unwrap();
        drop(write);
        assert!(victim.clear().unwrap(), "what came before it");
        victim.clear().unwrap_err();
        victim.clear().unwrap_err();
        assert!(is_held(&read));
        drop(victim);
        assert!(is_held(&read), "closed by who did not open it");
    }

    #[test]
    fn dropped_peer_bell_closes_its_end() {
        let (victim, peer) = PeerBell::pair().unwrap();
        let victim = old(victim);
        peer.ring().unwrap();
        drop(victim);
        peer.ring().unwrap_err();
    }
}
