//! The timers of both queue pair state machines: what starts and stops each, and what its expiry does.
//!
//! A state machine never waits. `poll_timeout` returns when the next of its timers expires, and
//! `handle_timeout` handles those that have expired.

use crate::time::Time;

/// A timer of a queue pair over packets ([`crate::Qp`]), in the order in which expired timers are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Timer {
    /// The peer's process has died, which a lossless link does not show by silence.
    ///
    /// Started by `Qp::peer_gone` of a reliable service, for [`PEER_GONE`](crate::qp::PEER_GONE). Later calls do not
    /// move it. Stopped when the queue pair enters ERR or RESET. Expiry fails the oldest request with the status of an exceeded retry count, and
    /// the queue pair.
    PeerGone,
    /// The peer has no receive posted, and has named a time to wait (IBTA 9.7.5.2.8).
    ///
    /// Started by an RNR NAK, for the time in it. Stopped when the send queue fails. While it runs
    /// nothing is sent, and [`Retransmit`](Self::Retransmit) does not run. Expiry lets the
    /// requester send again, from the oldest unacknowledged packet.
    Rnr,
    /// A packet is unacknowledged: the transport timer of IBTA 9.7.6.1.3, or on a lossy link an
    /// earlier one, derived from the round-trip time.
    ///
    /// Started by the first outstanding packet, and restarted by progress, by a retransmission and by
    /// its own expiry. A timeout of 0 means no timer. Stopped when everything is acknowledged, by an
    /// RNR NAK, and when the send queue fails. Expiry retransmits what is missing, and every fourth
    /// nominal interval without progress uses up a retry. Without any left the oldest request fails.
    Retransmit,
}

impl Timer {
    /// All timers, in the order in which expired timers are handled.
    pub(crate) const ALL: [Self; 3] = [Self::PeerGone, Self::Rnr, Self::Retransmit];
}

/// The expiry time of each [`Timer`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    /// The expiry times by timer; [`Time::NEVER`] for a stopped one.
    expiries: [Time; Timer::ALL.len()],
}

impl Timers {
    /// The state in which no timer runs.
    pub(crate) const STOPPED: Self = Self { expiries: [Time::NEVER; Timer::ALL.len()] };

    /// Starts a timer, or moves its expiry.
    #[inline]
    pub(crate) fn start(&mut self, timer: Timer, expiry: Time) {
        self.expiries[timer as usize] = expiry;
    }

    /// Stops a timer, whether or not it runs.
    #[inline]
    pub(crate) fn stop(&mut self, timer: Timer) {
        self.expiries[timer as usize] = Time::NEVER;
    }

    /// Returns when a timer expires, or [`Time::NEVER`] if it does not run.
    #[inline]
    pub(crate) fn expiry(&self, timer: Timer) -> Time {
        self.expiries[timer as usize]
    }

    /// Returns whether a timer runs.
    #[inline]
    pub(crate) fn is_running(&self, timer: Timer) -> bool {
        self.expiry(timer) != Time::NEVER
    }

    /// Returns when the first timer expires, if any runs.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        let next = self.expiries.into_iter().fold(Time::NEVER, Time::min);
        (next != Time::NEVER).then_some(next)
    }

    /// Returns whether a timer has expired.
    #[inline]
    pub(crate) fn has_expired(&self, timer: Timer, now: Time) -> bool {
        self.expiry(timer) <= now
    }
}

/// A timer of a queue pair over a stream ([`crate::iwarp::Qp`]). TCP retransmits, so these timers
/// limit the waits of the stream. All but the first belong to a phase of the stream's end, which
/// holds the expiry: they stop when the phase ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamTimer {
    /// The next message in the stream has no receive.
    ///
    /// Started when the message arrives, for the time set by `Qp::set_receive_wait`. With zero it expires
    /// at once. Stopped when the message gets a receive. Expiry ends the connection (RFC 5041,
    /// section 7.2).
    ReceiveWait,
    /// The program has disconnected, and its posted work is still being sent.
    ///
    /// Started by `Qp::shutdown`, for [`STALL_TIME`](crate::iwarp::STALL_TIME), and restarted by
    /// any progress. Expiry resets the stream.
    Stall,
    /// A Terminate is being sent.
    ///
    /// Started by a fault, for [`TERMINATE_TIME`](crate::iwarp::TERMINATE_TIME). Expiry resets the stream.
    Terminate,
    /// Everything is sent, and the peer has yet to end its half of the stream.
    ///
    /// Started when the send queue is empty after `Qp::shutdown`, when arriving data is dropped after that, and by a
    /// `modify` to ERR, for [`CLOSING_TIME`](crate::iwarp::CLOSING_TIME), and when a Terminate has been sent or
    /// received, for [`TERMINATE_TIME`](crate::iwarp::TERMINATE_TIME). Expiry closes the stream in any case.
    Close,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_running_timer_is_next() {
        let mut timers = Timers::STOPPED;
        assert_eq!(timers.next(), None);
        timers.start(Timer::Retransmit, Time(5));
        timers.start(Timer::PeerGone, Time(7));
        assert_eq!(timers.next(), Some(Time(5)));
        assert!(!timers.has_expired(Timer::Retransmit, Time(4)));
        assert!(timers.has_expired(Timer::Retransmit, Time(5)));
        timers.stop(Timer::Retransmit);
        assert_eq!(timers.next(), Some(Time(7)));
        let expired = Timer::ALL.map(|timer| timers.has_expired(timer, Time(9)));
        assert_eq!(expired, [true, false, false]);
        assert!(!timers.is_running(Timer::Retransmit) && timers.is_running(Timer::PeerGone));
    }

    #[test]
    fn timer_array_index_equals_timer_discriminant() {
        assert_eq!(Timer::ALL.map(|timer| timer as usize), [0, 1, 2]);
    }
}
