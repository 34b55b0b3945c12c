//! Implements blocking and async functions from one source.
//!
//! A function that waits is written once, as an `async fn` over a [`Style`]. [`Blocking`] sleeps inside the await, so
//! such a future is ready when it is first polled, and [`block_on`] needs no executor.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use std::io;

#[cfg(feature = "tokio")]
use crate::wait::in_runtime;
use crate::wait::{Deadline, Look, wait_any};

/// A way to wait.
pub(crate) trait Style {
    /// Waits until one of two descriptors may have become readable, or the time has passed.
    async fn either<A: AsFd, B: AsFd>(
        a: Look<'_, A>,
        b: Look<'_, B>,
        deadline: Deadline,
    ) -> io::Result<()>;

    /// Waits until a descriptor may have become readable, or the time has passed.
    async fn one<A: AsFd>(a: Look<'_, A>, deadline: Deadline) -> io::Result<()>;

    /// Yields to other tasks, for loops that a peer can keep from ever waiting.
    async fn give_way();
}

/// Waits by putting the calling thread to sleep.
pub(crate) struct Blocking;

impl Style for Blocking {
    async fn either<A: AsFd, B: AsFd>(
        a: Look<'_, A>,
        b: Look<'_, B>,
        deadline: Deadline,
    ) -> io::Result<()> {
        wait_any(&[a.source().as_fd(), b.source().as_fd()], deadline)
    }
    async fn one<A: AsFd>(a: Look<'_, A>, deadline: Deadline) -> io::Result<()> {
        a.wait(deadline)
    }
    async fn give_way() {}
}

/// Runs a future of [`Blocking`] style.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("in the blocking style every await sleeps until it is ready"),
    }
}

/// Waits in a task, while the tokio runtime's threads do other work.
#[cfg(feature = "tokio")]
pub(crate) struct Tokio;

#[cfg(feature = "tokio")]
impl Style for Tokio {
    async fn either<A: AsFd, B: AsFd>(
        a: Look<'_, A>,
        b: Look<'_, B>,
        deadline: Deadline,
    ) -> io::Result<()> {
        let (mut a, mut b) = (pin!(a.ready()), pin!(b.ready()));
        let first = std::future::poll_fn(|cx| match a.as_mut().poll(cx) {
            Poll::Pending => b.as_mut().poll(cx),
            ready => ready,
        });
        until(deadline, first).await
    }
    async fn one<A: AsFd>(a: Look<'_, A>, deadline: Deadline) -> io::Result<()> {
        until(deadline, a.ready()).await
    }
    async fn give_way() {
        tokio::task::yield_now().await;
    }
}

/// Returns the future's result, or success when the time has passed: callers check their deadline.
#[cfg(feature = "tokio")]
async fn until(deadline: Deadline, f: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    match deadline.left() {
        None => f.await,
        Some(left) => {
            in_runtime()?;
            tokio::time::timeout(left, f).await.unwrap_or(Ok(()))
        }
    }
}
