//! Completion queues: polling, waiting, and awaiting.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rdmux_transport::wr::{Completion, WcStatus};
use rdmux_verbs as verbs;

use crate::Context;
use crate::error::{Attempt, Cause, Error, Result};
use crate::wait::{Deadline, Waiter};

/// A completion queue. Clones are the same queue.
///
/// [`poll`](Self::poll) never blocks and is the fastest way to take completions. It also drives the device, so that a
/// busy-polling program needs no other thread. [`wait`](Self::wait) sleeps until something completes.
#[derive(Clone)]
pub struct Cq(Arc<Inner>);

struct Inner {
    cq: verbs::Cq,
    waiter: Waiter<verbs::CompChannel>,
    // Last, because the device must outlive the queue.
    _context: Context,
}

impl Cq {
    pub(crate) fn new(context: &Context, entries: u32) -> Result<Self> {
        let object = || format!("completion queue of {entries} entries");
        let channel = verbs::CompChannel::new().on(object(), "create")?;
        let cq =
            verbs::Cq::new(context.device(), entries, Some(&channel), 0).on(object(), "create")?;
        Ok(Self(Arc::new(Inner { cq, waiter: Waiter::new(channel), _context: context.clone() })))
    }

    pub(crate) fn verbs(&self) -> &verbs::Cq {
        &self.0.cq
    }

    /// Takes up to `out.len()` completions, oldest first, and returns how many. Never blocks.
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        self.0.cq.poll(out)
    }

    /// Takes one completion, if available. Never blocks.
    pub fn poll_one(&self) -> Option<Completion> {
        let mut one = [EMPTY];
        (self.poll(&mut one) == 1).then_some(one[0])
    }

    /// Waits for completions, at most for `timeout` (none: without limit), and takes up to `out.len()` of them.
    /// Returns how many; 0 only if the timeout expired.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn wait(&self, out: &mut [Completion], timeout: Option<Duration>) -> Result<usize> {
        let deadline = Deadline::after(timeout);
        loop {
            let look = self.0.waiter.look();
            match self.poll_or_arm(out)? {
                0 if deadline.has_passed() => return Ok(0),
                0 => look.wait(deadline).on(self, "wait")?,
                n => return Ok(n),
            }
        }
    }

    /// Waits for one completion, at most for `timeout`, and returns it if it reports success.
    ///
    /// # Errors
    /// [`Cause::TimedOut`], or [`Cause::Completion`] if the work failed.
    pub fn wait_one(&self, timeout: Option<Duration>) -> Result<Completion> {
        let mut one = [EMPTY];
        match self.wait(&mut one, timeout)? {
            0 => Err(Error::new(self.to_string(), "wait", Cause::TimedOut)),
            _ => ok(one[0]),
        }
    }

    /// Awaits completions and takes at least one and up to `out.len()` of them.
    ///
    /// # Errors
    /// When the device is gone, or outside a tokio runtime.
    #[cfg(feature = "tokio")]
    pub async fn wait_async(&self, out: &mut [Completion]) -> Result<usize> {
        loop {
            let look = self.0.waiter.look();
            match self.poll_or_arm(out)? {
                0 => look.ready().await.on(self, "wait")?,
                n => return Ok(n),
            }
        }
    }

    /// Polls. If the queue is empty, arms its descriptor, which becomes readable after the next completion, and polls
    /// again to catch completions that arrived in between. For event loops that also wait for other things.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn poll_or_arm(&self, out: &mut [Completion]) -> Result<usize> {
        let n = self.poll(out);
        if n > 0 || out.is_empty() {
            return Ok(n);
        }
        self.arm_and_poll(out)
    }

    /// Arms the queue and polls after a poll that found nothing. This takes an event that other waiters may wait for, so
    /// if completions are left, it raises another.
    fn arm_and_poll(&self, out: &mut [Completion]) -> Result<usize> {
        let was_told = self.drain_events();
        self.0.cq.req_notify(false).on(self, "ask for an event")?;
        let n = self.poll(out);
        if was_told && n == out.len() {
            self.0.cq.announce_rest();
        }
        Ok(n)
    }

    /// Makes the queue's descriptor readable after the next completion, or only after the next one that is an error or
    /// that the sender marked [`solicited`](crate::SendWr::solicited). Completions already in the queue do not count:
    /// poll afterwards.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        self.drain_events();
        self.0.cq.req_notify(solicited_only).on(self, "ask for an event")
    }

    /// Returns the waiter for use after [`poll_or_arm`](Self::poll_or_arm) found nothing.
    pub(crate) fn waiter(&self) -> &Waiter<verbs::CompChannel> {
        &self.0.waiter
    }

    /// Takes all events of the completion channel. Returns whether there were any.
    fn drain_events(&self) -> bool {
        let mut any = false;
        while let Some(cq) = self.0.waiter.source().try_get_event() {
            cq.ack_events(1);
            any = true;
        }
        any
    }

    /// Changes the queue's capacity.
    ///
    /// # Errors
    /// When more completions are queued than would fit, or the device's limit is exceeded.
    pub fn resize(&self, entries: u32) -> Result<()> {
        self.0.cq.resize(entries).on(self, "resize")
    }

    /// Returns the queue's capacity in completions.
    pub fn capacity(&self) -> usize {
        self.0.cq.capacity()
    }
}

/// The descriptor is readable after the completion for which [`Cq::poll_or_arm`] armed it.
impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.waiter.source().as_fd()
    }
}

impl fmt::Display for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "completion queue of {} entries", self.capacity())
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A placeholder for the array that [`Cq::poll`] fills.
pub const EMPTY: Completion = Completion { status: WcStatus::GeneralErr, ..Completion::EMPTY };

/// Returns the completion if it reports success, otherwise an error that names its queue pair.
///
/// # Errors
/// [`Cause::Completion`] with its status.
pub fn ok(completion: Completion) -> Result<Completion> {
    match completion.status {
        WcStatus::Success => Ok(completion),
        status => Err(Error::new(
            format!("queue pair {}, work request {:#x}", completion.qpn, completion.wr_id),
            "complete",
            Cause::Completion(status),
        )),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::QpType;

    #[test]
    fn armed_cq_stays_readable_when_another_thread_polls_some_completions() {
        let host = Context::builder().embedded().open().unwrap();
        let cq = host.cq(8).unwrap();
        let qp = host.pd().qp(QpType::Rc).cq(&cq).build().unwrap();
        qp.fail().unwrap();
        let mut one = [EMPTY];

        // One thread waits from here on.
        assert_eq!(cq.poll_or_arm(&mut one).unwrap(), 0);
        // Another thread finds nothing, and a third takes the first of the completions that arrive then.
        assert_eq!(cq.poll(&mut one), 0);
        (0..3).for_each(|wr_id| qp.post_recv(wr_id, &[]).unwrap());
        assert_eq!(cq.poll(&mut one), 1);
        assert_eq!(cq.arm_and_poll(&mut one).unwrap(), 1);
        assert_eq!(poll(&mut [PollFd::new(&cq, PollFlags::IN)], Some(&Timespec::default())), Ok(1));
        assert_eq!(cq.poll(&mut one), 1);
    }
}
