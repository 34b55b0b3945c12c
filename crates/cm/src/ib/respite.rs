//! MRA, both ways: a side needs more time than was agreed (IBTA 12.6.6).
//!
//! A program may ask for it, and the machine does so for a program that has not answered when the message comes again. Who is
//! asked waits for the service timeout, and then goes on as before. A peer may ask again (Linux does not listen then), but no
//! more often than it may be asked, and each time costs one of the repetitions.

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
    /// Asks for time before REQ, REP or LAP is answered; `service_timeout` is a code.
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

    /// The peer asks for time: waits for as long as it says.
    pub(super) fn handle_mra(
        &mut self,
        now: Time,
        path: &MadPath,
        tid: u64,
        mra: &Mra,
    ) -> Option<Upcall> {
        // A peer that asks for time before it answers REQ names itself for the first time.
        let local_id = mra.remote_comm_id;
        let known = match mra.message {
            MraOf::Req => self.conns.get(&local_id).is_some_and(|c| c.is_from(path)),
            _ => self.find(local_id, mra.local_comm_id, path).is_some(),
        };
        let c = self.conns.get_mut(&local_id).filter(|_| known)?;
        let is_of_lap = matches!(c.lap, Lapping::Sent(sent, _) if sent == tid);
        let next = match (c.state(), mra.message) {
            // After a redirection it is late: it was sent before.
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
