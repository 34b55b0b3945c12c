//! Closing descriptors of which clients decide what they are.
//!
//! A client may pass any descriptor, and close(2) may wait for it: of a file that a process serves (FUSE) for that
//! process, of a TCP socket with `SO_LINGER` for the peer, of a Unix socket for what is in the messages that nobody
//! received. So no thread that serves others closes one ([`Foreign`]); threads of the [`Closer`] do.
//!
//! A thread that is stuck is stuck: other threads close what other users passed. A user has a few threads at most,
//! and clients of a user of whose descriptors many wait are refused ([`Closer::is_full`]).

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rdmux_link::signals;
use rustix::fs::SealFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, SocketType, sockopt,
};

/// Threads that close, of all users together.
const MAX_THREADS: usize = 16;
/// Threads that close what one user passed.
const USER_THREADS: usize = 2;
/// With so many descriptors of a user still to be closed, its clients are refused.
const MAX_WAITING: usize = 256;
/// How long a thread waits for more before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// What closes descriptors in threads of its own.
#[derive(Clone, Debug, Default)]
pub struct Closer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Those of whom something waits or is being closed.
    users: BTreeMap<u32, User>,
    threads: usize,
    /// Threads that wait for work, or have just been started: they look for it before anything else.
    idle: usize,
    /// Whether the last one could not be started, which is said once.
    short: bool,
}

/// The descriptors of one user.
#[derive(Debug, Default)]
struct User {
    waiting: VecDeque<OwnedFd>,
    /// How many are being closed now.
    busy: usize,
}

impl State {
    /// A user with a descriptor that waits and a thread to spare: of several the one with the fewest threads.
    fn next(&mut self) -> Option<(&u32, &mut User)> {
        let ready =
            |(_, user): &(&u32, &mut User)| user.busy < USER_THREADS && !user.waiting.is_empty();
        self.users.iter_mut().filter(ready).min_by_key(|(_, user)| user.busy)
    }

    fn take(&mut self) -> Option<(u32, OwnedFd)> {
        let (&id, user) = self.next()?;
        let fd = user.waiting.pop_front()?;
        user.busy += 1;
        Some((id, fd))
    }

    fn closed(&mut self, id: u32) {
        let Some(user) = self.users.get_mut(&id) else { return };
        user.busy -= 1;
        if user.busy == 0 && user.waiting.is_empty() {
            self.users.remove(&id);
        }
    }
}

impl Closer {
    /// A descriptor that a client of this user passed.
    pub fn foreign(&self, user: u32, fd: OwnedFd) -> Foreign {
        Foreign { fd: Some(fd), user, ours: false, closer: self.clone() }
    }

    /// Our end of a socket on which clients of this user may send.
    pub fn socket(&self, user: u32, fd: OwnedFd) -> Foreign {
        // Who receives in a stream would close what came with urgent bytes (`MSG_OOB`), unless they are bytes as others are.
        let _ = sockopt::set_socket_oobinline(&fd, true);
        Foreign { fd: Some(fd), user, ours: true, closer: self.clone() }
    }

    /// Whether so many descriptors of a user are still to be closed that no more are taken from it.
    pub fn is_full(&self, user: u32) -> bool {
        let state = self.0.state.lock();
        state.users.get(&user).is_some_and(|u| u.waiting.len() + u.busy >= MAX_WAITING)
    }

    /// Closes a descriptor, some time. Never blocks.
    fn close(&self, user: u32, fd: OwnedFd) {
        let mut state = self.0.state.lock();
        state.users.entry(user).or_default().waiting.push_back(fd);
        if state.idle > 0 {
            self.0.wake.notify_one();
        } else {
            self.hire(&mut state);
        }
    }

    /// Starts another thread if there is work that none of those here is about to take.
    fn hire(&self, state: &mut State) {
        if state.idle > 0 || state.threads >= MAX_THREADS || state.next().is_none() {
            return;
        }
        let closer = self.clone();
        let started = signals::with_blocked(|| {
            std::thread::Builder::new().name("rdmux-close".to_owned()).spawn(move || closer.work())
        });
        match started {
            Ok(_) => {
                state.threads += 1;
                state.idle += 1;
                state.short = false;
            }
            // What waits is closed with the next one.
            Err(error) => {
                if !std::mem::replace(&mut state.short, true) {
                    tracing::warn!(%error, "no thread to close descriptors");
                }
            }
        }
    }

    /// What a thread does, until there has been nothing to do for a while.
    fn work(&self) {
        let mut state = self.0.state.lock();
        state.idle -= 1;
        loop {
            if let Some((user, fd)) = state.take() {
                // This one may be stuck from here on.
                self.hire(&mut state);
                MutexGuard::unlocked(&mut state, || drop(fd));
                state.closed(user);
                continue;
            }
            state.idle += 1;
            let waited = self.0.wake.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.next().is_none() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A descriptor whose closing may block: dropping it never does.
#[derive(Debug)]
pub struct Foreign {
    /// There until it is dropped or taken.
    fd: Option<OwnedFd>,
    user: u32,
    /// Whether we made it, so that only messages in its queue are the client's.
    ours: bool,
    closer: Closer,
}

impl Foreign {
    /// The descriptor of a memfd, which anybody may map and close: its size is fixed, and it is served by the kernel.
    /// F_GET_SEALS is answered by nothing else, and asks no process.
    pub fn into_memfd(mut self) -> Option<OwnedFd> {
        let seals = rustix::fs::fcntl_get_seals(self.fd.as_ref()?).ok()?;
        self.fd.take_if(|_| seals.contains(SealFlags::SHRINK | SealFlags::GROW))
    }

    /// The descriptor of a process, which anybody may use and close (pidfd_open(2)).
    pub fn into_pidfd(mut self) -> Option<OwnedFd> {
        let name = self.kernel_name()?;
        let is_one = ["anon_inode:[pidfd]", "pidfd:["].iter().any(|is| name.starts_with(is));
        self.fd.take_if(|_| is_one)
    }

    /// The descriptor of a namespace of this kind ("user", "mnt"), which anybody may use and close. The kernel alone gives
    /// files a name that does not begin with a slash, and asks no process for it.
    pub fn into_namespace(mut self, kind: &str) -> Option<OwnedFd> {
        let is_one = self.kernel_name()?.strip_prefix(kind)?.starts_with(":[");
        self.fd.take_if(|_| is_one)
    }

    fn kernel_name(&self) -> Option<String> {
        use std::os::fd::AsRawFd;
        let fd = self.fd.as_ref()?.as_raw_fd();
        let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        name.into_os_string().into_string().ok()
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("taken only by what consumes it"),
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        match self.fd.take() {
            Some(fd) if self.ours && is_drained(&fd) => drop(fd),
            Some(fd) => self.closer.close(self.user, fd),
            None => {}
        }
    }
}

/// Shuts down our end of a socket. Whether no message is in its queue, with whatever descriptors, nor can be any more.
fn is_drained(socket: &OwnedFd) -> bool {
    if sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX) {
        return true;
    }
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    if sockopt::socket_type(socket) == Ok(SocketType::STREAM) {
        return rustix::net::recv(socket, &mut [0; 1], flags).is_ok_and(|(_, len)| len == 0);
    }
    // Then every message comes with its sender's name, for which there is no room: an empty one is told from the end.
    let asked = sockopt::set_socket_passcred(socket, true);
    let mut no_room = RecvAncillaryBuffer::default();
    let got = rustix::net::recvmsg(socket, &mut [], &mut no_room, flags);
    asked.is_ok() && got.is_ok_and(|got| got.bytes == 0 && !got.flags.contains(ReturnFlags::CTRUNC))
}

#[cfg(test)]
mod tests;
