//! Calls on sockets again that signals have interrupted.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::io::{Errno, Result};
use rustix::net::sockopt::{self, Timeout};

/// Calls a function of a socket again after each signal, until the socket's timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`; socket(7)) has
/// passed since the first call. The kernel grants each call the whole timeout, so all of them together take at most twice as long.
///
/// # Errors
/// Those of `call`; after the timeout `EAGAIN`, as from the kernel.
pub(crate) fn until_timeout<T>(
    socket: impl AsFd,
    direction: Timeout,
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match call() {
            Err(Errno::INTR) if !is_over(socket.as_fd(), direction, start)? => {}
            Err(Errno::INTR) => return Err(Errno::AGAIN),
            done => return done,
        }
    }
}

/// Returns whether the socket has a timeout, which has passed.
fn is_over(socket: BorrowedFd<'_>, direction: Timeout, start: Instant) -> Result<bool> {
    let timeout = sockopt::socket_timeout(socket, direction)?;
    Ok(timeout.is_some_and(|timeout| start.elapsed() >= timeout))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::socket::pair;

    #[test]
    fn calls_that_signals_always_interrupt_end_after_the_timeout_if_there_is_one() {
        let (socket, _peer) = pair().unwrap();
        let timeout = Some(Duration::from_millis(8));
        for direction in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, timeout).unwrap();
            let ended = until_timeout(&socket, direction, || Err::<(), _>(Errno::INTR));
            assert_eq!(ended, Err(Errno::AGAIN));
            sockopt::set_socket_timeout(&socket, direction, None).unwrap();
            let mut signals = 0..1000;
            let call = || signals.next().map_or(Ok(()), |_| Err(Errno::INTR));
            assert_eq!(until_timeout(&socket, direction, call), Ok(()));
        }
    }
}
