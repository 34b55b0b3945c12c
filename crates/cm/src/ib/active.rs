//! The connecting side: sends REQ, receives REP, sends RTU (IBTA 12.9.5).

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_wire::cm::{MraOf, RejOf, RejReason, Rep, Transport};
use rdmux_wire::{Guid, Psn, Qpn, ServiceId};

use super::conn::{Conn, Mad, NewConn, tid_of};
use super::state::State;
use super::{Cm, ConnEvent, Upcall, format};
use crate::config::Config;
use crate::fields::Fields;
use crate::params::ConnParam;
use crate::path::{MadPath, Path};
use crate::sink::{IdHandle, Sink};

/// The contents of a REQ.
pub(crate) struct Connect<'a> {
    pub(crate) owner: IdHandle,
    pub(crate) service_id: ServiceId,
    pub(crate) node_guid: Guid,
    pub(crate) transport: Transport,
    pub(crate) psn: Psn,
    /// The path of the connection's messages.
    pub(crate) path: MadPath,
    pub(crate) primary: Path,
    pub(crate) alternate: Option<Path>,
    /// The id's options.
    pub(crate) fields: &'a Fields,
    /// Depths, retries, queue pair. Its private data are only the user's part.
    pub(crate) param: &'a ConnParam,
    /// The private data with the IP header in front.
    pub(crate) private_data: &'a [u8],
}

impl Cm {
    /// Sends REQ. Returns the new connection.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        connect: &Connect<'_>,
        sink: &mut impl Sink,
    ) -> u32 {
        let local_id = self.new_local_id();
        let tid = tid_of(local_id);
        let (config, fields) = (&self.config, connect.fields);
        let answers_in = fields.remote_response_timeout.unwrap_or(config.cm_response_timeout);
        let mut conn = Conn::new(NewConn {
            state: State::ReqSent,
            owner: Some(connect.owner),
            transport: connect.transport,
            local_id,
            tid,
            path: connect.path,
            max_retries: fields.max_retries.unwrap_or(config.max_cm_retries),
            interval: config.request_interval(connect.primary.packet_lifetime, answers_in),
            ack_timeout: connect.primary.packet_lifetime.saturating_add(1),
            service_timeout: fields.service_timeout.unwrap_or(config.mra_service_timeout),
            response_timeout: answers_in,
        });
        conn.local_guid = connect.node_guid;
        conn.redirects_left = fields.redirects();
        conn.other_path = connect.alternate.map(|path| path.mad_path(connect.path.device, path.av));
        conn.local_qpn = connect.param.qp_num;
        let mad = format::req(config, tid, local_id, connect);
        self.conns.insert(local_id, Box::new(conn));
        self.send_until_answered(now, local_id, &mad, sink);
        local_id
    }

    /// Handles a REP.
    pub(super) fn handle_rep(
        &mut self,
        now: Time,
        path: &MadPath,
        (tid, options): (u64, u32),
        mut rep: Box<Rep>,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let local_id = rep.remote_comm_id;
        let (state, transport) = match self.conns.get(&local_id) {
            Some(c) if c.is_from(path) => (c.state(), c.transport),
            _ => {
                // Otherwise the peer would retransmit its REP without an answer (IBTA 12.6.7.2, reason 6).
                self.counters.unknown_connection += 1;
                let ids = (local_id, rep.local_comm_id);
                self.refuse_message(
                    path,
                    tid,
                    ids,
                    RejOf::Rep,
                    RejReason::INVALID_COMM_ID,
                    &[],
                    sink,
                );
                return None;
            }
        };
        if !state.awaits_rep() {
            self.duplicate_rep(local_id, &rep, sink);
            return None;
        }
        // From here on the peer's queue pair is in the field that all other transports use.
        rep.local_qpn = rep.qpn(transport);
        if !self.list_remote(local_id, rep.local_ca_guid, rep.local_comm_id, rep.local_qpn) {
            self.counters.stale += 1;
            let ids = (local_id, rep.local_comm_id);
            self.refuse_message(path, tid, ids, RejOf::Rep, RejReason::STALE_CONN, &[], sink);
            self.disconnect_stale(now, path, (rep.local_ca_guid, rep.local_qpn), sink);
            return None;
        }
        self.answered(local_id);
        let c = self.conns.get_mut(&local_id)?;
        c.go(State::RepRcvd);
        if rep.failover_accepted != 0 {
            c.other_path = None;
        }
        let lifetime = c.ack_timeout.saturating_sub(1);
        c.ack_timeout = Config::ack_timeout(rep.target_ack_delay, lifetime).code();
        Some(Upcall::ToOwner { id: c.owner?, what: ConnEvent::Response(rep, options) })
    }

    /// Records the peer's node, queue pair and communication id. Returns false, and records nothing, if another connection uses
    /// its queue pair or its communication id.
    pub(super) fn list_remote(
        &mut self,
        local_id: u32,
        guid: Guid,
        remote_id: u32,
        qpn: Qpn,
    ) -> bool {
        if self.by_remote_qpn.contains_key(&(guid, qpn))
            || self.by_remote_id.contains_key(&(guid, remote_id))
        {
            return false;
        }
        let Some(c) = self.conns.get_mut(&local_id) else { return false };
        c.remote_guid = guid;
        c.remote_id = remote_id;
        c.remote_qpn = qpn;
        self.by_remote_id.insert((guid, remote_id), local_id);
        self.by_remote_qpn.insert((guid, qpn), local_id);
        true
    }

    /// Handles a duplicate REP: the RTU was lost, or the program is slow (delayed MRA).
    fn duplicate_rep(&mut self, local_id: u32, rep: &Rep, sink: &mut impl Sink) {
        let Some(c) = self.conns.get(&local_id) else { return };
        if c.remote_id != rep.local_comm_id {
            self.counters.unknown_connection += 1;
            return;
        }
        self.counters.duplicates += 1;
        let mad = match c.state() {
            State::Established => match &c.rtu {
                Some(rtu) => **rtu,
                None => format::rtu(c, &[]),
            },
            State::RepRcvd => match &c.mra {
                Some(mra) => **mra,
                None => format::mra(c, c.tid, MraOf::Rep, c.service_timeout, &[]),
            },
            _ => return,
        };
        let path = c.path;
        self.send(&path, &mad, sink);
    }

    /// Sends RTU with these private data, when the queue pair is ready. A peer whose DREQ arrived meanwhile no longer awaits an RTU,
    /// but the answer to its DREQ.
    pub(crate) fn establish(
        &mut self,
        conn: u32,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<Option<Upcall>, State> {
        let Some(c) = self.conns.get_mut(&conn) else { return Err(State::TimeWait) };
        if c.state() != State::RepRcvd {
            return Err(c.state());
        }
        c.go(State::Established);
        c.mra = None;
        self.counters.established += 1;
        if let Some((_, tid)) = c.early_dreq.take().filter(|(remote, _)| *remote == c.remote_id) {
            c.tid = tid;
            c.go(State::DreqRcvd);
            let what = ConnEvent::Disconnected(0);
            return Ok(c.owner.map(|id| Upcall::ToOwner { id, what }));
        }
        let (path, mad): (MadPath, Mad) = (c.path, format::rtu(c, private_data));
        c.rtu = (!private_data.is_empty()).then(|| Box::new(mad));
        self.send(&path, &mad, sink);
        Ok(None)
    }
}
