//! A private mount namespace, in which a process can be shown other files.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The namespaces to leave (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The mount namespace: needs `CAP_SYS_ADMIN`.
    Mounts,
    /// The user namespace, which permits leaving the mount namespace: needs no privilege, but a single-threaded process, and a
    /// kernel that permits it.
    UserAndMounts,
}

/// Moves this process into new namespaces that are copies of its old ones (unshare(2)). The IDs of a new user namespace are not
/// mapped yet (user_namespaces(7)).
///
/// # Errors
///
/// `EPERM` without the privilege, or if the kernel forbids it; `EINVAL` for a user namespace with more than one thread; `ENOSPC`
/// when the limit of namespaces is reached.
pub fn leave(what: Leave) -> io::Result<()> {
    let flags = match what {
        Leave::Mounts => UnshareFlags::NEWNS,
        Leave::UserAndMounts => UnshareFlags::NEWUSER | UnshareFlags::NEWNS,
    };
    // SAFETY: the table of file descriptors is not unshared; only that would be unsafe.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
