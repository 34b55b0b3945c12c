//! Shared memory: a memfd of fixed size (`memfd_create(2)`) that several processes map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use crate::mmap::Mapping;

/// Shared 64-bit words, in a memfd that can neither shrink nor grow, so that no peer can cause a fault on access. Initially zero.
#[derive(Debug)]
pub struct SharedMem {
    fd: OwnedFd,
    map: Mapping,
}

impl SharedMem {
    /// Creates `words` words. `name` only appears in `/proc/PID/maps`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no words or a name with a NUL; `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create(name: &str, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = Mapping::create_fd(name, bytes)?;
        Self::map(fd, words)
    }

    /// Maps memory that another process created. The descriptor is not trusted: it must be a memfd sealed against shrinking, of
    /// at least `words` words.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else; `ENOMEM`.
    pub fn map(fd: OwnedFd, words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let map = Mapping::map(&fd, bytes)?;
        Ok(Self { fd, map })
    }

    /// Returns the words. Other processes may write to them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.map.words()
    }

    /// Returns a duplicate of the descriptor, to be passed to another process.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl AsFd for SharedMem {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
