//! The responder: carries out the peer's requests in PSN order, and answers.
//!
//! `checks` decides whether a packet may be, `execute` does what it asks for, `resources` remembers
//! READs and atomics so that they can be answered again, and `respond` sends the answers. ACKs are
//! remembered and sent when the driver's burst ends; NAKs leave at once. Neither overtakes the
//! response of an earlier READ or atomic. `reorder` buffers out-of-order packets.

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

/// What kind of message is being received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    /// None: the next packet must start one.
    #[default]
    None,
    /// A SEND.
    Send,
    /// An RDMA WRITE.
    Write,
}

/// Why a packet's request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted, or the owner of the memory is busy.
    NotReady,
    /// What it names could not be fetched.
    OutOfReach,
    /// It cannot be.
    Fault(ResponderFault),
}

impl Refusal {
    /// Memory that the peer named is not to be had.
    fn remote(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Busy => Self::NotReady,
            _ => Self::Fault(ResponderFault::remote(fault)),
        }
    }

    /// A key that the peer named is not to be invalidated.
    fn invalidate(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Busy => Self::NotReady,
            _ => Self::Fault(ResponderFault::invalidate(fault)),
        }
    }

    /// Memory that the receive named is not to be had.
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
    /// The PSN that is expected next.
    epsn: Psn,
    /// The last SEND or WRITE packet that was carried out: what an ACK says. It is never a PSN of a
    /// READ's response, which only that response may acknowledge.
    ack_psn: Psn,
    /// Messages completed, modulo 2^24.
    msn: u32,
    /// Bytes of the message so far.
    offset: u32,
    /// The shared receive queue of the message, and of the receive that is taken; XRC only.
    srqn: u32,
    /// Where the WRITE goes, by which key, and how long it is.
    write_va: u64,
    write_rkey: Rkey,
    write_len: u32,
    message: Message,
    /// Whether the requester asked for an ACK that it did not get.
    ack_owed: bool,
    /// Whether the present gap, or receiver-not-ready, was answered already.
    silent: bool,
    /// Whether it was receiver-not-ready: the peer sends everything from there again.
    not_ready: bool,
    /// Whether the queue pair fails as soon as the NAK is out.
    dying: bool,
    /// A NAK that could not leave yet.
    nak: Option<(Psn, Syndrome)>,
    resources: Resources,
    /// Out-of-order packets.
    reorder: ReorderBuffer,
}

impl Responder {
    /// On the way to RTR. The resources were allocated when their number was set.
    pub(super) fn start(&mut self, psn: Psn) {
        let resources = core::mem::take(&mut self.resources);
        *self = Self { epsn: psn, ack_psn: psn.sub(1), resources, ..Self::default() };
    }

    /// The PSN that is expected next.
    #[inline]
    pub(super) fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// The next message begins with this PSN, whatever was expected. Of UC, where what was lost is not sent again.
    pub(super) fn expect(&mut self, psn: Psn) {
        self.epsn = psn;
    }

    /// The message that is being received does not end: the next packet must start one.
    pub(super) fn abandon_message(&mut self) {
        self.message = Message::None;
    }

    /// The shared receive queue that the receive which is taken comes from; XRC only.
    pub(super) fn srqn(&self) -> u32 {
        self.srqn
    }

    /// How many READs and atomics may be answered again.
    pub(super) fn resize(&mut self, resources: u8) {
        self.resources.resize(resources);
    }

    /// Answers nothing more.
    pub(super) fn stop(&mut self) {
        self.resources.clear();
        self.reorder.clear();
        (self.ack_owed, self.nak, self.message) = (false, None, Message::None);
    }

    /// Whether a READ's or atomic's response is waiting to be sent.
    #[inline]
    pub(super) fn has_responses(&self) -> bool {
        self.resources.pending()
    }

    #[inline]
    pub(super) fn wants_ack(&self) -> bool {
        (self.ack_owed || self.nak.is_some()) && !self.has_responses()
    }

    /// Bytes allocated.
    pub(super) fn footprint(&self) -> usize {
        self.resources.footprint() + self.reorder.footprint()
    }

    /// An acknowledgement is to leave, whether or not the peer asked for one.
    pub(super) fn owe_ack(&mut self) {
        self.ack_owed = true;
    }

    /// The acknowledgement that was owed was piggybacked on a request.
    #[inline]
    pub(super) fn ack_left(&mut self) {
        self.ack_owed = false;
    }

    /// Whether a message may begin with this PSN, and nothing is out of the ordinary.
    #[inline]
    pub(super) fn takes(&self, psn: Psn) -> bool {
        psn == self.epsn && self.message == Message::None && !self.silent && !self.dying
    }

    /// The only packet of a message, which [`takes`](Self::takes) let in, was carried out.
    #[inline]
    pub(super) fn took(&mut self, psn: Psn, ack_req: bool) {
        self.ack_psn = psn;
        self.epsn = psn.add(1);
        self.ack_owed |= ack_req;
        self.offset = 0;
        self.finish_message();
    }

    /// The message ends here.
    #[inline]
    fn finish_message(&mut self) {
        self.message = Message::None;
        self.msn = self.msn.wrapping_add(1) & 0x00ff_ffff;
    }
}

impl Qp {
    /// Takes a request packet of RC or XRC: as expected, ahead or behind (IBTA 9.7.5.1).
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
                // Sent again it carries its payload.
                env.count(Drop::OutOfReach);
                self.resp.silent = true;
                self.nak(now, psn, Syndrome::Nak(NakCode::PsnSequence), env);
            }
            Err(Refusal::Fault(fault)) => self.fail_responder(now, psn, fault, env),
        }
    }

    /// A packet is in order. The first one in RTR tells that the peer is connected, whose RTU may be lost.
    #[inline]
    pub(crate) fn establish<E: Env>(&mut self, env: &mut E) {
        if self.state == QpState::Rtr && !self.established {
            self.established = true;
            env.event(QpEvent::CommEst);
        }
    }

    /// Something was lost: say so once, and be silent until it comes. The out-of-order packet is buffered.
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

    /// What was missing has been carried out. So is what was kept behind it, up to the next gap. The peer hears of that
    /// when something comes that is behind it: one that sends everything again is about to fill it.
    #[cold]
    fn catch_up<E: Env>(&mut self, now: Time, env: &mut E) {
        let mut reorder = core::mem::take(&mut self.resp.reorder);
        let first = self.resp.epsn;
        while let Some(kept) = reorder.take(self.resp.epsn) {
            let packet = kept.packet();
            self.handle_request(now, &packet, packet.payload, kept.row, env);
            if self.resp.silent || self.resp.dying {
                // It was refused, and what is behind it, too.
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

    /// Carried out before: answer again, as the first time.
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

    /// The packet at `epsn` was carried out and took `npsn` PSNs.
    #[inline]
    fn accepted(&mut self, npsn: u32) {
        self.resp.epsn = self.resp.epsn.add(npsn);
        if self.resp.silent {
            (self.resp.silent, self.resp.not_ready) = (false, false);
            if self.resp.nak.take().is_some() {
                // It had to wait for an earlier response, and is out of date. What came before it is still
                // to be acknowledged.
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

    /// The request at `psn`, which is expected, cannot be carried out, and the receive that it was to fill
    /// ends with it: NAK, and then ERR (IBTA 9.9.3, class A and C), or an ACK for one that only the responder
    /// is to know of (class J).
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

    /// The same for a request that was accepted and cannot be answered. A receive that a later message
    /// has taken is not to blame; it is flushed.
    fn fail_answer<E: Env>(&mut self, now: Time, psn: Psn, fault: ResponderFault, env: &mut E) {
        let consequence = fault.consequence();
        self.resp.message = Message::None;
        if consequence.nak.is_none() {
            // It is acknowledged, and so counted.
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

    /// The answer of an atomic that [`Env::atomic`] put off is here: what was there before, in host order,
    /// or why it could not be done, which the peer hears and the queue pair fails for. `psn` is
    /// the request's; one that no atomic waits for is ignored, as after a failure. A driver does not
    /// bring answers that are older than the last reset. Call [`poll_transmit`](Self::poll_transmit)
    /// afterwards.
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
