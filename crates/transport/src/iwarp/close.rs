//! The end of a stream: an orderly shutdown by the program, or an immediate end after a fault or
//! when the peer ends the stream.
//!
//! ```text
//!  Detached --attach--> Open --shutdown--> Draining --all is sent--> HalfClosed --peer's end--> Closed
//!                        |                    |                                      ^
//!                        +------- fault ------+--> Terminating --sent--> Lingering --+
//!                        |                                                  ^
//!                        +--------------- modify to ERR --------------------+
//! ```
//!
//! From any phase a broken stream, or one that the peer does not read, leads to Aborted. A stream
//! that accepts no more data leads there when the data received on it has been read. An end that is
//! still draining when the peer ends its half sends the rest, and is then Closed.

use core::time::Duration;

use crate::attr::QpState;
use crate::env::{Env, QpEvent};
use crate::iwarp::qp::Qp;
use crate::iwarp::{StreamEnv, Wish};
use crate::time::Time;
use crate::timer::StreamTimer;

/// Time that a stream that is being closed waits for the peer to end its half.
pub const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Time for which a stream that is being closed may accept none of the remaining data.
pub const STALL_TIME: Duration = Duration::from_secs(10);
/// The maximum time for sending a Terminate, and then for the peer to end its half of the stream.
pub const TERMINATE_TIME: Duration = Duration::from_secs(2);

/// The phase of a stream's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The queue pair has no stream.
    Detached,
    /// The stream is in use.
    Open,
    /// The requests posted before the send queue's entry `last` are still being sent.
    Draining {
        /// The first entry that must not be sent.
        last: u32,
        /// The time to give up, unless progress is made.
        until: Time,
        /// Whether the peer has ended its half. It still reads.
        peer_ended: bool,
    },
    /// Everything is sent. The peer may still send.
    HalfClosed {
        /// The time at which the stream is closed in any case.
        until: Time,
    },
    /// In ERR. A Terminate is being sent.
    Terminating {
        /// The time to give up.
        until: Time,
        /// Whether the peer has ended its half.
        peer_ended: bool,
    },
    /// In ERR. Nothing is sent, and arriving data is dropped, until the peer ends its half.
    Lingering {
        /// The time at which the stream is closed in any case.
        until: Time,
    },
    /// The stream is no longer needed.
    Closed,
    /// The stream is broken, or the peer must not believe that everything was sent.
    Aborted,
}

impl Phase {
    /// Returns the timer that runs in this phase, and when it expires.
    fn timer(self) -> Option<(StreamTimer, Time)> {
        match self {
            Self::Draining { until, .. } => Some((StreamTimer::Stall, until)),
            Self::Terminating { until, .. } => Some((StreamTimer::Terminate, until)),
            Self::HalfClosed { until } | Self::Lingering { until } => {
                Some((StreamTimer::Close, until))
            }
            Self::Detached | Self::Open | Self::Closed | Self::Aborted => None,
        }
    }
}

impl Qp {
    /// Returns what the driver must do with the stream. Calls that take the queue pair by `&mut` may change it.
    /// [`Wish::Close`] and [`Wish::Abort`] are final: the driver then drops the stream.
    pub fn wish(&self) -> Wish {
        match self.phase {
            Phase::Open | Phase::Draining { .. } if self.tx.broken => Wish::ReadOut,
            Phase::Detached | Phase::Open | Phase::Draining { .. } | Phase::Terminating { .. } => {
                Wish::Keep
            }
            Phase::HalfClosed { .. } | Phase::Lingering { .. } => Wish::Shutdown,
            Phase::Closed => Wish::Close,
            Phase::Aborted => Wish::Abort,
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout), if ever.
    pub fn poll_timeout(&self) -> Option<Time> {
        let running = [self.receive_timer(), self.phase.timer()];
        running.into_iter().flatten().map(|(_, expiry)| expiry).min()
    }

    /// Handles expired timers. Call this at the time of [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        let expired = |timer: &(StreamTimer, Time)| timer.1 <= now;
        if let Some((timer, _)) = self.receive_timer().filter(expired) {
            self.expired(timer, now, env);
        }
        // The first timer may have changed the phase.
        if let Some((timer, _)) = self.phase.timer().filter(expired) {
            self.expired(timer, now, env);
        }
    }

    fn expired<E: StreamEnv>(&mut self, timer: StreamTimer, now: Time, env: &mut E) {
        self.phase = match timer {
            StreamTimer::ReceiveWait => return self.receive_is_late(now, env),
            StreamTimer::Stall | StreamTimer::Terminate => Phase::Aborted,
            StreamTimer::Close => Phase::Closed,
        };
        self.enter_error(env);
    }

    /// Disconnects: everything posted is sent and answered, then the stream ends in order. The queue pair is in
    /// SQD from now on and still accepts arriving data. It enters ERR, which flushes the rest, when the peer
    /// has ended its half, too, or when everything is sent and a message finds no receive. Before that, a message that
    /// finds no receive in time is discarded, as are all messages after it that need one. Does nothing except in RTS.
    pub fn shutdown<E: Env>(&mut self, now: Time, env: &mut E) {
        if self.state != QpState::Rts {
            return;
        }
        self.state = QpState::Sqd;
        let until = now.after(STALL_TIME);
        self.phase = Phase::Draining { last: self.sq.tail, until, peer_ended: false };
        self.check_drained(now, env);
    }

    /// Returns whether the send queue entry was posted after the shutdown, and so is not sent.
    #[inline]
    pub(super) fn is_beyond_shutdown(&self, index: u32) -> bool {
        matches!(self.phase, Phase::Draining { last, .. } if last == index)
    }

    /// Handles progress of the send queue.
    pub(super) fn progressed<E: Env>(&mut self, now: Time, env: &mut E) {
        self.stalls_no_more(now);
        self.check_drained(now, env);
    }

    /// Restarts the stall timer: the send queue has progressed, or the peer is sending data that was requested.
    pub(super) fn stalls_no_more(&mut self, now: Time) {
        if let Phase::Draining { until, .. } = &mut self.phase {
            *until = now.after(STALL_TIME);
        }
    }

    /// Ends the local half of the stream when everything that it was kept open for is done.
    pub(super) fn check_drained<E: Env>(&mut self, now: Time, env: &mut E) {
        let Phase::Draining { last, peer_ended, .. } = self.phase else { return };
        let done = self.sq.head == last && self.tx.is_quiet() && self.serving.is_empty();
        if self.tx.broken || !done {
            return;
        }
        if self.attr.en_sqd_async_notify {
            env.event(QpEvent::SqDrained);
        }
        if peer_ended {
            self.phase = Phase::Closed;
            return self.enter_error(env);
        }
        self.phase = Phase::HalfClosed { until: now.after(CLOSING_TIME) };
    }

    /// Returns whether the peer has ended its half of a stream on which this end still sends.
    pub(super) fn has_peer_ended(&self) -> bool {
        matches!(self.phase, Phase::Draining { peer_ended: true, .. })
    }

    /// Returns whether requests are left to send that were posted before the disconnect, and none waits for a response.
    fn only_sends(&self) -> bool {
        let Phase::Draining { last, .. } = self.phase else { return false };
        let left = (0..last.wrapping_sub(self.sq.head)).map(|n| self.sq.head.wrapping_add(n));
        let mut kinds = left.map(|index| self.sq.get(index).kind);
        self.tx.queries == 0 && kinds.all(|kind| !kind.row().wants_response())
    }

    pub(super) fn is_draining(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. })
    }

    pub(super) fn is_half_closed(&self) -> bool {
        matches!(self.phase, Phase::HalfClosed { .. })
    }

    /// Drops everything that still arrives: the program has disconnected, all that it had posted is sent, and a
    /// message finds no receive or requests a response that can no longer be sent. A reset of the stream could
    /// destroy data that the peer has not read.
    pub(super) fn drop_the_rest<E: Env>(&mut self, now: Time, env: &mut E) {
        self.phase = Phase::Lingering { until: now.after(CLOSING_TIME) };
        self.enter_error(env);
    }

    /// Stops sending at once, because the program moved the queue pair to ERR.
    pub(super) fn close_at_once<E: Env>(&mut self, now: Time, env: &mut E) {
        self.phase = match self.phase {
            Phase::Open | Phase::Draining { .. } if !self.tx.can_end() => Phase::Aborted,
            Phase::Draining { peer_ended: true, .. } => Phase::Closed,
            Phase::Open | Phase::Draining { .. } | Phase::HalfClosed { .. } => {
                Phase::Lingering { until: now.after(CLOSING_TIME) }
            }
            other => other,
        };
        self.enter_error(env);
    }

    /// Aborts the stream, which can no longer be used.
    pub(super) fn abort<E: Env>(&mut self, env: &mut E) {
        if !matches!(self.phase, Phase::Detached | Phase::Closed) {
            self.phase = Phase::Aborted;
        }
        self.enter_error(env);
    }

    /// Handles the end of the peer's half of the stream (`clean`), or a reset by the peer.
    /// Incomplete work is flushed. A Terminate in progress is still sent, and so is what was posted before a disconnect,
    /// unless a part of it needs a response. The driver then reads no more from the stream.
    pub fn handle_end<E: Env>(&mut self, _now: Time, clean: bool, env: &mut E) {
        self.phase = match self.phase {
            Phase::Detached | Phase::Closed | Phase::Aborted => return,
            Phase::Terminating { until, .. } if clean => {
                Phase::Terminating { until, peer_ended: true }
            }
            Phase::Draining { last, until, .. }
                if clean && !self.tx.broken && self.only_sends() =>
            {
                self.phase = Phase::Draining { last, until, peer_ended: true };
                return;
            }
            Phase::Open | Phase::Draining { .. } if !self.tx.can_end() => Phase::Aborted,
            _ => Phase::Closed,
        };
        self.enter_error(env);
    }

    /// Records that the Terminate has been sent.
    pub(super) fn terminate_sent(&mut self, now: Time) {
        if let Phase::Terminating { peer_ended, .. } = self.phase {
            self.phase = if peer_ended {
                Phase::Closed
            } else {
                Phase::Lingering { until: now.after(TERMINATE_TIME) }
            };
        }
    }
}
