//! Faults: reporting them to the peer, and handling the peer's reports (RFC 5040, section 7).

use rdmux_wire::iwarp::ddp::{Header, Model, Untagged};
use rdmux_wire::iwarp::rdmap::{Opcode, ReadRequest};
use rdmux_wire::iwarp::terminate::Terminate;

use crate::iwarp::StreamEnv;
use crate::iwarp::close::{Phase, TERMINATE_TIME};
use crate::iwarp::fault::{self, Fault};
use crate::iwarp::qp::Qp;
use crate::optable::TxKind;
use crate::time::Time;
use crate::wr::WcStatus;

/// The untagged queue of requests for READs and atomics (RFC 5040, section 4.1).
const REQUESTS: u32 = 1;
/// The kinds of requests that have a response.
const QUERIES: [TxKind; 3] = [TxKind::Read, TxKind::FetchAdd, TxKind::CmpSwap];

impl Qp {
    /// Ends the connection as the fault's table row prescribes: a Terminate to the peer, completions, an event, ERR. With
    /// `tells_segment`, the Terminate includes the headers of the current segment.
    pub(super) fn fail<E: StreamEnv>(
        &mut self,
        now: Time,
        fault: Fault,
        tells_segment: bool,
        env: &mut E,
    ) {
        let row = fault.row();
        env.count(row.counts);
        let mut message = [0; Terminate::MAX_LEN];
        let len = self.terminate_of(fault, tells_segment).emit(&mut message);
        let can_tell =
            !self.tx.broken && matches!(self.phase, Phase::Open | Phase::Draining { .. });
        self.phase = if can_tell && self.prepare_last_words(&message[..len], env).is_ok() {
            let peer_ended = self.has_peer_ended();
            Phase::Terminating { until: now.after(TERMINATE_TIME), peer_ended }
        } else {
            Phase::Aborted
        };
        if let Some(status) = row.receive
            && self.rq.is_active()
        {
            self.fail_oldest_receive(status, env);
        }
        if let Some(status) = row.send
            && self.sq.head != self.sq.tail
        {
            self.complete_head(status, env);
        }
        if let Some(event) = row.event {
            env.event(event);
        }
        self.enter_error(env);
    }

    /// Returns the Terminate that reports a fault, with the headers of the segment if requested.
    fn terminate_of(&self, fault: Fault, tells_segment: bool) -> Terminate<'_> {
        let terminate = Terminate::new(fault.row().tells);
        if !tells_segment {
            return terminate;
        }
        let rx = &self.rx;
        let terminate = terminate.of(rx.segment_len, &rx.header[..rx.header_len]);
        // The request is known only when all of it has arrived.
        let complete = rx.opcode == Some(Opcode::ReadRequest) && rx.last;
        if complete && rx.queues[1].opcode.is_none() {
            return Terminate {
                rdmap_header: &rx.queues[1].bytes[..ReadRequest::LEN],
                ..terminate
            };
        }
        terminate
    }

    /// Handles a Terminate from the peer. The READ or atomic that it refers to, if any, fails.
    /// Everything else is flushed, and the stream ends.
    pub(super) fn finish_terminate<E: StreamEnv>(&mut self, now: Time, small: &[u8], env: &mut E) {
        let (index, (status, event)) = Terminate::parse(small).map_or_else(
            |_| (None, (WcStatus::WrFlushErr, crate::env::QpEvent::Fatal)),
            |terminate| {
                let of_start_up = self.is_of_start_up();
                let terminate = if of_start_up { terminate } else { terminate.on_open_stream() };
                (self.blamed(&terminate), fault::told(terminate.fault))
            },
        );
        if let Some(index) = index {
            self.fail_in_order(index, status, env);
        }
        env.event(event);
        self.phase = Phase::Lingering { until: now.after(TERMINATE_TIME) };
        self.enter_error(env);
    }

    /// Returns whether the current segment may refer to this end's reply to MPA's request: without a ready-to-receive
    /// frame nothing else confirms that the peer accepts the reply.
    fn is_of_start_up(&self) -> bool {
        !self.params.initiator && self.params.rtr.is_none() && self.rx.is_first
    }

    /// Returns the READ or atomic that a Terminate refers to: the one whose request it includes, the oldest if it includes
    /// nothing readable, and none if it includes something else. The peer may have dropped responses to those before it.
    fn blamed(&self, terminate: &Terminate<'_>) -> Option<u32> {
        let Ok(header) = Header::parse(terminate.ddp_header) else {
            return self.is_asking().then_some(self.sq.head);
        };
        let Model::Untagged(Untagged { qn: REQUESTS, msn, .. }) = header.model else {
            return None;
        };
        let oldest = self.tx.query_msn.wrapping_sub(self.tx.queries);
        let place = msn.wrapping_sub(oldest);
        if place >= self.tx.queries {
            return None;
        }
        // A Read that is the ready-to-receive frame is not a work request.
        let place = place.checked_sub(u32::from(self.tx.rtr_read))?;
        let (head, tail) = (self.sq.head, self.sq.tail);
        let posted = (0..tail.wrapping_sub(head)).map(|n| head.wrapping_add(n));
        posted.filter(|index| QUERIES.contains(&self.sq.get(*index).kind)).nth(place as usize)
    }

    /// Returns whether the oldest send work request waits for a response.
    fn is_asking(&self) -> bool {
        QUERIES.into_iter().any(|kind| self.awaits(kind))
    }
}
