//! Wakes the service's loop from other threads, by a descriptor that becomes readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The end that the loop polls.
#[derive(Debug)]
pub(crate) struct Wake(UnixStream);

/// The end of the threads that wake the loop.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<UnixStream>);

/// Makes both ends.
pub(crate) fn pair() -> io::Result<(Wake, Waker)> {
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    Ok((Wake(wake), Waker(waker.into())))
}

impl Wake {
    /// Takes all wake-ups.
    pub(crate) fn take(&self) {
        let mut buffer = [0; 64];
        while matches!(io::Read::read(&mut &self.0, &mut buffer), Ok(n) if n > 0) {}
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Waker {
    /// Wakes the loop. If the socket is full, the loop is woken anyway.
    pub(crate) fn wake(&self) {
        let _ = io::Write::write(&mut &*self.0, &[1]);
    }
}
