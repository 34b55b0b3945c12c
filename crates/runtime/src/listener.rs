//! The socket that clients connect to, and the lock that says whose it is.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::ServiceDir;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The listening socket. Its file goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Given up to refuse a client properly when there is no descriptor left.
    reserve: Option<File>,
    lock: File,
}

impl Listener {
    /// Listens in the directory of a service, for messages (`SOCK_SEQPACKET`). The process that has the lock may replace
    /// the socket of a dead service.
    ///
    /// # Errors
    /// Those of unlink(2), socket(2), bind(2) and listen(2).
    pub fn open(dir: &ServiceDir, lock: File) -> io::Result<Self> {
        let path = dir.socket();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let (address, _keep) = dir.socket_address()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self { socket, path, reserve: open_reserve(), lock })
    }

    /// A client, if one waits.
    ///
    /// # Errors
    /// When it could not be accepted. If that was for want of a descriptor it was turned away, so
    /// that it does not wait, and the socket does not stay readable for ever.
    pub fn accept(&mut self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(e @ (Errno::MFILE | Errno::NFILE)) => {
                self.reserve = None;
                drop(rustix::net::accept_with(&self.socket, flags));
                self.reserve = open_reserve();
                Err(e.into())
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Before the lock goes, or it might be a successor's.
        let _ = std::fs::remove_file(&self.path);
        // Closing is not enough while another thread of this process is about to run a program.
        let _ = rustix::fs::flock(&self.lock, rustix::fs::FlockOperation::Unlock);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}
