//! Completion queues (`ibv_create_cq(3)`, `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rdmux_transport::wr::{Completion, WcStatus};
use rdmux_wire::Qpn;

use crate::handles::channel::CompChannel;
use crate::handles::device::Device;
use crate::handles::event::Raised;
use crate::objects::brief::{Mutex, MutexGuard};
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;
use crate::objects::quota::{Counted, Permit};
use crate::objects::room;
use crate::objects::unacked::Unacked;

/// A completion queue. Any thread may poll it; polling an empty one drives the device.
#[derive(Clone, Debug)]
pub struct Cq(pub(crate) Arc<CqCore>);

/// With what a completion queue is created.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInit<'a> {
    /// How many completions it holds at least.
    pub entries: u32,
    /// Where it announces completions.
    pub channel: Option<&'a CompChannel>,
    /// The caller's own value.
    pub context: u64,
    /// Whether completions tell when they were delivered, in nanoseconds of `CLOCK_MONOTONIC`. Those
    /// of one burst of packets, or of one post, may share their time.
    pub timestamps: bool,
    /// Whether a completion that does not fit takes the place of the oldest. Else it breaks the queue,
    /// and the queue pairs that use it.
    pub ignore_overrun: bool,
}

#[derive(Debug)]
pub(crate) struct CqCore {
    device: Arc<Device>,
    context: u64,
    channel: Option<CompChannel>,
    timestamps: bool,
    ignore_overrun: bool,
    /// How many completions wait: lets an empty queue be seen without the lock.
    len: AtomicUsize,
    /// Whether the last look at it took all there was, so that the program believes it empty.
    seen_empty: AtomicBool,
    queue: Mutex<Queue>,
    unacked: Unacked,
    async_unacked: Unacked,
    users: AtomicUsize,
    _permit: Permit,
}

#[derive(Debug)]
struct Queue {
    entries: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    /// How many of the newest came after the last event was made: no event tells of them.
    untold: usize,
    overflowed: bool,
    /// When the newest was delivered, where that is told.
    latest: u64,
}

impl Queue {
    /// Whether it takes no more. A large queue grows when it first needs to, if the memory for that can be had.
    #[inline]
    fn is_full(&mut self) -> bool {
        let len = self.entries.len();
        len >= self.capacity
            || len == self.entries.capacity() && self.entries.try_reserve(1).is_err()
    }
}

/// Which completion makes the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
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

/// A completion did not fit: the queue is broken, and with it the queue pairs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl Cq {
    /// Makes a queue for at least `entries` completions. `context` is the caller's own.
    ///
    /// # Errors
    ///
    /// EINVAL when `entries` is 0 or above the device's limit, ENOMEM when there are as many queues as the device
    /// allows, or no memory can be had.
    pub fn new(
        device: &Arc<Device>,
        entries: u32,
        channel: Option<&CompChannel>,
        context: u64,
    ) -> Result<Self, VerbsError> {
        Self::with(device, &CqInit { entries, channel, context, ..CqInit::default() })
    }

    /// As [`new`](Self::new), with all that can be said (`ibv_create_cq_ex(3)`).
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with(device: &Arc<Device>, init: &CqInit<'_>) -> Result<Self, VerbsError> {
        const WHAT: &str = "create a completion queue";
        let capacity = check_capacity(device, WHAT, init.entries)?;
        room::check(WHAT, capacity.min(PREALLOCATED) * size_of::<Completion>())?;
        let permit = device.permit(WHAT, Counted::Cq)?;
        Ok(Self(Arc::new(CqCore {
            device: device.clone(),
            context: init.context,
            channel: init.channel.cloned(),
            timestamps: init.timestamps,
            ignore_overrun: init.ignore_overrun,
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
            unacked: Unacked::default(),
            async_unacked: Unacked::default(),
            users: AtomicUsize::new(0),
            _permit: permit,
        })))
    }

    /// Takes up to `out.len()` completions, oldest first, and returns how many. If there is none,
    /// it moves the device forward once and looks again.
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        let mut slots = out.iter_mut();
        self.poll_each(slots.len(), |completion| {
            if let Some(slot) = slots.next() {
                *slot = *completion;
            }
        })
    }

    /// As [`poll`](Self::poll), with up to `max` completions handed to `take` one by one. The queue is
    /// locked meanwhile.
    pub fn poll_each(&self, max: usize, mut take: impl FnMut(&Completion)) -> usize {
        let core = &*self.0;
        if core.len.load(Ordering::Acquire) == 0 {
            core.device.progress();
            if core.len.load(Ordering::Acquire) == 0 {
                if !core.seen_empty.load(Ordering::Relaxed) {
                    core.seen_empty.store(true, Ordering::Relaxed);
                }
                return 0;
            }
        }
        let mut queue = core.queue.lock();
        let mut n = 0;
        while n < max
            && let Some(completion) = queue.entries.front()
        {
            take(completion);
            queue.entries.pop_front();
            n += 1;
        }
        core.seen_empty.store(n < max, Ordering::Relaxed);
        core.len.store(queue.entries.len(), Ordering::Release);
        n
    }

    /// Asks for an event on the channel at the next completion, or at the next one that is
    /// solicited or an error. Completions that are already there make none, unless they came after a
    /// poll that took the last one or found none, and after the last event: for these the event is made at
    /// once, as adapters do it. UCX sleeps without another look at the queue, and perftest counts its events.
    ///
    /// # Errors
    ///
    /// EINVAL without a channel.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.0.channel.is_none() {
            return Err(VerbsError::invalid(
                "ask for a completion event",
                "the completion queue was created without a channel",
            ));
        }
        self.0.arm(solicited_only);
        self.0.device.engine().expect_sleep();
        Ok(())
    }

    /// Changes the capacity.
    ///
    /// # Errors
    ///
    /// EINVAL when more completions wait than would fit, or beyond the device's limit.
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        let capacity = check_capacity(&self.0.device, "resize a completion queue", entries)?;
        let mut queue = self.0.queue.lock();
        if queue.entries.len() > capacity {
            return Err(VerbsError::invalid(
                "resize a completion queue",
                format!("{} completions wait, {capacity} would fit", queue.entries.len()),
            ));
        }
        queue.capacity = capacity;
        Ok(())
    }

    /// How many completions fit.
    pub fn capacity(&self) -> usize {
        self.0.queue.lock().capacity
    }
    /// The caller's own value.
    pub fn context(&self) -> u64 {
        self.0.context
    }
    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.0.device
    }
    /// Its channel.
    pub fn channel(&self) -> Option<&CompChannel> {
        self.0.channel.as_ref()
    }
    /// Acknowledges `n` events taken from the channel.
    pub fn ack_events(&self, n: u32) {
        self.0.unacked.ack(n);
    }
    /// Acknowledges an asynchronous event about this queue.
    pub fn ack_async_event(&self) {
        self.0.async_unacked.ack(1);
    }
    /// How many queue pairs use it (counted once for each direction).
    pub fn users(&self) -> usize {
        self.0.users.load(Ordering::Acquire)
    }
    /// Withdraws events not yet taken and waits until those taken are acknowledged: what destroying
    /// must do.
    pub fn quiesce(&self) {
        if let Some(channel) = &self.0.channel {
            channel.0.withdraw(|cq| cq.as_ptr() == Arc::as_ptr(&self.0));
        }
        self.0.device.events().withdraw(|e| e.is_about_cq(&self.0));
        self.0.unacked.wait();
        self.0.async_unacked.wait();
    }
}

impl PartialEq for Cq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Cq {}

/// Entries for which room is set aside at creation; larger queues grow when they first need to.
const PREALLOCATED: usize = 4096;

fn check_capacity(device: &Device, what: &'static str, entries: u32) -> Result<usize, VerbsError> {
    let max = device.limits().max_cqe;
    if entries == 0 || entries > max {
        return Err(VerbsError::invalid(
            what,
            format!("{entries} entries; 1 to {max} are possible"),
        ));
    }
    Ok(entries as usize)
}

impl CqCore {
    /// Puts a completion in and makes an event if one was asked for.
    pub(crate) fn push(self: &Arc<Self>, mut completion: Completion) -> Result<(), Overflow> {
        let mut queue = self.queue.lock();
        if queue.overflowed {
            return Err(Overflow);
        }
        let full = queue.is_full();
        if full && self.ignore_overrun {
            queue.entries.pop_front();
        } else if full {
            queue.overflowed = true;
            drop(queue);
            Counters(self.device.counters()).add(Counter::CqOverflows, 1);
            self.device.raise(Raised::CqError(Arc::downgrade(self)));
            return Err(Overflow);
        }
        if self.timestamps {
            // Another thread may have looked at the clock later and come first.
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

    /// Promises an event for the next completion, and keeps the promise at once if the program does not
    /// know of one that is there.
    fn arm(self: &Arc<Self>, solicited_only: bool) {
        let mut queue = self.queue.lock();
        if queue.armed == Armed::No {
            self.device.engine().cq_armed();
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

    /// Makes the event that was promised.
    fn announce(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) {
        let Some(channel) = &self.channel else { return };
        queue.armed = Armed::No;
        queue.untold = 0;
        drop(queue);
        self.device.engine().cq_disarmed();
        channel.0.push(Arc::downgrade(self));
    }

    /// Forgets what a queue pair has completed.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut queue = self.queue.lock();
        queue.entries.retain(|completion| completion.qpn != qpn);
        self.len.store(queue.entries.len(), Ordering::Release);
    }

    /// Whether completions are to tell their time.
    #[inline]
    pub(crate) fn wants_time(&self) -> bool {
        self.timestamps
    }

    /// Counts an event that the program now holds.
    pub(crate) fn event_delivered(self: Arc<Self>) -> Cq {
        self.unacked.delivered();
        Cq(self)
    }

    pub(crate) fn async_unacked(&self) -> &Unacked {
        &self.async_unacked
    }

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
            self.device.engine().cq_disarmed();
        }
    }
}
