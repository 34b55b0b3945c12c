//! The fast path for a short message: a SEND of one packet between queue pairs that are otherwise idle, on a lossless link.
//!
//! The requester's and the responder's half have the same effect as the general path (`requester::emit`, `responder::execute`).
//! In every other case they return so without visible effects, and the driver must use the general path.

use rdmux_wire::{Bth, Opcode, Operation, Pkey, Psn, Service};

use crate::attr::{QpState, QpType};
use crate::env::{Env, Side, TxPayload};
use crate::optable::TxKind;
use crate::qp::Qp;
use crate::qp::requester::pad;
use crate::time::Time;
use crate::wr::{Completion, SendFlags, WcOpcode, WcStatus};

/// A request that [`Qp::brief_request`] returns as the next to send.
#[derive(Clone, Copy, Debug)]
pub struct BriefRequest<'a> {
    /// The headers of the packet.
    pub header: [u8; Bth::LEN],
    /// The payload.
    pub payload: TxPayload<'a>,
    /// Bytes of the payload.
    pub len: u32,
    /// Zero bytes after the payload, 0 to 3.
    pub pad: u8,
    /// The acknowledgement to piggyback on the packet.
    pub ack: Option<Psn>,
}

impl Qp {
    /// Returns whether [`poll_transmit`](Self::poll_transmit) would send nothing.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.req.next_entry() == self.sq.tail
            && !self.resp.has_responses()
            && matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// Returns the next request if it is a SEND of at most `most` bytes that may be sent now and before
    /// anything else. The driver sends it and calls [`brief_left`](Self::brief_left), or does neither.
    #[inline]
    pub fn brief_request(
        &self,
        most: u32,
        pkey: impl Fn(u16) -> Option<Pkey>,
    ) -> Option<BriefRequest<'_>> {
        let index = self.req.next_entry();
        if index == self.sq.tail || self.req.is_under_way() || !self.piggybacks_acks {
            return None;
        }
        let wqe = self.sq.get(index);
        let plain = wqe.kind == TxKind::Send
            && wqe.len <= most.min(self.mtu)
            && !wqe.has(SendFlags::FENCE)
            && self.qp_type == QpType::Rc
            && self.state == QpState::Rts
            && self.req.may_send_more()
            && !self.resp.has_responses();
        if !plain {
            return None;
        }
        let pkey = pkey(self.attr.pkey_index).unwrap_or(Pkey::DEFAULT);
        let mut bth = self.bth(SEND, self.req.next_psn(), pkey);
        bth.pad = pad(wqe.len);
        bth.solicited = wqe.has(SendFlags::SOLICITED);
        bth.ack_req = true;
        Some(BriefRequest {
            header: bth.to_bytes(),
            payload: self.sq.payload(index, 0, wqe.len),
            len: wqe.len,
            pad: bth.pad,
            ack: self.piggybacked_ack(),
        })
    }

    /// Records that the request last returned by [`brief_request`](Self::brief_request) was sent.
    #[inline]
    pub fn brief_left(&mut self, now: Time) {
        if self.piggybacked_ack().is_some() {
            self.resp.ack_left();
        }
        let psn = self.req.next_psn();
        let wqe = self.sq.get_mut(self.req.next_entry());
        (wqe.first, wqe.npsn) = (psn, 1);
        self.req.started_one();
        self.sent(now, psn, 1, true);
    }

    /// Handles a packet if it is the SEND expected next and a receive has room for it. Otherwise returns
    /// false without visible effects, and the driver must call [`handle_packet`](Self::handle_packet).
    #[inline]
    pub fn handle_brief<E: Env>(&mut self, bth: &Bth, payload: &[u8], env: &mut E) -> bool {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let plain = bth.opcode == SEND
            && self.qp_type == QpType::Rc
            && self.is_open()
            && self.resp.takes(bth.psn)
            && self.mig.is_usual(bth.mig_req)
            && bth.tver == 0
            && len <= self.mtu
            && bth.pad == pad(len)
            && env.pkey(self.attr.pkey_index).is_some_and(|own| bth.pkey.admits(own));
        // If a receive has been taken, the general path uses the same one.
        if !plain || !self.rq.take(env) || u64::from(len) > self.rq.room() {
            return false;
        }
        if len != 0 && env.scatter_receive(self.rq.sges(), 0, payload).is_err() {
            return false;
        }
        let wr_id = self.rq.finish();
        let completion = Completion {
            byte_len: len,
            solicited: bth.solicited,
            ..self.completion(wr_id, WcStatus::Success, WcOpcode::Recv)
        };
        env.complete(Side::Recv, completion);
        self.resp.took(bth.psn, bth.ack_req);
        true
    }
}

/// The opcode of an RC SEND of one packet without immediate data.
const SEND: Opcode = Opcode::of(Service::Rc, Operation::SendOnly);
