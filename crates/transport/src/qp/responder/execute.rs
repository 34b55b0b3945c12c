//! Carries out the request of a packet.

use rdmux_wire::{Operation, Packet};

use crate::attr::{Access, QpType};
use crate::env::{AtomicAnswer, AtomicOp, Env, Side};
use crate::fault::ResponderFault;
use crate::optable::{Kind, RxRow};
use crate::qp::Qp;
use crate::qp::responder::checks::INVALID;
use crate::qp::responder::load::{Load, message_end};
use crate::qp::responder::resources::Resource;
use crate::qp::responder::{Message, Refusal};
use crate::time::Time;
use crate::wr::{Completion, WcFlags, WcOpcode, WcStatus};

impl From<ResponderFault> for Refusal {
    fn from(fault: ResponderFault) -> Self {
        Self::Fault(fault)
    }
}

impl Qp {
    /// Carries out the expected packet. If it is refused, the state is as before, except that a
    /// receive that was taken is kept for the next attempt.
    #[inline]
    pub(super) fn execute<E: Env, L: Load>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        load: L,
        row: RxRow,
        env: &mut E,
    ) -> Result<(), Refusal> {
        if self.qp_type == QpType::XrcRecv {
            self.select_srq(packet, env)?;
        }
        if !self.in_sequence(row)
            || !load.has_right_length(row.starts, row.ends, self.mtu, packet.bth.pad)
        {
            return Err(INVALID);
        }
        match row.kind {
            Kind::Send => self.execute_send(packet, load, row, env),
            Kind::Write => self.execute_write(packet, load, row, env),
            Kind::Read => self.execute_read(packet, env),
            _ => self.execute_atomic(now, packet, env),
        }
    }

    /// Carries out a packet of a SEND, which was checked to be in sequence and of the right length.
    pub(crate) fn execute_send<E: Env, L: Load>(
        &mut self,
        packet: &Packet<'_>,
        load: L,
        row: RxRow,
        env: &mut E,
    ) -> Result<(), Refusal> {
        if row.starts {
            if !self.rq.take(env) {
                return Err(Refusal::NotReady);
            }
            self.resp.offset = 0;
        }
        let offset = self.resp.offset;
        let end = message_end(offset, load)?;
        if u64::from(end) > self.rq.room() {
            return Err(ResponderFault::ReceiveTooShort.into());
        }
        if load.len() != 0 {
            load.scatter(self.rq.sges(), offset, env)?;
        }
        if row.ends {
            let mut invalidated = None;
            if let Some(ieth) = packet.ieth {
                env.invalidate(ieth.0, true).map_err(Refusal::invalidate)?;
                invalidated = Some(ieth.0);
            }
            let mut completion = self.received(packet, WcOpcode::Recv, end);
            if let Some(rkey) = invalidated {
                completion.invalidated = rkey;
                completion.flags |= WcFlags::WITH_INV;
            }
            env.complete(Side::Recv, completion);
            self.resp.finish_message();
        } else {
            self.resp.message = Message::Send;
        }
        self.resp.offset = end;
        self.accepted_packet(packet, load.npsn(self.mtu));
        Ok(())
    }

    /// Carries out a packet of an RDMA WRITE, likewise checked.
    pub(crate) fn execute_write<E: Env, L: Load>(
        &mut self,
        packet: &Packet<'_>,
        load: L,
        row: RxRow,
        env: &mut E,
    ) -> Result<(), Refusal> {
        if row.starts {
            let reth = packet.reth.ok_or(INVALID)?;
            if row.receives {
                // The receive is taken before the memory is checked (IBTA 9.7.4.1): a wrong key fails this receive.
                self.permits(Access::REMOTE_WRITE)?;
                if !self.rq.take(env) {
                    return Err(Refusal::NotReady);
                }
            }
            self.check_reth(&reth, Access::REMOTE_WRITE, env)?;
            self.resp.offset = 0;
            self.resp.write_va = reth.va;
            self.resp.write_rkey = reth.rkey;
            self.resp.write_len = reth.dma_len;
        }
        let offset = self.resp.offset;
        let end = message_end(offset, load)?;
        let right = if row.ends { end == self.resp.write_len } else { end < self.resp.write_len };
        if !right {
            return Err(INVALID);
        }
        let receives = row.receives;
        if receives && !self.rq.take(env) {
            return Err(Refusal::NotReady);
        }
        if load.len() != 0 {
            let va = self.resp.write_va.wrapping_add(u64::from(offset));
            load.write_remote(self.resp.write_rkey, va, env)?;
        }
        self.resp.offset = end;
        if row.ends {
            if receives {
                let completion = self.received(packet, WcOpcode::RecvRdmaWithImm, end);
                env.complete(Side::Recv, completion);
            }
            self.resp.finish_message();
        } else {
            self.resp.message = Message::Write;
        }
        self.accepted_packet(packet, load.npsn(self.mtu));
        Ok(())
    }

    /// Records an RDMA READ, which `poll_transmit` then answers.
    fn execute_read<E: Env>(&mut self, packet: &Packet<'_>, env: &mut E) -> Result<(), Refusal> {
        let reth = packet.reth.ok_or(INVALID)?;
        self.check_reth(&reth, Access::REMOTE_READ, env)?;
        let npsn = reth.dma_len.div_ceil(self.mtu).max(1);
        let msn = self.resp.msn.wrapping_add(1);
        let resource = Resource::read(packet.bth.psn, npsn, &reth, self.resp.srqn, msn);
        self.resp.resources.push(resource).map_err(|_| INVALID)?;
        self.accepted_query(npsn);
        Ok(())
    }

    /// Carries out an atomic once, and records its result or that the result is awaited.
    fn execute_atomic<E: Env>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Refusal> {
        let eth = packet.atomic.ok_or(INVALID)?;
        self.permits(Access::REMOTE_ATOMIC)?;
        if eth.va % 8 != 0 || self.resp.resources.make_room().is_err() {
            return Err(INVALID);
        }
        let op = if packet.bth.opcode.operation() == Some(Operation::FetchAdd) {
            AtomicOp::FetchAdd { add: eth.swap_add }
        } else {
            AtomicOp::CmpSwap { compare: eth.compare, swap: eth.swap_add }
        };
        let psn = packet.bth.psn;
        let answer = env.atomic(psn, eth.rkey, eth.va, op).map_err(Refusal::remote)?;
        if answer == AtomicAnswer::Later {
            // Requests before the atomic are acknowledged without waiting for its response.
            self.flush_ack(now, env);
        }
        let msn = self.resp.msn.wrapping_add(1);
        let resource = Resource::atomic(psn, answer, msn);
        self.resp.resources.push(resource).map_err(|_| INVALID)?;
        self.accepted_query(1);
        Ok(())
    }

    /// Returns the completion of the receive in use.
    #[inline]
    fn received(&mut self, packet: &Packet<'_>, opcode: WcOpcode, byte_len: u32) -> Completion {
        let wr_id = self.rq.finish();
        let mut completion = Completion {
            byte_len,
            solicited: packet.bth.solicited,
            ..self.completion(wr_id, WcStatus::Success, opcode)
        };
        if let Some(imm) = packet.imm {
            completion.imm = imm.0;
            completion.flags |= WcFlags::WITH_IMM;
        }
        completion
    }

    #[inline]
    fn accepted_packet(&mut self, packet: &Packet<'_>, npsn: u32) {
        self.resp.ack_psn = packet.bth.psn.add(npsn - 1);
        self.accepted(npsn);
        self.resp.ack_owed |= packet.bth.ack_req && self.qp_type.is_reliable();
    }

    fn accepted_query(&mut self, npsn: u32) {
        self.accepted(npsn);
        self.resp.finish_message();
        // The response acknowledges everything before it.
        self.resp.ack_owed = false;
    }
}
