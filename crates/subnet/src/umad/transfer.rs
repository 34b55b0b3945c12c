//! RMPP packets for agents whose messages the device segments and reassembles.

use rdmux_wire::{Rmpp, RmppStatus, RmppType};

use super::address::{Envelope, Peer};
use super::arrive::Inbound;
use super::sends::{SendId, Transaction};
use super::{AgentNumber, FileId, Ports, Umad, UmadSink, UserMad};
use crate::Time;
use crate::rmpp::{self, Ack, Arrival, TransferId};

impl Inbound<'_> {
    /// Returns the incoming transfer of this packet, assuming that its sender sends the message.
    fn transfer(&self) -> TransferId<(AgentNumber, Peer)> {
        TransferId {
            peer: (self.number, Peer::source(self.packet)),
            qpn: self.packet.src_qpn,
            tid: self.header.tid,
            class: self.header.mgmt_class.0,
            method: self.header.method.0,
        }
    }

    /// Returns the outgoing transfer of this packet, assuming that its sender receives the message.
    fn transaction(&self) -> Transaction {
        Transaction {
            class: self.header.mgmt_class.0,
            response: !self.response,
            tid: self.header.tid,
            peer: Peer::source(self.packet),
        }
    }
}

impl Umad {
    /// Handles an RMPP packet for an agent whose messages the device reassembles.
    pub(super) fn take_rmpp(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let rmpp = Rmpp::of(&inbound.packet.mad);
        if let Err(status) = rmpp::check(&rmpp) {
            return self.violation(inbound, status, ports, sink);
        }
        match rmpp.kind {
            RmppType::DATA => self.take_segment(now, inbound, ports, sink),
            RmppType::ACK => self.take_ack(now, inbound, &rmpp, ports, sink),
            _ => {
                self.end_send(inbound, sink);
                if let Some(open) = self.files.get_mut(&inbound.agent.file) {
                    open.incoming.end(&inbound.transfer());
                }
            }
        }
    }

    /// Handles a protocol violation of the peer: sends ABORT, and ends our transfer to it.
    fn violation(
        &mut self,
        inbound: &Inbound<'_>,
        status: RmppStatus,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        self.end_send(inbound, sink);
        self.answer(inbound, rmpp::abort(&inbound.packet.mad[..], status), ports, sink);
    }

    fn take_segment(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let id = inbound.transfer();
        let request = if inbound.response { self.request_of(inbound, ports) } else { None };
        let port = inbound.agent.port;
        let back = Envelope::answer(port, inbound.packet, ports);
        let (agent, peer) = id.peer;
        let share = (agent, peer.share(inbound.packet.slid, port, ports));
        let Some(open) = self.files.get_mut(&inbound.agent.file) else { return };
        if inbound.response && request.is_none() && !open.incoming.knows(&id) {
            self.counters.no_transfer += 1;
            return;
        }
        let counters = &mut self.counters;
        let arrival = open.incoming.handle_data(now, id, share, back, &inbound.packet.mad, |mad| {
            counters.sent += 1;
            sink.transmit(port, back.packet(mad));
        });
        match arrival {
            Arrival::Nothing => {}
            Arrival::Progress => {
                if let Some(id) = request {
                    self.expect_response(now, inbound.agent.file, id);
                }
            }
            Arrival::Whole(message) => {
                if !inbound.response || self.finish_request(inbound, ports) {
                    self.deliver(inbound, message, ports, sink);
                } else {
                    self.counters.no_request += 1;
                }
            }
        }
    }

    /// Restarts the timeout and the retries of a request.
    fn expect_response(&mut self, now: Time, file: FileId, id: SendId) {
        let Some(open) = self.files.get_mut(&file) else { return };
        let Some(pending) = open.sends.get_mut(id) else { return };
        if pending.sending().is_none() && !pending.timeout.is_zero() {
            pending.retries_left = pending.record.retries;
            let at = now.after(pending.timeout);
            open.sends.wake_at(id, at);
        }
    }

    fn take_ack(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        rmpp: &Rmpp,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let (segment, window) = (rmpp.segment, rmpp.length);
        if window < segment {
            return self.violation(inbound, RmppStatus::WINDOW_TOO_SMALL, ports, sink);
        }
        let file = inbound.agent.file;
        let Some(id) = self.send_of(inbound) else {
            return self.turn(inbound, segment, window);
        };
        let Some(open) = self.files.get_mut(&file) else { return };
        let Some(sender) = open.sends.get_mut(id).and_then(|p| p.sending()) else { return };
        match sender.handle_ack(now, segment, window) {
            Ok(Ack::Old) => {}
            Ok(Ack::More) => self.send_segments(now, file, id, sink),
            Ok(Ack::Complete) => self.sent(now, inbound, id, ports, sink),
            Err(status) => self.violation(inbound, status, ports, sink),
        }
    }

    /// Handles the completion of an outgoing message.
    fn sent(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        id: SendId,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let Some(open) = self.files.get_mut(&inbound.agent.file) else { return };
        let Some(pending) = open.sends.get_mut(id) else { return };
        if pending.timeout.is_zero() {
            open.sends.remove(id);
            return;
        }
        self.expect_response(now, inbound.agent.file, id);
        // Turn around: the peer sends next, and begins with this window.
        self.answer(inbound, rmpp::acknowledge(&inbound.packet.mad, 0, 1), ports, sink);
    }

    /// Sets the initial window of the response, which the sender of a complete message announces.
    fn turn(&mut self, inbound: &Inbound<'_>, segment: u32, window: u32) {
        let Some(open) = self.files.get_mut(&inbound.agent.file) else { return };
        let id = inbound.transfer();
        if segment == 0 && open.incoming.knows(&id) {
            open.incoming.turn(&id, window);
        } else {
            self.counters.no_transfer += 1;
        }
    }

    /// Returns the outgoing message that the sender of this packet receives.
    fn send_of(&self, inbound: &Inbound<'_>) -> Option<SendId> {
        let open = self.files.get(&inbound.agent.file)?;
        let mut sends = open.sends.of(inbound.transaction());
        sends.find(|(_, p)| p.agent == inbound.number).map(|(id, _)| id)
    }

    /// Ends the outgoing message of this transaction, if it is not acknowledged.
    fn end_send(&mut self, inbound: &Inbound<'_>, sink: &mut impl UmadSink) {
        let file = inbound.agent.file;
        let Some(id) = self.send_of(inbound) else { return };
        let Some(open) = self.files.get_mut(&file) else { return };
        if open.sends.get_mut(id).is_none_or(|p| p.sending().is_none()) {
            return;
        }
        let Some(pending) = open.sends.remove(id) else { return };
        self.counters.aborted += 1;
        if !pending.timeout.is_zero() {
            self.give(file, UserMad { status: UserMad::ABORTED, ..pending.record }, sink);
        }
    }

    fn answer(
        &mut self,
        inbound: &Inbound<'_>,
        mad: alloc::boxed::Box<rmpp::Mad>,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let port = inbound.agent.port;
        self.counters.sent += 1;
        sink.transmit(port, Envelope::answer(port, inbound.packet, ports).packet(mad));
    }
}
