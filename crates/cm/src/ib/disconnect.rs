//! DREQ and DREP, timewait, and the release of connections that no id owns any more (IBTA 12.9.7,
//! 12.9.8.4).

use rdmux_transport::Time;
use rdmux_wire::cm::{Drep, Dreq, RejReason};
use rdmux_wire::{Guid, Qpn};

use super::conn::Lapping;
use super::state::State;
use super::timers::Timer;
use super::{Cm, ConnEvent, Upcall, format};
use crate::config::{LONGEST_CODE, code_to_duration};
use crate::path::MadPath;
use crate::sink::Sink;

/// The most connections kept in TIMEWAIT. A bound is needed because peers decide how many there are.
const MOST_TIMEWAIT: usize = 1 << 15;

impl Cm {
    /// Ends a connection: sends DREQ with the first private data, or answers the peer's DREQ with the second. Does nothing if it is over.
    pub(crate) fn disconnect(
        &mut self,
        now: Time,
        conn: u32,
        (dreq, drep): (&[u8], &[u8]),
        sink: &mut impl Sink,
    ) -> Result<(), State> {
        let Some(c) = self.conns.get_mut(&conn) else { return Ok(()) };
        match c.state() {
            State::Established => {
                c.go(State::DreqSent);
                let mad = format::dreq(c, dreq);
                self.send_until_answered(now, conn, &mad, sink);
            }
            State::DreqRcvd => {
                let (path, mad) = (c.path, format::drep(c, drep));
                self.enter_timewait(now, conn);
                self.send(&path, &mad, sink);
            }
            State::DreqSent | State::TimeWait => {}
            state => return Err(state),
        }
        Ok(())
    }

    /// Starts a disconnection whose DREQ is sent after one interval, unless the peer ends the connection first.
    pub(super) fn disconnect_later(&mut self, now: Time, conn: u32) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.go(State::DreqSent);
        c.out = Some(alloc::boxed::Box::new(format::dreq(c, &[])));
        c.retries_left = c.max_retries.saturating_add(1);
        let at = c.next_retry(now);
        self.timers.set(&mut c.deadline, Timer::Conn(conn), at);
    }

    /// Ends the old connection of a queue pair that the peer uses for a new one, if the message came from that peer. Another host may
    /// have made the numbers up.
    pub(super) fn disconnect_stale(
        &mut self,
        now: Time,
        path: &MadPath,
        names: (Guid, Qpn),
        sink: &mut impl Sink,
    ) {
        if let Some(&old) = self.by_remote_qpn.get(&names)
            && let Some(c) = self.conns.get(&old)
            && c.state() == State::Established
            && c.is_from(path)
        {
            let _established = self.disconnect(now, old, (&[], &[]), sink);
        }
    }

    /// Handles a DREQ. One for an unknown connection is answered too, so that the peer need not wait.
    pub(super) fn handle_dreq(
        &mut self,
        now: Time,
        path: &MadPath,
        tid: u64,
        dreq: &Dreq,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let conn = dreq.remote_comm_id;
        let Some(c) = self.find(conn, dreq.local_comm_id, path) else {
            if self.is_early(path, tid, dreq) {
                return None;
            }
            let path = path.reply(self.config.hop_limit);
            let mad = format::drep_of(tid, (conn, dreq.local_comm_id), &[]);
            self.send(&path, &mad, sink);
            return None;
        };
        if c.local_qpn != dreq.remote_qpn {
            self.counters.bad_field += 1;
            return None;
        }
        let (owner, path) = (c.owner, c.path);
        match c.state() {
            State::Established | State::RepSent | State::MraRepRcvd => {
                c.tid = tid;
                c.go(State::DreqRcvd);
                self.answered(conn);
            }
            State::DreqSent => {
                // Both sides sent DREQ: each answers the other's and is done.
                c.tid = tid;
                let mad = format::drep(c, &[]);
                self.enter_timewait(now, conn);
                self.send(&path, &mad, sink);
            }
            State::TimeWait => {
                // The DREP was lost.
                c.tid = tid;
                let mad = format::drep(c, &[]);
                self.counters.duplicates += 1;
                self.send(&path, &mad, sink);
                return None;
            }
            State::DreqRcvd => {
                self.counters.duplicates += 1;
                return None;
            }
            State::RepRcvd => {
                // The program has an event for a connection that is over already. It decides about
                // that event first: a later DREQ may be lost, so this one is kept.
                let again = c.early_dreq.replace((c.remote_id, tid)).is_some();
                self.counters.duplicates += u64::from(again);
                return None;
            }
            State::ReqSent | State::MraReqRcvd | State::ReqRcvd => {
                self.counters.unexpected += 1;
                return None;
            }
        }
        Some(Upcall::ToOwner { id: owner?, what: ConnEvent::Disconnected(0) })
    }

    /// Returns whether a DREQ has overtaken the REP. The DREQ is kept, and not answered before the REP arrives. If it were answered, the
    /// peer would be done, and if the RTU were lost it would not report the end of the connection again.
    #[cold]
    fn is_early(&mut self, path: &MadPath, tid: u64, dreq: &Dreq) -> bool {
        let Some(c) = self.conns.get_mut(&dreq.remote_comm_id) else { return false };
        let ends = (c.path.peer(), c.local_qpn) == (path.peer(), dreq.remote_qpn);
        if !(c.state().awaits_rep() && ends) {
            return false;
        }
        let again = c.early_dreq.replace((dreq.local_comm_id, tid)).is_some();
        self.counters.duplicates += u64::from(again);
        true
    }

    /// Handles a DREP.
    pub(super) fn handle_drep(&mut self, now: Time, path: &MadPath, drep: &Drep) -> Option<Upcall> {
        let conn = drep.remote_comm_id;
        let c = self.find(conn, drep.local_comm_id, path)?;
        if c.state() != State::DreqSent {
            self.counters.duplicates += 1;
            return None;
        }
        let owner = c.owner;
        self.enter_timewait(now, conn);
        Some(Upcall::ToOwner { id: owner?, what: ConnEvent::Disconnected(0) })
    }

    /// Ends a connection and keeps its ids for a time, so that late messages are not mistaken for those of a new one.
    pub(super) fn enter_timewait(&mut self, now: Time, conn: u32) {
        let configured = self.config.timewait;
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.go(State::TimeWait);
        (c.out, c.mra, c.rtu, c.lap) = (None, None, None, Lapping::None);
        let wait = configured.unwrap_or_else(|| code_to_duration(c.ack_timeout.min(LONGEST_CODE)));
        self.timers.set(&mut c.deadline, Timer::Conn(conn), now.after(wait));
        let key = (c.remote_guid, c.remote_qpn);
        if self.by_remote_qpn.get(&key) == Some(&conn) {
            self.by_remote_qpn.remove(&key);
        }
        self.timewait.push_back(conn);
        self.bound_timewait(now);
    }

    /// Expires the oldest connections in TIMEWAIT if there are too many.
    fn bound_timewait(&mut self, now: Time) {
        while let Some(&oldest) = self.timewait.front() {
            let waits = self.conns.get_mut(&oldest).filter(|c| c.state() == State::TimeWait);
            if waits.is_some() && self.timewait.len() <= MOST_TIMEWAIT {
                break;
            }
            self.timewait.pop_front();
            if let Some(c) = waits {
                self.counters.timewait_forgotten += 1;
                self.timers.set(&mut c.deadline, Timer::Conn(oldest), now);
            }
        }
    }

    /// Ends a connection that no id owns any more: informs the peer, whatever the state, and lets the
    /// state machine run to its end.
    ///
    /// Linux sends one DREQ here and keeps no state. This function retransmits it, so that a peer detects the
    /// end even when datagrams are lost.
    pub(crate) fn release(&mut self, now: Time, conn: u32, sink: &mut impl Sink) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.owner = None;
        match c.state() {
            State::ReqSent | State::MraReqRcvd => self.reject_timeout(conn, sink),
            State::ReqRcvd | State::RepRcvd | State::RepSent | State::MraRepRcvd => {
                let _fits = self.reject(now, conn, RejReason::CONSUMER_DEFINED, &[], &[], sink);
            }
            State::Established | State::DreqRcvd => {
                let _fits = self.disconnect(now, conn, (&[], &[]), sink);
            }
            State::DreqSent | State::TimeWait => {}
        }
    }
}
