//! The thread that moves the device forward whenever nobody polls.
//!
//! It sleeps in `epoll_wait(2)` until a socket, a ring, the service or a timer wants something.
//! While the program polls it would only be in the way: then it looks in every millisecond, and
//! leaves the sockets alone unless somebody waits for a completion event.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Engine;
use crate::device::Device;
use crate::error::VerbsError;

/// How often it looks whether the program still polls.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// How long it waits for room in a ring or socket that was full.
pub(crate) const RETRY: Duration = Duration::from_micros(100);
/// For how long the hub looks in vain before it sleeps.
const LINGER: Duration = Duration::from_micros(50);
/// How many polls since it last looked make a program that polls.
const POLLING: u64 = 32;

/// How the thread sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sleep {
    /// Deaf to the sockets, for a tick.
    Tick,
    /// Until something happens, or for so long.
    Until(Option<Duration>),
}

impl Engine {
    /// Starts the thread. It ends with the device.
    pub(crate) fn start(device: &Arc<Device>) -> Result<(), VerbsError> {
        let weak = Arc::downgrade(device);
        let thread = std::thread::Builder::new().name("rdmux".into());
        crate::signals::with_blocked(|| thread.spawn(move || run(&weak)))
            .map(drop)
            .map_err(VerbsError::os("start the device's thread"))
    }
}

fn run(device: &Weak<Device>) {
    super::drive::prepare_thread();
    let mut seen = 0;
    // The device must be able to go while this thread sleeps, so it sleeps without holding it.
    while let Some(strong) = device.upgrade() {
        let engine = strong.engine();
        if engine.is_stopped() {
            return;
        }
        let (waiter, how) = engine.look_around(&strong, &mut seen);
        drop(strong);
        waiter.sleep(how);
    }
}

impl Engine {
    /// Goes on for a while as long as packets come: nobody else polls the hub's device, and to be woken
    /// takes longer than to look.
    fn linger(&self, device: &Arc<Device>) {
        let mut found = device.now();
        loop {
            let received = self.round(device);
            let now = device.now();
            if received != 0 {
                found = now;
            } else if now.since(found) > LINGER {
                return;
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Does what is to be done, and says how to sleep.
    fn look_around(
        &self,
        device: &Arc<Device>,
        seen: &mut u64,
    ) -> (Arc<super::wait::Waiter>, Sleep) {
        self.inbox(|inbox| inbox.wake());
        self.control_events(device);
        if device.has_failed() {
            self.let_go(device);
        }
        if device.xrc().is_hub() {
            self.linger(device);
        }
        self.drain(device);
        let polls = self.polls();
        let polling = polls.wrapping_sub(*seen) > POLLING && !self.somebody_waits();
        *seen = polls;
        let waiter = self.waiter();
        waiter.prepare(polling);
        if polling {
            return (waiter, Sleep::Tick);
        }
        // Whoever put something into a ring before it was marked as asleep does not ring the bell.
        if !self.inbox(|inbox| inbox.sleep()) {
            return (waiter, Sleep::Until(Some(Duration::ZERO)));
        }
        let deadline = self.deadline(device);
        (waiter, Sleep::Until(deadline))
    }
}
