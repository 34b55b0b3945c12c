//! MRA, both ways: a side needs more time than was agreed (IBTA 12.6.6).
//!
//! A program may send MRA. The machine sends it for a program that has not answered when the peer retransmits. The receiver of an MRA
//! waits for the service timeout and then continues as before. A peer may send MRA again (Linux ignores further ones), but no
//! more often than a message may be retransmitted. Each wait uses up one retransmission.

use alloc::boxed::Box;

use rdmux_transport::Time;
use rdmux_wire::cm::{Mra, MraOf};

use super::conn::Lapping;
use super::redirect::Wanted;
use super::state::State;
use super::timers::Timer;
use super::{Cm, ConnEvent, Upcall, format};
use crate::config::code_to_duration;
use crate::path::MadPath;
use crate::sink::Sink;

impl Cm {
    /// Sends MRA for a REQ, REP or LAP that will be answered later; `service_timeout` is a code.
    pub(crate) fn ask_for_time(
        &mut self,
        conn: u32,
        service_timeout: u8,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), State> {
        let Some(c) = self.conns.get_mut(&conn) else { return Err(State::TimeWait) };
        let (tid, of) = match (c.state(), &c.lap) {
            (State::ReqRcvd, _) => (c.tid, MraOf::Req),
            (State::RepRcvd, _) => (c.tid, MraOf::Rep),
            (State::Established, Lapping::Asked(tid)) => (*tid, MraOf::Lap),
            (state, _) => return Err(state),
        };
        let mad = format::mra(c, tid, of, service_timeout, private_data);
        c.mra = Some(Box::new(mad));
        let path = c.path;
        self.send(&path, &mad, sink);
        Ok(())
    }

    /// Handles an MRA: extends the deadline by the time that the peer asks for.
    pub(super) fn handle_mra(
        &mut self,
        now: Time,
        path: &MadPath,
        tid: u64,
        mra: &Mra,
    ) -> Option<Upcall> {
        // An MRA to REQ is the first message in which the peer gives its communication id.
        let local_id = mra.remote_comm_id;
        let known = match mra.message {
            MraOf::Req => self.conns.get(&local_id).is_some_and(|c| c.is_from(path)),
            _ => self.find(local_id, mra.local_comm_id, path).is_some(),
        };
        let c = self.conns.get_mut(&local_id).filter(|_| known)?;
        let is_of_lap = matches!(c.lap, Lapping::Sent(sent, _) if sent == tid);
        let next = match (c.state(), mra.message) {
            // An MRA after a redirection is late: it was sent before.
            (State::ReqSent | State::MraReqRcvd, MraOf::Req)
                if !matches!(c.wanted, Wanted::Asked) =>
            {
                Some(State::MraReqRcvd)
            }
            (State::RepSent | State::MraRepRcvd, MraOf::Rep) => Some(State::MraRepRcvd),
            (State::Established, MraOf::Lap) if is_of_lap => None,
            _ => {
                self.counters.unexpected += 1;
                return None;
            }
        };
        if c.respites > c.max_retries {
            self.counters.floods += 1;
            return None;
        }
        c.respites += 1;
        if let Some(next) = next.filter(|next| *next != c.state()) {
            c.go(next);
        }
        let wait = code_to_duration(mra.service_timeout) + code_to_duration(c.ack_timeout);
        let owner = c.owner;
        self.timers.set(&mut c.deadline, Timer::Conn(local_id), now.after(wait));
        Some(Upcall::ToOwner { id: owner?, what: ConnEvent::MoreTime(mra.service_timeout) })
    }
}
