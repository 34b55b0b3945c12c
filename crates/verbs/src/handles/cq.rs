//! Completion queues (`ibv_create_cq(3)`, `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`).

use std::sync::Arc;

use rdmux_transport::wr::Completion;

use crate::engine::device::Device;
use crate::handles::channel::CompChannel;
use crate::handles::refs::CqRef;
use crate::objects::cq::{CqCore, CqSetup};
use crate::objects::error::VerbsError;
use crate::objects::quota::Counted;

/// A completion queue. Any thread may poll it; polling an empty one drives the device.
#[derive(Clone, Debug)]
pub struct Cq {
    pub(crate) core: Arc<CqCore>,
    device: Arc<Device>,
    channel: Option<CompChannel>,
}

/// Parameters of a new completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqInit<'a> {
    /// The least number of completions that the queue holds.
    pub entries: u32,
    /// The channel on which the queue raises events.
    pub channel: Option<&'a CompChannel>,
    /// The caller's own value.
    pub context: u64,
    /// Whether completions carry the time of delivery, in nanoseconds of `CLOCK_MONOTONIC`. Completions of one burst of packets,
    /// or of one post, may share a time.
    pub timestamps: bool,
    /// Whether a completion that does not fit replaces the oldest. Otherwise it breaks the queue and the queue pairs that use it.
    pub ignore_overrun: bool,
}

impl Cq {
    /// Creates a queue for at least `entries` completions. `context` is the caller's own value.
    ///
    /// # Errors
    ///
    /// EINVAL when `entries` is 0 or above the device's limit, ENOMEM when there are as many queues as the device allows, or
    /// memory cannot be allocated.
    pub fn new(
        device: &Arc<Device>,
        entries: u32,
        channel: Option<&CompChannel>,
        context: u64,
    ) -> Result<Self, VerbsError> {
        Self::with(device, &CqInit { entries, channel, context, ..CqInit::default() })
    }

    /// Creates a queue like [`new`](Self::new), with every parameter (`ibv_create_cq_ex(3)`).
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn with(device: &Arc<Device>, init: &CqInit<'_>) -> Result<Self, VerbsError> {
        const WHAT: &str = "create a completion queue";
        let capacity = check_capacity(device, WHAT, init.entries)?;
        let permit = device.permit(WHAT, Counted::Cq)?;
        let setup = CqSetup {
            capacity,
            channel: init.channel.map(|channel| channel.0.clone()),
            context: init.context,
            timestamps: init.timestamps,
            ignore_overrun: init.ignore_overrun,
        };
        let core = CqCore::new(WHAT, setup, device.engine().promises().clone(), permit)?;
        Ok(Self { core, device: device.clone(), channel: init.channel.cloned() })
    }

    /// Takes up to `out.len()` completions, oldest first, and returns how many. If the queue is empty, polls the device once and
    /// tries again.
    pub fn poll(&self, out: &mut [Completion]) -> usize {
        let mut slots = out.iter_mut();
        self.poll_each(slots.len(), |completion| {
            if let Some(slot) = slots.next() {
                *slot = *completion;
            }
        })
    }

    /// Polls like [`poll`](Self::poll), but passes up to `max` completions to `take` one by one, with the queue locked, so `take`
    /// must not destroy a queue pair.
    pub fn poll_each(&self, max: usize, take: impl FnMut(&Completion)) -> usize {
        let core = &*self.core;
        if core.is_empty() {
            self.device.progress();
            if core.is_empty() {
                core.note_empty();
                return 0;
            }
        }
        core.take_each(max, take)
    }

    /// Requests an event on the channel at the next completion, or at the next one that is solicited or an error. Completions
    /// already queued raise no event, unless they arrived after the last event and after a poll that left or found the queue
    /// empty. For these the event is raised at once, as adapters do: UCX sleeps without polling again, and perftest counts
    /// events.
    ///
    /// # Errors
    ///
    /// EINVAL without a channel.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.channel.is_none() {
            return Err(VerbsError::invalid(
                "ask for a completion event",
                "the completion queue was created without a channel",
            ));
        }
        self.core.arm(solicited_only);
        self.device.engine().expect_sleep();
        Ok(())
    }

    /// Raises the requested event at once if completions are queued. For a thread that took an earlier event and leaves
    /// completions to other threads, which wait for an event.
    pub fn announce_rest(&self) {
        self.core.announce_rest();
    }

    /// Changes the capacity.
    ///
    /// # Errors
    ///
    /// EINVAL when more completions are queued than would fit, or beyond the device's limit.
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        const WHAT: &str = "resize a completion queue";
        let capacity = check_capacity(&self.device, WHAT, entries)?;
        self.core.resize(capacity).map_err(|waiting| {
            VerbsError::invalid(
                WHAT,
                format!("{waiting} completions are queued, more than the new size of {capacity}"),
            )
        })
    }

    /// Returns how many completions fit.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }
    /// Returns the caller's own value.
    pub fn context(&self) -> u64 {
        self.core.context()
    }
    /// Returns the queue's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// Returns the queue's channel, if any.
    pub fn channel(&self) -> Option<&CompChannel> {
        self.channel.as_ref()
    }
    /// Acknowledges `n` events that were taken from the channel.
    pub fn ack_events(&self, n: u32) {
        self.core.unacked().ack(n);
    }
    /// Acknowledges an asynchronous event about this queue.
    pub fn ack_async_event(&self) {
        self.core.async_unacked().ack(1);
    }
    /// Returns how many queue pairs use it, counted once for each direction.
    pub fn users(&self) -> usize {
        self.core.users()
    }
    /// Withdraws events not yet taken and waits until taken ones are acknowledged, as is required before the queue is destroyed.
    pub fn quiesce(&self) {
        self.core.withdraw();
        self.device.events().withdraw(|e| e.is_about_cq(&self.core));
        self.core.unacked().wait();
        self.core.async_unacked().wait();
    }
}

impl PartialEq for Cq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}
impl Eq for Cq {}

impl PartialEq<Cq> for CqRef {
    fn eq(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.0, &other.core)
    }
}

fn check_capacity(device: &Device, what: &'static str, entries: u32) -> Result<usize, VerbsError> {
    let max = device.limits().max_cqe;
    if entries == 0 || entries > max {
        return Err(VerbsError::invalid(
            what,
            format!("{entries} entries are out of range: 1 to {max}"),
        ));
    }
    Ok(entries as usize)
}
