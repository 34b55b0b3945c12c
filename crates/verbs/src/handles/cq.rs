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

    /// Asks for an event on the channel at the next completion, or at the next one that is
    /// solicited or an error. Completions that are already there make none, unless they came after a
    /// poll that took the last one or found none, and after the last event: for these the event is made at
    /// once, as adapters do it. UCX sleeps without another look at the queue, and perftest counts its events.
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

    /// Makes the event that was asked for at once if completions wait: for a thread that took an earlier event and leaves
    /// completions to other threads, which wait for one.
    pub fn announce_rest(&self) {
        self.core.announce_rest();
    }

    /// Changes the capacity.
    ///
    /// # Errors
    ///
    /// EINVAL when more completions wait than would fit, or beyond the device's limit.
    pub fn resize(&self, entries: u32) -> Result<(), VerbsError> {
        const WHAT: &str = "resize a completion queue";
        let capacity = check_capacity(&self.device, WHAT, entries)?;
        self.core.resize(capacity).map_err(|waiting| {
            VerbsError::invalid(WHAT, format!("{waiting} completions wait, {capacity} would fit"))
        })
    }

    /// How many completions fit.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }
    /// The caller's own value.
    pub fn context(&self) -> u64 {
        self.core.context()
    }
    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
    /// Its channel.
    pub fn channel(&self) -> Option<&CompChannel> {
        self.channel.as_ref()
    }
    /// Acknowledges `n` events taken from the channel.
    pub fn ack_events(&self, n: u32) {
        self.core.unacked().ack(n);
    }
    /// Acknowledges an asynchronous event about this queue.
    pub fn ack_async_event(&self) {
        self.core.async_unacked().ack(1);
    }
    /// How many queue pairs use it (counted once for each direction).
    pub fn users(&self) -> usize {
        self.core.users()
    }
    /// Withdraws events not yet taken and waits until those taken are acknowledged: what destroying
    /// must do.
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
            format!("{entries} entries; 1 to {max} are possible"),
        ));
    }
    Ok(entries as usize)
}
