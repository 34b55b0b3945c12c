//! Sends responses: READ and atomic responses packet by packet, ACKs and NAKs.

use rdmux_wire::{Aeth, AtomicAckEth, HeaderBuf, Opcode, Operation, Psn, Syndrome};

use crate::attr::{QpState, QpType};
use crate::env::{AccessFault, Drop, Env, TxError, TxPacket, TxPayload};
use crate::fault::ResponderFault;
use crate::optable;
use crate::qp::Qp;
use crate::qp::requester::pad;
use crate::qp::responder::resources::{Answer, Resource};
use crate::time::Time;

/// One packet of a response.
struct ResponsePacket {
    opcode: Opcode,
    psn: Psn,
    payload: TxPayload<'static>,
    len: u32,
}

impl Qp {
    /// Sends at most `budget` packets of responses. Returns None if the link is full.
    pub(crate) fn transmit_responses<E: Env>(
        &mut self,
        now: Time,
        budget: u32,
        env: &mut E,
    ) -> Option<u32> {
        let mut sent = 0;
        while sent < budget {
            let Some(resource) = self.resp.resources.current() else { break };
            let part = response_packet(resource, self.qp_type, self.mtu);
            let mut bth = self.bth(part.opcode, part.psn, self.own_pkey(env));
            bth.pad = pad(part.len);
            let mut header = HeaderBuf::new(&bth);
            if part.opcode.has_aeth() {
                header = header.aeth(&Aeth { syndrome: Syndrome::ACK, msn: resource.msn });
            }
            if let Answer::Atomic { original } = resource.answer {
                header = header.atomic_ack(&AtomicAckEth { original });
            }
            let packet = TxPacket {
                av: &self.attr.av,
                header: header.as_slice(),
                payload: part.payload,
                pad: bth.pad,
                more: sent + 1 < budget && !part.opcode.ends_message(),
                ack: None,
            };
            match env.transmit(&packet) {
                Ok(()) => {}
                Err(TxError::Busy | TxError::Memory(AccessFault::Busy)) => return None,
                Err(TxError::Memory(_)) if resource.replayed => {
                    // Most likely the network duplicated the request of a READ that completed long ago,
                    // and the program has deregistered the memory since. This is no reason to fail.
                    env.count(Drop::Memory);
                    self.resp.resources.abandon();
                    continue;
                }
                Err(TxError::Memory(fault)) => {
                    // The memory was valid when the request was checked.
                    self.resp.resources.clear();
                    self.fail_answer(now, part.psn, ResponderFault::remote(fault), env);
                    return Some(sent);
                }
            }
            self.resp.resources.sent_one();
            sent += 1;
        }
        Some(sent)
    }

    /// Returns the pending acknowledgement, if it may be piggybacked on a request.
    #[inline]
    pub(crate) fn piggybacked_ack(&self) -> Option<Psn> {
        let owed = self.piggybacks_acks && self.resp.ack_owed && self.resp.nak.is_none();
        (owed && !self.resp.has_responses()).then_some(self.resp.ack_psn)
    }

    /// Sends the pending acknowledgement, unless the response of an earlier READ or atomic must be sent
    /// first ([`poll_transmit`](Self::poll_transmit) sends both).
    pub fn flush_ack<E: Env>(&mut self, _now: Time, env: &mut E) {
        if !self.resp.wants_ack() || self.state == QpState::Err {
            return;
        }
        if let Some(psn) = self.piggybacked_ack()
            && !self.mig.shows()
            && env.acknowledge(self.attr.dest_qpn, psn)
        {
            self.resp.ack_owed = false;
            return;
        }
        let (psn, syndrome) = self.resp.nak.unwrap_or((self.resp.ack_psn, Syndrome::ACK));
        let opcode = optable::opcode(self.qp_type, Operation::Acknowledge);
        let bth = self.bth(opcode, psn, self.own_pkey(env));
        let header = HeaderBuf::new(&bth).aeth(&Aeth { syndrome, msn: self.resp.msn });
        let packet = TxPacket {
            av: &self.attr.av,
            header: header.as_slice(),
            payload: TxPayload::None,
            pad: 0,
            more: false,
            ack: None,
        };
        if env.transmit(&packet).is_err() {
            // The acknowledgement stays pending.
            return;
        }
        self.mig.shown();
        self.resp.nak = None;
        self.resp.ack_owed = false;
        if self.resp.dying {
            self.enter_error(env);
        }
    }
}

fn response_packet(resource: &Resource, qp_type: QpType, mtu: u32) -> ResponsePacket {
    let index = resource.next;
    let psn = resource.first.add(index);
    let Answer::Read { va, rkey, len: total, srqn } = resource.answer else {
        let opcode = optable::opcode(qp_type, Operation::AtomicAcknowledge);
        return ResponsePacket { opcode, psn, payload: TxPayload::None, len: 0 };
    };
    let offset = index * mtu;
    let len = (total - offset).min(mtu);
    let (starts, ends) = (index == resource.begin, index + 1 == resource.stop);
    let opcode = optable::read_response(qp_type, starts, ends);
    let payload = if len == 0 {
        TxPayload::None
    } else {
        TxPayload::Remote { rkey, va: va.wrapping_add(u64::from(offset)), len, srqn }
    };
    ResponsePacket { opcode, psn, payload, len }
}
