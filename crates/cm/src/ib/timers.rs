//! What time does: retransmission, giving up, the end of timewait (IBTA 12.9.8.5).

use rdmux_transport::Time;

use super::sidr::SidrKey;
use super::state::State;
use super::{Cm, ConnEvent, Upcall};
use crate::error::errno;
use crate::sink::Sink;

/// What a deadline is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A connection: send again, or the end of timewait.
    Conn(u32),
    /// A lookup of ours: send again.
    SidrClient(u32),
    /// An answered lookup of a peer: forget it.
    SidrServer(SidrKey),
}

impl Cm {
    /// Takes the earliest of what is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        self.timers.pop_due(now)
    }

    /// Does what a deadline was set for.
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

    /// The peer does not answer.
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
            // Linux says nothing; with a REJ the peer's program does not accept a request that nobody waits for.
            self.reject_timeout(conn, sink);
            ConnEvent::Unreachable(status)
        };
        Some(Upcall::ToOwner { id: owner?, what })
    }

    /// What the deadline is of will not be answered: [`Cm::waiting_for`] said so.
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
