//! The background thread, which drives the device whenever no program thread polls; or the program's own event loop in its place.
//!
//! It sleeps in `epoll_wait(2)` until a socket, a ring, the service or a timer needs work. While the program polls, the thread would
//! only interfere: it then wakes once a millisecond, and leaves the packets to the program unless a thread waits for a completion event.
//! It continues so for some ticks if the program would poll but other processes have the processor. While packets arrive and no program
//! thread polls, it busy-polls briefly before it sleeps again.

use std::io;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use rdmux_link::Usage;
use rdmux_link::board::EndMark;
use rdmux_link::spin_wait::Slices;
use rdmux_transport::Time;

use super::Engine;
use super::wait::{Sleep, TICK, Waiter};
use crate::engine::device::Device;
use crate::objects::error::VerbsError;

/// Time that the thread waits for room in a full ring or socket. Streams wake it when they have room.
pub(crate) const RETRY: Duration = Duration::from_micros(100);
/// Time that the thread busy-polls without finding work before it sleeps, if sockets or other processes bring work.
const LINGER: Duration = Duration::from_micros(50);
/// The number of polls in a tick above which the program counts as polling.
const POLLING: u64 = 32;

/// Time for which a program that polled is assumed to continue while other processes have the processor: twice the usual time slice
/// of a thread.
const STARVED: Duration = Duration::from_millis(20);

/// Detects whether the program polls, by the number of polls in the last tick.
///
/// With more threads than processors, a polling thread may wait some ticks for a processor. If the background thread did its work
/// meanwhile, woken for each packet, it would occupy the processor that the other waits for, and the two would disturb each other
/// permanently.
#[derive(Debug, Default)]
struct Habit {
    /// The count of polls, the time and the processor usage when the present tick began.
    polls: u64,
    since: Time,
    usage: Usage,
    polling: bool,
    /// Time when the program last polled often, and the count of preemptions a tick earlier.
    polled: Time,
    preempted: u64,
}

impl Habit {
    /// Updates the verdict from the present count of polls. `in_round` is whether a thread is in a round now: with messages of a MiB, a
    /// round may last longer than a tick. If called more than once a tick, because packets wake the caller, it returns the verdict on
    /// the last tick until the present one is beyond doubt.
    fn judge(
        &mut self,
        polls: u64,
        in_round: bool,
        now: Time,
        usage: impl FnOnce() -> Usage,
    ) -> bool {
        let many = in_round || polls.wrapping_sub(self.polls) > POLLING;
        if many || now.since(self.since) >= TICK {
            let usage = usage();
            if many {
                (self.polled, self.preempted) = (now, self.usage.preempted);
            }
            self.polling = many || self.polling && self.is_starved(usage, now);
            (self.polls, self.since, self.usage) = (polls, now, usage);
        }
        self.polling
    }

    /// Returns whether a program that polled would have done so in the tick that ends now if it had had the processor.
    fn is_starved(&self, usage: Usage, now: Time) -> bool {
        let used = usage.time.saturating_sub(self.usage.time);
        used < now.since(self.since) / 2
            && usage.preempted > self.preempted
            && now.since(self.polled) < STARVED
    }
}

impl Engine {
    /// Starts the thread, unless the program drives the device itself. The thread ends with the device.
    pub(crate) fn start(device: &Arc<Device>) -> Result<(), VerbsError> {
        if device.engine().driven {
            return Ok(());
        }
        let (weak, board) = (Arc::downgrade(device), device.reaches().board().cloned());
        let (ready, is_ready) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("rdmux".into());
        let run = move || {
            // No other thread lives as long as the queue pairs. It runs no code of the program, except a subscriber to its events and
            // wires and drivers of the program's own, which have no reason to lock a robust mutex.
            let mark = board.map(EndMark::new).transpose();
            let _mark = mark.inspect_err(
                |error| tracing::debug!(%error, "peers cannot see whether this process has called execve(2)"),
            );
            drop(ready);
            run(&weak);
        };
        rdmux_link::signals::with_blocked(|| thread.spawn(run))
            .map_err(VerbsError::os("start the device's thread"))?;
        // Peers may copy as soon as a queue pair is connected. The sender is dropped without a message.
        let _ = is_ready.recv();
        Ok(())
    }
}

fn run(device: &Weak<Device>) {
    super::drive::prepare_thread();
    // Programs that poll keep the processors busy until this thread has done some work.
    let tell = |error: &io::Error| tracing::debug!(%error, "cannot set short time slices for the device's thread");
    let mut slices = Slices::new().inspect_err(tell).ok();
    let mut habit = Habit::default();
    let mut undisturbed = false;
    // It must be possible to drop the device while this thread sleeps, so the thread holds no reference then.
    while let Some(strong) = device.upgrade() {
        let engine = strong.engine();
        if engine.is_stopped() {
            return;
        }
        let polling = habit.judge(engine.polls(), engine.is_in_round(), strong.now(), Usage::now);
        let (waiter, how) = engine.look_around(&strong, polling, undisturbed);
        let short = !engine.throughput.is_high(strong.counters(), strong.now());
        drop(strong);
        slices.take_if(|slices| slices.have(short).inspect_err(tell).is_err());
        let woken = waiter.sleep(how);
        undisturbed = !woken && how == Sleep::Tick;
    }
}

impl Engine {
    /// Busy-polls as long as packets arrive: a wakeup takes longer than a poll, for this thread and for the one that wakes it. Ends when
    /// a program thread polls, and after a tick, so that the service's events are processed.
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
                self.give_way(device, now);
            }
        }
    }

    /// Does the pending work, and returns how to sleep. After a tick without a wakeup, does not wait for a round that a polling
    /// program holds: that program may not have the processor, and the wait would not end.
    fn look_around(
        &self,
        device: &Arc<Device>,
        polling: bool,
        undisturbed: bool,
    ) -> (Arc<Waiter>, Sleep) {
        let polling = polling && !self.somebody_waits();
        if polling && undisturbed {
            let waiter = self.waiter();
            waiter.prepare(true);
            return (waiter, Sleep::Tick);
        }
        self.inbound(|inbound| inbound.wake());
        self.control_events(device);
        if device.has_failed() {
            self.let_go(device);
        }
        let waiter = self.waiter();
        if polling {
            self.hear(false);
            waiter.prepare(true);
            return (waiter, Sleep::Tick);
        }
        if device.xrc().is_hub() || self.listens() {
            self.linger(device);
        }
        self.drain(device);
        (waiter, Sleep::Until(self.prepare_sleep(device)))
    }

    /// Enables all wakeups of the sleeper. Returns how long it may sleep.
    fn prepare_sleep(&self, device: &Arc<Device>) -> Option<Duration> {
        let heard = self.hear(true);
        self.waiter().prepare(false);
        // A process that put a record into a ring before the ring was marked as asleep does not ring the doorbell. Nor does a thread
        // that took the record in a poll report that the queue pair owes an ACK, or that there was no room to send it. The queue pair
        // may be in either list; no round moves it while both are checked.
        let mut round = self.round.lock();
        if !round.inbound.sleep() {
            return Some(Duration::ZERO);
        }
        let owed = (!round.owed.is_empty()).then_some(RETRY);
        let unheard = (!heard).then_some(TICK);
        let streams = round.inbound.streams();
        let (has_room_wakeup, retry) = streams.wait_for_room(&self.pending.lock(), device.now());
        let deadline = self.deadline(device, has_room_wakeup);
        [deadline, owed, unheard, retry].into_iter().flatten().min()
    }

    /// Does the work of the missing background thread. Returns how long nothing needs to be done unless the device's
    /// [descriptor](Self::drive_fd) becomes readable.
    pub(crate) fn drive(&self, device: &Arc<Device>) -> Option<Duration> {
        let waiter = self.waiter();
        waiter.sleep(Sleep::Until(Some(Duration::ZERO)));
        self.inbound(|inbound| inbound.wake());
        if waiter.was_notified() {
            self.control_events(device);
        }
        if device.has_failed() {
            self.let_go(device);
        }
        self.drain(device);
        self.prepare_sleep(device)
    }
}

#[cfg(test)]
mod tests {
    use rdmux_link::PeerBoard;
    use rdmux_transport::attr::QpType;
    use rdmux_transport::wr::{Completion, SendOp, WcStatus};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::handles::pd::Pd;
    use crate::lab::{Lab, Node};

    fn ticks(n: u32) -> Time {
        Time::ZERO.after(TICK * n)
    }

    /// A usage of this many milliseconds of processor time and this many preemptions.
    fn used(millis: u64, preempted: u64) -> Usage {
        Usage { time: Duration::from_millis(millis), preempted }
    }

    #[test]
    fn frequent_polling_is_detected_within_one_tick() {
        let mut habit = Habit::default();
        let mut look = |polls| habit.judge(polls, false, ticks(0).after(TICK / 2), Usage::default);
        assert!(!look(1), "a few polls prove nothing");
        assert!((2..=POLLING).all(|polls| !look(polls)));
        assert!(look(POLLING + 1) && look(POLLING + 2));
    }

    #[test]
    fn end_of_polling_is_detected_one_tick_later() {
        let mut habit = Habit::default();
        let usage = Usage::default;
        assert!(habit.judge(POLLING + 1, false, ticks(1), usage));
        assert!(habit.judge(POLLING + 2, false, ticks(1).after(TICK / 2), usage));
        assert!(!habit.judge(POLLING + 3, false, ticks(2), usage));
        assert!(!habit.judge(POLLING + 4, false, ticks(9), usage), "now and then is not often");
    }

    #[test]
    fn poll_running_for_several_ticks_counts_as_polling() {
        let mut habit = Habit::default();
        assert!((1..9).all(|tick| habit.judge(0, true, ticks(tick), Usage::default)));
        assert!(!habit.judge(1, false, ticks(9), Usage::default), "it has ended");
    }

    #[test]
    fn poll_that_receives_a_message_counts_as_several_polls() {
        let lab = Lab::new(true);
        let [from, to] = ["127.77.208.1"; 2].map(|ip| {
            let (device, control) = lab.process(ip);
            Node::on(device.clone(), control, Pd::new(&device), QpType::Rc, 64, None)
        });
        from.connect(&to);
        to.connect(&from);
        let engine = to.device.engine();
        // The background thread may take the message first, but not always. A poll beside that thread is not counted, so each attempt
        // counts by itself.
        let counted = (0..100_000).any(|n| {
            let (before, mut calls) = (engine.polls(), 0);
            to.recv(n, 0, 8);
            from.send(n, SendOp::Send, 0, 8);
            let received = &mut [Completion::EMPTY];
            while to.cq.poll(received) == 0 {
                calls += 1;
            }
            calls += 1;
            assert_eq!((received[0].status, from.wait().status), [WcStatus::Success; 2].into());
            engine.polls() - before > calls
        });
        assert!(counted);
    }

    #[test]
    fn preempted_poller_counts_as_polling_for_some_ticks() {
        let mut habit = Habit::default();
        let mut at = |tick, polls, usage| habit.judge(polls, false, ticks(tick), || usage);
        assert!(at(1, 100, used(1, 0)));
        // It loses the processor in the second tick, after some polls.
        assert!(at(2, 200, used(2, 1)));
        assert!((3..22).all(|tick| at(tick, 200, used(2, 1))), "its turn may come");
        assert!(!at(22, 200, used(2, 1)), "it is as good as gone");
        assert!(at(23, 300, used(3, 1)), "it is back");
        assert!(!at(24, 300, used(3, 1)), "and sleeps of its own accord");
        assert!(at(25, 400, used(4, 1)));
        assert!(!at(26, 400, used(5, 2)), "and computes");
    }

    #[test]
    fn device_thread_makes_the_kernel_mark_the_board_at_the_end_of_the_process() {
        let (device, control) = Lab::new(true).process_with_board("127.77.208.8");
        let board = PeerBoard::map(device.reaches().board().unwrap().fd()).unwrap();
        assert!(board.shows_end());
        drop((device, control));
        while board.shows_end() {
            std::thread::yield_now();
        }
    }

    /// A program thread that took the message from the ring may never poll again.
    #[test]
    fn owed_ack_to_a_ring_limits_the_background_thread_sleep() {
        let lab = Lab::new(true);
        let node = |(device, control): (Arc<Device>, _)| {
            Node::on(device.clone(), control, Pd::new(&device), QpType::Rc, 64, None)
        };
        let from = node(lab.process("127.77.208.5"));
        // Only this test takes the message from the ring.
        let to = node(lab.driven_process("127.77.208.5"));
        from.connect(&to);
        to.connect(&from);
        let engine = to.device.engine();
        assert_eq!(engine.drive(&to.device), None);
        to.recv(1, 0, 8);
        from.send(2, SendOp::Send, 0, 8);
        assert_eq!(engine.round(&to.device), 1);
        assert_eq!(engine.prepare_sleep(&to.device), Some(RETRY));
        engine.drain(&to.device);
        assert_eq!(engine.prepare_sleep(&to.device), None);
        assert_eq!(from.wait().status, WcStatus::Success);
    }

    /// In any case it is retried after [`RETRY`].
    #[test]
    fn owed_ack_without_ring_space_causes_no_wakeup_and_is_retried() {
        let lab = Lab::new(true);
        let [from, to] = ["127.77.208.6"; 2].map(|ip| {
            let (device, control) = lab.driven_process(ip);
            Node::on(device.clone(), control, Pd::new(&device), QpType::Rc, 64, None)
        });
        from.connect(&to);
        to.connect(&from);
        let engine = to.device.engine();
        let slot = from.device.control().info().slot.slot;
        let ring = engine.neighbours().find(slot).unwrap();
        // Records that the peer counts and drops.
        while ring.put(&to.device, u8::MAX, [0; 16], &[]).is_ok() {}
        to.recv(1, 0, 8);
        from.send(2, SendOp::Send, 0, 8);
        assert_eq!(engine.round(&to.device), 1);
        assert_eq!(engine.drive(&to.device), Some(RETRY));

        let fds = &mut [PollFd::from_borrowed_fd(to.device.drive_fd(), PollFlags::IN)];
        for _ in 0..10 {
            // Runs a round, like a poll.
            assert_eq!(engine.round(&to.device), 0);
            assert_eq!(poll(fds, Some(&Timespec::default())).unwrap(), 0, "it was woken");
            assert_eq!(engine.prepare_sleep(&to.device), Some(RETRY));
        }

        from.device.drive();
        engine.round(&to.device);
        assert_eq!(engine.prepare_sleep(&to.device), None);
        let sent = &mut [Completion::EMPTY];
        while from.cq.poll(sent) == 0 {
            from.device.drive();
        }
        assert_eq!(sent[0].status, WcStatus::Success);
    }

    #[test]
    fn thread_usage_reports_growing_cpu_time() {
        let before = Usage::now();
        let mut now = before;
        while now.time == before.time {
            now = Usage::now();
        }
        assert!(now.time > before.time && now.preempted >= before.preempted);
    }
}
