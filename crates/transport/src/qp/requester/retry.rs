//! Retransmission: timers, sequence errors and receivers that are not ready (IBTA 9.7.6 and 9.9.2.1).
//!
//! `retry_cnt` counts expiries of the transport timer. Its interval is four times the nominal value, the maximum that
//! IBTA 9.7.6.1.3 allows: a peer that shares its processor responds late without any loss. Unacknowledged packets are
//! still retransmitted after the nominal value, which counts as no retry. On lossy links this happens earlier, after a
//! time derived from the round-trip time and doubled each time: a packet lost at the end of a burst fails no sequence
//! check at the peer, and transport timers of seconds are usual.
//!
//! An expiry that is handled late shows only that this side did not run, and nothing about the peer.
//! So only every other such expiry counts, and even then a dead peer is detected. This takes at most
//! `(retry_cnt + 1) * 4 * timeout`, or twice this plus the delay where this side is late each time.

use core::time::Duration;

use rdmux_wire::RnrTimer;

use crate::env::{Env, LinkCaps};
use crate::qp::Qp;
use crate::qp::requester::window::Window;
use crate::time::Time;
use crate::timer::Timer;
use crate::wr::WcStatus;

/// The value of `rnr_retry` that means infinite retries. (`retry_cnt` has no such value.)
const RNR_FOR_EVER: u8 = 7;

/// The lower bound of the early timer's minimum, and its value for a new connection.
pub(super) const LEAST_EARLY: Duration = Duration::from_micros(250);
/// The largest minimum of the early timer, for a peer that is often late without any loss: one that
/// shares its processor may not be scheduled for some milliseconds.
const MOST_EARLY: Duration = Duration::from_millis(16);

/// The interval of the transport timer as a multiple of its nominal value (IBTA 9.7.6.1.3).
const MOST: u32 = 4;
/// The delay from which an expiry counts as handled late. More than a tick of the kernel's coarse clock.
const LATE: Duration = Duration::from_millis(10);

impl Qp {
    /// Handles expired timers. Call this at the time of [`poll_timeout`](Self::poll_timeout), and
    /// [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn handle_timeout<E: Env>(&mut self, now: Time, env: &mut E) {
        for timer in Timer::ALL {
            if !self.req.timers.has_expired(timer, now) {
                continue;
            }
            match timer {
                Timer::PeerGone => return self.give_peer_up(env),
                Timer::Rnr => self.req.timers.stop(Timer::Rnr),
                Timer::Retransmit => self.retransmission_timeout(now, env),
            }
        }
    }

    /// Handles the expiry of [`Timer::Retransmit`].
    fn retransmission_timeout<E: Env>(&mut self, now: Time, env: &mut E) {
        let Some(timeout) = self.attr.timeout.duration() else {
            return self.req.disarm();
        };
        if now.since(self.req.last_progress) >= timeout * MOST {
            let late = now.since(self.req.timers.expiry(Timer::Retransmit)) > LATE;
            self.req.excused = late && !self.req.excused;
            if !self.req.excused {
                if self.req.retry_left == 0 {
                    return self.no_retry_left(now, env);
                }
                self.req.retry_left -= 1;
            }
            self.req.last_progress = now;
        }
        self.req.backoff = (self.req.backoff + 1).min(16);
        self.req.troubled = true;
        // The first expiry sends one packet as a probe.
        if !(self.req.backoff == 1 && self.mend(false)) {
            let in_flight = self.packets_in_flight();
            self.req.window.on_timeout(in_flight);
            self.rewind();
        }
        self.arm(now);
    }

    /// Migrates, or fails the oldest request, when the retries along this path are used up.
    fn no_retry_left<E: Env>(&mut self, now: Time, env: &mut E) {
        if !self.migrates_instead(now, env) {
            self.fail_send(WcStatus::RetryExcErr, env);
        }
    }

    /// Starts over on another path, about which nothing is known yet: unacknowledged packets are
    /// retransmitted, with all retries. A running RNR timer continues.
    pub(in crate::qp) fn start_over(&mut self, now: Time, link: LinkCaps) {
        let req = &mut self.req;
        req.direct = link.by_reference;
        (req.retry_left, req.excused, req.backoff) = (self.attr.retry_cnt, false, 0);
        if !self.lossless {
            req.window = Window::lossy(self.mtu);
            (req.srtt, req.least_early) = (Duration::ZERO, LEAST_EARLY);
        }
        if !self.qp_type.is_reliable() || !self.req.is_outstanding() {
            return;
        }
        self.rewind();
        (self.req.rewound, self.req.troubled) = (true, true);
        self.req.last_progress = now;
        self.arm(now);
    }

    /// Restarts the retransmission timer, unless an RNR timer runs: an RNR NAK is a response.
    pub(super) fn arm(&mut self, now: Time) {
        if self.req.is_rnr() {
            return;
        }
        let Some(timeout) = self.attr.timeout.nanos() else { return };
        let mut again = timeout;
        if !self.lossless && !self.req.srtt.is_zero() {
            let mut early = (self.req.srtt * 4).max(self.req.least_early) * (1 << self.req.backoff);
            if self.req.mend.is_asked_for() {
                early /= 2;
            }
            again = u64::try_from(early.as_nanos()).unwrap_or(timeout).min(timeout);
        }
        let counted = self.req.last_progress.0.saturating_add(timeout * u64::from(MOST));
        let expiry = Time(now.0.saturating_add(again).min(counted));
        self.req.timers.start(Timer::Retransmit, expiry);
    }

    /// Adapts the early timer when an acknowledgement arrives after it fired: longer if the peer
    /// was only late, else shorter.
    pub(super) fn learn_lateness(&mut self, only_late: bool) {
        let least = self.req.least_early;
        self.req.least_early =
            if only_late { (least * 2).min(MOST_EARLY) } else { (least / 2).max(LEAST_EARLY) };
    }

    /// Handles the acknowledgement of the packet whose round-trip time was measured (RFC 6298, without variance). The peer
    /// is in time, so the longer minimum of the timer decays: else one pause would delay the recovery of every later loss.
    pub(super) fn measured(&mut self, now: Time) {
        let req = &mut self.req;
        let sample = now.since(req.rtt_at).max(Duration::from_nanos(1));
        req.srtt = if req.srtt.is_zero() { sample } else { (req.srtt * 7 + sample) / 8 };
        req.rtt_at = Time::NEVER;
        req.least_early = (req.least_early - req.least_early / 16).max(LEAST_EARLY);
    }

    /// Returns the number of packets that are not acknowledged.
    pub(super) fn packets_in_flight(&self) -> u32 {
        self.req.max_sent.diff(self.req.una).unsigned_abs()
    }

    /// Moves the cursor to the oldest unacknowledged PSN, which belongs to the oldest entry.
    pub(super) fn move_cursor_to_una(&mut self) {
        let req = &mut self.req;
        req.naming.on = false;
        req.cursor = self.sq.head;
        req.offset = if req.cursor == req.started {
            0
        } else {
            req.una.diff(self.sq.get(req.cursor).first).unsigned_abs()
        };
    }

    fn rewind(&mut self) {
        self.move_cursor_to_una();
        self.req.mend.stop();
        self.req.rd_in_flight = 0;
        self.req.since_ack_req = 0;
        self.req.stalled = None;
        self.req.rtt_at = Time::NEVER;
    }

    /// Handles a loss: moves the cursor back to the oldest unacknowledged PSN, once until there is progress, either for
    /// the missing packets only or for everything. Ignored while the RNR timer runs, since the peer is expected to drop
    /// later packets then (the kernel's rxe sends NAKs for them nevertheless).
    pub(super) fn go_back<E: Env>(&mut self, now: Time, env: &mut E) {
        if self.req.rewound || self.req.is_rnr() || !self.req.is_outstanding() {
            return;
        }
        if self.req.retry_left == 0 {
            return self.no_retry_left(now, env);
        }
        self.req.retry_left -= 1;
        self.req.naming.on_refusal();
        self.go_on(now, true);
    }

    /// Retransmits only the missing packets if possible. Otherwise retransmits everything if packets are
    /// known to be `lost`, else nothing.
    pub(super) fn go_on(&mut self, now: Time, lost: bool) {
        let alone = self.mend(lost);
        if !alone && !lost {
            return;
        }
        (self.req.rewound, self.req.troubled) = (true, true);
        if !alone {
            let in_flight = self.packets_in_flight();
            if !self.req.mend.has_failed() {
                self.req.window.on_loss(in_flight);
            }
            self.rewind();
        }
        self.arm(now);
    }

    /// Handles an RNR NAK: waits for the time that it names, then retransmits.
    pub(super) fn receiver_not_ready<E: Env>(&mut self, now: Time, timer: RnrTimer, env: &mut E) {
        if self.req.is_rnr() || !self.req.is_outstanding() {
            return;
        }
        if self.attr.rnr_retry != RNR_FOR_EVER {
            if self.req.rnr_left == 0 {
                return self.fail_send(WcStatus::RnrRetryExcErr, env);
            }
            self.req.rnr_left -= 1;
        }
        self.req.retry_left = self.attr.retry_cnt;
        self.rewind();
        self.req.timers.stop(Timer::Retransmit);
        self.req.timers.start(Timer::Rnr, now.after(timer.duration()));
    }
}
