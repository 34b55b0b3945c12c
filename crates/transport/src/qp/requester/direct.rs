//! WRITEs and READs that the driver carries out itself, because it can reach the peer's memory: no
//! packet, no PSN, and no work for the peer's processor.
//!
//! To keep the order, this is done only when all earlier requests are complete, and the next
//! request starts only when it is done. A long request waits for this; a short one is faster as a
//! packet after the others. In every other case, errors included, packets are used. The responder
//! then detects the fault, and the error is the same as without this path.

use crate::attr::QpState;
use crate::env::{Direct, Env};
use crate::optable::TxKind;
use crate::qp::Qp;
use crate::qp::requester::Step;
use crate::wr::WcStatus;

/// The most bytes of one copy, after which others get their turn.
const CHUNK: u32 = 1 << 20;
/// Number of copied bytes that count as one packet of the budget.
const PACKET: u32 = 32 << 10;
/// The length from which a WRITE or READ waits until it can be carried out directly.
const WORTH_WAITING: u32 = 32 << 10;
/// Number of requests that do not wait after one could not be carried out directly.
const UNWILLING: u8 = 32;

impl Qp {
    /// Returns whether this queue pair carries out its peer's requests and no event is pending: in RTR
    /// the first request must be seen, to report [`QpEvent::CommEst`](crate::env::QpEvent::CommEst).
    pub fn is_open(&self) -> bool {
        match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.established,
            _ => false,
        }
    }

    /// Carries out the next part of the entry at the cursor, which is not started, if it can be
    /// done directly. Returns None if packets must be used.
    pub(super) fn carry_out_direct<E: Env>(&mut self, env: &mut E) -> Option<Step> {
        let index = self.req.cursor;
        if !self.req.direct {
            // A part may have been copied before a migration.
            self.req.copied = 0;
            return None;
        }
        let wqe = self.sq.get(index);
        let write = match wqe.kind {
            TxKind::Write => true,
            // Without any READ allowed the general path reports the error. A READ that has started continues.
            TxKind::Read if self.attr.max_rd_atomic > 0 || self.req.copied > 0 => false,
            _ => return None,
        };
        if self.sq.head != index {
            return self.wait_for_earlier(wqe.len);
        }
        let done = self.req.copied;
        let len = (wqe.len - done).min(CHUNK);
        if len == 0 {
            return None;
        }
        let copy = Direct {
            write,
            dest_qpn: self.attr.dest_qpn,
            pkey: self.own_pkey(env),
            rkey: wqe.rkey,
            va: wqe.remote_addr.wrapping_add(u64::from(done)),
            len,
            is_first: done == 0,
            near: self.sq.payload(index, done, len),
        };
        let ends = done + len == wqe.len;
        // If this fails, packets transfer the whole request.
        self.req.copied = 0;
        if !env.direct(&copy) {
            self.req.unwilling = UNWILLING;
            return None;
        }
        self.req.unwilling = 0;
        if ends {
            self.complete_head(WcStatus::Success, env);
            self.req.go_on_at(self.sq.head);
            self.check_drained(env);
        } else {
            self.req.copied = done + len;
        }
        Some(Step::Copied(len.div_ceil(PACKET)))
    }

    /// Makes a request of `len` bytes wait for incomplete earlier ones. Returns None if packets are used instead.
    fn wait_for_earlier(&mut self, len: u32) -> Option<Step> {
        if len < WORTH_WAITING {
            return None;
        }
        let waits = self.req.unwilling == 0;
        self.req.unwilling = self.req.unwilling.saturating_sub(1);
        waits.then_some(Step::Nothing)
    }
}
