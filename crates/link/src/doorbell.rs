//! How one process wakes another: an eventfd (`eventfd(2)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// A file descriptor that becomes readable when somebody rings, until it is [`clear`](Self::clear)ed.
///
/// Ringing is idempotent and never blocks. Whoever holds a duplicate may also clear it: give it to
/// processes that may as well not ring at all.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// A new one, silent, close-on-exec.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Takes over one that was handed here. Anything else than an eventfd only fails to ring.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// A duplicate, to hand over.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Rings.
    ///
    /// # Errors
    ///
    /// Whatever `write(2)` says to a descriptor that is no eventfd. A bell that rings already is no error.
    pub fn ring(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Silences it. Returns whether it rang.
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

    /// Waits until it rings and silences it. `None` waits for ever. Returns whether it rang.
    ///
    /// # Errors
    ///
    /// Whatever `poll(2)` says, save an interruption, after which it waits anew.
    pub fn wait(&self, timeout: Option<Timespec>) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(self.clear()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_once_however_often() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.clear());
        bell.ring().unwrap();
        bell.ring().unwrap();
        assert!(bell.clear());
        assert!(!bell.clear());
    }

    #[test]
    fn a_duplicate_rings_the_same_bell() {
        let bell = Doorbell::new().unwrap();
        Doorbell::from_fd(bell.duplicate().unwrap()).ring().unwrap();
        assert!(bell.wait(None).unwrap());
    }

    #[test]
    fn a_full_counter_still_rings() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell.fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(bell.clear());
    }
}
