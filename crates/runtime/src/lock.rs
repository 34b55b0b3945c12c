//! Locks of flock(2) on files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, getpid};

/// A lock of flock(2), which is released when the value is dropped, or the process ends.
///
/// Closing the file would not suffice: a child process that another thread has forked meanwhile has the file open, too. A child
/// that drops its copy of the value releases nothing.
#[derive(Debug)]
pub struct Lock {
    file: File,
    /// The process that took the lock.
    owner: Pid,
}

impl Lock {
    /// Takes the lock on a file by `operation`, and waits for it again after a signal. Returns `None` if `operation` does not wait and
    /// another process holds the lock.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn take(file: File, operation: FlockOperation) -> io::Result<Option<Self>> {
        match rustix::io::retry_on_intr(|| flock(&file, operation)) {
            Ok(()) => Ok(Some(Self { file, owner: getpid() })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits for the lock on a file.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn wait(file: File) -> io::Result<Self> {
        let taken = Self::take(file, FlockOperation::LockExclusive)?;
        taken.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.owner == getpid() {
            // An error is ignored: closing the file follows.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn dropped_lock_is_free_although_a_child_has_the_file_open() {
        let dir = temp_dir();
        let open = || File::create(dir.path().join("lock")).unwrap();
        let take = || Lock::take(open(), FlockOperation::NonBlockingLockExclusive).unwrap();
        let held = take().unwrap();
        assert!(take().is_none());
        // Stands for the child's descriptor.
        let inherited = held.as_fd().try_clone_to_owned().unwrap();
        drop(held);
        let held = take();
        assert!(held.is_some());
        drop(inherited);
        assert!(take().is_none());
    }

    #[test]
    fn copy_of_a_lock_in_another_process_releases_nothing() {
        let dir = temp_dir();
        let open = || File::create(dir.path().join("lock")).unwrap();
        let take = || Lock::take(open(), FlockOperation::NonBlockingLockExclusive).unwrap();
        let held = take().unwrap();
        let file = held.file.try_clone().unwrap();
        drop(Lock { file, owner: Pid::INIT });
        assert!(take().is_none());
    }
}
