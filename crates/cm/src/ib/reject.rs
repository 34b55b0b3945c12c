//! REJ, both ways (IBTA 12.6.7).

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_wire::Guid;
use rdmux_wire::cm::{Rej, RejOf, RejReason};

use super::conn::Conn;
use super::redirect::Followed;
use super::state::State;
use super::{Cm, ConnEvent, Upcall, format};
use crate::path::MadPath;
use crate::sink::Sink;

impl Cm {
    /// Refuses a message without keeping state. `ids` are this end's and the peer's communication ids.
    #[expect(clippy::too_many_arguments, reason = "the message's own fields")]
    pub(super) fn refuse_message(
        &mut self,
        path: &MadPath,
        tid: u64,
        ids: (u32, u32),
        which: RejOf,
        reason: RejReason,
        ari: &[u8],
        sink: &mut impl Sink,
    ) {
        let path = path.reply(self.config.hop_limit);
        let mad = format::rej_of(tid, ids, which, reason, ari, &[]);
        self.send(&path, &mad, sink);
    }

    /// Refuses a request that has no owner: there is no listener, or the request is invalid. The REJ carries no
    /// communication id of this end, because there is none.
    pub(crate) fn refuse(
        &mut self,
        conn: u32,
        reason: RejReason,
        ari: &[u8],
        sink: &mut impl Sink,
    ) {
        let Some(c) = self.conns.get(&conn) else { return };
        let mad = format::rej_of(c.tid, (0, c.remote_id), RejOf::Req, reason, ari, &[]);
        let path = c.path;
        self.forget(conn);
        self.send(&path, &mad, sink);
    }

    /// Refuses a request or a response, or revokes an accept.
    pub(crate) fn reject(
        &mut self,
        now: Time,
        conn: u32,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), State> {
        let Some(c) = self.conns.get_mut(&conn) else { return Err(State::TimeWait) };
        match c.state() {
            State::ReqSent | State::MraReqRcvd | State::ReqRcvd | State::RepRcvd => {
                let (path, mad) = (c.path, format::rej(c, reason, ari, private_data));
                self.forget(conn);
                self.send(&path, &mad, sink);
            }
            State::RepSent | State::MraRepRcvd => {
                let (path, mad) = (c.path, format::rej(c, reason, ari, private_data));
                // The peer may not get this REJ, and establish. It is sent again for each message that
                // shows so, and a DREQ is retransmitted until it is answered.
                c.refusal = Some(Box::new(mad));
                self.send(&path, &mad, sink);
                self.disconnect_later(now, conn);
            }
            state => return Err(state),
        }
        Ok(())
    }

    /// Sends the REJ again, if there was one and a message shows that the peer did not get it. Returns whether there was one.
    pub(super) fn refuse_again(&mut self, conn: u32, sink: &mut impl Sink) -> bool {
        let Some(c) = self.conns.get(&conn) else { return false };
        let Some(rej) = c.refusal.as_deref().copied() else { return false };
        let path = c.path;
        self.send(&path, &rej, sink);
        true
    }

    /// Sends REJ with reason 4 and this node's GUID: either end may not know the other's communication id yet
    /// (IBTA 12.6.7.2).
    pub(super) fn reject_timeout(&mut self, conn: u32, sink: &mut impl Sink) {
        let Some(c) = self.conns.get(&conn) else { return };
        let mad = format::rej(c, RejReason::TIMEOUT, &c.local_guid.0.to_be_bytes(), &[]);
        let path = c.path;
        self.forget(conn);
        self.send(&path, &mad, sink);
    }

    /// Handles a REJ.
    pub(super) fn handle_rej(
        &mut self,
        now: Time,
        path: &MadPath,
        rej: Box<Rej>,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let Some(conn) = self.find_rejected(path, &rej) else {
            self.counters.unknown_connection += 1;
            return None;
        };
        if let Followed::Done(told) = self.follow_rej(now, conn, (path, &rej), sink) {
            return told;
        }
        let c = self.conns.get_mut(&conn)?;
        let owner = c.owner;
        match c.state() {
            State::TimeWait | State::DreqRcvd => {
                self.counters.unexpected += 1;
                return None;
            }
            State::RepRcvd | State::Established | State::DreqSent => {
                self.enter_timewait(now, conn);
            }
            _ if rej.reason == RejReason::STALE_CONN => self.enter_timewait(now, conn),
            _ => self.forget(conn),
        }
        Some(Upcall::ToOwner { id: owner?, what: ConnEvent::Rejected(rej) })
    }

    /// Returns the connection that a REJ is about. A REJ of REQ may lack the peer's communication id. A REJ with reason timeout
    /// may lack this end's, and then has the peer's node GUID.
    fn find_rejected(&self, path: &MadPath, rej: &Rej) -> Option<u32> {
        let ours = if rej.reason == RejReason::TIMEOUT && rej.remote_comm_id == 0 {
            let guid = Guid(u64::from_be_bytes(*rej.ari.first_chunk()?));
            *self.by_remote_id.get(&(guid, rej.local_comm_id))?
        } else {
            rej.remote_comm_id
        };
        let fits = |c: &Conn| {
            c.is_from(path) && (c.remote_id == rej.local_comm_id || c.state().awaits_rep())
        };
        self.conns.get(&ours).filter(|c| fits(c)).map(|c| c.local_id)
    }
}
