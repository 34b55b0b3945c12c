//! WRITEs and READs that the driver carries out itself, because it can reach the peer's memory: no packet, no PSN,
//! and the peer's processor does nothing.
//!
//! Order is kept by doing so only when everything that was posted before is complete, and carrying on only when
//! it is done. A long one waits for that; a short one is faster as a packet behind the others. In every other
//! case, an error included, packets are used: the responder finds the fault, and the error is the one that it
//! always was.

use crate::attr::QpState;
use crate::env::{Direct, Env};
use crate::optable::TxKind;
use crate::qp::Qp;
use crate::qp::requester::Step;
use crate::wr::WcStatus;

/// The most bytes of one copy: then others get their turn.
const CHUNK: u32 = 1 << 20;
/// Bytes that count as much as a packet against the budget.
const PACKET: u32 = 32 << 10;
/// From this length on a WRITE or READ waits until it can be carried out so.
const WORTH_WAITING: u32 = 32 << 10;
/// How many of these do not wait after one that waited and could not be carried out so.
const UNWILLING: u8 = 32;

impl Qp {
    /// Whether it carries out what its peer asks for, and nobody waits for an event that says so: in RTR the first
    /// request is to be seen ([`QpEvent::CommEst`](crate::env::QpEvent::CommEst)).
    pub fn is_open(&self) -> bool {
        match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.established,
            _ => false,
        }
    }

    /// Carries out the next part of the entry at the cursor, which is not started, if it may be done in this way.
    /// None if it is to go by packets.
    pub(super) fn carry_out_direct<E: Env>(&mut self, env: &mut E) -> Option<Step> {
        let index = self.req.cursor;
        if !self.req.direct {
            // It may have been before a migration.
            self.req.copied = 0;
            return None;
        }
        let wqe = self.sq.get(index);
        let write = match wqe.kind {
            TxKind::Write => true,
            // Without a READ at a time none is allowed: the long way says so.
            TxKind::Read if self.attr.max_rd_atomic > 0 => false,
            _ => return None,
        };
        if self.sq.head != index {
            return self.wait_for_earlier(wqe.len);
        }
        let done = self.req.copied;
        let len = (wqe.len - done).min(CHUNK);
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
        // What cannot be done so goes by packets, all of it.
        self.req.copied = 0;
        if len == 0 || !env.direct(&copy) {
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

    /// Something that was posted before is not complete: one of `len` bytes waits, or goes by packets.
    fn wait_for_earlier(&mut self, len: u32) -> Option<Step> {
        if len < WORTH_WAITING {
            return None;
        }
        let waits = self.req.unwilling == 0;
        self.req.unwilling = self.req.unwilling.saturating_sub(1);
        waits.then_some(Step::Nothing)
    }
}
