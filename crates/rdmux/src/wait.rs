//! Waiting for descriptors, blocking or async. This crate sleeps nowhere else.

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
    /// Returns the deadline `timeout` from now. None, or a time that the clock cannot hold, means never.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|t| Instant::now().checked_add(t)))
    }
    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|d| Instant::now() >= d)
    }
    /// Returns the remaining time.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|d| d.saturating_duration_since(Instant::now()))
    }
}

/// Sleeps until one of the descriptors is readable or the time has passed. Returns early after a signal handler has
/// run; callers check their source and wait again.
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

/// A source with a descriptor, and how to wait for it in either style. Any number of threads and tasks may wait.
pub(crate) struct Waiter<F: AsFd> {
    #[cfg(feature = "tokio")]
    registered: std::sync::Mutex<Last>,
    /// Number of times that a task has cleared the runtime's readiness of the descriptor.
    #[cfg(feature = "tokio")]
    clears: std::sync::atomic::AtomicUsize,
    source: F,
}

/// A check of a source that has begun. It is created before the check, and waited on if the check found nothing.
///
/// The runtime reports readiness once, and the first task that it wakes clears it for all. A task that began its
/// check before that and does not wait yet may have missed the report, so it must not wait.
#[must_use = "wait on this if the check found nothing"]
pub(crate) struct Look<'a, F: AsFd> {
    waiter: &'a Waiter<F>,
    #[cfg(feature = "tokio")]
    clears: usize,
}

/// A duplicate of the descriptor in the reactor of a runtime.
#[cfg(feature = "tokio")]
type Registered = std::sync::Arc<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>>;

/// The registration of the runtime that waited last, and that runtime. Waiting tasks of other runtimes hold their
/// own.
#[cfg(feature = "tokio")]
type Last = Option<(tokio::runtime::Id, Registered)>;

/// Returns the current runtime. Fails outside of one, where tokio would panic.
#[cfg(feature = "tokio")]
pub(crate) fn in_runtime() -> io::Result<tokio::runtime::Id> {
    let current = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    Ok(current.id())
}

impl<F: AsFd> Waiter<F> {
    pub(crate) fn new(source: F) -> Self {
        Self {
            #[cfg(feature = "tokio")]
            registered: std::sync::Mutex::default(),
            #[cfg(feature = "tokio")]
            clears: std::sync::atomic::AtomicUsize::default(),
            source,
        }
    }

    /// Returns the source.
    pub(crate) fn source(&self) -> &F {
        &self.source
    }

    /// Begins a check of the source. Call it before each check that a wait may follow.
    pub(crate) fn look(&self) -> Look<'_, F> {
        Look {
            waiter: self,
            #[cfg(feature = "tokio")]
            clears: self.clears.load(std::sync::atomic::Ordering::Acquire),
        }
    }

    #[cfg(feature = "tokio")]
    #[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
    fn registered(&self) -> io::Result<Registered> {
        let current = in_runtime()?;
        let mut registered = self.registered.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, there)) = registered.as_ref().filter(|(runtime, _)| *runtime == current) {
            return Ok(there.clone());
        }
        let fd = self.source.as_fd().try_clone_to_owned()?;
        let interest = tokio::io::Interest::READABLE;
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives, and the returned value owns it.
        let new = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, interest) }?;
        let new = std::sync::Arc::new(new);
        *registered = Some((current, new.clone()));
        Ok(new)
    }
}

impl<F: AsFd> Look<'_, F> {
    /// Returns the source.
    pub(crate) fn source(&self) -> &F {
        &self.waiter.source
    }

    /// Sleeps until the source is readable or the time has passed.
    pub(crate) fn wait(self, deadline: Deadline) -> io::Result<()> {
        wait_any(&[self.source().as_fd()], deadline)
    }

    /// Waits on the current runtime until the source may have become readable since the check began. Check the source again
    /// afterwards.
    #[cfg(feature = "tokio")]
    pub(crate) async fn ready(self) -> io::Result<()> {
        use std::sync::atomic::Ordering;
        use std::task::Poll;

        let registered = self.waiter.registered()?;
        let mut readable = std::pin::pin!(registered.readable());
        std::future::poll_fn(|cx| match readable.as_mut().poll(cx) {
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            Poll::Ready(Ok(mut guard)) => {
                // Empty if another task has cleared it since it woke this one.
                if !guard.ready().is_empty() {
                    // Counted before it is cleared: a task that finds it cleared also finds it counted.
                    self.waiter.clears.fetch_add(1, Ordering::AcqRel);
                    guard.clear_ready();
                }
                Poll::Ready(Ok(()))
            }
            // This task is registered for wakeups by now, so any clearing from here on wakes it.
            Poll::Pending if self.waiter.clears.load(Ordering::Acquire) != self.clears => {
                Poll::Ready(Ok(()))
            }
            Poll::Pending => Poll::Pending,
        })
        .await
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
        waiter.look().wait(deadline).unwrap();
        assert!(deadline.has_passed());
        b.write_all(&[1]).unwrap();
        waiter.look().wait(Deadline::after(None)).unwrap();
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn task_that_missed_a_wakeup_checks_readiness_again() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let waiter = Waiter::new(a);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (first, second, third) = (waiter.look(), waiter.look(), waiter.look());
            b.write_all(&[1, 2, 3]).unwrap();
            // Wakes one task, which takes one byte.
            first.ready().await.unwrap();
            let missed = async {
                second.ready().await.unwrap();
                third.ready().await.unwrap();
            };
            let longest = Duration::from_secs(10);
            tokio::time::timeout(longest, missed).await.expect("two bytes are still there");
        });
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn cleared_readiness_makes_next_task_wait_for_new_data() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let waiter = Waiter::new(a);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            b.write_all(&[1]).unwrap();
            waiter.look().ready().await.unwrap();
            let mut next = std::pin::pin!(waiter.look().ready());
            let look = std::future::poll_fn(|cx| std::task::Poll::Ready(next.as_mut().poll(cx)));
            assert!(look.await.is_pending());
            b.write_all(&[2]).unwrap();
            next.await.unwrap();
        });
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn waiter_works_in_several_tokio_runtimes() {
        let (a, mut b) = UnixStream::pair().unwrap();
        b.write_all(&[1]).unwrap();
        let waiter = Waiter::new(a);
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let wait_on = |runtime: &tokio::runtime::Runtime| {
            runtime.block_on(async {
                let longest = Duration::from_secs(10);
                let ready = tokio::time::timeout(longest, waiter.look().ready());
                ready.await.expect("a byte is there").unwrap();
            });
        };
        let (first, second) = (runtime(), runtime());
        wait_on(&first);
        // The first one is idle: its descriptor is not polled.
        wait_on(&second);
        drop(second);
        wait_on(&first);
    }
}
