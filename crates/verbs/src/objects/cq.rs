//! The part of completion queues that the engine fills.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use rdmux_transport::wr::{Completion, WcStatus};
use rdmux_wire::Qpn;

use crate::objects::brief::{Mutex, MutexGuard};
use crate::objects::error::VerbsError;
use crate::objects::notify::NotifyQueue;
use crate::objects::quota::Permit;
use crate::objects::room;
use crate::objects::unacked::Unacked;

/// Events of completion queues, queued for the program.
pub(crate) type Announced = NotifyQueue<Weak<CqCore>>;

/// The number of completion queues of a device that are armed.
#[derive(Debug, Default)]
pub(crate) struct Promises(AtomicUsize);

impl Promises {
    /// Returns whether any queue is armed.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
    fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
    fn keep(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Parameters of a new completion queue.
#[derive(Debug)]
pub(crate) struct CqSetup {
    /// The maximum number of completions in the queue.
    pub(crate) capacity: usize,
    /// The channel on which the queue raises events.
    pub(crate) channel: Option<Arc<Announced>>,
    /// The caller's own value.
    pub(crate) context: u64,
    /// Whether completions carry a timestamp.
    pub(crate) timestamps: bool,
    /// Whether a completion that does not fit replaces the oldest.
    pub(crate) ignore_overrun: bool,
}

/// The part of a completion queue that the engine fills and the handle empties.
#[derive(Debug)]
pub(crate) struct CqCore {
    context: u64,
    channel: Option<Arc<Announced>>,
    timestamps: bool,
    ignore_overrun: bool,
    /// The number of queued completions, so that an empty queue is seen without the lock.
    len: AtomicUsize,
    /// Whether the last poll emptied the queue or found it empty, so that the program believes it empty.
    seen_empty: AtomicBool,
    queue: Mutex<Queue>,
    promises: Arc<Promises>,
    /// Unacknowledged events of the channel, and asynchronous ones.
    unacked: Unacked,
    async_unacked: Unacked,
    users: AtomicUsize,
    _permit: Permit,
}

/// The state of a completion queue that its lock guards.
#[derive(Debug)]
struct Queue {
    entries: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    /// The number of the newest completions that arrived after the last event was raised, so that no event covers them.
    untold: usize,
    overflowed: bool,
    /// The latest timestamp of a completion, if timestamps are recorded.
    latest: u64,
}

impl Queue {
    /// Returns whether the queue is full. A large queue grows when it first needs to, if memory can be allocated.
    #[inline]
    fn is_full(&mut self) -> bool {
        let len = self.entries.len();
        len >= self.capacity
            || len == self.entries.capacity() && self.entries.try_reserve(1).is_err()
    }
}

/// The kind of completion that raises the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    /// Not armed.
    No,
    /// Armed for a solicited completion or an error.
    Solicited,
    /// Armed for any completion.
    Any,
}

impl Armed {
    fn wants(self, completion: &Completion) -> bool {
        match self {
            Self::No => false,
            Self::Any => true,
            Self::Solicited => completion.solicited || completion.status != WcStatus::Success,
        }
    }
}

/// A completion did not fit: the queue is broken, and so are the queue pairs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// The queue overflowed with this completion: the program must get an event.
    Now,
    /// The queue overflowed earlier.
    Before,
}

/// The number of entries to allocate at creation. Larger queues grow when they first need to.
const PREALLOCATED: usize = 4096;

impl CqCore {
    /// Creates an empty queue. `promises` counts the armed queues of its device. `what` names the operation in the error.
    ///
    /// # Errors
    ///
    /// ENOMEM when memory cannot be allocated.
    pub(crate) fn new(
        what: &'static str,
        setup: CqSetup,
        promises: Arc<Promises>,
        permit: Permit,
    ) -> Result<Arc<Self>, VerbsError> {
        let CqSetup { capacity, channel, context, timestamps, ignore_overrun } = setup;
        room::check(what, capacity.min(PREALLOCATED) * size_of::<Completion>())?;
        Ok(Arc::new(Self {
            context,
            channel,
            timestamps,
            ignore_overrun,
            len: AtomicUsize::new(0),
            seen_empty: AtomicBool::new(false),
            queue: Mutex::new(Queue {
                entries: VecDeque::with_capacity(capacity.min(PREALLOCATED)),
                capacity,
                armed: Armed::No,
                untold: 0,
                overflowed: false,
                latest: 0,
            }),
            promises,
            unacked: Unacked::default(),
            async_unacked: Unacked::default(),
            users: AtomicUsize::new(0),
            _permit: permit,
        }))
    }

    /// Adds a completion, and raises an event if one was requested.
    pub(crate) fn push(self: &Arc<Self>, mut completion: Completion) -> Result<(), Overflow> {
        let mut queue = self.queue.lock();
        if queue.overflowed {
            return Err(Overflow::Before);
        }
        let full = queue.is_full();
        if full && self.ignore_overrun {
            queue.entries.pop_front();
        } else if full {
            queue.overflowed = true;
            return Err(Overflow::Now);
        }
        if self.timestamps {
            // Another thread may have read the clock later and taken the lock first.
            queue.latest = queue.latest.max(completion.timestamp);
            completion.timestamp = queue.latest;
        }
        queue.entries.push_back(completion);
        queue.untold += 1;
        self.len.store(queue.entries.len(), Ordering::Release);
        if queue.armed.wants(&completion) {
            self.announce(queue);
        }
        Ok(())
    }

    /// Returns whether the queue appears empty, without the lock.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Records that the program polled and found nothing.
    #[inline]
    pub(crate) fn note_empty(&self) {
        if !self.seen_empty.load(Ordering::Relaxed) {
            self.seen_empty.store(true, Ordering::Relaxed);
        }
    }

    /// Passes up to `max` completions to `take`, oldest first, with the queue locked.
    #[inline]
    pub(crate) fn take_each(&self, max: usize, mut take: impl FnMut(&Completion)) -> usize {
        let mut queue = self.queue.lock();
        let mut n = 0;
        while n < max
            && let Some(completion) = queue.entries.front()
        {
            take(completion);
            queue.entries.pop_front();
            n += 1;
        }
        self.seen_empty.store(n < max, Ordering::Relaxed);
        self.len.store(queue.entries.len(), Ordering::Release);
        n
    }

    /// Arms the queue for the next completion. Raises the event at once if a completion is queued of which the program is
    /// unaware.
    pub(crate) fn arm(self: &Arc<Self>, solicited_only: bool) {
        let mut queue = self.queue.lock();
        if queue.armed == Armed::No {
            self.promises.add();
        }
        queue.armed = match (queue.armed, solicited_only) {
            (Armed::No | Armed::Solicited, true) => Armed::Solicited,
            _ => Armed::Any,
        };
        let unknown = self.seen_empty.load(Ordering::Relaxed);
        let mut untold = queue.entries.iter().rev().take(queue.untold);
        if unknown && untold.any(|completion| queue.armed.wants(completion)) {
            self.announce(queue);
        }
    }

    /// Raises the event at once if the queue is armed and completions are queued, even if the program is aware of them.
    pub(crate) fn announce_rest(self: &Arc<Self>) {
        let queue = self.queue.lock();
        if queue.armed != Armed::No && !queue.entries.is_empty() {
            self.announce(queue);
        }
    }

    /// Raises the event and disarms the queue.
    fn announce(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        let Some(channel) = &self.channel else { return };
        queue.armed = Armed::No;
        queue.untold = 0;
        drop(queue);
        self.promises.keep();
        channel.push(Arc::downgrade(self));
    }

    /// Withdraws its events from the channel.
    pub(crate) fn withdraw(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.withdraw(|cq| cq.as_ptr() == Arc::as_ptr(self));
        }
    }

    /// Changes the capacity. If the queued completions would not fit, returns their number as an error.
    pub(crate) fn resize(&self, capacity: usize) -> Result<(), usize> {
        let mut queue = self.queue.lock();
        if queue.entries.len() > capacity {
            return Err(queue.entries.len());
        }
        queue.capacity = capacity;
        Ok(())
    }

    /// Returns how many completions fit.
    pub(crate) fn capacity(&self) -> usize {
        self.queue.lock().capacity
    }

    /// Discards the completions of a queue pair.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut queue = self.queue.lock();
        let untold = queue.entries.iter().rev().take(queue.untold);
        queue.untold = untold.filter(|completion| completion.qpn != qpn).count();
        queue.entries.retain(|completion| completion.qpn != qpn);
        self.len.store(queue.entries.len(), Ordering::Release);
    }

    /// Returns whether completions carry a timestamp.
    #[inline]
    pub(crate) fn wants_time(&self) -> bool {
        self.timestamps
    }

    /// Returns the value that the creator of the queue set.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// Returns the count of events that the program took from the channel.
    pub(crate) fn unacked(&self) -> &Unacked {
        &self.unacked
    }
    /// Returns the count of asynchronous events that the program took.
    pub(crate) fn async_unacked(&self) -> &Unacked {
        &self.async_unacked
    }

    /// Returns how many users the queue has. A queue pair counts once for each direction.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }
    /// Adds a user: a direction of a queue pair, or a shared receive queue.
    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }
    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for CqCore {
    fn drop(&mut self) {
        if self.queue.get_mut().armed != Armed::No {
            self.promises.keep();
        }
    }
}
