//! A queue of events behind a file descriptor: readable exactly while something is queued, blocking
//! or not as the program set `O_NONBLOCK` on it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, retry_on_intr, write};

/// Events of one kind. The descriptor is an eventfd in semaphore mode: a count an event.
#[derive(Debug)]
pub(crate) struct NotifyQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> NotifyQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, queue: Mutex::new(VecDeque::new()) })
    }

    pub(crate) fn push(&self, event: T) {
        self.queue.lock().push_back(event);
        // Fails only when 2^64 events are queued.
        let _ = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Takes the next event: waits for it, unless the descriptor is non-blocking.
    pub(crate) fn get(&self) -> io::Result<T> {
        loop {
            let mut count = [0; 8];
            retry_on_intr(|| read(&self.fd, &mut count))?;
            // Empty if the event was withdrawn: its count remained.
            if let Some(event) = self.queue.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// Takes the next event if there is one, whatever the descriptor's mode.
    ///
    /// The event is taken before its count. A thread in [`get`](Self::get) that meets the count
    /// without the event goes back to waiting.
    pub(crate) fn try_get(&self) -> Option<T> {
        let event = self.queue.lock().pop_front()?;
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) == Ok(1) {
            let _ = read(&self.fd, &mut [0; 8]);
        }
        Some(event)
    }

    /// Withdraws the events that match.
    pub(crate) fn withdraw(&self, matches: impl Fn(&T) -> bool) {
        self.queue.lock().retain(|e| !matches(e));
    }
}

impl<T> AsFd for NotifyQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable<T>(queue: &NotifyQueue<T>) -> bool {
        let mut fds = [PollFd::new(queue, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())) == Ok(1)
    }

    #[test]
    fn readable_while_something_is_queued() {
        let queue = NotifyQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.get().unwrap(), 1);
        assert!(readable(&queue));
        assert_eq!(queue.try_get(), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.try_get(), None);
    }

    #[test]
    fn a_withdrawn_event_is_not_delivered() {
        let queue = NotifyQueue::new().unwrap();
        queue.push(1);
        queue.push(2);
        queue.withdraw(|e| *e == 1);
        assert_eq!(queue.get().unwrap(), 2);
    }
}
