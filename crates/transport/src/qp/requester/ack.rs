//! Handling of responses: ACKs, NAKs, READ and atomic responses.
//!
//! An ACK acknowledges every PSN up to its own, except that only their own responses complete READs and atomics. A
//! response acknowledges everything before it (IBTA 9.7.5.1). A response that skips that of a READ or atomic causes
//! no failure: the missing response is requested again.

use rdmux_wire::{Packet, Psn, Syndrome};

use crate::attr::QpState;
use crate::env::{Drop, Env};
use crate::fault::{local_status, nak_status};
use crate::optable::{RxRow, Travel};
use crate::qp::Qp;
use crate::qp::requester::mend::Missing;
use crate::time::Time;
use crate::timer::Timer;
use crate::wr::WcStatus;

impl Qp {
    /// Handles an ACKNOWLEDGE packet.
    pub(crate) fn handle_ack<E: Env>(&mut self, now: Time, packet: &Packet<'_>, env: &mut E) {
        let psn = packet.bth.psn;
        let Some(aeth) = packet.aeth else { return env.count(Drop::Length) };
        if !self.is_expected(psn) {
            return env.count(Drop::Stale);
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.acknowledged(now, psn, env),
            Syndrome::Rnr(timer) => {
                if self.shows_response_lost(now, psn, psn, env) {
                    self.go_back(now, env);
                } else {
                    self.receiver_not_ready(now, timer, env);
                }
            }
            Syndrome::Nak(code) => {
                let lost = self.shows_response_lost(now, psn, psn, env);
                match nak_status(code) {
                    Some(status) if !lost => self.fail_send(status, env),
                    // The NAK does not refuse the oldest request.
                    Some(_) | None => self.go_back(now, env),
                }
            }
            Syndrome::Reserved(_) => env.count(Drop::Opcode),
        }
    }

    /// Handles an acknowledgement that was piggybacked on a packet of the peer, before that packet.
    pub fn handle_piggybacked_ack<E: Env>(&mut self, now: Time, psn: Psn, env: &mut E) {
        let ready = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if !ready || !self.qp_type.is_reliable() {
            return env.count(Drop::State);
        }
        if !self.is_expected(psn) {
            return env.count(Drop::Stale);
        }
        self.acknowledged(now, psn, env);
    }

    /// Handles the peer's acknowledgement of everything up to `psn`, which is outstanding.
    fn acknowledged<E: Env>(&mut self, now: Time, psn: Psn, env: &mut E) {
        if self.shows_response_lost(now, psn.add(1), psn, env) {
            self.go_back(now, env);
        }
    }

    /// Acknowledges everything before `end` by a response with this PSN. Returns whether the response
    /// skips that of a READ or atomic, which was sent earlier and so is lost (IBTA 9.7.5.1.2).
    fn shows_response_lost<E: Env>(&mut self, now: Time, end: Psn, psn: Psn, env: &mut E) -> bool {
        let blocked = self.acknowledge(now, end, env);
        blocked && psn.diff(self.sq.get(self.sq.head).end()) >= 0
    }

    /// Handles a packet of a READ response.
    pub(crate) fn handle_read_response<E: Env>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        row: RxRow,
        env: &mut E,
    ) {
        let psn = packet.bth.psn;
        if !self.reach(now, psn, env) {
            return;
        }
        let head = self.sq.head;
        let wqe = self.sq.get(head);
        if wqe.kind.row().travel != Travel::Read {
            return self.fail_send(WcStatus::BadRespErr, env);
        }
        let index = psn.diff(wqe.first).unsigned_abs();
        let offset = index * self.mtu;
        let expected = (wqe.len - offset).min(self.mtu);
        let end_of_entry = index + 1 == wqe.npsn;
        let end_of_request = end_of_entry || (index + 1).is_multiple_of(self.req.read_chunk);
        if packet.payload.len() != expected as usize || row.ends != end_of_request {
            return self.fail_send(WcStatus::BadRespErr, env);
        }
        if expected != 0
            && let Err(fault) = env.scatter(self.sq.sges(head), offset, packet.payload)
        {
            return self.fail_send(local_status(fault), env);
        }
        self.responded(now, psn, end_of_request, end_of_entry, env);
    }

    /// Handles an atomic response.
    pub(crate) fn handle_atomic_ack<E: Env>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        env: &mut E,
    ) {
        let psn = packet.bth.psn;
        let Some(atomic) = packet.atomic_ack else { return env.count(Drop::Length) };
        if !self.reach(now, psn, env) {
            return;
        }
        let head = self.sq.head;
        if self.sq.get(head).kind.row().travel != Travel::Atomic {
            return self.fail_send(WcStatus::BadRespErr, env);
        }
        let original = atomic.original.to_ne_bytes();
        if let Err(fault) = env.scatter(self.sq.sges(head), 0, &original) {
            return self.fail_send(local_status(fault), env);
        }
        self.responded(now, psn, true, true, env);
    }

    /// Returns whether a response to this PSN is possible: the PSN has been sent and is not acknowledged.
    #[inline]
    fn is_expected(&self, psn: Psn) -> bool {
        psn.diff(self.req.una) >= 0 && psn.diff(self.req.max_sent) < 0
    }

    /// Acknowledges everything before a response. Returns false if the response must not be processed: it
    /// is too early or too late, or the queue pair has failed.
    fn reach<E: Env>(&mut self, now: Time, psn: Psn, env: &mut E) -> bool {
        if !self.is_expected(psn) {
            env.count(Drop::Stale);
            return false;
        }
        if psn != self.req.una && self.acknowledge(now, psn, env) {
            env.count(Drop::Gap);
            self.go_back(now, env);
            return false;
        }
        if self.state == QpState::Err {
            // A request with invalid memory was waiting only for those before it, and has failed now.
            env.count(Drop::State);
            return false;
        }
        true
    }

    /// Records that the response packet with this PSN was placed.
    fn responded<E: Env>(
        &mut self,
        now: Time,
        psn: Psn,
        end_of_request: bool,
        end_of_entry: bool,
        env: &mut E,
    ) {
        let before = self.req.una;
        self.req.una = psn.add(1);
        if end_of_request {
            // Requests sent before the cursor moved back are not counted.
            self.req.rd_in_flight = self.req.rd_in_flight.saturating_sub(1);
        }
        if end_of_entry {
            self.req.reads_pending -= 1;
            self.complete_head(WcStatus::Success, env);
        }
        self.progressed(now, before, env);
    }

    /// Acknowledges everything before `end`. Returns true if a READ or atomic whose response has
    /// not arrived blocks a part of this.
    fn acknowledge<E: Env>(&mut self, now: Time, end: Psn, env: &mut E) -> bool {
        let before = self.req.una;
        let mut blocked = false;
        while self.sq.head != self.req.started && end.diff(self.req.una) > 0 {
            let wqe = self.sq.get(self.sq.head);
            let entry_end = wqe.end();
            if wqe.kind.row().wants_response() {
                blocked = true;
                break;
            }
            if end.diff(entry_end) < 0 {
                self.req.una = end;
                break;
            }
            self.req.una = entry_end;
            self.complete_head(WcStatus::Success, env);
        }
        self.progressed(now, before, env);
        blocked
    }

    /// Updates counters, timers, window and cursor if `una` has moved from `before`.
    fn progressed<E: Env>(&mut self, now: Time, before: Psn, env: &mut E) {
        let una = self.req.una;
        if una == before {
            return;
        }
        let late = una.diff(self.at_cursor()) > 0;
        let missing = if self.req.troubled { self.recovered(una, late) } else { Missing::Unknown };
        if missing == Missing::Alone {
            self.req.window.on_mistake();
        }
        if late {
            self.pass_cursor(una);
        }
        let req = &mut self.req;
        req.window.on_progress(una.diff(before).unsigned_abs());
        (req.retry_left, req.rnr_left) = (self.attr.retry_cnt, self.attr.rnr_retry);
        req.excused = false;
        req.last_progress = now;
        if req.rtt_at != Time::NEVER && una.diff(req.rtt_psn) > 0 {
            self.measured(now);
        }
        if self.req.is_outstanding() {
            self.arm(now);
        } else {
            self.req.timers.stop(Timer::Retransmit);
        }
        if matches!(missing, Missing::Perhaps | Missing::Lost) {
            self.go_on(now, missing == Missing::Lost);
        }
        if let Some(status) = self.req.stalled
            && self.sq.head == self.req.cursor
        {
            self.fail_send(status, env);
        }
        self.check_drained(env);
    }

    /// Handles an acknowledgement after the timer fired or the cursor moved back. `late` is set if the acknowledged
    /// packet was still to be retransmitted. Returns whether the packet that is now the oldest is missing.
    #[cold]
    fn recovered(&mut self, una: Psn, late: bool) -> Missing {
        let req = &mut self.req;
        let (backoff, alone) = (req.backoff, req.mend.is_awaited());
        let missing = if alone { req.mend.answered(una, backoff != 0) } else { Missing::Unknown };
        (req.rewound, req.backoff) = (false, 0);
        req.troubled = req.mend.is_awaited();
        // One packet sent as a probe costs little, whether it was late or lost.
        if backoff > 1 || backoff == 1 && (late || !alone) {
            self.learn_lateness(late);
        }
        missing
    }

    /// Moves the cursor past packets that were acknowledged before they were retransmitted.
    #[cold]
    fn pass_cursor(&mut self, una: Psn) {
        if self.req.mend.is_under_way() {
            self.return_cursor();
        }
        if una.diff(self.at_cursor()) > 0 {
            self.move_cursor_to_una();
            self.req.window.on_spurious();
        }
    }
}
