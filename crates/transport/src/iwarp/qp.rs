//! The queue pair over a stream: the state machine to which a driver posts work and hands stream data.

use core::time::Duration;

use rdmux_wire::Qpn;

use crate::attr::{QpAttr, QpState, QpType};
use crate::env::{Env, QpEvent, Side};
use crate::error::PostError;
use crate::iwarp::StreamParams;
use crate::iwarp::close::Phase;
use crate::iwarp::rx::Rx;
use crate::iwarp::serve::Serving;
use crate::iwarp::tx::Tx;
use crate::qp::{QpInit, SendMark};
use crate::rq::RecvQueue;
use crate::sq::SendQueue;
use crate::time::Time;
use crate::wr::{Completion, RecvWr, SendFlags, SendWr, WcOpcode, WcStatus};

/// A queue pair over a TCP stream, in any state, without I/O.
///
/// A driver posts work, attaches a stream with [`attach`](Self::attach), and presents received bytes to
/// [`handle_bytes`](Self::handle_bytes). It calls [`poll_transmit`](Self::poll_transmit) after a post, after bytes,
/// after a timeout and when a full stream has room again. It carries out on the stream what [`wish`](Self::wish)
/// returns, which every call that takes the queue pair by `&mut` may change.
///
/// Fewer states are used than for InfiniBand: RESET and INIT are the *Idle* of the RDMA verbs for iWARP, SQD is
/// *Closing*, and ERR is both *Terminate* and *Error*.
#[derive(Debug)]
pub struct Qp {
    pub(super) state: QpState,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) serving: Serving,
    pub(super) phase: Phase,
    pub(super) attr: QpAttr,
    pub(super) init: QpInit,
    /// The parameters of the stream, once there is one.
    pub(super) params: StreamParams,
    /// Time that a message waits for a receive.
    pub(super) receive_wait: Duration,
}

/// The parameters before a stream is attached.
pub(super) const NO_STREAM: StreamParams = StreamParams {
    initiator: false,
    crc: false,
    tx_markers: false,
    rx_markers: false,
    ord: 0,
    ird: 0,
    rtr: None,
};

impl Qp {
    /// Creates a queue pair in RESET. RC is the only type that iWARP has.
    pub fn new(init: &QpInit) -> Self {
        Self {
            state: QpState::Reset,
            sq: SendQueue::new(&init.caps, init.qp_type),
            rq: RecvQueue::new(init),
            tx: Tx::default(),
            rx: Rx::default(),
            serving: Serving::default(),
            phase: Phase::Detached,
            attr: QpAttr { caps: init.caps, ..QpAttr::default() },
            init: *init,
            params: NO_STREAM,
            receive_wait: Duration::ZERO,
        }
    }

    /// Sets how long a message waits if no receive is posted. After that, and with zero at once, the connection
    /// ends, as RFC 5041, section 7.2, requires. Affects messages that begin to wait after the call.
    pub fn set_receive_wait(&mut self, wait: Duration) {
        self.receive_wait = wait;
    }

    /// Returns the queue pair's number.
    pub fn qpn(&self) -> Qpn {
        self.init.qpn
    }
    /// Returns the queue pair's type.
    pub fn qp_type(&self) -> QpType {
        self.init.qp_type
    }
    /// Returns the state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// Returns the parameters that the queue pair was created with.
    pub fn init(&self) -> &QpInit {
        &self.init
    }
    /// Returns the attributes as `ibv_query_qp` reports them. With a stream the limits of READs and
    /// atomics are those that its two ends agreed on.
    pub fn attr(&self) -> QpAttr {
        QpAttr {
            state: self.state,
            cur_state: self.state,
            sq_draining: matches!(self.phase, Phase::Draining { .. }),
            ..self.attr
        }
    }

    /// Returns how many bytes of memory this queue pair uses, queues included.
    pub fn footprint(&self) -> usize {
        size_of::<Self>()
            + self.sq.footprint()
            + self.rq.footprint()
            + self.tx.footprint()
            + self.rx.footprint()
            + self.serving.footprint()
    }

    /// Returns how many bytes of memory the queues of a queue pair with these parameters use, or
    /// `usize::MAX` if they overflow that type.
    pub fn queues_size(init: &QpInit) -> usize {
        crate::Qp::queues_size(init)
    }

    /// Queues a send work request. [`poll_transmit`](Self::poll_transmit) then sends it, or in ERR
    /// completes it as flushed. The end of a stream that is being closed flushes it, too.
    ///
    /// # Errors
    /// See [`PostError`]. iWARP has no SEND with immediate, among others.
    pub fn post_send(&mut self, _now: Time, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.state < QpState::Rts {
            return Err(PostError::State(self.state));
        }
        if !wr.op.is_of_rdmap() {
            return Err(PostError::Operation(self.init.qp_type));
        }
        self.sq.post(self.init.qp_type, wr)
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
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        self.rq.post(wr)
    }

    /// Returns a completion with only the fields that are always valid.
    pub(super) fn completion(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
        Completion { wr_id, status, opcode, qpn: self.init.qpn, ..Completion::EMPTY }
    }

    /// Moves to ERR and flushes both queues. The caller decides about the stream.
    pub(super) fn enter_error<E: Env>(&mut self, env: &mut E) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.tx.stop();
        self.rx.stop();
        self.serving.clear();
        self.flush(env);
        if self.rq.is_shared() {
            env.event(QpEvent::LastWqeReached);
        }
    }

    /// Completes all work as flushed, in order.
    pub(super) fn flush<E: Env>(&mut self, env: &mut E) {
        while self.sq.head != self.sq.tail {
            self.complete_head(WcStatus::WrFlushErr, env);
        }
        self.tx.follow(self.sq.head);
        while !self.rq.is_empty() {
            self.fail_oldest_receive(WcStatus::WrFlushErr, env);
        }
    }

    /// Completes the receive in use in error, or the oldest if none is in use.
    pub(super) fn fail_oldest_receive<E: Env>(&mut self, status: WcStatus, env: &mut E) {
        let wr_id = self.rq.finish();
        env.complete(Side::Recv, self.completion(wr_id, status, WcOpcode::Recv));
    }

    /// Completes the oldest send work request. A success is reported only if requested, a failure always.
    #[inline]
    pub(super) fn complete_head<E: Env>(&mut self, status: WcStatus, env: &mut E) {
        let wqe = self.sq.get(self.sq.head);
        let row = wqe.kind.row();
        let loud =
            self.init.sq_sig_all || wqe.has(SendFlags::SIGNALED) || status != WcStatus::Success;
        let byte_len = row.bytes_back(wqe.len);
        let wr_id = wqe.wr_id;
        self.sq.head = self.sq.head.wrapping_add(1);
        if loud {
            let completion = Completion { byte_len, ..self.completion(wr_id, status, row.wc) };
            env.complete(Side::Send, completion);
        }
    }
}
