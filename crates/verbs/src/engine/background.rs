//! The thread that moves the device forward whenever nobody polls.
//!
//! It sleeps in `epoll_wait(2)` until a socket, a ring, the service or a timer wants something.
//! While the program polls it would only be in the way: then it looks in every millisecond, and
//! leaves the packets alone unless somebody waits for a completion event. While packets come, and nobody
//! polls, it goes on looking for a moment before it sleeps again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rdmux_transport::Time;

use super::Engine;
use crate::device::Device;
use crate::error::VerbsError;

/// How often it looks whether the program still polls.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// How long it waits for room in a ring or socket that was full.
pub(crate) const RETRY: Duration = Duration::from_micros(100);
/// For how long it looks in vain before it sleeps, where sockets or other processes bring work.
const LINGER: Duration = Duration::from_micros(50);
/// How many polls within a tick make a program that polls.
const POLLING: u64 = 32;

/// Whether the program polls, judged by how often it did in the last tick.
#[derive(Debug, Default)]
struct Habit {
    /// The count of polls when the present tick began, and that time.
    polls: u64,
    since: Time,
    polling: bool,
}

impl Habit {
    /// Takes the present count of polls. Whoever asks more often than once a tick, because packets wake
    /// him, hears the verdict on the last tick unless this one is already beyond doubt.
    fn judge(&mut self, polls: u64, now: Time) -> bool {
        let many = polls.wrapping_sub(self.polls) > POLLING;
        if many || now.since(self.since) >= TICK {
            *self = Self { polls, since: now, polling: many };
        }
        self.polling
    }
}

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
    let mut habit = Habit::default();
    // The device must be able to go while this thread sleeps, so it sleeps without holding it.
    while let Some(strong) = device.upgrade() {
        let engine = strong.engine();
        if engine.is_stopped() {
            return;
        }
        let (waiter, how) = engine.look_around(&strong, &mut habit);
        drop(strong);
        waiter.sleep(how);
    }
}

impl Engine {
    /// Goes on for a while as long as packets come: to be woken takes longer than to look, for this thread
    /// and for who wakes it. A program that polls meanwhile has its turn, and so has, after a tick, what the
    /// service says.
    fn linger(&self, device: &Arc<Device>) {
        let (polls, began) = (self.polls(), device.now());
        let (mut found, mut now) = (began, began);
        while self.polls().wrapping_sub(polls) <= POLLING && now.since(began) < TICK {
            let received = self.round(device);
            now = device.now();
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
        habit: &mut Habit,
    ) -> (Arc<super::wait::Waiter>, Sleep) {
        self.inbox(|inbox| inbox.wake());
        self.control_events(device);
        if device.has_failed() {
            self.let_go(device);
        }
        let waiter = self.waiter();
        if habit.judge(self.polls(), device.now()) && !self.somebody_waits() {
            self.hear(false);
            waiter.prepare(true);
            return (waiter, Sleep::Tick);
        }
        if device.xrc().is_hub() || self.listens() {
            self.linger(device);
        }
        self.drain(device);
        let heard = self.hear(true);
        waiter.prepare(false);
        // Whoever put something into a ring before it was marked as asleep does not ring the bell.
        if !self.inbox(|inbox| inbox.sleep()) {
            return (waiter, Sleep::Until(Some(Duration::ZERO)));
        }
        let deadline = self.deadline(device).into_iter().chain((!heard).then_some(TICK)).min();
        (waiter, Sleep::Until(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(n: u32) -> Time {
        Time::ZERO.after(TICK * n)
    }

    #[test]
    fn who_polls_often_is_seen_however_often_one_looks() {
        let mut habit = Habit::default();
        let mut look = |polls| habit.judge(polls, ticks(0).after(TICK / 2));
        assert!(!look(1), "a few polls prove nothing");
        assert!((2..=POLLING).all(|polls| !look(polls)));
        assert!(look(POLLING + 1) && look(POLLING + 2));
    }

    #[test]
    fn who_polls_no_more_is_seen_a_tick_later() {
        let mut habit = Habit::default();
        assert!(habit.judge(POLLING + 1, ticks(1)));
        assert!(habit.judge(POLLING + 2, ticks(1).after(TICK / 2)));
        assert!(!habit.judge(POLLING + 3, ticks(2)));
        assert!(!habit.judge(POLLING + 4, ticks(9)), "now and then is not often");
    }
}
