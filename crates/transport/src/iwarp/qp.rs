//! The queue pair over a stream: what a driver holds, posts to and asks.

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
/// A driver posts work, gives it a stream with [`attach`](Self::attach), presents what arrives to
/// [`handle_bytes`](Self::handle_bytes), and calls [`poll_transmit`](Self::poll_transmit) after a post,
/// after bytes, after a timeout and when a full stream takes more. It does to the stream what
/// [`wish`](Self::wish) says, which may change with every call that takes the queue pair by `&mut`.
///
/// Of the states there are fewer than InfiniBand has: RESET and INIT are the *Idle* of the RDMA verbs for
/// iWARP, SQD is *Closing*, and ERR is both *Terminate* and *Error*.
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
    /// What holds of the stream, once there is one.
    pub(super) params: StreamParams,
    /// How long a message waits for a receive.
    pub(super) receive_wait: Duration,
}

/// What holds before there is a stream.
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
    /// A queue pair in RESET. Of the types iWARP has RC only.
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

    /// How long a message for which no receive is posted waits for one. Then, and with zero at once, the connection
    /// ends, as RFC 5041, section 7.2, has it. It holds for messages that begin to wait after the call.
    pub fn set_receive_wait(&mut self, wait: Duration) {
        self.receive_wait = wait;
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.init.qpn
    }
    /// Its type.
    pub fn qp_type(&self) -> QpType {
        self.init.qp_type
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// What it was created with.
    pub fn init(&self) -> &QpInit {
        &self.init
    }
    /// Its attributes as `ibv_query_qp` tells them. With a stream the numbers of READs and atomics are
    /// those that its two ends agreed on.
    pub fn attr(&self) -> QpAttr {
        QpAttr {
            state: self.state,
            cur_state: self.state,
            sq_draining: matches!(self.phase, Phase::Draining { .. }),
            ..self.attr
        }
    }

    /// Bytes of memory that this queue pair takes, queues included.
    pub fn footprint(&self) -> usize {
        size_of::<Self>()
            + self.sq.footprint()
            + self.rq.footprint()
            + self.tx.footprint()
            + self.rx.footprint()
            + self.serving.footprint()
    }

    /// Bytes of memory that the queues of a queue pair take which is created so; `usize::MAX` if that
    /// is more than there can be.
    pub fn queues_size(init: &QpInit) -> usize {
        crate::Qp::queues_size(init)
    }

    /// Queues a send work request. Call [`poll_transmit`](Self::poll_transmit) to get it moving; in ERR
    /// that completes it flushed, and so does the end of a stream that is being closed.
    ///
    /// # Errors
    /// See [`PostError`]. A SEND with immediate is one of the operations that iWARP has not.
    pub fn post_send(&mut self, _now: Time, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.state < QpState::Rts {
            return Err(PostError::State(self.state));
        }
        if !wr.op.is_of_rdmap() {
            return Err(PostError::Operation(self.init.qp_type));
        }
        self.sq.post(self.init.qp_type, wr)
    }

    /// Where the send queue ends now, for [`withdraw_sends`](Self::withdraw_sends).
    pub fn sends_posted(&self) -> SendMark {
        SendMark(self.sq.tail)
    }

    /// Takes back what was posted since `mark`. Only before [`poll_transmit`](Self::poll_transmit) is
    /// called again: what that has seen is on its way.
    pub fn withdraw_sends(&mut self, mark: SendMark) {
        self.sq.tail = mark.0;
    }

    /// Queues a receive work request. In the state ERR call [`poll_transmit`](Self::poll_transmit),
    /// which completes it flushed.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        self.rq.post(wr)
    }

    /// A completion of this queue pair with nothing but the fields that always mean something.
    pub(super) fn completion(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Completion {
        Completion { wr_id, status, opcode, qpn: self.init.qpn, ..Completion::EMPTY }
    }

    /// Goes to ERR and flushes both queues. What becomes of the stream is the caller's business.
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

    /// Completes all work flushed, in order.
    pub(super) fn flush<E: Env>(&mut self, env: &mut E) {
        while self.sq.head != self.sq.tail {
            self.complete_head(WcStatus::WrFlushErr, env);
        }
        self.tx.follow(self.sq.head);
        while !self.rq.is_empty() {
            self.fail_oldest_receive(WcStatus::WrFlushErr, env);
        }
    }

    /// Completes the receive that is taken in error, or if none is the oldest.
    pub(super) fn fail_oldest_receive<E: Env>(&mut self, status: WcStatus, env: &mut E) {
        let wr_id = self.rq.finish();
        env.complete(Side::Recv, self.completion(wr_id, status, WcOpcode::Recv));
    }

    /// Completes the oldest send work request. Successes are silent unless asked for; failures never.
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
