//! Timers: retransmission, timeouts, the end of timewait (IBTA 12.9.8.5).

use rdmux_transport::Time;

use super::sidr::SidrKey;
use super::state::State;
use super::{Cm, ConnEvent, Upcall};
use crate::error::errno;
use crate::sink::Sink;

/// The object of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A connection: retransmit, or end timewait.
    Conn(u32),
    /// A lookup of this end: retransmit.
    SidrClient(u32),
    /// The time has come to remove an answered lookup of a peer.
    SidrServer(SidrKey),
}

impl Cm {
    /// Removes and returns the earliest timer that is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.timers.pop_due(now)
    }

    /// Handles an expired timer.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Time,
        timer: Timer,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        match timer {
            Timer::Conn(conn) => self.conn_timeout(now, conn, sink),
            Timer::SidrClient(id) => self.sidr_timeout(now, id, sink),
            Timer::SidrServer(key) => {
                self.sidr_forget(key);
                None
            }
        }
    }

    fn conn_timeout(&mut self, now: Time, conn: u32, sink: &mut impl Sink) -> Option<Upcall> {
        let c = self.conns.get_mut(&conn)?;
        if c.state() == State::TimeWait {
            let owner = c.owner;
            self.forget(conn);
            return Some(Upcall::ToOwner { id: owner?, what: ConnEvent::TimewaitExit });
        }
        let Some(mad) = c.out.as_deref().filter(|_| c.retries_left > 0).copied() else {
            return self.give_up(now, conn, -errno::ETIMEDOUT, sink);
        };
        c.retries_left -= 1;
        let at = c.next_retry(now);
        self.timers.set(&mut c.deadline, Timer::Conn(conn), at);
        let path = c.path;
        self.counters.mads_retried += 1;
        self.send(&path, &mad, sink);
        None
    }

    /// Gives up a connection whose peer does not answer.
    fn give_up(
        &mut self,
        now: Time,
        conn: u32,
        status: i32,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let c = self.conns.get(&conn)?;
        let owner = c.owner;
        if c.state() == State::Established {
            return self.lap_timeout(conn, status);
        }
        self.counters.timeouts += 1;
        let what = if c.state() == State::DreqSent {
            self.enter_timewait(now, conn);
            ConnEvent::Disconnected(status)
        } else {
            // Linux sends nothing. A REJ keeps the peer's program from accepting a request that this end has given up.
            self.reject_timeout(conn, sink);
            ConnEvent::Unreachable(status)
        };
        Some(Upcall::ToOwner { id: owner?, what })
    }

    /// Gives up the object of a timer that [`Cm::waiting_for`] returned.
    pub(crate) fn unreachable(
        &mut self,
        now: Time,
        timer: Timer,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        match timer {
            Timer::Conn(conn) => self.give_up(now, conn, -errno::EHOSTUNREACH, sink),
            Timer::SidrClient(id) => self.sidr_give_up(id, -errno::EHOSTUNREACH),
            Timer::SidrServer(_) => None,
        }
    }
}
