//! The state machine of a queue pair: packet-based or stream-based, by the device's transport.

use std::time::Duration;

use rdmux_transport::attr::{AttrMask, QpAttr, QpState, TransportType};
use rdmux_transport::env::{AccessFault, Drop, Env, Named};
use rdmux_transport::error::{ModifyError, PostError};
use rdmux_transport::iwarp::{self, StreamEnv, StreamParams, Wish};
use rdmux_transport::qp::{QpInit, RxPacket, SendMark};
use rdmux_transport::wr::{RecvWr, SendWr};
use rdmux_transport::{Qp as Packets, Time, TxState};
use rdmux_wire::Psn;

/// The state machine that drives a queue pair.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "packets are the common case, and lie in the queue pair; the other is larger still"
)]
/// The state machine of a queue pair.
pub(crate) enum Machine {
    /// InfiniBand's transport.
    Ib(Packets),
    /// iWARP.
    Iwarp(Box<iwarp::Qp>),
}

/// Calls a method that both machines have.
macro_rules! either {
    ($machine:expr, $qp:ident => $call:expr) => {
        match $machine {
            Machine::Ib($qp) => $call,
            Machine::Iwarp($qp) => $call,
        }
    };
}

impl Machine {
    pub(crate) fn new(transport: TransportType, init: &QpInit) -> Self {
        match transport {
            TransportType::Ib => Self::Ib(Packets::new(init)),
            TransportType::Iwarp => Self::Iwarp(Box::new(iwarp::Qp::new(init))),
        }
    }

    /// Returns how many bytes of memory the queues of a machine will use.
    pub(crate) fn queues_size(transport: TransportType, init: &QpInit) -> usize {
        match transport {
            TransportType::Ib => Packets::queues_size(init),
            TransportType::Iwarp => iwarp::Qp::queues_size(init),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        either!(self, qp => qp.state())
    }
    pub(crate) fn attr(&self) -> QpAttr {
        either!(self, qp => qp.attr())
    }
    /// Returns the bytes of memory that the machine occupies.
    pub(crate) fn footprint(&self) -> usize {
        either!(self, qp => qp.footprint())
    }
    pub(crate) fn post_send(&mut self, now: Time, wr: &SendWr<'_>) -> Result<(), PostError> {
        either!(self, qp => qp.post_send(now, wr))
    }
    /// Returns the position in the send queue, for [`withdraw_sends`](Self::withdraw_sends).
    pub(crate) fn sends_posted(&self) -> SendMark {
        either!(self, qp => qp.sends_posted())
    }
    /// Removes the sends that were posted after `mark`.
    pub(crate) fn withdraw_sends(&mut self, mark: SendMark) {
        either!(self, qp => qp.withdraw_sends(mark));
    }
    pub(crate) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        either!(self, qp => qp.post_recv(wr))
    }
    pub(crate) fn modify(
        &mut self,
        now: Time,
        attr: &QpAttr,
        mask: AttrMask,
        env: &mut impl Env,
    ) -> Result<(), ModifyError> {
        either!(self, qp => qp.modify(now, attr, mask, env))
    }
    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        budget: u32,
        env: &mut impl StreamEnv,
    ) -> TxState {
        either!(self, qp => qp.poll_transmit(now, budget, env))
    }
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        either!(self, qp => qp.poll_timeout())
    }
    pub(crate) fn handle_timeout(&mut self, now: Time, env: &mut impl StreamEnv) {
        either!(self, qp => qp.handle_timeout(now, env));
    }

    /// Returns the PSN of the oldest request that is not acknowledged. None while it does not wait
    /// for acknowledgements, and for a stream.
    pub(crate) fn unacknowledged(&self) -> Option<Psn> {
        if let Self::Ib(qp) = self { qp.unacknowledged() } else { None }
    }

    /// Returns whether an acknowledgement is owed. A stream owes none.
    pub(crate) fn wants_ack(&self) -> bool {
        matches!(self, Self::Ib(qp) if qp.wants_ack())
    }

    /// Returns whether the queue pair executes requests of its peer now. False for a stream, whose
    /// peer sends them through the stream only.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Ib(qp) if qp.is_open())
    }

    /// Returns whether the path by which a packet arrived matters.
    pub(crate) fn minds_path(&self) -> bool {
        matches!(self, Self::Ib(qp) if qp.minds_path())
    }

    /// Handles a packet. A stream's machine drops it.
    pub(crate) fn handle_packet(&mut self, now: Time, rx: &RxPacket<'_>, env: &mut impl Env) {
        match self {
            Self::Ib(qp) => qp.handle_packet(now, rx, env),
            Self::Iwarp(_) => env.count(Drop::Opcode),
        }
    }
    /// Returns whether [`poll_transmit`](Self::poll_transmit) would send nothing. False for a
    /// stream.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Ib(qp) if qp.is_idle())
    }
    /// Returns the packet machine, if it is one.
    #[inline]
    pub(crate) fn packets(&mut self) -> Option<&mut Packets> {
        match self {
            Self::Ib(qp) => Some(qp),
            Self::Iwarp(_) => None,
        }
    }

    /// Handles a packet that names its payload.
    pub(crate) fn handle_named(
        &mut self,
        now: Time,
        rx: &RxPacket<'_>,
        named: &Named<'_>,
        env: &mut impl Env,
    ) {
        match self {
            Self::Ib(qp) => qp.handle_named(now, rx, named, env),
            Self::Iwarp(_) => env.count(Drop::Opcode),
        }
    }
    /// Processes an acknowledgement that was piggybacked on a packet.
    #[inline]
    pub(crate) fn handle_piggybacked_ack(&mut self, now: Time, psn: Psn, env: &mut impl Env) {
        if let Self::Ib(qp) = self {
            qp.handle_piggybacked_ack(now, psn, env);
        }
    }
    /// Sends the pending acknowledgement.
    pub(crate) fn flush_ack(&mut self, now: Time, env: &mut impl Env) {
        if let Self::Ib(qp) = self {
            qp.flush_ack(now, env);
        }
    }
    pub(crate) fn atomic_done(
        &mut self,
        now: Time,
        psn: Psn,
        result: Result<u64, AccessFault>,
        env: &mut impl Env,
    ) {
        if let Self::Ib(qp) = self {
            qp.atomic_done(now, psn, result, env);
        }
    }
    /// Handles the death of the peer's process. A stream reports that itself.
    pub(crate) fn peer_gone(&mut self, now: Time) {
        if let Self::Ib(qp) = self {
            qp.peer_gone(now);
        }
    }

    /// Returns the stream machine, if it is one.
    pub(crate) fn stream(&mut self) -> Option<&mut iwarp::Qp> {
        match self {
            Self::Iwarp(qp) => Some(qp),
            Self::Ib(_) => None,
        }
    }

    /// Returns whether the next message in its stream waits for a receive.
    #[inline]
    pub(crate) fn waits_for_receive(&self) -> bool {
        matches!(self, Self::Iwarp(qp) if qp.waits_for_receive())
    }

    /// Returns what the engine must do with the stream.
    pub(crate) fn wish(&self) -> Wish {
        match self {
            Self::Ib(_) => Wish::Keep,
            Self::Iwarp(qp) => qp.wish(),
        }
    }

    /// Gives a queue pair its stream.
    pub(crate) fn attach(
        &mut self,
        now: Time,
        params: &StreamParams,
        (mulpdu, receive_wait): (u32, Duration),
        env: &mut impl Env,
    ) -> Result<(), ModifyError> {
        match self {
            Self::Iwarp(qp) => {
                qp.set_receive_wait(receive_wait);
                qp.attach(now, params, mulpdu, env)
            }
            Self::Ib(qp) => {
                let from = qp.state();
                let to = QpState::Rts;
                Err(ModifyError::Transition { qp_type: qp.qp_type(), from, to })
            }
        }
    }
}
