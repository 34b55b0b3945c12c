//! Timeouts: requests are retransmitted or fail, transfers continue or are aborted.

use super::sends::{Body, SendId};
use super::{FileId, Umad, UmadSink, UserMad};
use crate::Time;
use crate::rmpp::{self, Timeout};
use rdmux_wire::RmppStatus;

impl Umad {
    /// Handles timeouts. Serves files in turn, a few timers of each, and at most
    /// [`Config::timers_per_call`](super::Config::timers_per_call) in all.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut impl UmadSink) {
        let mut left = self.config.timers_per_call.max(1);
        while left > 0 {
            let Some(file) = self.next_due(now) else { return };
            self.turn = file;
            let turn = self.config.timers_per_turn.clamp(1, left);
            let served = (0..turn).take_while(|_| self.serve(now, file, sink)).count();
            left -= served.max(1);
            self.settle(file);
        }
    }

    /// Returns the next file in turn that has a timer due.
    fn next_due(&self, now: Time) -> Option<FileId> {
        let after = self.timers.due(now).filter(|&file| file > self.turn).min();
        after.or_else(|| self.timers.due(now).min())
    }

    /// Handles one timer of a file that is due. Returns whether there was one.
    fn serve(&mut self, now: Time, file: FileId, sink: &mut impl UmadSink) -> bool {
        let Some(open) = self.files.get_mut(&file) else { return false };
        let (port, counters) = (open.port, &mut self.counters);
        let expired = open.incoming.handle_timeout(now, |back, mad| {
            counters.sent += 1;
            counters.aborted += 1;
            sink.transmit(port, back.packet(mad));
        });
        if expired {
            return true;
        }
        let Some(id) = open.sends.due(now) else { return false };
        self.serve_send(now, file, id, sink);
        true
    }

    fn serve_send(&mut self, now: Time, file: FileId, id: SendId, sink: &mut impl UmadSink) {
        let Some(open) = self.files.get_mut(&file) else { return };
        let Some(pending) = open.sends.get_mut(id) else { return };
        if let Some(sender) = pending.sending() {
            return match sender.handle_timeout(now) {
                Timeout::Early | Timeout::Turn => self.send_segments(now, file, id, sink),
                Timeout::Resend => {
                    self.counters.resent += 1;
                    self.send_segments(now, file, id, sink);
                }
                Timeout::GiveUp => self.fail(file, id, sink),
            };
        }
        if pending.retries_left == 0 {
            return self.fail(file, id, sink);
        }
        pending.retries_left -= 1;
        let at = now.after(pending.timeout);
        if let Body::Single(mad) = &pending.body {
            let packet = pending.envelope.packet(mad.clone());
            self.counters.resent += 1;
            self.counters.sent += 1;
            sink.transmit(open.port, packet);
        }
        open.sends.wake_at(id, at);
    }

    /// Fails a send: no retries remain.
    fn fail(&mut self, file: FileId, id: SendId, sink: &mut impl UmadSink) {
        let Some(open) = self.files.get_mut(&file) else { return };
        let port = open.port;
        let Some(mut pending) = open.sends.remove(id) else { return };
        if let Some(sender) = pending.sending() {
            let mad = rmpp::abort_by_sender(sender.message(), RmppStatus::TOO_MANY_RETRIES);
            self.counters.sent += 1;
            sink.transmit(port, pending.envelope.packet(mad));
        }
        self.counters.timed_out += 1;
        self.give(file, UserMad { status: UserMad::TIMED_OUT, ..pending.record }, sink);
    }
}
