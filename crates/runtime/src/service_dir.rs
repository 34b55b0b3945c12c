//! The directory of one service.
//!
//! ```text
//! <runtime dir>/<kind>/<name>/sock   the service's socket
//!                             lock   locked by the service while it runs
//!                             start  locked by the process that starts it
//!                             log    what the service logs
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::process::Pid;

use crate::file::open_private;
use crate::lock_holder::holder_of;
use crate::{DirectoryError, Lock};

/// The directory of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceDir {
    path: PathBuf,
}

impl ServiceDir {
    /// The name of the socket, which exists from when clients can connect.
    pub const SOCKET: &str = "sock";

    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the path of the service's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(Self::SOCKET)
    }
    /// Returns the path of the service's log.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Takes the lock that a running service holds. The lock is released with the returned value,
    /// even if the process is killed. Returns `None` when a service runs.
    ///
    /// # Errors
    /// [`DirectoryError`] when the lock cannot be used; the same for the next three.
    pub fn lock_service(&self) -> Result<Option<Lock>, DirectoryError> {
        self.lock("lock", FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the lock that a running service holds until it ends.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn wait_service_lock(&self) -> Result<Lock, DirectoryError> {
        let unlocked = || DirectoryError::new(&self.path, "cannot wait for its lock");
        self.lock("lock", FlockOperation::LockExclusive)?.ok_or_else(unlocked)
    }

    /// Returns the process that holds the service's lock, if the kernel shows it.
    pub fn service_lock_holder(&self) -> Option<Pid> {
        holder_of(&self.path.join("lock"))
    }

    /// Waits for the lock of a process that starts the service.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn lock_start(&self) -> Result<Option<Lock>, DirectoryError> {
        self.lock("start", FlockOperation::LockExclusive)
    }

    /// Takes the lock on the file of this name by `operation`. Returns `None` if that does not wait
    /// and another process holds the lock.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn lock(
        &self,
        file: &str,
        operation: FlockOperation,
    ) -> Result<Option<Lock>, DirectoryError> {
        let path = self.path.join(file);
        let fail = |e: io::Error| DirectoryError::new(&path, e);
        let file = open_private(&path, false).map_err(fail)?;
        Lock::take(file, operation).map_err(fail)
    }

    /// Opens the log for appending.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn open_log(&self) -> Result<File, DirectoryError> {
        let path = self.log();
        open_private(&path, true).map_err(|e| DirectoryError::new(&path, e))
    }
}

#[cfg(test)]
mod tests {
    use crate::UserDir;
    use rdmux_testing::temp_dir;

    #[test]
    fn service_lock_is_exclusive_until_dropped() {
        let tmp = temp_dir();
        let dir = UserDir::at(tmp.path().join("r")).unwrap().service("hosts", "a").unwrap();
        let held = dir.lock_service().unwrap();
        assert!(held.is_some());
        assert!(dir.lock_service().unwrap().is_none());
        drop(held);
        assert!(dir.lock_service().unwrap().is_some());
    }
}
