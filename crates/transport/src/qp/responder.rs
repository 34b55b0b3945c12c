//! The responder: carries out the peer's requests in PSN order, and responds.
//!
//! `checks` validates a packet, `execute` carries out its request, `resources` remembers READs and
//! atomics so that they can be answered again, and `respond` sends the responses. ACKs are recorded
//! and sent when the driver's burst ends. NAKs are sent at once. Neither overtakes the response of
//! an earlier READ or atomic. `reorder` buffers out-of-order packets.

mod checks;
mod execute;
pub(crate) mod load;
mod reorder;
mod resources;
mod respond;

use rdmux_wire::{NakCode, Packet, Psn, Rkey, Syndrome};

use crate::attr::QpState;
use crate::env::{AccessFault, Drop, Env, QpEvent};
use crate::fault::ResponderFault;
use crate::optable::{Kind, RxRow};
use crate::qp::Qp;
use crate::time::Time;
use load::Load;
use reorder::ReorderBuffer;
use resources::Resources;

/// The kind of message being received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    /// No message is in progress: the next packet must start one.
    #[default]
    None,
    /// A SEND.
    Send,
    /// An RDMA WRITE.
    Write,
}

/// The reason why a packet's request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted, or the owner of the memory is busy.
    NotReady,
    /// The payload that the packet names could not be fetched.
    OutOfReach,
    /// The request is at fault.
    Fault(ResponderFault),
}

impl Refusal {
    /// Returns the refusal for a fault of memory that the peer named.
    fn remote(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Busy => Self::NotReady,
            _ => Self::Fault(ResponderFault::remote(fault)),
        }
    }

    /// Returns the refusal for a key that the peer named and that cannot be invalidated.
    fn invalidate(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Busy => Self::NotReady,
            _ => Self::Fault(ResponderFault::invalidate(fault)),
        }
    }

    /// Returns the refusal for a fault of memory that the receive named.
    fn local(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Busy => Self::NotReady,
            _ => Self::Fault(ResponderFault::local(fault)),
        }
    }
}

/// The state of the responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// The PSN expected next.
    epsn: Psn,
    /// The PSN of the last SEND or WRITE packet carried out, which an ACK carries. It is never a
    /// PSN of a READ response, which only that response may acknowledge.
    ack_psn: Psn,
    /// The number of messages completed, modulo 2^24.
    msn: u32,
    /// Bytes of the message received so far.
    offset: u32,
    /// The shared receive queue of the message, and of the receive in use; XRC only.
    srqn: u32,
    /// The address, key and length of the current WRITE.
    write_va: u64,
    write_rkey: Rkey,
    write_len: u32,
    message: Message,
    /// Whether an ACK that the requester requested is pending.
    ack_owed: bool,
    /// Whether the present gap, or receiver-not-ready state, has been reported.
    silent: bool,
    /// Whether the report was an RNR NAK: the peer retransmits everything from there.
    not_ready: bool,
    /// Whether the queue pair fails as soon as the NAK is sent.
    dying: bool,
    /// A NAK that could not be sent yet.
    nak: Option<(Psn, Syndrome)>,
    resources: Resources,
    /// Out-of-order packets.
    reorder: ReorderBuffer,
}

impl Responder {
    /// Starts the responder in the transition to RTR. The resources were allocated when their number was set.
    pub(super) fn start(&mut self, psn: Psn) {
        let resources = core::mem::take(&mut self.resources);
        *self = Self { epsn: psn, ack_psn: psn.sub(1), resources, ..Self::default() };
    }

    /// Returns the PSN expected next.
    #[inline]
    pub(super) fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// Expects the next message to begin with this PSN. For UC, which does not retransmit lost packets.
    pub(super) fn expect(&mut self, psn: Psn) {
        self.epsn = psn;
    }

    /// Abandons the message being received: the next packet must start one.
    pub(super) fn abandon_message(&mut self) {
        self.message = Message::None;
    }

    /// Returns the shared receive queue of the receive in use; XRC only.
    pub(super) fn srqn(&self) -> u32 {
        self.srqn
    }

    /// Sets how many READs and atomics may be answered again.
    pub(super) fn resize(&mut self, resources: u8) {
        self.resources.resize(resources);
    }

    /// Stops responding.
    pub(super) fn stop(&mut self) {
        self.resources.clear();
        self.reorder.clear();
        (self.ack_owed, self.nak, self.message) = (false, None, Message::None);
    }

    /// Returns whether a READ or atomic response is waiting to be sent.
    #[inline]
    pub(super) fn has_responses(&self) -> bool {
        self.resources.pending()
    }

    /// Returns whether an acknowledgement is pending.
    #[inline]
    pub(super) fn wants_ack(&self) -> bool {
        (self.ack_owed || self.nak.is_some()) && !self.has_responses()
    }

    /// Returns the number of allocated bytes.
    pub(super) fn footprint(&self) -> usize {
        self.resources.footprint() + self.reorder.footprint()
    }

    /// Makes an acknowledgement pending, whether or not the peer requested one.
    pub(super) fn owe_ack(&mut self) {
        self.ack_owed = true;
    }

    /// Records that the pending acknowledgement was piggybacked on a request.
    #[inline]
    pub(super) fn ack_left(&mut self) {
        self.ack_owed = false;
    }

    /// Returns whether a message may begin with this PSN, and nothing needs special handling.
    #[inline]
    pub(super) fn takes(&self, psn: Psn) -> bool {
        psn == self.epsn && self.message == Message::None && !self.silent && !self.dying
    }

    /// Records that the only packet of a message, which [`takes`](Self::takes) accepted, was carried out.
    #[inline]
    pub(super) fn took(&mut self, psn: Psn, ack_req: bool) {
        self.ack_psn = psn;
        self.epsn = psn.add(1);
        self.ack_owed |= ack_req;
        self.offset = 0;
        self.finish_message();
    }

    /// Ends the message.
    #[inline]
    fn finish_message(&mut self) {
        self.message = Message::None;
        self.msn = self.msn.wrapping_add(1) & 0x00ff_ffff;
    }
}

impl Qp {
    /// Handles a request packet of RC or XRC: in order, out of order or duplicate (IBTA 9.7.5.1).
    pub(crate) fn handle_request<E: Env, L: Load>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        load: L,
        row: RxRow,
        env: &mut E,
    ) {
        if self.resp.dying {
            return env.count(Drop::State);
        }
        let psn = packet.bth.psn;
        match psn.diff(self.resp.epsn) {
            0 => {}
            1.. => return self.ahead(now, packet, row, env),
            _ => return self.behind(packet, row, env),
        }
        self.establish(env);
        match self.execute(now, packet, load, row, env) {
            Ok(()) if self.resp.reorder.is_empty() => {}
            Ok(()) => self.catch_up(now, env),
            Err(Refusal::NotReady) => {
                env.count(Drop::NoReceive);
                (self.resp.silent, self.resp.not_ready) = (true, true);
                self.resp.reorder.clear();
                self.nak(now, psn, Syndrome::Rnr(self.attr.min_rnr_timer), env);
            }
            Err(Refusal::OutOfReach) => {
                // A retransmission carries its payload.
                env.count(Drop::OutOfReach);
                self.resp.silent = true;
                self.nak(now, psn, Syndrome::Nak(NakCode::PsnSequence), env);
            }
            Err(Refusal::Fault(fault)) => self.fail_responder(now, psn, fault, env),
        }
    }

    /// Handles an in-order packet. The first one in RTR shows that the peer is connected, even if its RTU is lost.
    #[inline]
    pub(crate) fn establish<E: Env>(&mut self, env: &mut E) {
        if self.state == QpState::Rtr && !self.established {
            self.established = true;
            env.event(QpEvent::CommEst);
        }
    }

    /// Handles a gap: buffers the out-of-order packet, and sends one NAK until the missing packet arrives.
    fn ahead<E: Env>(&mut self, now: Time, packet: &Packet<'_>, row: RxRow, env: &mut E) {
        let may = !self.lossless && !self.resp.not_ready && env.buffers_out_of_order();
        let kept = may && self.resp.reorder.keep(self.resp.epsn, packet, row, self.mtu);
        env.count(if kept { Drop::Early } else { Drop::Gap });
        if !self.resp.silent {
            self.resp.silent = true;
            let psn = self.resp.epsn;
            self.nak(now, psn, Syndrome::Nak(NakCode::PsnSequence), env);
        }
    }

    /// Carries out the packets that were buffered after a gap now filled, up to the next gap. That gap is
    /// reported only when a packet beyond it arrives: a peer that retransmits everything is about to fill it.
    #[cold]
    fn catch_up<E: Env>(&mut self, now: Time, env: &mut E) {
        let mut reorder = core::mem::take(&mut self.resp.reorder);
        let first = self.resp.epsn;
        while let Some(kept) = reorder.take(self.resp.epsn) {
            let packet = kept.packet();
            self.handle_request(now, &packet, packet.payload, kept.row, env);
            if self.resp.silent || self.resp.dying {
                // The packet was refused, and so are those after it.
                return;
            }
        }
        reorder.forget_before(self.resp.epsn);
        self.resp.reorder = reorder;
        if self.resp.epsn != first {
            env.count(Drop::Filled);
            self.resp.ack_owed = true;
        }
    }

    /// Handles a duplicate: responds as the first time.
    fn behind<E: Env>(&mut self, packet: &Packet<'_>, row: RxRow, env: &mut E) {
        env.count(Drop::Duplicate);
        let psn = packet.bth.psn;
        match row.kind {
            Kind::Send | Kind::Write => self.resp.ack_owed = true,
            Kind::Read => {
                if let Some(reth) = packet.reth {
                    let srqn = packet.xrceth.map_or(0, |h| h.srqn);
                    self.resp.resources.replay_read(psn, &reth, srqn, self.mtu);
                }
            }
            Kind::Atomic => self.resp.resources.replay_atomic(psn),
            _ => {}
        }
    }

    /// Records that the packet at `epsn` was carried out and took `npsn` PSNs.
    #[inline]
    fn accepted(&mut self, npsn: u32) {
        self.resp.epsn = self.resp.epsn.add(npsn);
        if self.resp.silent {
            (self.resp.silent, self.resp.not_ready) = (false, false);
            if self.resp.nak.take().is_some() {
                // The NAK had to wait for an earlier response, and is out of date. The packets
                // before the gap must still be acknowledged.
                self.resp.ack_owed = true;
            }
        }
    }

    fn nak<E: Env>(&mut self, now: Time, psn: Psn, syndrome: Syndrome, env: &mut E) {
        self.resp.nak = Some((psn, syndrome));
        // A NAK acknowledges all earlier PSNs.
        self.resp.ack_owed = false;
        self.flush_ack(now, env);
    }

    /// Refuses the expected request at `psn`, and fails its receive: sends a NAK and moves to ERR (IBTA 9.9.3,
    /// class A and C), or sends an ACK for a fault that only the responder reports (class J).
    pub(crate) fn fail_responder<E: Env>(
        &mut self,
        now: Time,
        psn: Psn,
        fault: ResponderFault,
        env: &mut E,
    ) {
        if self.rq.is_active() {
            self.fail_oldest_receive(fault.consequence().status, env);
        }
        self.fail_answer(now, psn, fault, env);
    }

    /// Refuses a request that was accepted and cannot be answered. A receive taken by a later
    /// message is not at fault and is flushed.
    fn fail_answer<E: Env>(&mut self, now: Time, psn: Psn, fault: ResponderFault, env: &mut E) {
        let consequence = fault.consequence();
        self.resp.message = Message::None;
        if consequence.nak.is_none() {
            // The message is acknowledged, and so counted.
            self.resp.finish_message();
        }
        if let Some(event) = consequence.event
            && !self.resp.dying
        {
            env.event(event);
        }
        self.resp.dying = true;
        let syndrome = consequence.nak.map_or(Syndrome::ACK, Syndrome::Nak);
        self.nak(now, psn, syndrome, env);
    }

    /// Delivers the result of an atomic for which [`Env::atomic`] returned `Later`: the original value in
    /// host order, or the error, which is sent to the peer and fails the queue pair. `psn` is that of the
    /// request. It is ignored if no atomic waits with it, as after a failure. A driver must not deliver
    /// results from before the last reset. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn atomic_done<E: Env>(
        &mut self,
        now: Time,
        psn: Psn,
        result: Result<u64, AccessFault>,
        env: &mut E,
    ) {
        match result {
            Ok(original) => self.resp.resources.answer(psn, original),
            Err(fault) if self.resp.resources.give_up(psn) => {
                self.fail_answer(now, psn, ResponderFault::remote(fault), env);
            }
            Err(_) => {}
        }
    }
}
