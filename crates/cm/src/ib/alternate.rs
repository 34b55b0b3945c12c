//! LAP and APR: loading an alternate path for a connection to migrate to (IBTA 12.8).
//!
//! ```text
//!  active                                              passive
//!    load_alternate: LAP out                             LAP in
//!         v                                                 v
//!       Sent -- MRA in: waits longer                      Asked      (duplicates are answered with MRA)
//!         |  APR in, or no answer                           |  answer_alternate: APR out
//!         v                                                 v
//!       None                                             Answered   (duplicates are answered again)
//! ```
//!
//! All of these states are substates of ESTABLISHED and end with it. A further LAP before the last one is answered is dropped and counted.
//! This module refuses paths that are impossible; the layer of ids gets those that the program must decide on.

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_wire::cm::{Apr, AprStatus, CmMad, Lap, Message, MraOf};

use super::conn::Lapping;
use super::state::State;
use super::{Cm, ConnEvent, Upcall, format};
use crate::path::{MadPath, Path};
use crate::sink::Sink;

/// The number of answered LAPs that a connection remembers: more than a program sends while one of them is in flight.
const OLD_LAPS: usize = 16;

/// The contents of an APR.
pub(crate) struct Answer<'a> {
    pub(crate) status: AprStatus,
    pub(crate) info: &'a [u8],
    pub(crate) private_data: &'a [u8],
    /// The path of management datagrams along the alternate path, if it is taken.
    pub(crate) path: Option<MadPath>,
}

impl Answer<'_> {
    /// Returns a refusal with this reason.
    pub(crate) const fn refusal(status: AprStatus) -> Self {
        Self { status, info: &[], private_data: &[], path: None }
    }
}

impl Cm {
    /// Sends LAP for the alternate path `path`. Returns false if the connection's state does not allow it: the peer is the one that
    /// connected, or has not answered an earlier LAP.
    pub(crate) fn load_alternate(
        &mut self,
        now: Time,
        conn: u32,
        path: &Path,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> bool {
        let tid = 1 << 32 | u64::from(self.rng.next_u32());
        let Some(c) = self.conns.get_mut(&conn) else { return false };
        let is_out = matches!(c.lap, Lapping::Sent(..));
        if !c.is_active || is_out || c.state() != State::Established {
            return false;
        }
        c.lap = Lapping::Sent(tid, path.mad_path(c.path.device, path.av));
        c.respites = 0;
        let mad = format::lap(&self.config, tid, c, path, private_data);
        self.send_until_answered(now, conn, &mad, sink);
        true
    }

    /// Handles a LAP.
    pub(super) fn handle_lap(
        &mut self,
        path: &MadPath,
        tid: u64,
        lap: Box<Lap>,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let ids = (lap.remote_comm_id, lap.local_comm_id);
        let Some(c) = self.find(ids.0, ids.1, path) else {
            self.refuse_lap(path, tid, ids, AprStatus::INVALID_COMM_ID, sink);
            return None;
        };
        if c.state().awaits_rtu() && c.local_qpn == lap.remote_qpn {
            // Only an established peer sends LAP, so RTU was lost. The peer will retransmit the LAP.
            return self.established(ids.0);
        }
        if c.state() != State::Established {
            self.counters.unexpected += 1;
            return None;
        }
        let refusal = if c.is_active {
            Some(AprStatus::UNSUPPORTED)
        } else if c.local_qpn != lap.remote_qpn {
            Some(AprStatus::INVALID_QPN)
        } else {
            None
        };
        if let Some(status) = refusal {
            self.refuse_lap(path, tid, ids, status, sink);
            return None;
        }
        match &c.lap {
            Lapping::Asked(known) if *known == tid => {
                let mad = match &c.mra {
                    Some(mra) => **mra,
                    None => format::mra(c, tid, MraOf::Lap, c.service_timeout, &[]),
                };
                return self.lap_again(ids.0, &mad, sink);
            }
            Lapping::Answered(known, apr) if *known == tid => {
                let mad = **apr;
                return self.lap_again(ids.0, &mad, sink);
            }
            _ if c.old_laps.contains(&tid) => {
                self.counters.duplicates += 1;
                return None;
            }
            Lapping::Asked(_) => {
                self.counters.floods += 1;
                return None;
            }
            Lapping::None | Lapping::Sent(..) | Lapping::Answered(..) => {}
        }
        (c.lap, c.mra) = (Lapping::Asked(tid), None);
        c.follow(path);
        let Some(id) = c.owner else {
            self.answer_alternate(ids.0, &Answer::refusal(AprStatus::UNSUPPORTED), sink);
            return None;
        };
        Some(Upcall::ToOwner { id, what: ConnEvent::AlternateAsked(lap) })
    }

    /// Handles a duplicate LAP: the answer was lost, or the program is slow (delayed MRA).
    fn lap_again(&mut self, conn: u32, mad: &[u8; 256], sink: &mut impl Sink) -> Option<Upcall> {
        self.counters.duplicates += 1;
        let path = self.conns.get(&conn)?.path;
        self.send(&path, mad, sink);
        None
    }

    /// Refuses a LAP without keeping state. `ids` are this end's and the peer's communication ids.
    fn refuse_lap(
        &mut self,
        path: &MadPath,
        tid: u64,
        (local_comm_id, remote_comm_id): (u32, u32),
        status: AprStatus,
        sink: &mut impl Sink,
    ) {
        self.counters.laps_refused += 1;
        let (info, private_data) = ([0; 72], [0; 148]);
        let apr = Apr { local_comm_id, remote_comm_id, info_len: 0, status, info, private_data };
        let path = path.reply(self.config.hop_limit);
        self.send(&path, &CmMad::new(tid, Message::Apr(apr)).to_bytes(), sink);
    }

    /// Answers the peer's LAP. Returns false if no LAP awaits an answer.
    pub(crate) fn answer_alternate(
        &mut self,
        conn: u32,
        answer: &Answer<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(c) = self.conns.get_mut(&conn).filter(|c| c.state() == State::Established) else {
            return false;
        };
        let Lapping::Asked(tid) = c.lap else { return false };
        let mad = format::apr(c, tid, answer);
        c.old_laps.truncate(OLD_LAPS - 1);
        c.old_laps.push_front(tid);
        (c.lap, c.mra) = (Lapping::Answered(tid, Box::new(mad)), None);
        if let Some(path) = answer.path {
            c.take_path(path);
        }
        let path = c.path;
        self.counters.laps_refused += u64::from(answer.status != AprStatus::LOADED);
        self.send(&path, &mad, sink);
        true
    }

    /// Handles an APR.
    pub(super) fn handle_apr(&mut self, path: &MadPath, tid: u64, apr: Box<Apr>) -> Option<Upcall> {
        let conn = apr.remote_comm_id;
        let c = self.find(conn, apr.local_comm_id, path)?;
        let owner = c.owner;
        let other_path = match c.lap {
            Lapping::Sent(sent, other) if sent == tid && c.state() == State::Established => other,
            _ => {
                self.counters.unexpected += 1;
                return None;
            }
        };
        c.lap = Lapping::None;
        if apr.status == AprStatus::LOADED {
            c.take_path(other_path);
        }
        self.answered(conn);
        Some(Upcall::ToOwner { id: owner?, what: ConnEvent::AlternateAnswered(apr) })
    }

    /// Handles the timeout of a LAP: the connection continues on its path.
    pub(super) fn lap_timeout(&mut self, conn: u32, status: i32) -> Option<Upcall> {
        self.counters.timeouts += 1;
        self.answered(conn);
        let c = self.conns.get_mut(&conn)?;
        c.lap = Lapping::None;
        Some(Upcall::ToOwner { id: c.owner?, what: ConnEvent::AlternateUnanswered(status) })
    }

    /// Moves the connection's messages to this path, after it has migrated.
    pub(crate) fn migrated(&mut self, conn: u32, to: &MadPath) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.move_to(to);
        }
    }
}
