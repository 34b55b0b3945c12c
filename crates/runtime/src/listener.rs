//! Listening sockets: a service's, with the lock that shows its owner, and the parts for other ones.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::closing::Closer;
use crate::{Lock, ServiceDir, unix_address};

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A listening socket that accepts clients without blocking.
#[derive(Debug)]
pub struct Acceptor {
    socket: OwnedFd,
    /// A descriptor that is closed to reject a client when none is left.
    reserve: Option<File>,
    /// Closes the sockets of rejected clients, and the descriptors that they sent.
    closer: Closer,
}

impl Acceptor {
    /// Wraps a listening socket, which must not block.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, reserve: open_reserve(), closer: Closer::default() }
    }

    /// Accepts a client, if one waits. Its socket does not block.
    ///
    /// # Errors
    /// An error if the client could not be accepted. If no descriptor was left, the client was rejected, so
    /// that it does not wait, and the socket does not stay readable forever.
    pub fn accept(&mut self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => {
                // Another thread may have taken the descriptor when it was closed.
                self.reserve = self.reserve.take().or_else(open_reserve);
                Ok(Some(socket))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(e @ (Errno::MFILE | Errno::NFILE)) => {
                self.reserve = None;
                if let Ok(client) = rustix::net::accept_with(&self.socket, flags) {
                    let user = rdmux_link::peer_credentials(&client).map_or(0, |peer| peer.uid);
                    drop(self.closer.socket(user, client));
                }
                self.reserve = open_reserve();
                Err(e.into())
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns a nonblocking Unix socket that listens at a path, which replaces that of a dead service.
/// `mode` determines which users may connect, like the permissions of a file. The socket gets its
/// name only when clients can connect, for processes that wait for the name (inotify(7)).
///
/// # Errors
/// Those of unlink(2), socket(2), bind(2), chmod(2), listen(2) and rename(2).
pub fn listen_at(path: &Path, kind: SocketType, mode: u32) -> io::Result<OwnedFd> {
    let new = path.with_extension("new");
    for left in [path, &new] {
        match std::fs::remove_file(left) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    let (address, _keep) = unix_address(&new)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &address)?;
    // No client can connect before the socket listens.
    std::fs::set_permissions(&new, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    std::fs::rename(&new, path)?;
    Ok(socket)
}

/// The socket of a service. Its file is removed when the value is dropped.
#[derive(Debug)]
pub struct Listener {
    acceptor: Acceptor,
    path: PathBuf,
    _lock: Lock,
}

impl Listener {
    /// Listens in the directory of a service, for messages (`SOCK_SEQPACKET`). The process that
    /// holds the lock may replace the socket of a dead service.
    ///
    /// # Errors
    /// Those of [`listen_at`].
    pub fn open(dir: &ServiceDir, lock: Lock) -> io::Result<Self> {
        let path = dir.socket();
        let socket = listen_at(&path, SocketType::SEQPACKET, 0o600)?;
        Ok(Self { acceptor: Acceptor::new(socket), path, _lock: lock })
    }

    /// Like [`Acceptor::accept`].
    ///
    /// # Errors
    /// Those of [`Acceptor::accept`].
    pub fn accept(&mut self) -> io::Result<Option<OwnedFd>> {
        self.acceptor.accept()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Before the lock is released: after that the file might be a successor's.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.as_fd()
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::time::Duration;

    use rdmux_testing::temp_dir;
    use rustix::fs::inotify;

    use super::*;
    use crate::UserDir;
    use crate::connect::connect;

    #[test]
    fn acceptor_reserve_descriptor_is_reopened_by_the_next_accept() {
        let tmp = temp_dir();
        let path = tmp.path().join("sock");
        let mut acceptor = Acceptor::new(listen_at(&path, SocketType::STREAM, 0o600).unwrap());
        acceptor.reserve = None;
        let _client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert!(acceptor.accept().unwrap().is_some() && acceptor.reserve.is_some());
    }

    #[test]
    fn listening_socket_appears_by_rename_once_it_accepts_connections() {
        let tmp = temp_dir();
        let user = UserDir::at(tmp.path().join("r")).unwrap();
        let dir = user.service("hosts", "a").unwrap();
        // Left by a service that was killed at any moment.
        let new = dir.socket().with_extension("new");
        for left in [&dir.socket(), &new] {
            std::fs::write(left, "").unwrap();
        }
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let lock = dir.lock_service().unwrap().unwrap();
        inotify::add_watch(&watch, dir.path(), flags).unwrap();
        let mut listener = Listener::open(&dir, lock).unwrap();
        let mut buf = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&watch, &mut buf);
        let mut came = Vec::new();
        while let Ok(event) = events.next() {
            if event
                .file_name()
                .is_some_and(|name| name.to_bytes() == ServiceDir::SOCKET.as_bytes())
            {
                came.push(event.events());
            }
        }
        assert_eq!(came, [inotify::ReadFlags::MOVED_TO]);
        assert!(connect(&dir, Duration::from_secs(10)).unwrap().is_some());
        assert!(listener.accept().unwrap().is_some());
        drop(listener);
        assert!(!dir.socket().exists() && !new.exists());
    }
}
