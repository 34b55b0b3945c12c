//! A mount namespace of one's own, so that a process can be shown other files.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Which namespaces to leave (namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The mount namespace: wants `CAP_SYS_ADMIN`.
    Mounts,
    /// The user namespace, and the mount namespace with its help: wants no privilege, but a process
    /// of one thread, and a system that allows it.
    UserAndMounts,
}

/// Moves this process into new namespaces that are copies of its old ones (unshare(2)). The ids of a
/// new user namespace are not mapped yet (user_namespaces(7)).
///
/// # Errors
///
/// `EPERM` without the privilege, or where the kernel forbids it; `EINVAL` for a user namespace with
/// more than one thread; `ENOSPC` when there are too many.
pub fn leave(what: Leave) -> io::Result<()> {
    let flags = match what {
        Leave::Mounts => UnshareFlags::NEWNS,
        Leave::UserAndMounts => UnshareFlags::NEWUSER | UnshareFlags::NEWNS,
    };
    // SAFETY: the table of file descriptors stays as it is; only leaving that one is unsafe.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
