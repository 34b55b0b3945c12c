//! The queue pair: the state machine to which a driver posts work and hands packets, and from which it takes packets to send.
//!
//! | file | purpose |
//! |---|---|
//! | `requester` | sends the send queue as packets and completes it by the responses; RC, UC and XRC |
//! | `responder` | carries out the peer's requests in PSN order; RC and XRC |
//! | `uc`, `ud` | the differences of the unreliable services |
//! | `brief` | a fast path for short SENDs on a lossless link |
//! | `modify` | attributes and state transitions |
//! | `migration` | failover to the alternate path |
//!
//! The state of a queue pair is private to these files. The state of the requester and of the responder is private to their own files.

mod brief;
mod migration;
mod modify;
mod requester;
mod responder;
mod uc;
mod ud;

use core::time::Duration;

use rdmux_wire::{Bth, Opcode, Packet, Pkey, Psn, Qpn};

use crate::attr::{AddressVector, QpAttr, QpCaps, QpState, QpType};
use crate::env::{Drop, Env, Named, QpEvent, Side};
use crate::error::PostError;
use crate::optable::{self, Kind, RxRow};
use crate::rq::RecvQueue;
use crate::sq::SendQueue;
use crate::time::Time;
use crate::wr::{Completion, RecvWr, SendWr, WcOpcode, WcStatus};
pub use brief::BriefRequest;
use migration::Migration;
use requester::Requester;
use responder::Responder;
pub use ud::{GRH_AREA, is_privileged};

/// The parameters that a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The transport service.
    pub qp_type: QpType,
    /// The queue sizes. All queue memory is allocated from them when the first request is posted. With a shared
    /// receive queue `max_recv_sge` is that queue's (0: room for 32 entries), and `max_recv_wr` is ignored.
    pub caps: QpCaps,
    /// Whether every send generates a completion, signaled or not.
    pub sq_sig_all: bool,
    /// Whether receives come from a shared receive queue, through [`Env::pop_srq`]. Ignored for XRC:
    /// its initiator has no receives, and its target takes them from the queues that the peer names.
    pub has_srq: bool,
}

/// The source of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The sender's GID (RoCE: its IP address).
    pub sgid: rdmux_wire::Gid,
    /// The GID that the packet was sent to.
    pub dgid: rdmux_wire::Gid,
    /// The GRH area as UD receivers see it: a GRH, or 20 bytes and an IPv4 header.
    pub grh: &'a [u8; 40],
    /// The sender's LID; 0 without LIDs.
    pub slid: u16,
    /// The service level. RoCE has none: there it is the kind of packet as adapters report it (IBTA
    /// A17.4.5.1), 8 for a UDP header plus 1 for IPv6 or 2 for IPv4.
    pub sl: u8,
    /// The low bits of the LID that the packet was sent to.
    pub dlid_path_bits: u8,
    /// Whether the packet had a GRH (always on RoCE), so that `sgid`, `dgid` and `grh` are valid.
    pub has_grh: bool,
}

impl Source<'_> {
    /// Returns whether the source is the peer at the other end of `av`: the GID matches, on InfiniBand also the LID,
    /// and the packet has a GRH if the path has one (IBTA 9.6.1.5).
    #[inline]
    fn is_from(&self, av: &AddressVector) -> bool {
        let same_lid = self.slid == 0 || self.slid == av.dlid && self.has_grh == av.is_global;
        same_lid && !(self.has_grh && av.is_global && self.sgid != av.dgid)
    }
}

/// A received packet whose ICRC has been checked.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'a> {
    /// Headers and payload.
    pub packet: &'a Packet<'a>,
    /// The source of the packet.
    pub source: &'a Source<'a>,
}

/// Time for which a queue pair keeps its state after its peer's process has died.
pub const PEER_GONE: Duration = Duration::from_millis(500);

/// A position in a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendMark(pub(crate) u32);

/// The outcome of a [`Qp::poll_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxState {
    /// The queue pair has nothing to send until the next event: a post, a packet or a timeout.
    Idle,
    /// The budget is used up. More packets may be waiting.
    More,
    /// The link is full. Poll again when it has room.
    Blocked,
}

/// A queue pair of any type, in any state, without I/O.
///
/// A driver posts work, calls [`poll_transmit`](Self::poll_transmit) after a post, a packet or a timeout, and calls
/// [`handle_timeout`](Self::handle_timeout) at the time of [`poll_timeout`](Self::poll_timeout). The queue pair reaches
/// everything outside of it through the [`Env`].
#[derive(Debug)]
pub struct Qp {
    state: QpState,
    qp_type: QpType,
    qpn: Qpn,
    /// Whether a packet has been received in RTR.
    established: bool,
    sq_sig_all: bool,
    /// Whether the link is lossless.
    lossless: bool,
    /// Whether acknowledgements are piggybacked on packets.
    piggybacks_acks: bool,
    /// Payload bytes of a full packet: the path MTU, or the maximum of a lossless link.
    mtu: u32,
    sq: SendQueue,
    rq: RecvQueue,
    req: Requester,
    resp: Responder,
    mig: Migration,
    attr: QpAttr,
    init: QpInit,
}

impl Qp {
    /// Creates a queue pair in RESET.
    pub fn new(init: &QpInit) -> Self {
        Self {
            state: QpState::Reset,
            qp_type: init.qp_type,
            qpn: init.qpn,
            established: false,
            sq_sig_all: init.sq_sig_all,
            lossless: false,
            piggybacks_acks: false,
            mtu: 256,
            sq: SendQueue::new(&init.caps, init.qp_type),
            rq: RecvQueue::new(init),
            req: Requester::default(),
            resp: Responder::default(),
            mig: Migration::default(),
            attr: QpAttr { caps: init.caps, ..QpAttr::default() },
            init: *init,
        }
    }

    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// Returns the transport service.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }
    /// Returns the state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// Returns the parameters that the queue pair was created with.
    pub fn init(&self) -> &QpInit {
        &self.init
    }
    /// Returns the attributes as `ibv_query_qp` reports them, PSNs included: `sq_psn` is the PSN of
    /// the next new packet, `rq_psn` the next expected.
    pub fn attr(&self) -> QpAttr {
        QpAttr {
            state: self.state,
            cur_state: self.state,
            path_mig_state: self.mig.state() as u8,
            sq_psn: if self.has_sent() { self.req.next_psn() } else { self.attr.sq_psn },
            rq_psn: if self.state >= QpState::Rtr {
                self.resp.expected_psn()
            } else {
                self.attr.rq_psn
            },
            sq_draining: self.state == QpState::Sqd && !self.req.is_drained(),
            ..self.attr
        }
    }
    fn has_sent(&self) -> bool {
        self.state >= QpState::Rts
    }

    /// Returns how many packets may be in flight, given the losses so far.
    pub fn window(&self) -> u32 {
        self.req.window_size()
    }

    /// Returns how many bytes of memory this queue pair uses, queues included.
    pub fn footprint(&self) -> usize {
        size_of::<Self>() + self.sq.footprint() + self.rq.footprint() + self.resp.footprint()
    }

    /// Returns how many bytes of memory the queues of a queue pair with these parameters use, or
    /// `usize::MAX` if they overflow that type.
    pub fn queues_size(init: &QpInit) -> usize {
        let send = SendQueue::size_for(&init.caps, init.qp_type);
        send.saturating_add(RecvQueue::size_for(init))
    }

    /// Queues a send work request. [`poll_transmit`](Self::poll_transmit) then sends it, or in the
    /// states SQE and ERR completes it as flushed.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&mut self, _now: Time, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.qp_type == QpType::XrcRecv {
            return Err(PostError::NoSendQueue(self.qp_type));
        }
        if self.state < QpState::Rts {
            return Err(PostError::State(self.state));
        }
        self.sq.post(self.qp_type, wr)
    }

    /// Returns the present end of the send queue, for [`withdraw_sends`](Self::withdraw_sends).
    pub fn sends_posted(&self) -> SendMark {
        SendMark(self.sq.tail)
    }

    /// Removes the requests posted since `mark`. Must be called before
    /// [`poll_transmit`](Self::poll_transmit), which may send them.
    pub fn withdraw_sends(&mut self, mark: SendMark) {
        self.sq.tail = mark.0;
    }

    /// Queues a receive work request. In the state ERR call [`poll_transmit`](Self::poll_transmit),
    /// which completes it as flushed.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.qp_type.is_xrc() {
            return Err(PostError::NoReceiveQueue(self.qp_type));
        }
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        self.rq.post(wr)
    }

    /// Returns the BTH of a packet of a connected queue pair.
    #[inline]
    fn bth(&self, opcode: Opcode, psn: Psn, pkey: Pkey) -> Bth {
        Bth { pkey, mig_req: self.mig.mig_req(), ..Bth::new(opcode, self.attr.dest_qpn, psn) }
    }

    /// Classifies a packet, or drops it unless it arrived from the peer along the path.
    #[inline]
    fn admit<E: Env>(&mut self, now: Time, rx: &RxPacket<'_>, env: &mut E) -> Option<RxRow> {
        let bth = &rx.packet.bth;
        let row = optable::rx(self.qp_type, bth.opcode);
        let is_datagram = self.qp_type == QpType::Ud;
        let fault =
            if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
                Drop::State
            } else if row.kind == Kind::Reserved {
                Drop::Opcode
            } else if env.pkey(self.attr.pkey_index).is_some_and(|own| bth.pkey.admits(own))
                && (is_datagram
                    || self.mig.is_usual(bth.mig_req) && rx.source.is_from(&self.attr.av))
            {
                return Some(row);
            } else if is_datagram {
                Drop::Pkey
            } else {
                match self.came_otherwise(now, rx, env) {
                    Ok(()) => return Some(row),
                    Err(fault) => fault,
                }
            };
        if fault == Drop::Pkey {
            env.wrong_key(rx, fault);
        }
        env.count(fault);
        None
    }

    /// Handles a packet that names its payload. The driver's link must have no sender but the peer.
    pub fn handle_named<E: Env>(
        &mut self,
        now: Time,
        rx: &RxPacket<'_>,
        named: &Named<'_>,
        env: &mut E,
    ) {
        let Some(row) = self.admit(now, rx, env) else { return };
        if self.qp_type != QpType::Rc || !matches!(row.kind, Kind::Send | Kind::Write) {
            return env.count(Drop::Opcode);
        }
        if !rx.packet.payload.is_empty() {
            return env.count(Drop::Length);
        }
        self.handle_request(now, rx.packet, *named, row, env);
    }

    /// Handles a packet for this queue pair whose ICRC is valid.
    pub fn handle_packet<E: Env>(&mut self, now: Time, rx: &RxPacket<'_>, env: &mut E) {
        let Some(row) = self.admit(now, rx, env) else { return };
        if self.qp_type == QpType::Ud {
            return self.handle_datagram(rx, env);
        }
        match row.kind {
            Kind::Ack => self.handle_ack(now, rx.packet, env),
            Kind::ReadResponse => self.handle_read_response(now, rx.packet, row, env),
            Kind::AtomicAck => self.handle_atomic_ack(now, rx.packet, env),
            _ if self.qp_type.is_reliable() => {
                self.handle_request(now, rx.packet, rx.packet.payload, row, env);
            }
            _ => self.handle_uc(rx.packet, row, env),
        }
    }

    /// Sends at most `budget` packets: requests and READ responses in turn, retransmissions included. A
    /// pending ACK is piggybacked on them. An ACK by itself waits for [`flush_ack`](Self::flush_ack).
    pub fn poll_transmit<E: Env>(&mut self, now: Time, budget: u32, env: &mut E) -> TxState {
        match self.state {
            QpState::Reset | QpState::Init => TxState::Idle,
            QpState::Err => {
                self.flush(env);
                TxState::Idle
            }
            QpState::Sqe => {
                self.flush_sends(env);
                TxState::Idle
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd => self.transmit_all(now, budget, env),
        }
    }

    /// Returns whether an acknowledgement is pending. The driver calls [`flush_ack`](Self::flush_ack) when
    /// its burst of arrivals ends, or [`poll_transmit`](Self::poll_transmit), which sends the ACK last.
    pub fn wants_ack(&self) -> bool {
        self.resp.wants_ack()
    }

    /// Reports that the peer's process has died, which a lossless link does not show by silence. Outstanding work fails
    /// as after the last retry, [`PEER_GONE`] from now: by then a program that exits when its peer does has exited.
    /// An unreliable service learns nothing about its peer, so its queue pair continues.
    pub fn peer_gone(&mut self, now: Time) {
        let runs = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if runs && self.qp_type.is_reliable() {
            self.req.peer_gone(now.after(PEER_GONE));
        }
    }

    /// Fails the queue pair, and outstanding work as after the last retry, when the time since the
    /// peer's death has expired.
    pub(crate) fn give_peer_up<E: Env>(&mut self, env: &mut E) {
        if self.req.is_outstanding() {
            self.fail_send(WcStatus::RetryExcErr, env);
        } else {
            self.enter_error(env);
        }
    }

    /// Returns a completion with only the fields that are always valid.
    pub(crate) fn completion(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
        Completion { wr_id, status, opcode, qpn: self.qpn, ..Completion::EMPTY }
    }

    /// Moves to ERR and flushes both queues (IBTA 10.3.1).
    pub(crate) fn enter_error<E: Env>(&mut self, env: &mut E) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.req.stop_all();
        self.resp.stop();
        env.closed();
        self.flush(env);
        // No application waits for this event of an XRC target before it destroys the shared receive queue.
        if self.rq.is_shared() && self.qp_type != QpType::XrcRecv {
            env.event(QpEvent::LastWqeReached);
        }
    }

    /// Completes all work as flushed, in order.
    fn flush<E: Env>(&mut self, env: &mut E) {
        self.flush_sends(env);
        while !self.rq.is_empty() {
            self.fail_oldest_receive(WcStatus::WrFlushErr, env);
        }
    }

    /// Completes the receive in use in error, or the oldest if none is in use.
    pub(crate) fn fail_oldest_receive<E: Env>(&mut self, status: WcStatus, env: &mut E) {
        let wr_id = self.rq.finish();
        if self.qp_type == QpType::XrcRecv && env.select_srq(self.resp.srqn()).is_err() {
            // The shared receive queue of this receive is gone, and its completion queue with it.
            return;
        }
        env.complete(Side::Recv, self.completion(wr_id, status, WcOpcode::Recv));
    }

    /// Completes all send work as flushed, in order.
    pub(crate) fn flush_sends<E: Env>(&mut self, env: &mut E) {
        while self.sq.head != self.sq.tail {
            self.complete_head(WcStatus::WrFlushErr, env);
        }
        self.req.go_on_at(self.sq.head);
    }

    /// Completes the oldest send work request. A success is reported only if requested, a failure always.
    #[inline]
    pub(crate) fn complete_head<E: Env>(&mut self, status: WcStatus, env: &mut E) {
        let wqe = self.sq.get(self.sq.head);
        let row = wqe.kind.row();
        let loud = self.sq_sig_all
            || wqe.has(crate::wr::SendFlags::SIGNALED)
            || status != WcStatus::Success;
        if loud {
            let byte_len = row.bytes_back(wqe.len);
            let completion = Completion { byte_len, ..self.completion(wqe.wr_id, status, row.wc) };
            self.sq.head = self.sq.head.wrapping_add(1);
            env.complete(Side::Send, completion);
        } else {
            self.sq.head = self.sq.head.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_wire::Gid;

    use super::*;

    const PEER: Gid = Gid([7; 16]);

    fn source(slid: u16, sgid: Option<Gid>) -> Source<'static> {
        Source {
            sgid: sgid.unwrap_or(Gid::ZERO),
            dgid: Gid::ZERO,
            grh: &[0; 40],
            slid,
            sl: 0,
            dlid_path_bits: 0,
            has_grh: sgid.is_some(),
        }
    }

    #[test]
    fn packet_source_is_matched_by_gid_and_on_infiniband_also_by_slid() {
        let local = AddressVector { dlid: 5, ..AddressVector::default() };
        let global = AddressVector { is_global: true, dgid: PEER, ..local };
        assert!(source(5, None).is_from(&local) && source(5, Some(PEER)).is_from(&global));
        assert!(!source(6, None).is_from(&local), "another port");
        assert!(!source(6, Some(PEER)).is_from(&global), "another port with its GID");
        assert!(!source(5, Some(Gid([8; 16]))).is_from(&global), "another GID");
        assert!(!source(5, None).is_from(&global), "without the GRH that the path has");
        assert!(!source(5, Some(PEER)).is_from(&local), "with a GRH that the path has not");
        // RoCE has no LIDs, so a LID in a program's path is ignored.
        assert!(source(0, Some(PEER)).is_from(&global));
        assert!(!source(0, Some(Gid([8; 16]))).is_from(&global));
        assert!(source(0, None).is_from(&local), "a ring tells nothing");
    }
}
