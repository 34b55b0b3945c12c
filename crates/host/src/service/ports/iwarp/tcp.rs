//! TCP sockets with iWARP's options: no delay, non-blocking.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrAny, SocketFlags, SocketType};

/// The backlog of listening sockets.
const BACKLOG: i32 = 1024;

fn open(like: SocketAddr) -> io::Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if like.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// Makes a listening socket on an address.
pub(super) fn listen(at: SocketAddr) -> io::Result<OwnedFd> {
    let socket = open(at)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Returns whether a port of an address is free.
pub(super) fn is_free(at: SocketAddr) -> bool {
    // Without SO_REUSEADDR, so that nothing else may be bound there.
    open(at)
        .and_then(|socket| {
            sockopt::set_socket_reuseaddr(&socket, false)?;
            Ok(rustix::net::bind(&socket, &at)?)
        })
        .is_ok()
}

/// Accepts the next peer of a listening socket. Returns it with the connection's two addresses.
pub(super) fn accept(listening: &OwnedFd) -> io::Result<Option<(OwnedFd, SocketAddr, SocketAddr)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = match rustix::net::accept_with(listening, flags) {
        Ok(socket) => socket,
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let ends = || -> io::Result<_> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        Ok((address(rustix::net::getsockname(&socket)?)?, peer(&socket)?))
    };
    // A peer that is gone already is skipped.
    Ok(ends().ok().map(|(local, remote)| (socket, local, remote)))
}

/// Starts to connect. If TCP uses the port otherwise, any port is taken.
pub(super) fn connect(local: SocketAddr, remote: SocketAddr, tos: u8) -> io::Result<OwnedFd> {
    match try_connect(local, remote, tos) {
        Err(e)
            if matches!(e.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) =>
        {
            let mut any = local;
            any.set_port(0);
            try_connect(any, remote, tos)
        }
        other => other,
    }
}

fn try_connect(local: SocketAddr, remote: SocketAddr, tos: u8) -> io::Result<OwnedFd> {
    let socket = open(local)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if tos != 0 {
        match local {
            SocketAddr::V4(_) => sockopt::set_ip_tos(&socket, tos)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_tclass(&socket, tos.into())?,
        }
    }
    rustix::net::bind(&socket, &local)?;
    match rustix::net::connect(&socket, &remote) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(e) => Err(e.into()),
    }
}

/// Returns the local address of a socket if it is connected.
pub(super) fn connected(socket: &OwnedFd) -> io::Result<SocketAddr> {
    sockopt::socket_error(socket)??;
    peer(socket)?;
    address(rustix::net::getsockname(socket)?)
}

/// Returns whether the peer has shut down its direction, or there is an error.
pub(super) fn is_over(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready != 0)
}

/// Closes a socket so that the peer sees a reset.
pub(super) fn reset(socket: OwnedFd) {
    // If the option cannot be set, the peer sees an orderly end.
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}

fn peer(socket: &OwnedFd) -> io::Result<SocketAddr> {
    rustix::net::getpeername(socket)?.map_or(Err(Errno::NOTCONN.into()), address)
}

fn address(any: SocketAddrAny) -> io::Result<SocketAddr> {
    SocketAddr::try_from(any).map_err(io::Error::from)
}
