//! A descriptor whose last close(2) blocks.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A time longer than any test may take.
const LINGER: Duration = Duration::from_secs(600);

/// Returns a TCP socket with bytes that its peer does not read, whose last close waits for that
/// (`SO_LINGER`), and the peer. Dropping the peer ends the wait.
///
/// # Panics
/// If the socket cannot be created.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let connected = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let ours = TcpStream::connect(listener.local_addr()?)?;
        Ok::<_, std::io::Error>((ours, listener.accept()?.0))
    };
    let (mut ours, theirs) = connected().expect("a connection");
    ours.set_nonblocking(true).expect("a socket that does not block");
    let full = loop {
        if let Err(e) = ours.write(&[0; 1 << 16]) {
            break e;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    ours.set_nonblocking(false).expect("a socket that blocks");
    rustix::net::sockopt::set_socket_linger(&ours, Some(LINGER)).expect("a socket that lingers");
    (ours.into(), theirs)
}

/// Closes a descriptor in a thread of its own, which blocks if all duplicates are closed already.
pub fn close_elsewhere(fd: OwnedFd) {
    std::thread::spawn(|| drop(fd));
}
