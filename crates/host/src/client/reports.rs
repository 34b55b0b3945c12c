//! Reports to the service: requests without a reply, made by threads that must not wait, such as those that receive packets.
//!
//! A report is queued, and the queue is sent at once if no other thread is sending and the socket has room. Otherwise the thread that is
//! sending continues with the queue, or the device's thread when there is room.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::epoll;

use crate::proto::Request;
use crate::proto::socket::{self, MAX_MESSAGE};

/// Number of bytes of queued reports beyond which further ones are dropped, unless they are needed.
const MAX_WAITING: usize = 256 << 10;
/// Maximum number of bytes of a message that several reports share.
const SHARED_MESSAGE: usize = 4096;

/// Whether a report may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// It is dropped if too many reports wait.
    Droppable,
    /// It is kept until it is sent.
    Needed,
}

/// The reports that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Messages, oldest first.
    messages: VecDeque<Vec<u8>>,
    /// The number of bytes of these messages.
    bytes: usize,
    /// Whether the socket is watched for room.
    is_watched: bool,
}

impl Reports {
    /// Queues a report. Returns whether it was queued, rather than dropped.
    pub(super) fn push(&self, report: &Request, worth: Worth) -> bool {
        let mut message = Vec::new();
        if socket::append(report, &mut message).is_err() || message.len() > MAX_MESSAGE {
            return false;
        }
        let mut waiting = self.0.lock();
        if worth == Worth::Droppable && waiting.bytes + message.len() > MAX_WAITING {
            return false;
        }
        waiting.bytes += message.len();
        match waiting.messages.back_mut() {
            Some(last) if last.len() + message.len() <= SHARED_MESSAGE => last.extend(message),
            _ => waiting.messages.push_back(message),
        }
        true
    }

    /// Returns whether reports wait to be sent, or the socket is still watched for room.
    pub(super) fn is_waiting(&self) -> bool {
        let waiting = self.0.lock();
        !waiting.messages.is_empty() || waiting.is_watched
    }

    /// Takes the oldest message. If there is none, `wakeups` no longer watches the socket. Only the thread that may send calls this.
    pub(super) fn take(
        &self,
        socket: BorrowedFd<'_>,
        wakeups: Option<&Wakeups>,
    ) -> Option<Vec<u8>> {
        let mut waiting = self.0.lock();
        let message = waiting.messages.pop_front();
        match &message {
            Some(message) => waiting.bytes -= message.len(),
            None if std::mem::take(&mut waiting.is_watched) => {
                if let Some(wakeups) = wakeups {
                    wakeups.unwatch(socket);
                }
            }
            None => {}
        }
        message
    }

    /// Puts a message back for which the socket had no room. `wakeups` watches the socket from now on.
    pub(super) fn put_back(
        &self,
        message: Vec<u8>,
        socket: BorrowedFd<'_>,
        wakeups: Option<&Wakeups>,
    ) {
        let mut waiting = self.0.lock();
        waiting.bytes += message.len();
        waiting.messages.push_front(message);
        if let Some(wakeups) = wakeups.filter(|_| !waiting.is_watched) {
            // Without it, the reports are sent with the next request or report.
            waiting.is_watched = wakeups
                .watch_room(socket)
                .inspect_err(|error| tracing::debug!(%error, "cannot watch a socket for room"))
                .is_ok();
        }
    }
}

/// The descriptor that wakes the device's thread: it is readable when the service has sent a notification, and when reports wait and the
/// service has room for them.
#[derive(Debug)]
pub(super) struct Wakeups(OwnedFd);

impl Wakeups {
    /// Makes one for notifications on this socket.
    ///
    /// # Errors
    /// Those of epoll_create1(2) and epoll_ctl(2).
    pub(super) fn new(notify: BorrowedFd<'_>) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, notify, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self(set))
    }

    fn watch_room(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.0, socket, data, epoll::EventFlags::OUT)?)
    }

    fn unwatch(&self, socket: BorrowedFd<'_>) {
        // Fails only if it is not in the set.
        let _ = epoll::delete(&self.0, socket);
    }
}

impl AsFd for Wakeups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
