//! Waiting for descriptors, blocking or async: the one place where this crate sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rdmux_link::spin_wait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// A point in time, or never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` from now; none, or one that the clock cannot hold, is never.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|t| Instant::now().checked_add(t)))
    }
    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|d| Instant::now() >= d)
    }
    /// What is left.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|d| d.saturating_duration_since(Instant::now()))
    }
}

/// Sleeps until one of the descriptors is readable or the time has passed. A signal handler that
/// runs meanwhile makes it return early; callers look and wait again.
pub(crate) fn wait_any(fds: &[BorrowedFd<'_>], deadline: Deadline) -> io::Result<()> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    if spin_wait::look(|| poll(&mut fds, Some(&Timespec::default())) != Ok(0)) {
        return Ok(());
    }
    let left = deadline.left().map(|d| Timespec {
        tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: d.subsec_nanos().into(),
    });
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Something with a descriptor, and how to wait for it in either style.
pub(crate) struct Waiter<F: AsFd> {
    #[cfg(feature = "tokio")]
    registered: std::sync::Mutex<Option<Registered>>,
    source: F,
}

/// A duplicate of the descriptor in the reactor of a runtime.
#[cfg(feature = "tokio")]
type Registered = std::sync::Arc<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>;

/// Fails outside a runtime, where tokio would panic.
#[cfg(feature = "tokio")]
pub(crate) fn in_runtime() -> io::Result<()> {
    tokio::runtime::Handle::try_current().map(drop).map_err(io::Error::other)
}

impl<F: AsFd> Waiter<F> {
    pub(crate) fn new(source: F) -> Self {
        Self {
            #[cfg(feature = "tokio")]
            registered: std::sync::Mutex::default(),
            source,
        }
    }

    /// What has the descriptor.
    pub(crate) fn source(&self) -> &F {
        &self.source
    }

    /// Sleeps until it is readable or the time has passed.
    pub(crate) fn wait(&self, deadline: Deadline) -> io::Result<()> {
        wait_any(&[self.source.as_fd()], deadline)
    }

    /// Waits until it may have become readable since the last time. The first use binds it to the
    /// current runtime. Look at the source again afterwards, until it has nothing.
    #[cfg(feature = "tokio")]
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let registered = self.registered()?;
        registered.readable().await?.clear_ready();
        Ok(())
    }

    #[cfg(feature = "tokio")]
    #[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
    fn registered(&self) -> io::Result<Registered> {
        let mut registered = self.registered.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(there) = &*registered {
            return Ok(there.clone());
        }
        in_runtime()?;
        let fd = self.source.as_fd().try_clone_to_owned()?;
        let interest = tokio::io::Interest::READABLE;
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives, and it lives in
        // what is returned.
        let new = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, interest) }?;
        Ok(registered.insert(std::sync::Arc::new(new)).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_deadline_ends_the_wait_and_data_end_it_earlier() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let waiter = Waiter::new(a);
        let deadline = Deadline::after(Some(Duration::from_millis(1)));
        waiter.wait(deadline).unwrap();
        assert!(deadline.has_passed());
        b.write_all(&[1]).unwrap();
        waiter.wait(Deadline::after(None)).unwrap();
    }
}
