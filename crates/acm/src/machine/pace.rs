//! The pacing of an endpoint's requests, so that no receiver gets more at once than it has buffers for, and answers are overheard
//! before they are requested.
//!
//! All endpoints of a subnet may start at the same time, but none knows whether they do. So a starting endpoint behaves
//! as follows:
//!
//! 1. It sends at once with a probability so low that receivers have buffers for all such requests, even if all endpoints
//!    start.
//! 2. Otherwise it listens for 20 ms. The number of requests that it receives shows how many endpoints are starting.
//! 3. Windows follow, each long enough for one request of each of these endpoints at the rate of the receivers. The endpoint sends one
//!    request in each window, at a random time. The next window is as long as the requests received in this one need, 65,536 at most.
//!
//! If it receives no requests, no windows follow, and the endpoint sends as soon as it has an answer. If receivers have buffers for
//! all endpoints that are still unknown, it does not listen.
//!
//! Of several requests ([`resolve_depth`](crate::Options::resolve_depth)) an endpoint sends one first. All others learn its address, and
//! may announce the addresses that it would request next. It listens for as long as sending the other requests would take at the receivers'
//! rate, and 20 ms at most. So it needs twice the time if all others are silent, and sends one request if all start. Each answer allows one
//! more outstanding request. Names that do not exist get no answers: 20 ms after a request, the next one is sent without an answer. As long
//! as an endpoint overhears answers to its queued searches, at the pace at which they arrive, it sends nothing but its first request.

use core::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::timers::Deadline;

use super::waiting::{Ticket, Waiting};

/// The minimum time over which received requests are counted before a window.
const MEMORY: Duration = Duration::from_millis(50);

/// Time that an endpoint listens before it sends, and the length of a pause after which it does so again.
const LISTEN: Duration = Duration::from_millis(20);

/// The minimum time that an endpoint waits for more answers after the last one it overheard. On a busy machine, answers sent long
/// ago arrive in batches.
const QUIET: Duration = Duration::from_millis(10);

/// The maximum of requests for which a window has time. There are fewer unicast LIDs, and each endpoint sends one request in a window. So an
/// endpoint that sends many more lengthens the windows of the others by a bounded time.
const MAX_IN_WINDOW: u64 = 1 << 16;

/// The pacing state of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Searches that are queued for sending.
    pub(super) queue: Waiting,
    /// The number of searches that wait for an answer to a multicast request.
    pub(super) asked: u32,
    /// Number of requests that may be outstanding besides the first: one for each answer since the last pause.
    answered: u32,
    /// Time when the last request was sent.
    sent_at: Time,
    /// Set when there is something to send later.
    pub(super) timer: Deadline,
    window: Window,
    burst: Option<Burst>,
}

/// The events since searches were first queued, from the first request on.
#[derive(Clone, Copy, Debug)]
struct Burst {
    since: Time,
    /// The interval between requests that arrive at the receivers' rate.
    gap: Duration,
    /// The number of overheard answers. `last` is when the last one arrived.
    overheard: u32,
    last: Time,
}

impl Burst {
    /// Returns the time from which no more answers to `waiting` searches are expected from other endpoints: sending these would
    /// have taken as long, and four times the average interval between answers has passed.
    fn end(&self, waiting: usize) -> Time {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        let listened = self.since.after(self.gap.saturating_mul(waiting).min(LISTEN));
        if self.overheard == 0 {
            return listened;
        }
        let gap = self.last.since(self.since) * 4 / self.overheard;
        listened.max(self.last.after(gap.clamp(QUIET, LISTEN)))
    }
}

/// A window in which an endpoint sends one request.
#[derive(Debug, Default)]
struct Window {
    len: Duration,
    end: Time,
    /// Time at which to send in the window. None if the request was sent.
    send_at: Option<Time>,
    heard: u64,
    samples: u64,
    heard_since: Time,
    /// Number of starting endpoints that each request received while listening represents.
    share: Option<u64>,
}

/// The inputs for a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// The number of endpoints that are still unknown.
    pub(super) strangers: u64,
    /// Number of requests that receivers have buffers for, with a large margin.
    pub(super) at_once: u64,
    /// The requests per second that receivers handle.
    pub(super) rate: u64,
    /// A random number that determines the time in the window.
    pub(super) random: u64,
}

impl Pace {
    /// Counts a request received from another endpoint. It is a sample of the number of starting endpoints if its
    /// sender also left sending to chance.
    pub(super) fn heard(&mut self, is_sample: bool) {
        self.window.heard += 1;
        self.window.samples += u64::from(is_sample);
    }

    /// Returns whether windows are in use. Then answers may be overheard.
    pub(super) fn is_crowded(&self) -> bool {
        !self.window.len.is_zero()
    }

    /// Queues a search for sending.
    pub(super) fn push(&mut self, ticket: Ticket) {
        if self.queue.len() == 0 && self.asked == 0 {
            self.burst = None;
        }
        self.queue.push(ticket);
    }

    /// Returns when one more request may be outstanding, with at most `depth` of them; [`Time::NEVER`] if not before
    /// there are fewer.
    pub(super) fn room_at(&self, now: Time, depth: u32) -> Time {
        let depth = depth.max(1);
        // No need to listen for the answer to the request that would be sent next.
        let others = self.queue.len().saturating_sub(1);
        let end = self.burst.map_or(now, |burst| burst.end(others).max(now));
        if self.asked <= self.answered.min(depth - 1) {
            end
        } else if self.asked < depth {
            self.sent_at.after(LISTEN).max(end)
        } else {
            Time::NEVER
        }
    }

    /// Counts a request that was the answer to a queued search.
    pub(super) fn overheard(&mut self, now: Time) {
        if let Some(burst) = &mut self.burst {
            (burst.overheard, burst.last) = (burst.overheard.saturating_add(1), now);
        }
    }

    /// Counts an answer to a multicast request.
    pub(super) fn answered(&mut self) {
        self.answered = self.answered.saturating_add(1);
    }

    /// Returns when the next request may be sent. Begins a window if none is open.
    pub(super) fn next(&mut self, now: Time, load: impl FnOnce() -> Load) -> Time {
        let window = &mut self.window;
        if let Some(at) = window.send_at {
            return at;
        }
        if now < window.end {
            return window.end;
        }
        let load = load();
        let is_pause = window.share.is_none() && now.since(window.end) >= LISTEN;
        if is_pause && load.strangers > load.at_once {
            let begins = load.random % load.strangers < load.at_once;
            *window = Window {
                len: LISTEN,
                end: now.after(LISTEN),
                send_at: begins.then_some(now),
                heard: 0,
                samples: 0,
                heard_since: now,
                share: Some(load.strangers / load.at_once.max(1)),
            };
            return if begins { now } else { window.end };
        }
        let requests = match window.share {
            Some(share) => window.samples.saturating_mul(share).min(load.strangers),
            None => 0,
        };
        let requests = requests.max(window.recent(now)).min(MAX_IN_WINDOW);
        let len = requests.saturating_mul(1_000_000_000) / load.rate;
        let at = now.after(Duration::from_nanos(load.random % len.max(1)));
        *window = Window {
            len: Duration::from_nanos(len),
            end: now.after(Duration::from_nanos(len)),
            send_at: Some(at),
            heard: 0,
            samples: 0,
            heard_since: now,
            share: None,
        };
        at
    }

    /// Records a sent request.
    pub(super) fn sent(&mut self, now: Time, rate: u64) {
        let gap = Duration::from_nanos(1_000_000_000 / rate);
        if now.since(self.sent_at) >= LISTEN {
            self.answered = 0;
        }
        self.sent_at = now;
        self.burst.get_or_insert(Burst { since: now, gap, overheard: 0, last: now });
        self.window.send_at = None;
        self.window.end = self.window.end.max(now.after(gap));
    }
}

impl Window {
    /// Returns the requests received in as much time as the window has, or [`MEMORY`].
    fn recent(&self, now: Time) -> u64 {
        let (span, elapsed) = (self.len.max(MEMORY), now.since(self.heard_since));
        if elapsed <= span {
            return self.heard;
        }
        let share = u128::from(self.heard) * span.as_nanos() / elapsed.as_nanos();
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn load(strangers: u64, random: u64) -> impl FnOnce() -> Load {
        move || Load { strangers, at_once: 512, rate: 20_000, random }
    }

    #[test]
    fn lone_endpoint_sends_at_once_and_at_the_rate_of_receivers() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(Time(5), load(300, 77)), Time(5));
        pace.sent(Time(5), 20_000);
        assert_eq!(pace.next(Time(6), load(300, 77)), Time(50_005));
        assert_eq!(pace.next(Time(50_005), load(300, 77)), Time(50_005));
        assert!(!pace.is_crowded());
    }

    #[test]
    fn each_answer_lets_one_more_request_wait_and_20_ms_do() {
        let (mut pace, begin) = (Pace::default(), Time(SECOND));
        let send = |pace: &mut Pace, now| {
            pace.sent(now, 20_000);
            pace.asked += 1;
        };
        assert_eq!(pace.room_at(begin, 3), begin);
        send(&mut pace, begin);
        let later = begin.after(LISTEN);
        assert_eq!(pace.room_at(begin, 3), later);
        assert_eq!(pace.room_at(begin, 1), Time::NEVER);
        pace.answered();
        pace.asked -= 1;
        for _ in 0..2 {
            assert_eq!(pace.room_at(begin, 3), begin);
            send(&mut pace, begin);
        }
        assert_eq!(pace.room_at(begin, 3), later);
        assert_eq!(pace.room_at(later, 3), later);
        send(&mut pace, later);
        assert_eq!(pace.room_at(later, 3), Time::NEVER);
        // After the pause it started over.
        pace.asked = 1;
        assert_eq!(pace.room_at(later, 3), later.after(LISTEN));
    }

    #[test]
    fn requests_are_delayed_while_foreign_answers_are_overheard() {
        let (mut pace, begin) = (Pace::default(), Time(SECOND));
        let us = |n| begin.after(Duration::from_micros(n));
        pace.push((1, 1));
        pace.push((2, 2));
        pace.overheard(begin);
        assert_eq!(pace.room_at(begin, 8), begin);
        pace.sent(begin, 20_000);
        pace.answered();
        assert_eq!(pace.room_at(us(51), 8), us(51));
        pace.overheard(us(100));
        assert_eq!(pace.room_at(us(100), 8), us(100).after(QUIET));
        pace.overheard(us(200));
        assert_eq!(pace.room_at(us(300), 8), us(200).after(QUIET));
        assert_eq!(pace.room_at(us(10_200), 8), us(10_200));
        // Answers take longer: it waits for four times as long.
        pace.overheard(us(12_000));
        assert_eq!(pace.room_at(us(12_000), 8), us(12_000 + 16_000));
        // Answers are rare: it does not wait longer than it listens.
        pace.overheard(us(900_000));
        assert_eq!(pace.room_at(us(900_000), 8), us(900_000).after(LISTEN));
        // All have their answers; later searches are a new burst.
        (0..2).for_each(|_| pace.queue.left(|_| false));
        pace.push((3, 3));
        assert_eq!(pace.room_at(us(900_001), 8), us(900_001));
    }

    #[test]
    fn second_request_is_delayed_by_the_number_of_waiting_endpoints() {
        let begin = Time(SECOND);
        let us = |n| begin.after(Duration::from_micros(n));
        for (waiting, listens) in [(1, 0), (2, 50), (64, 63 * 50), (401, 20_000), (9999, 20_000)] {
            let mut pace = Pace::default();
            (0..waiting).for_each(|n| pace.push((n, 0)));
            assert_eq!(pace.room_at(begin, 8), begin, "the first is sent at once");
            pace.sent(begin, 20_000);
            pace.answered();
            assert_eq!(pace.room_at(us(0), 8), us(listens), "{waiting}");
        }
        // An endpoint that has received the others' requests meanwhile waits for fewer.
        let mut pace = Pace::default();
        (0..64).for_each(|n| pace.push((n, 0)));
        pace.sent(begin, 20_000);
        pace.answered();
        (0..60).for_each(|_| pace.queue.left(|_| false));
        assert_eq!(pace.room_at(us(0), 8), us(3 * 50));
    }

    #[test]
    fn silent_network_of_many_endpoints_delays_first_request_20_ms() {
        let (mut pace, begin, end) = (Pace::default(), Time(SECOND), Time(SECOND + 20_000_000));
        assert_eq!(pace.next(begin, load(51_200, 600)), end);
        assert_eq!(pace.next(Time(SECOND + 5), load(51_200, 3)), end, "as it was drawn");
        assert_eq!(pace.next(end, load(51_200, 600)), end);
        pace.sent(end, 20_000);
        // It does not listen again while it continues.
        let next = Time(end.0 + 50_000);
        assert_eq!(pace.next(next, load(51_200, 600)), next);
    }

    #[test]
    fn flood_of_requests_lengthens_windows_to_that_of_all_endpoints_at_most() {
        let (mut pace, mut now) = (Pace::default(), Time(SECOND));
        for _ in 0..10 {
            let at = pace.next(now, load(300, u64::MAX));
            pace.sent(at, 20_000);
            let end = pace.next(at, load(300, u64::MAX));
            let len = end.since(now);
            assert!(len < Duration::from_secs(4), "{len:?}");
            let heard = 100_000 * (len.as_millis() + 100) / 1000;
            (0..heard).for_each(|_| pace.heard(false));
            now = end;
        }
        assert!(pace.is_crowded());
    }

    #[test]
    fn one_percent_of_endpoints_start_and_others_estimate_load_by_listening() {
        let begin = Time(SECOND);
        let begins = (0..51_200).filter(|n| {
            let mut pace = Pace::default();
            pace.next(begin, load(51_200, *n)) == begin
        });
        assert_eq!(begins.count(), 512);
        let mut pace = Pace::default();
        let listened = pace.next(begin, load(51_200, 600));
        for _ in 0..400 {
            pace.heard(true);
        }
        // 40,000 of 51,200: 2 seconds.
        assert_eq!(
            pace.next(listened, load(50_800, SECOND)),
            listened.after(Duration::from_secs(1))
        );
        assert!(pace.is_crowded());
        let sent = listened.after(Duration::from_secs(1));
        pace.sent(sent, 20_000);
        // The rest of the window belongs to the others.
        let end = listened.after(Duration::from_secs(2));
        assert_eq!(pace.next(sent, load(9000, 0)), end);
        // The endpoints that sent in it may continue. Requests from long ago do not count.
        for _ in 0..40_000 {
            pace.heard(true);
        }
        let half = end.after(Duration::from_secs(1));
        assert_eq!(pace.next(end, load(300, SECOND)), half);
        pace.sent(half, 20_000);
        let late = Time(10_000 * SECOND);
        assert_eq!(pace.next(late, load(300, 5)), late);
    }
}
