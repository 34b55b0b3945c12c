//! The ends of a stream: in order when the program asks, at once when something fails, or when the peer
//! ends it.
//!
//! ```text
//!  Detached --attach--> Open --shutdown--> Draining --all is sent--> HalfClosed --peer's end--> Closed
//!                        |                    |                                      ^
//!                        +------- fault ------+--> Terminating --sent--> Lingering --+
//!                        |                                                  ^
//!                        +--------------- modify to ERR --------------------+
//! ```
//!
//! From any of them a broken stream, or one that a peer does not read, leads to Aborted. One that takes nothing any more
//! does when what has come on it is read.

use core::time::Duration;

use crate::attr::QpState;
use crate::env::{Env, QpEvent};
use crate::iwarp::qp::Qp;
use crate::iwarp::{StreamEnv, Wish};
use crate::time::Time;
use crate::timer::StreamTimer;

/// How long a stream that is being closed waits for the peer's end of it.
pub const CLOSING_TIME: Duration = Duration::from_secs(5);
/// How long a stream that is being closed may take nothing of what is still to be sent.
pub const STALL_TIME: Duration = Duration::from_secs(10);
/// How long a Terminate has to be sent, and then to be answered by the peer's end of the stream.
pub const TERMINATE_TIME: Duration = Duration::from_secs(2);

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is none.
    Detached,
    /// In use.
    Open,
    /// What was posted before the send queue's entry `last` is still to be sent.
    Draining {
        /// The first entry that is not sent any more.
        last: u32,
        /// When to give up, unless something moves.
        until: Time,
    },
    /// All is sent; the peer may still send.
    HalfClosed {
        /// When to close it all the same.
        until: Time,
    },
    /// In ERR. A Terminate is on its way.
    Terminating {
        /// When to give up.
        until: Time,
        /// Whether the peer has ended its half.
        peer_ended: bool,
    },
    /// In ERR. Nothing is sent, and what comes is dropped, until the peer ends its half.
    Lingering {
        /// When to close it all the same.
        until: Time,
    },
    /// Nothing is wanted of it.
    Closed,
    /// It is broken, or nobody is to go on as if all had been sent.
    Aborted,
}

impl Phase {
    /// The timer that runs in it, and when that expires.
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
    /// What is to be done with the stream. It changes with calls that take the queue pair by `&mut`;
    /// [`Wish::Close`] and [`Wish::Abort`] are the last, and the driver forgets the stream with them.
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

    /// When to call [`handle_timeout`](Self::handle_timeout), if ever.
    pub fn poll_timeout(&self) -> Option<Time> {
        let running = [self.receive_timer(), self.phase.timer()];
        running.into_iter().flatten().map(|(_, expiry)| expiry).min()
    }

    /// A time that [`poll_timeout`](Self::poll_timeout) named has come.
    pub fn handle_timeout<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        let expired = |timer: &(StreamTimer, Time)| timer.1 <= now;
        if let Some((timer, _)) = self.receive_timer().filter(expired) {
            self.expired(timer, now, env);
        }
        // The phase may have just begun.
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

    /// The program disconnects: everything that is posted is sent and answered, then the stream ends in
    /// order. The queue pair is in SQD from now on, takes what still arrives, and goes to ERR, where what is
    /// left is flushed, when the peer has ended its half too, or sends a message for which there is no receive. Does nothing but in RTS.
    pub fn shutdown<E: Env>(&mut self, now: Time, env: &mut E) {
        if self.state != QpState::Rts {
            return;
        }
        self.state = QpState::Sqd;
        self.phase = Phase::Draining { last: self.sq.tail, until: now.after(STALL_TIME) };
        self.check_drained(now, env);
    }

    /// Whether the entry of the send queue is one that was posted too late to be sent.
    #[inline]
    pub(super) fn is_beyond_shutdown(&self, index: u32) -> bool {
        matches!(self.phase, Phase::Draining { last, .. } if last == index)
    }

    /// Something of the send queue moved.
    pub(super) fn progressed<E: Env>(&mut self, now: Time, env: &mut E) {
        self.stalls_no_more(now);
        self.check_drained(now, env);
    }

    /// The peer is at work on what we wait for.
    pub(super) fn stalls_no_more(&mut self, now: Time) {
        if let Phase::Draining { until, .. } = &mut self.phase {
            *until = now.after(STALL_TIME);
        }
    }

    /// Ends our half of the stream when all that it was kept for is done.
    pub(super) fn check_drained<E: Env>(&mut self, now: Time, env: &mut E) {
        let Phase::Draining { last, .. } = self.phase else { return };
        let done = self.sq.head == last && self.tx.is_quiet() && self.serving.is_empty();
        if self.tx.broken || !done {
            return;
        }
        self.phase = Phase::HalfClosed { until: now.after(CLOSING_TIME) };
        if self.attr.en_sqd_async_notify {
            env.event(QpEvent::SqDrained);
        }
    }

    pub(super) fn is_half_closed(&self) -> bool {
        matches!(self.phase, Phase::HalfClosed { .. })
    }

    /// The program has disconnected, all that it had posted is sent, and what still comes finds no receive, or asks for an answer that
    /// cannot be sent any more. To reset the stream for that could take from the peer what it has not read yet.
    pub(super) fn drop_the_rest<E: Env>(&mut self, now: Time, env: &mut E) {
        self.phase = Phase::Lingering { until: now.after(CLOSING_TIME) };
        self.enter_error(env);
    }

    /// The program goes to ERR itself: nothing more is sent.
    pub(super) fn close_at_once<E: Env>(&mut self, now: Time, env: &mut E) {
        self.phase = match self.phase {
            Phase::Open | Phase::Draining { .. } if !self.tx.can_end() => Phase::Aborted,
            Phase::Open | Phase::Draining { .. } | Phase::HalfClosed { .. } => {
                Phase::Lingering { until: now.after(CLOSING_TIME) }
            }
            other => other,
        };
        self.enter_error(env);
    }

    /// Nothing can be done with the stream any more.
    pub(super) fn abort<E: Env>(&mut self, env: &mut E) {
        if !matches!(self.phase, Phase::Detached | Phase::Closed) {
            self.phase = Phase::Aborted;
        }
        self.enter_error(env);
    }

    /// The peer ended its half of the stream (`clean`), or reset it. Everything that is not complete is
    /// flushed. A Terminate that is on its way is still sent.
    pub fn handle_end<E: Env>(&mut self, _now: Time, clean: bool, env: &mut E) {
        self.phase = match self.phase {
            Phase::Detached | Phase::Closed | Phase::Aborted => return,
            Phase::Terminating { until, .. } if clean => {
                Phase::Terminating { until, peer_ended: true }
            }
            Phase::Open | Phase::Draining { .. } if !self.tx.can_end() => Phase::Aborted,
            _ => Phase::Closed,
        };
        self.enter_error(env);
    }

    /// The Terminate is out.
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
