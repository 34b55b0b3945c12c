//! The accepting side: receives REQ, sends REP, receives RTU (IBTA 12.9.6).

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_wire::cm::{MraOf, RejOf, RejReason, Req, Rtu};
use rdmux_wire::{Guid, Psn};

use super::conn::{Conn, NewConn};
use super::state::State;
use super::{Cm, ConnEvent, Upcall, format};
use crate::config::{LONGEST_CODE, code_to_duration};
use crate::fields::{Failover, Fields};
use crate::params::ConnParam;
use crate::path::MadPath;
use crate::sink::Sink;

/// The contents of a REP.
pub(crate) struct Accept<'a> {
    pub(crate) node_guid: Guid,
    pub(crate) psn: Psn,
    pub(crate) param: &'a ConnParam,
    /// The id's options.
    pub(crate) fields: &'a Fields,
    /// The outcome of REQ's alternate path, and the path of messages along it if it is taken.
    pub(crate) failover: Failover,
    pub(crate) other_path: Option<MadPath>,
}

impl Cm {
    /// Handles a REQ: a duplicate, one from a queue pair that is in use, or a new connection.
    pub(super) fn handle_req(
        &mut self,
        now: Time,
        path: &MadPath,
        (tid, options): (u64, u32),
        req: Box<Req>,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let (guid, remote_id) = (req.local_ca_guid, req.local_comm_id);
        if let Some(&known) = self.by_remote_id.get(&(guid, remote_id)) {
            self.duplicate_req(known, path, sink);
            return None;
        }
        if self.by_remote_qpn.contains_key(&(guid, req.local_qpn)) {
            // The peer forgot a connection that this end still has (IBTA 12.9.8.3.1).
            self.counters.stale += 1;
            self.refuse_message(
                path,
                tid,
                (0, remote_id),
                RejOf::Req,
                RejReason::STALE_CONN,
                &[],
                sink,
            );
            self.disconnect_stale(now, path, (guid, req.local_qpn), sink);
            return None;
        }
        let local_id = self.new_local_id();
        let interval = self.config.retry_interval;
        let conn = Conn::new(NewConn {
            state: State::ReqRcvd,
            owner: None,
            transport: req.transport,
            local_id,
            tid,
            path: path.reply(self.config.hop_limit),
            max_retries: req.max_cm_retries.min(15),
            interval: interval.unwrap_or_else(|| {
                code_to_duration(req.local_cm_response_timeout.min(LONGEST_CODE))
            }),
            ack_timeout: req.primary.ack_timeout.code(),
            service_timeout: self.config.mra_service_timeout,
            response_timeout: self.config.cm_response_timeout,
        });
        self.conns.insert(local_id, Box::new(conn));
        self.list_remote(local_id, guid, remote_id, req.local_qpn);
        Some(Upcall::Request { conn: local_id, path: *path, req, options })
    }

    /// Handles a duplicate REQ: the answer was lost, or the program is slow (delayed MRA).
    fn duplicate_req(&mut self, known: u32, path: &MadPath, sink: &mut impl Sink) {
        self.counters.duplicates += 1;
        if self.refuse_again(known, sink) {
            return;
        }
        let Some(c) = self.conns.get(&known).filter(|c| c.is_from(path)) else {
            return;
        };
        let mad = match c.state() {
            State::ReqRcvd => match &c.mra {
                Some(mra) => **mra,
                None => format::mra(c, c.tid, MraOf::Req, c.service_timeout, &[]),
            },
            State::RepSent => match &c.out {
                Some(rep) => **rep,
                None => return,
            },
            State::TimeWait => format::rej(c, RejReason::STALE_CONN, &[], &[]),
            _ => return,
        };
        let path = c.path;
        self.send(&path, &mad, sink);
    }

    /// Sends REP.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        conn: u32,
        accept: &Accept<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), State> {
        let Some(c) = self.conns.get_mut(&conn) else { return Err(State::TimeWait) };
        if c.state() != State::ReqRcvd {
            return Err(c.state());
        }
        c.go(State::RepSent);
        c.local_guid = accept.node_guid;
        c.local_qpn = accept.param.qp_num;
        c.other_path = accept.other_path;
        c.mra = None;
        let mad = format::rep(&self.config, c, accept);
        self.send_until_answered(now, conn, &mad, sink);
        Ok(())
    }

    /// Handles an RTU, which establishes the connection. Refuses one for a connection that does not exist or was revoked.
    pub(super) fn handle_rtu(
        &mut self,
        path: &MadPath,
        tid: u64,
        rtu: &Rtu,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let ids = (rtu.remote_comm_id, rtu.local_comm_id);
        let Some(c) = self.find(ids.0, ids.1, path) else {
            let reason = RejReason::INVALID_COMM_ID;
            self.refuse_message(path, tid, ids, RejOf::NoMessage, reason, &[], sink);
            return None;
        };
        if !c.state().awaits_rtu() {
            self.counters.duplicates += 1;
            self.refuse_again(ids.0, sink);
            return None;
        }
        self.established(ids.0)
    }

    /// Handles data on the queue pair before the RTU: the peer must have sent its RTU (IBTA 12.9.6, "communication
    /// established" event). Returns none if nothing changed.
    pub(crate) fn comm_established(&mut self, conn: u32) -> Option<Upcall> {
        if !self.state(conn)?.awaits_rtu() {
            return None;
        }
        self.established(conn)
    }

    /// Handles the arrival of RTU, or of data before it: the connection is established.
    pub(super) fn established(&mut self, conn: u32) -> Option<Upcall> {
        self.answered(conn);
        self.counters.established += 1;
        let c = self.conns.get_mut(&conn)?;
        c.go(State::Established);
        Some(Upcall::ToOwner { id: c.owner?, what: ConnEvent::Established })
    }
}
