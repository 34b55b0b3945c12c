//! The responder of UC: silently drops messages with missing packets, and starts afresh with the next one (IBTA
//! 9.8.2). The requester is RC's, without waiting for responses.

use rdmux_wire::Packet;

use crate::env::{Drop, Env};
use crate::fault::ResponderFault;
use crate::optable::{Kind, RxRow};
use crate::qp::Qp;
use crate::qp::responder::Refusal;
use crate::qp::responder::load::Load as _;

impl Qp {
    /// Handles a packet.
    pub(crate) fn handle_uc<E: Env>(&mut self, packet: &Packet<'_>, row: RxRow, env: &mut E) {
        if packet.bth.psn != self.resp.expected_psn() || !self.in_sequence(row) {
            // The message in progress is lost. Its receive serves the next one.
            self.resp.abandon_message();
            if !row.starts {
                return env.count(Drop::Sequence);
            }
            self.resp.expect(packet.bth.psn);
        }
        self.establish(env);
        let load = packet.payload;
        if !load.has_right_length(row.starts, row.ends, self.mtu, packet.bth.pad) {
            self.resp.abandon_message();
            return env.count(Drop::Length);
        }
        let result = match row.kind {
            Kind::Send => self.execute_send(packet, load, row, env),
            _ => self.execute_write(packet, load, row, env),
        };
        match result {
            Ok(()) => {}
            Err(Refusal::NotReady | Refusal::OutOfReach) => {
                self.resp.abandon_message();
                env.count(Drop::NoReceive);
            }
            Err(Refusal::Fault(fault)) => self.drop_message(fault, env),
        }
    }

    /// Drops a message that cannot be received (IBTA table 60: class D, with a shared receive queue
    /// class E). A fault of the receive itself makes the queue pair fail.
    fn drop_message<E: Env>(&mut self, fault: ResponderFault, env: &mut E) {
        self.resp.abandon_message();
        match fault {
            ResponderFault::InvalidRequest | ResponderFault::NoSuchSrq => env.count(Drop::Length),
            ResponderFault::RemoteAccess | ResponderFault::Invalidate => env.count(Drop::Memory),
            ResponderFault::ReceiveTooShort => self.drop_too_long(env),
            ResponderFault::LocalProtection | ResponderFault::Operation => {
                env.count(Drop::Memory);
                self.fail_receive(fault, env);
                self.enter_error(env);
            }
        }
    }

    /// Handles a message of an unreliable service that is longer than the receive. The sender cannot be
    /// notified, so the message is dropped, and the receive serves the next one. A receive from a shared
    /// receive queue cannot be withheld from the other queue pairs, so it completes in error, and the queue
    /// pair continues.
    pub(crate) fn drop_too_long<E: Env>(&mut self, env: &mut E) {
        env.count(Drop::Length);
        if self.rq.is_shared() {
            self.fail_receive(ResponderFault::ReceiveTooShort, env);
        }
    }

    /// Completes the receive in use, if any, in error.
    pub(crate) fn fail_receive<E: Env>(&mut self, fault: ResponderFault, env: &mut E) {
        if self.rq.is_active() {
            self.fail_oldest_receive(fault.consequence().status, env);
        }
    }
}
