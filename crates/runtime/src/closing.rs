//! Closing descriptors whose kind clients choose.
//!
//! A client may pass any descriptor, and close(2) may block: for a file of a FUSE file system on its process,
//! for a TCP socket with `SO_LINGER` on the peer, for a Unix socket on the descriptors in its unread messages.
//! So no thread that serves others closes such a descriptor ([`Foreign`]). Threads of the [`Closer`] do.
//!
//! A blocked thread cannot be helped: other threads close the descriptors of other users. A user has only
//! a few threads, and clients of a user with many descriptors waiting are refused ([`Closer::is_full`]).

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

/// The maximum number of closing threads for all users together.
const MAX_THREADS: usize = 16;
/// The maximum number of threads that close the descriptors of one user.
const USER_THREADS: usize = 2;
/// The number of descriptors of a user still to be closed from which its clients are refused.
const MAX_WAITING: usize = 256;
/// Time that a thread waits for more work before it exits.
const IDLE: Duration = Duration::from_secs(1);

/// A pool of threads that close descriptors.
#[derive(Clone, Debug, Default)]
pub struct Closer(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The users with descriptors that are waiting or being closed.
    users: BTreeMap<u32, User>,
    threads: usize,
    /// Threads that wait for work, or have just been started: these look for work first.
    idle: usize,
    /// Whether the last thread could not be started, which is logged once.
    short: bool,
}

/// The descriptors of one user.
#[derive(Debug, Default)]
struct User {
    waiting: VecDeque<OwnedFd>,
    /// The number of descriptors being closed now.
    busy: usize,
}

impl State {
    /// Returns a user with a waiting descriptor and fewer than the maximum threads: the one with the fewest.
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
    /// Wraps a descriptor that a client of this user passed.
    pub fn foreign(&self, user: u32, fd: OwnedFd) -> Foreign {
        Foreign { fd: Some(fd), user, ours: false, closer: self.clone() }
    }

    /// Wraps the service's end of a socket on which clients of this user may send.
    pub fn socket(&self, user: u32, fd: OwnedFd) -> Foreign {
        // Receiving in a stream would close descriptors sent with urgent bytes (`MSG_OOB`), unless
        // those are received inline.
        let _ = sockopt::set_socket_oobinline(&fd, true);
        Foreign { fd: Some(fd), user, ours: true, closer: self.clone() }
    }

    /// Returns whether so many descriptors of a user are still to be closed that no more are accepted from it.
    pub fn is_full(&self, user: u32) -> bool {
        let state = self.0.state.lock();
        state.users.get(&user).is_some_and(|u| u.waiting.len() + u.busy >= MAX_WAITING)
    }

    /// Makes a thread close a descriptor. Never blocks.
    fn close(&self, user: u32, fd: OwnedFd) {
        let mut state = self.0.state.lock();
        state.users.entry(user).or_default().waiting.push_back(fd);
        if state.idle > 0 {
            self.0.wake.notify_one();
        } else {
            self.hire(&mut state);
        }
    }

    /// Starts another thread if work is queued that no existing thread is about to do.
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
            // The waiting descriptors are closed together with the next one.
            Err(error) => {
                if !std::mem::replace(&mut state.short, true) {
                    tracing::warn!(%error, "cannot start a thread to close descriptors; they wait for the next one");
                }
            }
        }
    }

    /// Runs a thread, until it has had no work for a while.
    fn work(&self) {
        let mut state = self.0.state.lock();
        state.idle -= 1;
        loop {
            if let Some((user, fd)) = state.take() {
                // This thread may block from here on.
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
    /// The descriptor, until it is dropped or taken.
    fd: Option<OwnedFd>,
    user: u32,
    /// Whether this process created the socket, so that only the messages in its queue are the client's.
    ours: bool,
    closer: Closer,
}

impl Foreign {
    /// Returns the descriptor if it is a memfd of fixed size, which is safe to map and close: the kernel
    /// itself serves it. No other file supports F_GET_SEALS, and the call involves no other process.
    pub fn into_memfd(mut self) -> Option<OwnedFd> {
        let seals = rustix::fs::fcntl_get_seals(self.fd.as_ref()?).ok()?;
        self.fd.take_if(|_| seals.contains(SealFlags::SHRINK | SealFlags::GROW))
    }

    /// Returns the descriptor if it is a process's, which is safe to use and close (pidfd_open(2)).
    pub fn into_pidfd(mut self) -> Option<OwnedFd> {
        let name = self.kernel_name()?;
        let is_one = ["anon_inode:[pidfd]", "pidfd:["].iter().any(|is| name.starts_with(is));
        self.fd.take_if(|_| is_one)
    }

    /// Returns the descriptor if it is a namespace's of this kind ("user", "mnt"), which is safe to use and close. Only
    /// the kernel gives files a name that does not begin with a slash, and reading the name involves no other process.
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

/// Shuts down the local end of a socket. Returns whether its queue has no message, which might carry descriptors, and
/// can get none any more.
fn is_drained(socket: &OwnedFd) -> bool {
    if sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX) {
        return true;
    }
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    if sockopt::socket_type(socket) == Ok(SocketType::STREAM) {
        return rustix::net::recv(socket, &mut [0; 1], flags).is_ok_and(|(_, len)| len == 0);
    }
    // With this, every message carries its sender's credentials, which exceed the buffer. So an empty message differs
    // from the end.
    let asked = sockopt::set_socket_passcred(socket, true);
    let mut no_room = RecvAncillaryBuffer::default();
    let got = rustix::net::recvmsg(socket, &mut [], &mut no_room, flags);
    asked.is_ok() && got.is_ok_and(|got| got.bytes == 0 && !got.flags.contains(ReturnFlags::CTRUNC))
}

#[cfg(test)]
mod tests;
