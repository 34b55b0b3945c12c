//! Handling of complete messages.

use rdmux_wire::iwarp::ddp::queue;
use rdmux_wire::iwarp::rdmap::{
    AtomicOp as WireOp, AtomicRequest, AtomicResponse, Opcode, ReadRequest,
};
use rdmux_wire::{Psn, Rkey};

use crate::attr::Access;
use crate::env::{AccessFault, AtomicAnswer, AtomicOp, Side};
use crate::iwarp::StreamEnv;
use crate::iwarp::close::Phase;
use crate::iwarp::fault::Fault;
use crate::iwarp::qp::Qp;
use crate::iwarp::serve::Answer;
use crate::optable::TxKind;
use crate::time::Time;
use crate::wr::{Completion, WcFlags, WcOpcode, WcStatus};

/// The number of attempts at a masked atomic while others change the same memory.
const ATTEMPTS: u32 = 1000;

impl Qp {
    /// Handles a segment whose payload has been placed in full.
    pub(super) fn finish_segment<E: StreamEnv>(
        &mut self,
        now: Time,
        env: &mut E,
    ) -> Result<(), Fault> {
        let Some(opcode) = self.rx.opcode else { return Ok(()) };
        match opcode {
            Opcode::Write => self.finish_write(),
            Opcode::ReadResponse => self.finish_read_response(now, env),
            _ => return self.finish_untagged(now, opcode, env),
        }
        Ok(())
    }

    fn finish_write(&mut self) {
        let rx = &mut self.rx;
        rx.writing = rx.writing.wrapping_add(rx.len);
        if rx.last {
            rx.written = core::mem::take(&mut rx.writing);
        }
    }

    fn finish_read_response<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        self.rx.read += self.rx.len;
        if !self.rx.last {
            self.stalls_no_more(now);
            return;
        }
        self.rx.read = 0;
        if self.tx.rtr_read {
            self.tx.rtr_read = false;
            self.tx.queries -= 1;
        } else {
            self.answered(now, env);
        }
    }

    /// Completes the oldest send work request, whose response has arrived.
    fn answered<E: StreamEnv>(&mut self, now: Time, env: &mut E) {
        self.tx.queries -= 1;
        self.complete_head(WcStatus::Success, env);
        self.complete_taken(now, env);
    }

    fn finish_untagged<E: StreamEnv>(
        &mut self,
        now: Time,
        opcode: Opcode,
        env: &mut E,
    ) -> Result<(), Fault> {
        let index = opcode.queue().unwrap_or_default() as usize;
        let (len, last) = (self.rx.len, self.rx.last);
        let inbound = &mut self.rx.queues[index];
        inbound.at += len;
        if !last {
            return Ok(());
        }
        let total = inbound.at;
        (inbound.at, inbound.opcode) = (0, None);
        inbound.msn = inbound.msn.wrapping_add(1);
        let small = inbound.bytes;
        let small = &small[..small.len().min(total as usize)];
        if self.rx.discards && opcode.queue() == Some(queue::SEND) {
            return Ok(());
        }
        match opcode {
            Opcode::ReadRequest => self.finish_read_request(small, env),
            Opcode::AtomicRequest => self.finish_atomic_request(small, env),
            Opcode::AtomicResponse => self.finish_atomic_response(now, small, env),
            Opcode::Terminate => {
                self.finish_terminate(now, small, env);
                Ok(())
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.finish_immediate(opcode, small, env)
            }
            _ => self.finish_send(opcode, total, env),
        }
    }

    fn finish_send<E: StreamEnv>(
        &mut self,
        opcode: Opcode,
        byte_len: u32,
        env: &mut E,
    ) -> Result<(), Fault> {
        let invalidated = self.rx.invalidate;
        if opcode.invalidates() {
            env.invalidate(invalidated, true).map_err(Fault::Invalidate)?;
        }
        let completion = self.received(opcode, WcOpcode::Recv, byte_len);
        let completion = if opcode.invalidates() {
            Completion { invalidated, flags: WcFlags::WITH_INV, ..completion }
        } else {
            completion
        };
        env.complete(Side::Recv, completion);
        Ok(())
    }

    /// Completes a receive by immediate data, as for a WRITE with immediate. The reported length is
    /// that of the Write before it.
    fn finish_immediate<E: StreamEnv>(
        &mut self,
        opcode: Opcode,
        small: &[u8],
        env: &mut E,
    ) -> Result<(), Fault> {
        let &[a, b, c, d, _, _, _, _] = small else { return Err(Fault::Malformed) };
        let byte_len = core::mem::take(&mut self.rx.written);
        let completion = Completion {
            imm: [a, b, c, d],
            flags: WcFlags::WITH_IMM,
            ..self.received(opcode, WcOpcode::RecvRdmaWithImm, byte_len)
        };
        env.complete(Side::Recv, completion);
        Ok(())
    }

    /// Returns the completion of the receive in use.
    fn received(&mut self, opcode: Opcode, wc: WcOpcode, byte_len: u32) -> Completion {
        let wr_id = self.rq.finish();
        let solicited = opcode.is_solicited();
        Completion { byte_len, solicited, ..self.completion(wr_id, WcStatus::Success, wc) }
    }

    fn finish_read_request<E: StreamEnv>(
        &mut self,
        small: &[u8],
        env: &mut E,
    ) -> Result<(), Fault> {
        let request = ReadRequest::parse(small).map_err(|_| Fault::Malformed)?;
        self.permits(Access::REMOTE_READ)?;
        let (rkey, va, len) = (Rkey::from(request.source_stag), request.source_to, request.len);
        if len != 0 {
            va.checked_add(u64::from(len)).ok_or(Fault::SourceWraps)?;
            env.check_remote(rkey, va, u64::from(len), Access::REMOTE_READ)
                .map_err(Fault::Source)?;
        }
        let (sink, to) = (request.sink_stag, request.sink_to);
        self.serve(Answer::Read { sink, to, rkey, va, len, done: 0 })
    }

    /// Carries out an atomic at once. The stream never delivers it twice.
    fn finish_atomic_request<E: StreamEnv>(
        &mut self,
        small: &[u8],
        env: &mut E,
    ) -> Result<(), Fault> {
        let request = AtomicRequest::parse(small).map_err(|_| Fault::Malformed)?;
        self.permits(Access::REMOTE_ATOMIC)?;
        if request.to % 8 != 0 {
            return Err(Fault::Misaligned);
        }
        if matches!(self.phase, Phase::HalfClosed { .. }) {
            return Err(Fault::Unasked);
        }
        let original = carry_out(&request, env).map_err(Fault::Source)?;
        self.serve(Answer::Atomic { id: request.id, original })
    }

    /// Queues a response to a request of the peer, unless the local half of the stream has ended.
    fn serve(&mut self, answer: Answer) -> Result<(), Fault> {
        if matches!(self.phase, Phase::HalfClosed { .. }) {
            return Err(Fault::Unasked);
        }
        if self.serving.push(answer) { Ok(()) } else { Err(Fault::NoRead) }
    }

    fn finish_atomic_response<E: StreamEnv>(
        &mut self,
        now: Time,
        small: &[u8],
        env: &mut E,
    ) -> Result<(), Fault> {
        let response = AtomicResponse::parse(small).map_err(|_| Fault::BadResponse)?;
        let head = self.sq.head;
        if response.id != head {
            return Err(Fault::BadResponse);
        }
        debug_assert!(self.awaits(TxKind::FetchAdd) || self.awaits(TxKind::CmpSwap));
        let original = response.original.to_ne_bytes();
        env.scatter(self.sq.sges(head), 0, &original).map_err(Fault::Sink)?;
        self.answered(now, env);
        Ok(())
    }
}

/// Carries out an atomic and returns the original value. One on all 64 bits is a native operation.
/// Any other is built from a load and a compare-and-swap, repeated until it succeeds.
fn carry_out<E: StreamEnv>(request: &AtomicRequest, env: &mut E) -> Result<u64, AccessFault> {
    let rkey = Rkey::from(request.stag);
    let mut act = |op| match env.atomic(Psn::new(0), rkey, request.to, op)? {
        AtomicAnswer::Now(original) => Ok(original),
        AtomicAnswer::Later => Err(AccessFault::Busy),
    };
    match (request.op, request.mask, request.compare_mask) {
        (WireOp::FetchAdd, 0, _) => return act(AtomicOp::FetchAdd { add: request.data }),
        (WireOp::CmpSwap, u64::MAX, u64::MAX) => {
            return act(AtomicOp::CmpSwap { compare: request.compare, swap: request.data });
        }
        _ => {}
    }
    let mut there = act(AtomicOp::FetchAdd { add: 0 })?;
    for _ in 0..ATTEMPTS {
        let swap = masked(request, there);
        let before = act(AtomicOp::CmpSwap { compare: there, swap })?;
        if before == there {
            return Ok(before);
        }
        there = before;
    }
    Err(AccessFault::Busy)
}

/// Returns the result of a masked atomic on a value (RFC 7306, section 5.1). Each bit of an
/// addition's mask is the highest of a field, so nothing is carried beyond it.
fn masked(request: &AtomicRequest, value: u64) -> u64 {
    match request.op {
        WireOp::FetchAdd => {
            let top = request.mask;
            let low = (value & !top).wrapping_add(request.data & !top);
            low ^ ((value ^ request.data) & top)
        }
        WireOp::CmpSwap => {
            let differs = (value ^ request.compare) & request.compare_mask;
            if differs != 0 { value } else { value & !request.mask | request.data & request.mask }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::Stag;

    use super::*;

    fn request(op: WireOp, data: u64, mask: u64, compare: u64, compare_mask: u64) -> AtomicRequest {
        AtomicRequest { op, id: 0, stag: Stag(0), to: 0, data, mask, compare, compare_mask }
    }

    #[test]
    fn masked_fetch_add_does_not_carry_across_field_boundaries() {
        let fields = 0x8000_0000_8000_0000;
        let add = request(WireOp::FetchAdd, 0x0000_0001_0000_0001, fields, 0, 0);
        assert_eq!(masked(&add, 0x0000_0001_ffff_ffff), 0x0000_0002_0000_0000);
        assert_eq!(masked(&add, 0xffff_ffff_7fff_ffff), 0x0000_0000_8000_0000);
    }

    #[test]
    fn masked_cmp_swap_compares_and_swaps_only_masked_bits() {
        let swap = request(WireOp::CmpSwap, 0xaaaa, 0x00ff, 0x12_0000, 0xff_0000);
        assert_eq!(masked(&swap, 0x12_3456), 0x12_34aa);
        assert_eq!(masked(&swap, 0x13_3456), 0x13_3456);
    }
}
