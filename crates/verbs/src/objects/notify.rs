//! A queue of events with a file descriptor that is readable exactly while an event is queued, and that blocks or not as the
//! program set `O_NONBLOCK` on it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read, retry_on_intr, write};

/// Events of one kind. The descriptor is an eventfd in semaphore mode, with a count of one for each event. Both change with the
/// queue locked: otherwise a count could be added after its event was taken, and would remain.
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

    /// Adds an event, and makes the descriptor readable.
    pub(crate) fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        queue.push_back(event);
        // Fails only when 2^64 events are queued.
        let _ = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Queues an event last. If a matching one is queued already, the new one replaces it.
    pub(crate) fn push_last(&self, event: T, matches: impl Fn(&T) -> bool) {
        let mut queue = self.queue.lock();
        let earlier = queue.iter().position(matches);
        queue.push_back(event);
        if let Some(at) = earlier {
            queue.remove(at);
            return;
        }
        let _ = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Takes the next event that `take` accepts. Blocks unless the descriptor is non-blocking. `take` is called with the queue
    /// locked, so that [`withdraw`](Self::withdraw) runs before or after it.
    pub(crate) fn get<R>(&self, take: impl Fn(T) -> Option<R>) -> io::Result<R> {
        loop {
            let mut count = [0; 8];
            retry_on_intr(|| read(&self.fd, &mut count))?;
            if let Some(taken) = self.take_counted(&take) {
                return Ok(taken);
            }
        }
    }

    /// Takes an event whose count has been read from the descriptor. Returns none if it was withdrawn, or taken by
    /// [`try_get`](Self::try_get), after that.
    pub(crate) fn take_counted<R>(&self, take: impl Fn(T) -> Option<R>) -> Option<R> {
        self.queue.lock().pop_front().and_then(take)
    }

    /// Takes the next event if there is one, without blocking in either mode of the descriptor.
    ///
    /// The event is taken before its count. A thread in [`get`](Self::get) that reads the count but finds no event waits again.
    pub(crate) fn try_get<R>(&self, take: impl Fn(T) -> Option<R>) -> Option<R> {
        loop {
            let mut queue = self.queue.lock();
            let taken = take(queue.pop_front()?);
            self.uncount();
            drop(queue);
            if taken.is_some() {
                return taken;
            }
        }
    }

    /// Withdraws the events that match.
    pub(crate) fn withdraw(&self, matches: impl Fn(&T) -> bool) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|e| !matches(e));
        for _ in queue.len()..before {
            self.uncount();
        }
    }

    /// Takes a count without waiting for one: a thread in [`get`](Self::get) may have read it already, and the descriptor may be
    /// a blocking one.
    fn uncount(&self) {
        let mut count = [0; 8];
        let buffer = &mut [io::IoSliceMut::new(&mut count)];
        // The offset is -1, as usual for a descriptor without a position.
        if preadv2(&self.fd, buffer, u64::MAX, ReadWriteFlags::NOWAIT) != Err(Errno::OPNOTSUPP) {
            return;
        }
        // A kernel before 5.10.
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::default())) == Ok(1) {
            let _ = read(&self.fd, &mut count);
        }
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
    fn notify_queue_fd_is_readable_while_an_event_is_queued() {
        let queue = NotifyQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.get(Some).unwrap(), 1);
        assert!(readable(&queue));
        assert_eq!(queue.try_get(Some), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.try_get(Some), None);
    }

    #[test]
    fn notify_queue_fd_is_unreadable_after_concurrent_push_and_take() {
        const EVENTS: u32 = 100_000;
        let queue = NotifyQueue::new().unwrap();
        std::thread::scope(|s| {
            s.spawn(|| (0..EVENTS).for_each(|n| queue.push(n)));
            let mut taken = 0;
            while taken < EVENTS {
                taken += u32::from(queue.try_get(Some).is_some());
            }
        });
        assert!(!readable(&queue));
    }

    #[test]
    fn push_last_moves_a_queued_event_to_the_end() {
        let queue = NotifyQueue::new().unwrap();
        for event in [1, 2, 1, 3, 2] {
            queue.push_last(event, |e| *e == event);
        }
        assert_eq!([1, 3, 2].map(|_| queue.get(Some).unwrap()), [1, 3, 2]);
        assert!(!readable(&queue));
    }

    #[test]
    fn a_withdrawn_event_is_not_delivered() {
        let queue = NotifyQueue::new().unwrap();
        queue.push(1);
        queue.push(2);
        queue.withdraw(|e| *e == 1);
        assert_eq!(queue.get(Some).unwrap(), 2);
        assert!(!readable(&queue));
        queue.push(3);
        queue.withdraw(|e| *e == 3);
        assert!(!readable(&queue));
    }
}
