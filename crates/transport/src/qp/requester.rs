//! The requester: turns the send queue into packets, and responses into completions.
//!
//! ```text
//!    head            cursor      started          tail      of the send queue
//!     | outstanding   |  to resend |  not yet sent  |
//!    una ...... packets in flight .. max_sent               PSNs
//! ```
//!
//! `emit` sends at the cursor, `ack` moves `una`, `retry` moves the cursor back, `mend` moves it
//! back and then forward again, and `window` limits how far the cursor may be ahead of `una`.

mod ack;
mod direct;
mod emit;
mod mend;
mod named;
mod retry;
mod window;

pub(crate) use emit::{Step, pad};
pub(crate) use named::MOST_NAMED;

use core::time::Duration;

use rdmux_wire::Psn;

use crate::attr::{QpAttr, QpState};
use crate::env::{Env, LinkCaps, QpEvent};
use crate::qp::{Qp, TxState};
use crate::time::Time;
use crate::timer::{Timer, Timers};
use crate::wr::WcStatus;
use mend::Mend;
use named::Naming;
use window::Window;

/// Number of packets of one kind (requests or responses) that are sent before the other kind gets its turn.
const QUANTUM: u32 = 16;

/// The maximum size of one READ request on a lossy link, in bytes and in packets: as much as may be lost at once,
/// since the responder has no window of its own.
const READ_CHUNK: (u32, u32) = (64 << 10, 64);

/// The most PSNs of one READ request on a lossless link; far below half the PSN space.
const READ_CHUNK_LOSSLESS: u32 = 1 << 20;

/// The state of the requester.
#[derive(Debug)]
pub(super) struct Requester {
    /// The send queue entry to send next, and how many of its PSNs have been sent.
    cursor: u32,
    offset: u32,
    /// The first entry without PSNs.
    started: u32,
    /// The oldest unacknowledged PSN.
    una: Psn,
    /// The PSN after the highest ever sent.
    max_sent: Psn,
    /// The first PSN of the next entry to start.
    next: Psn,
    /// Packets sent since the last that requested an ACK.
    since_ack_req: u32,
    /// Outstanding READ and atomic requests, and incomplete entries of that kind.
    rd_in_flight: u32,
    reads_pending: u32,
    /// The maximum number of PSNs of one READ request.
    read_chunk: u32,
    retry_left: u8,
    /// Whether the last expiry was not counted, because it was handled late.
    excused: bool,
    rnr_left: u8,
    /// The number of doublings of the early retransmission timer.
    backoff: u8,
    /// Whether the cursor was moved back and nothing has been acknowledged since.
    rewound: bool,
    /// Whether the cursor was moved back, the timer fired, or the acknowledgement of a retransmission is awaited.
    troubled: bool,
    mend: Mend,
    /// Whether, in SQD, everything that had been started has completed and this has been reported.
    drained: bool,
    /// The error of the entry at the cursor, which failed locally. It is reported when the entry is the oldest.
    stalled: Option<WcStatus>,
    /// Whether the driver may carry out WRITEs and READs itself, and how many bytes of the entry at
    /// the cursor it has copied.
    direct: bool,
    copied: u32,
    /// Number of the next requests that do not wait for a direct copy.
    unwilling: u8,
    naming: Naming,
    window: Window,
    timers: Timers,
    /// The start of the current interval without progress.
    last_progress: Time,
    /// The minimum of the early timer.
    least_early: Duration,
    /// The packet whose round-trip time is being measured, and the time when it was sent.
    rtt_psn: Psn,
    rtt_at: Time,
    /// Smoothed round-trip time; zero while unknown.
    srtt: Duration,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            cursor: 0,
            offset: 0,
            started: 0,
            una: Psn::new(0),
            max_sent: Psn::new(0),
            next: Psn::new(0),
            since_ack_req: 0,
            rd_in_flight: 0,
            reads_pending: 0,
            read_chunk: 1,
            retry_left: 0,
            excused: false,
            rnr_left: 0,
            backoff: 0,
            rewound: false,
            troubled: false,
            mend: Mend::new(Psn::new(0)),
            drained: false,
            stalled: None,
            direct: false,
            copied: 0,
            unwilling: 0,
            naming: Naming::default(),
            window: Window::lossless(),
            timers: Timers::STOPPED,
            last_progress: Time::ZERO,
            least_early: retry::LEAST_EARLY,
            rtt_psn: Psn::new(0),
            rtt_at: Time::NEVER,
            srtt: Duration::ZERO,
        }
    }
}

impl Requester {
    /// Starts the requester in the transition from RTR to RTS.
    pub(super) fn start(&mut self, attr: &QpAttr, mtu: u32, link: LinkCaps) {
        let lossless = link.lossless;
        *self = Self {
            una: attr.sq_psn,
            max_sent: attr.sq_psn,
            next: attr.sq_psn,
            mend: Mend::new(attr.sq_psn),
            retry_left: attr.retry_cnt,
            rnr_left: attr.rnr_retry,
            direct: link.by_reference,
            // The timer of a peer that has died may already run.
            timers: self.timers,
            window: if lossless { Window::lossless() } else { Window::lossy(mtu) },
            read_chunk: if lossless {
                READ_CHUNK_LOSSLESS
            } else {
                (READ_CHUNK.0 / mtu).clamp(1, READ_CHUNK.1)
            },
            ..Self::default()
        };
    }

    /// Returns how many packets may be in flight.
    pub(super) const fn window_size(&self) -> u32 {
        self.window.size()
    }

    /// Applies the retry limits, which may have changed, in the transition back to RTS.
    pub(super) fn resume(&mut self, attr: &QpAttr) {
        self.retry_left = attr.retry_cnt;
        self.excused = false;
        self.rnr_left = attr.rnr_retry;
    }

    /// Stops waiting for acknowledgements.
    pub(super) fn stop(&mut self) {
        self.una = self.max_sent;
        self.copied = 0;
        self.stalled = None;
        self.disarm();
        self.timers.stop(Timer::Rnr);
    }

    /// Stops waiting for acknowledgements and stops all timers, because the queue pair fails.
    pub(super) fn stop_all(&mut self) {
        self.stop();
        self.timers = Timers::STOPPED;
    }

    /// Starts [`Timer::PeerGone`], unless it runs.
    pub(super) fn peer_gone(&mut self, expiry: Time) {
        if !self.timers.is_running(Timer::PeerGone) {
            self.timers.start(Timer::PeerGone, expiry);
        }
    }

    /// Returns whether the requester is waiting for the time named in an RNR NAK.
    #[inline]
    fn is_rnr(&self) -> bool {
        self.timers.is_running(Timer::Rnr)
    }

    /// Returns whether any packet is unacknowledged.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.una != self.max_sent
    }

    /// Returns the send queue entry to send next.
    #[inline]
    pub(super) fn next_entry(&self) -> u32 {
        self.cursor
    }

    /// Returns whether that entry already has its PSNs, because part of it has been sent, possibly
    /// before a retransmission.
    #[inline]
    pub(super) fn is_under_way(&self) -> bool {
        self.cursor != self.started
    }

    /// Moves the cursor to an entry that has not been started. All entries before it are complete.
    #[inline]
    pub(super) fn go_on_at(&mut self, entry: u32) {
        (self.cursor, self.started) = (entry, entry);
    }

    /// Returns the PSN of the next new packet.
    #[inline]
    pub(super) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Consumes the next PSN for a packet that is never acknowledged.
    #[inline]
    pub(super) fn use_psn(&mut self) {
        self.next = self.next.add(1);
    }

    /// Returns whether, in SQD, everything that had been started has completed and this has been reported.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Starts to drain in the transition to SQD: started entries complete, and then this is reported.
    pub(super) fn start_draining(&mut self) {
        self.drained = false;
    }

    /// Returns whether a new request of one packet may be sent.
    #[inline]
    pub(super) fn may_send_more(&self) -> bool {
        !self.is_rnr()
            && self.stalled.is_none()
            && self.next.diff(self.una).unsigned_abs() < self.window.size()
    }

    /// Records that the entry at the cursor, the first that was not started, was sent as one packet.
    #[inline]
    pub(super) fn started_one(&mut self) {
        self.next = self.next.add(1);
        self.cursor = self.cursor.wrapping_add(1);
        self.started = self.cursor;
        self.offset = 0;
    }

    fn disarm(&mut self) {
        self.timers.stop(Timer::Retransmit);
        self.rtt_at = Time::NEVER;
    }
}

impl Qp {
    /// Returns the PSN of the oldest unacknowledged request: the peer has read everything sent
    /// before it. None while the queue pair does not wait for acknowledgements.
    #[inline]
    pub fn unacknowledged(&self) -> Option<Psn> {
        let waits = matches!(self.state, QpState::Rts | QpState::Sqd) && self.qp_type.is_reliable();
        waits.then_some(self.req.una)
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout), if ever. Every call that
    /// takes the queue pair by `&mut` may change it.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.req.timers.next()
    }

    /// Sends requests and responses in turn, then the ACK.
    pub(crate) fn transmit_all<E: Env>(&mut self, now: Time, budget: u32, env: &mut E) -> TxState {
        let mut left = budget;
        if self.lossless && !self.piggybacks_acks && self.may_request() {
            // Where the ACK costs no system call it is sent first, as by an adapter: programs that
            // sleep, such as perftest, expect their completion before the reply.
            self.flush_ack(now, env);
        }
        loop {
            let before = left;
            if self.resp.has_responses() {
                match self.transmit_responses(now, left.min(QUANTUM), env) {
                    Some(sent) => left -= sent,
                    None => return TxState::Blocked,
                }
            }
            match self.transmit_requests(now, left.min(QUANTUM), env) {
                // A copy may count more than was left of the budget.
                Some(sent) => left = left.saturating_sub(sent),
                None => return TxState::Blocked,
            }
            if left == 0 || left == before {
                break;
            }
        }
        // An ACK is piggybacked on the packets just sent. By itself it waits for `flush_ack`, since
        // the program may be about to send a reply that can carry it.
        if left < budget {
            self.flush_ack(now, env);
        }
        if left == 0 && budget != 0 { TxState::More } else { TxState::Idle }
    }

    /// Sends requests of at most `budget` packets; a direct copy may exceed this. Returns None if the link is full.
    fn transmit_requests<E: Env>(&mut self, now: Time, budget: u32, env: &mut E) -> Option<u32> {
        let mut sent = 0;
        while sent < budget && self.may_request() {
            match self.transmit_request(now, sent + 1 < budget, env) {
                Step::Sent => sent += 1,
                Step::Copied(cost) => sent += cost,
                Step::Again => {}
                Step::Nothing => break,
                Step::Busy => return None,
            }
        }
        Some(sent)
    }

    #[inline]
    fn may_request(&self) -> bool {
        self.req.cursor != self.sq.tail
            && matches!(self.state, QpState::Rts | QpState::Sqd)
            && !self.req.is_rnr()
            && self.req.stalled.is_none()
    }

    /// In SQD, reports once that everything that had been started has completed.
    pub(crate) fn check_drained<E: Env>(&mut self, env: &mut E) {
        let is_done = self.sq.head == self.req.started && self.req.copied == 0;
        if self.state == QpState::Sqd && !self.req.drained && is_done {
            self.req.drained = true;
            if self.attr.en_sqd_async_notify {
                env.event(QpEvent::SqDrained);
            }
        }
    }

    /// Fails the oldest send work request. RC and XRC move to ERR. UC and UD flush their send queue and continue to
    /// receive in SQE (IBTA 10.3.1.6).
    pub(crate) fn fail_send<E: Env>(&mut self, status: WcStatus, env: &mut E) {
        if self.sq.head != self.sq.tail {
            self.complete_head(status, env);
        }
        if self.qp_type.is_reliable() {
            return self.enter_error(env);
        }
        self.state = QpState::Sqe;
        self.req.stop();
        self.flush_sends(env);
    }
}
