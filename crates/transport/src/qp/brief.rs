//! The short way of a short message: a SEND of one packet between queue pairs to which nothing else happens, on a link
//! that loses nothing.
//!
//! Both halves do what the long way does (`requester::emit`, `responder::execute`), and nothing that is not so plain: they
//! say so, and have done nothing then.

use rdmux_wire::{Bth, Opcode, Operation, Pkey, Psn, Service};

use crate::attr::{QpState, QpType};
use crate::env::{Env, Side, TxPayload};
use crate::optable::TxKind;
use crate::qp::Qp;
use crate::qp::requester::pad;
use crate::time::Time;
use crate::wr::{Completion, SendFlags, WcOpcode, WcStatus};

/// A request that [`Qp::brief_request`] found to be next.
#[derive(Clone, Copy, Debug)]
pub struct BriefRequest<'a> {
    /// All its headers.
    pub header: [u8; Bth::LEN],
    /// What follows them.
    pub payload: TxPayload<'a>,
    /// Bytes of that.
    pub len: u32,
    /// Zero bytes behind it, 0 to 3.
    pub pad: u8,
    /// The acknowledgement that is piggybacked on it.
    pub ack: Option<Psn>,
}

impl Qp {
    /// Whether [`poll_transmit`](Self::poll_transmit) would send nothing.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.req.next_entry() == self.sq.tail
            && !self.resp.has_responses()
            && matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// The next request, if it is a SEND of at most `most` bytes that may leave now, and nothing else is to leave before it.
    /// The driver sends it and calls [`brief_left`](Self::brief_left), or does neither.
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

    /// The request that [`brief_request`](Self::brief_request) returned last has left.
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

    /// Takes a packet if it is a SEND that is expected next, and there is room for it. False if not, and nothing was
    /// done: then [`handle_packet`](Self::handle_packet) is the way.
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
        // A receive that was taken is the one that the long way takes, too.
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

/// Of RC, the only packet of a SEND without immediate data.
const SEND: Opcode = Opcode::of(Service::Rc, Operation::SendOnly);
