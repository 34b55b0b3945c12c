//! Connecting within a deadline, and only to trusted services.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rdmux_runtime::unix_address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::{Address, Error, Target, listener};

/// The state of a connection attempt.
pub(crate) enum Connecting {
    /// The connection is established.
    Done(OwnedFd),
    /// The outcome is known when the socket is writable.
    Wait(OwnedFd),
    /// The service's backlog is full.
    Busy,
}

/// Starts a nonblocking connection to the first target, from index `from` on, that has a listener. If waiting for it ends with
/// an error that means that no listener exists ([`is_absent`]), the caller continues with the next target.
pub(crate) fn connect(targets: &[Target], from: usize) -> Result<(usize, Connecting), Error> {
    for (i, target) in targets.iter().enumerate().skip(from) {
        match connect_target(target) {
            Err(error) if is_absent(&error) => {}
            other => return other.map(|connecting| (i, connecting)),
        }
    }
    Err(no_service(targets))
}

fn no_service(targets: &[Target]) -> Error {
    let all: Vec<_> = targets.iter().map(ToString::to_string).collect();
    Error::NoService(all.join(" or "))
}

/// Returns whether connecting failed because no process listens, or this host has no route.
pub(crate) fn is_absent(error: &Error) -> bool {
    let Error::System(_, errno) = error else { return false };
    let no_way = [Errno::HOSTUNREACH, Errno::NETUNREACH, Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    matches!(*errno, Errno::NOENT | Errno::CONNREFUSED) || no_way.contains(errno)
}

/// Starts a connection to a target, at the first of its addresses that this process can use.
fn connect_target(target: &Target) -> Result<Connecting, Error> {
    let mut refused = None;
    for address in target.addresses() {
        let may = match (&address, target.places()) {
            (Address::Tcp(at), Some(places)) => check_listener(*at, &places.port()),
            _ => Ok(()),
        };
        match may.and_then(|()| connect_to(&address)) {
            Err(e) if is_absent(&e) || matches!(e, Error::System(_, Errno::ACCESS)) => {
                refused = refused.or(Some(e));
            }
            other => return other,
        }
    }
    Err(refused.unwrap_or(Error::System(CONNECT, Errno::NOENT)))
}

const CONNECT: &str = "cannot connect to the ACM service";

fn connect_to(address: &Address) -> Result<Connecting, Error> {
    let failed = |errno| Error::System(CONNECT, errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = match address {
        Address::Unix(path) => {
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                    .map_err(failed)?;
            let (at, _keep) = unix_address(path).map_err(|e| failed(errno(&e)))?;
            match rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &at)) {
                Ok(()) => {
                    check_peer(&socket, path)?;
                    Ok(Connecting::Done(socket))
                }
                Err(Errno::AGAIN) => Ok(Connecting::Busy),
                Err(e) => Err(e),
            }
        }
        Address::Tcp(to) => {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
                .map_err(failed)?;
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            match rustix::net::connect(&socket, to) {
                Ok(()) => Ok(Connecting::Done(socket)),
                Err(Errno::INPROGRESS | Errno::INTR) => Ok(Connecting::Wait(socket)),
                Err(e) => Err(e),
            }
        }
    };
    connected.map_err(failed)
}

/// Connects to the first target that has a listener.
pub(crate) fn connect_within(
    targets: &[Target],
    deadline: Instant,
    timeout: Duration,
) -> Result<OwnedFd, Error> {
    for target in targets {
        match reach(|| connect_target(target), deadline, timeout) {
            Err(error) if is_absent(&error) => {}
            other => return other,
        }
    }
    Err(no_service(targets))
}

/// Connects, and retries while the service is busy.
fn reach(
    connect: impl Fn() -> Result<Connecting, Error>,
    deadline: Instant,
    timeout: Duration,
) -> Result<OwnedFd, Error> {
    loop {
        let connecting = connect()?;
        let left = left(deadline).ok_or(Error::TimedOut(timeout))?;
        match connecting {
            Connecting::Done(socket) => return Ok(socket),
            Connecting::Wait(socket) => {
                return wait_connected(&socket, deadline, timeout).map(|()| socket);
            }
            // There is no notification when the backlog has room.
            Connecting::Busy => std::thread::sleep(left.min(BUSY)),
        }
    }
}

impl Target {
    /// Checks that a trusted service listens there, within `timeout`, even if the service accepts no connections.
    ///
    /// # Errors
    /// [`Error::System`] with the errno of connect(2), [`Error::Untrusted`], and [`Error::TimedOut`].
    pub fn reach(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(timeout).ok_or(Error::TimedOut(timeout))?;
        reach(|| connect_target(self), deadline, timeout).map(drop)
    }
}

/// Waits until a connection is established or has failed.
fn wait_connected(socket: &OwnedFd, deadline: Instant, timeout: Duration) -> Result<(), Error> {
    loop {
        let left = left(deadline).ok_or(Error::TimedOut(timeout))?;
        wait(socket, PollFlags::OUT, left)?;
        if is_connected(socket)? {
            return Ok(());
        }
    }
}

/// Time to wait before retrying a busy service.
pub(crate) const BUSY: Duration = Duration::from_millis(2);

/// Returns whether a pending connection is established.
pub(crate) fn is_connected(socket: &OwnedFd) -> Result<bool, Error> {
    let failed = |errno| Error::System(CONNECT, errno);
    sockopt::socket_error(socket).map_err(failed)?.map_err(failed)?;
    Ok(rustix::net::getpeername(socket).is_ok())
}

/// Returns the remaining time; none if the deadline has passed.
pub(crate) fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// Waits until a socket is ready, the time is over, or a signal handler has run.
pub(crate) fn wait(socket: &OwnedFd, flags: PollFlags, time: Duration) -> Result<(), Error> {
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(socket, flags)], Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(Error::System("cannot wait for the ACM service", e)),
    }
}

/// Rejects a peer that is neither root, nor this user, nor the owner of the socket's directory.
pub(crate) fn check_peer(socket: impl AsFd, path: &Path) -> Result<(), Error> {
    let failed = |e| Error::System("cannot get the credentials of the ACM service", errno(&e));
    let uid = rdmux_link::peer_credentials(socket).map_err(failed)?.uid;
    check_user(uid, path, || path.display().to_string())
}

/// Rejects a listener on a service's TCP port, given the file with its number, as [`check_peer`] does.
fn check_listener(at: SocketAddr, file: &Path) -> Result<(), Error> {
    // A service's file has the port of a loopback address.
    let SocketAddr::V4(port) = at else { return Ok(()) };
    let failed = |e| Error::System("cannot get the user of the ACM service's port", errno(&e));
    match listener::user_of(port).map_err(failed)? {
        Some(uid) => check_user(uid, file, || at.to_string()),
        None => Err(Error::System(CONNECT, Errno::CONNREFUSED)),
    }
}

fn check_user(uid: u32, file: &Path, at: impl Fn() -> String) -> Result<(), Error> {
    let folder = file.parent().and_then(|folder| std::fs::metadata(folder).ok());
    let owner = folder.map(|folder| folder.uid());
    if is_trusted(uid, rustix::process::geteuid().as_raw(), owner) {
        return Ok(());
    }
    Err(Error::Untrusted { at: at(), uid })
}

fn is_trusted(listener: u32, own: u32, owner: Option<u32>) -> bool {
    listener == 0 || listener == own || owner == Some(listener)
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::is_trusted;

    #[test]
    fn only_listeners_of_own_user_root_or_file_owner_are_trusted() {
        for (listener, owner) in [(0, Some(7)), (5, Some(0)), (7, Some(7)), (5, None)] {
            assert!(is_trusted(listener, 5, owner), "{listener} {owner:?}");
        }
        assert!(
            !is_trusted(7, 5, Some(0)) && !is_trusted(7, 5, None) && !is_trusted(7, 0, Some(0))
        );
    }
}
