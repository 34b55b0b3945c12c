//! The service's cache in shared memory: how clients get it, and how the service passes it to them.
//!
//! The service listens at [`Places::paths`](crate::Places::paths). A client that connects and may use the service gets the read-only
//! descriptor of the table in a message of one byte; others get nothing. A file would do the same, but could be truncated while it is
//! mapped.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rdmux_link::acm::{Entry, Key, PathCache, PathTable, now};
use rdmux_link::unread_by_peer;
use rdmux_runtime::socket::{MessageError, send_bytes, try_recv_bytes};
use rdmux_runtime::{Share, Shares, listen_at, unix_address};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::Paths;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};

use crate::socket::{check_peer, left, wait};
use crate::{Error, Users};

/// Time that a service may take to pass the cache to a client.
const WAIT: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 250 });
/// The number of clients that have not read the message with the cache, of which the shares of users other than the owner and root are parts.
const UNREAD: usize = 256;
/// Time in nanoseconds from one request for the cache to the next, if the service does not pass it.
const AGAIN: u64 = 1_000_000_000;

/// A client's view of a service's cache. It is requested on first use, and again after a restart of the service.
#[derive(Debug)]
pub struct Shared {
    path: PathBuf,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    cache: Option<Arc<PathCache>>,
    /// The request for the cache that the service has not answered yet.
    asked: Option<Asked>,
    /// Time at which the cache may be requested again.
    next: u64,
}

/// A request for the cache.
#[derive(Clone, Debug)]
struct Asked {
    socket: Arc<OwnedFd>,
    /// Time at which the request is given up.
    until: Instant,
}

impl Shared {
    /// The longest time that a service may take to pass the cache.
    pub const WAIT: Duration = WAIT;

    /// Returns the cache of this socket; the service may start later.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { path: socket.into(), state: RwLock::default() }
    }

    /// Returns the paths between two addresses if the service has them cached and would answer at once. Never waits, and costs no system
    /// call, except to request the cache, at most once a second, and to take it. Until the service has passed the cache, which
    /// [`wait`](Self::wait) waits for, no paths are found.
    pub fn get(&self, source: Option<&Address>, dest: &Address) -> Option<Paths> {
        let now = now();
        let key = Key { source: source.copied(), dest: *dest };
        let entry = self.cache(now)?.get(&key, now)?;
        let Entry { path, source, .. } = entry;
        Some(Paths { paths: [path].into_iter().collect(), source: source.map(Address::from) })
    }

    /// Passes all shared cache entries to `show`. Waits until the service has passed the cache, for [`WAIT`](Self::WAIT) at most.
    pub fn each(&self, show: impl FnMut(&Key, &Entry)) {
        self.wait(WAIT);
        let now = now();
        if let Some(cache) = self.cache(now) {
            cache.each(now, show);
        }
    }

    /// Returns whether a running service shares its cache. Waits until the service has passed it, for [`WAIT`](Self::WAIT) at most.
    pub fn is_there(&self) -> bool {
        self.wait(WAIT);
        self.cache(now()).is_some()
    }

    /// Returns whether the cache has been requested, and the service has neither passed nor refused it yet. The request ends after
    /// [`WAIT`](Self::WAIT).
    pub fn is_coming(&self) -> bool {
        self.asked().is_some()
    }

    /// Requests the cache if need be, and waits until the service passes or refuses it, for this time and [`WAIT`](Self::WAIT) at most.
    /// Returns whether it did, or no service listens; it hangs otherwise.
    pub fn wait(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time.min(WAIT);
        let mut end = None;
        while self.cache(now()).is_none() {
            let Some(asked) = self.asked() else {
                return end.is_none_or(|end| Instant::now() < end);
            };
            let until = *end.insert(asked.until.min(deadline));
            let Some(left) = left(until) else { return false };
            if wait(&asked.socket, PollFlags::IN, left).is_err() {
                break;
            }
        }
        true
    }

    /// Takes the cache if the service has passed it meanwhile: its descriptor counts for the service's user until then (unix(7)).
    pub(crate) fn take(&self) {
        if self.is_coming() {
            self.cache(now());
        }
    }

    fn asked(&self) -> Option<Asked> {
        self.state.try_read()?.asked.clone()
    }

    /// Returns the cache of the running service, if the service has passed it.
    fn cache(&self, now: u64) -> Option<Arc<PathCache>> {
        {
            // The writer may be a thread that the parent had at fork(2), which does not exist in this child.
            let state = self.state.try_read()?;
            if let Some(cache) = state.leased(now) {
                return Some(cache.clone());
            }
            if state.asked.is_none() && now < state.next {
                return None;
            }
        }
        let mut state = self.state.try_write()?;
        state.settle();
        if state.leased(now).is_none() && state.asked.is_none() && now >= state.next {
            state.next = now.saturating_add(AGAIN);
            (state.cache, state.asked) = (None, Asked::new(&self.path).ok());
        }
        state.leased(now).cloned()
    }
}

impl State {
    /// Returns the cache, if its service is running.
    fn leased(&self, now: u64) -> Option<&Arc<PathCache>> {
        self.cache.as_ref().filter(|cache| cache.is_leased(now))
    }

    /// Takes the answer to the request, if it has arrived.
    fn settle(&mut self) {
        let Some(asked) = &self.asked else { return };
        match asked.answer() {
            Some(answer) => (self.cache, self.asked) = (answer.ok().map(Arc::new), None),
            None if left(asked.until).is_none() => self.asked = None,
            None => {}
        }
    }
}

impl Asked {
    /// Requests the cache.
    fn new(path: &Path) -> Result<Self, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(failed)?;
        let (address, _keep) = unix_address(path).map_err(|e| failed(errno(&e)))?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(failed)?;
        check_peer(&socket, path)?;
        Ok(Self { socket: Arc::new(socket), until: Instant::now() + WAIT })
    }

    /// Returns the answer, if it has arrived.
    fn answer(&self) -> Option<Result<PathCache, Error>> {
        let mut fds = Vec::new();
        let fd = match try_recv_bytes(self.socket.as_fd(), &mut [0; 16], &mut fds) {
            Err(MessageError::WouldBlock) => return None,
            Ok(_) => fds.pop(),
            Err(_) => None,
        };
        let map = |fd| PathCache::map(fd).map_err(|e| failed(errno(&e)));
        Some(fd.ok_or(failed(Errno::PROTO)).and_then(map))
    }
}

fn failed(errno: Errno) -> Error {
    Error::System("cannot get the cache of the ACM service", errno)
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::INVAL)
}

/// Passes the cache to clients, until it is dropped, which removes the socket.
#[derive(Debug)]
pub struct Offer {
    path: PathBuf,
    shared: Arc<Handout>,
    thread: Option<JoinHandle<()>>,
}

/// The state of the thread that passes the cache to clients.
#[derive(Debug)]
struct Handout {
    listener: OwnedFd,
    /// The table.
    fd: OwnedFd,
    /// The users that may have it.
    users: RwLock<Users>,
    /// The clients of users other than the owner and root that had not read the message when they were last looked at. Its descriptor
    /// counts for the owner until then: beyond a limit no process of the owner could send descriptors (ETOOMANYREFS, unix(7)).
    unread: Mutex<Vec<(OwnedFd, Share)>>,
    shares: Shares,
    /// The number of refused connections.
    refused: AtomicU64,
}

impl Offer {
    /// Listens at a path ([`Places::paths`](crate::Places::paths)), replacing a socket that a service left there, and passes the cache to
    /// these users, as identified by the kernel (`SO_PEERCRED`, unix(7)).
    ///
    /// # Errors
    /// Those of [`listen_at`] and pthread_create(3).
    pub fn start(path: impl Into<PathBuf>, table: &PathTable, users: Users) -> io::Result<Self> {
        let path = path.into();
        let (listener, fd) = (
            listen_at(&path, SocketType::SEQPACKET, users.socket_mode())?,
            table.fd().try_clone()?,
        );
        // The thread of this listener only accepts connections.
        rustix::io::ioctl_fionbio(&listener, false)?;
        let (users, refused) = (RwLock::new(users), AtomicU64::new(0));
        let (unread, shares) = (Mutex::default(), Shares::new(UNREAD));
        let shared = Arc::new(Handout { listener, fd, users, unread, shares, refused });
        let theirs = shared.clone();
        let serve = move || while theirs.serve() {};
        let thread = std::thread::Builder::new().name("acm-paths".into()).spawn(serve)?;
        Ok(Self { path, shared, thread: Some(thread) })
    }

    /// Changes which users get the cache. Clients that have it keep it.
    ///
    /// # Errors
    /// Those of chmod(2) on the socket. The users have been changed even then.
    pub fn set_users(&self, users: Users) -> io::Result<()> {
        let mode = users.socket_mode();
        *self.shared.users.write() = users;
        fs::set_permissions(&self.path, fs::Permissions::from_mode(mode))
    }

    /// Returns how many connections were closed because their users may not have the cache.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Handout {
    /// Serves one client without waiting for it. Returns whether there may be another.
    fn serve(&self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(client) => self.give(client),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            // The listener stays readable, but descriptors may become free later.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(WAIT);
            }
            Err(_) => return false,
        }
        true
    }

    /// Passes the table to a client, if it may have it, and if not too many clients of its user have not read it.
    fn give(&self, client: OwnedFd) {
        let peer = rdmux_link::peer_credentials(&client).map(|peer| peer.uid).ok();
        let Some(peer) = peer.filter(|peer| self.users.read().may(*peer)) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut unread = self.unread.lock();
        unread.retain(|(client, _)| unread_by_peer(client).is_ok_and(|bytes| bytes > 0));
        let Ok(share) = self.shares.take(peer, 1) else { return };
        let is_limited = ![0, rustix::process::geteuid().as_raw()].contains(&peer);
        // A failure means that the client is gone.
        let sent = send_bytes(client.as_fd(), &[0], &[self.fd.as_fd()]);
        if sent.is_ok() && is_limited {
            unread.push((client, share));
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}
