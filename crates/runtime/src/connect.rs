//! A client's connection to a service.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::retry::until_timeout;
use crate::{ServiceDir, unix_address};

/// The reason why a connection to an existing service failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The service's backlog is full.
    #[error("it accepted no connection for {0:?}")]
    Busy(Duration),
    /// The operating system returned an error.
    #[error("cannot connect to the socket: {0}")]
    Io(#[from] io::Error),
}

/// Returns a socket connected to the service of a directory, or none if no service runs. Calls on the socket time out
/// after `timeout`.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(dir: &ServiceDir, timeout: Duration) -> Result<Option<OwnedFd>, ConnectError> {
    let socket = unix_socket(SocketFlags::CLOEXEC)?;
    // connect(2) has the same timeout as a message.
    for direction in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(timeout)).map_err(io::Error::from)?;
    }
    connect_to(dir, socket, timeout)
}

/// Like [`connect`], with a nonblocking socket and without waiting: a full backlog is [`ConnectError::Busy`] at once.
///
/// # Errors
/// [`ConnectError`].
pub fn connect_nonblocking(dir: &ServiceDir) -> Result<Option<OwnedFd>, ConnectError> {
    let socket = unix_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    connect_to(dir, socket, Duration::ZERO)
}

fn unix_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn connect_to(
    dir: &ServiceDir,
    socket: OwnedFd,
    timeout: Duration,
) -> Result<Option<OwnedFd>, ConnectError> {
    let (address, _keep) = unix_address(&dir.socket())?;
    match until_timeout(&socket, Timeout::Send, || rustix::net::connect(&socket, &address)) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(Errno::AGAIN) => Err(ConnectError::Busy(timeout)),
        Err(e) => Err(ConnectError::Io(e.into())),
    }
}
