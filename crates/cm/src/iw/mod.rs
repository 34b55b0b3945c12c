//! iWARP connections: MPA's start-up frames over TCP (RFC 5044, section 7; RFC 6581).
//!
//! ```text
//!   initiator                              responder
//!     Connecting       -- TCP -->            AwaitRequest
//!     AwaitReply       -- request -->        Requested      the program accepts or refuses
//!     Up               <-- reply --          AwaitRtr
//!                      -- first frame -->    Up             in peer-to-peer mode
//! ```
//!
//! An established connection has handed its stream over to the queue pair. The driver reports when the stream ends. In peer-to-peer mode
//! the initiator's first frame, ready-to-receive, is sent and received here. So either program may send first, and the responder's cannot
//! send before the initiator can receive.
//!
//! | file | contents |
//! |---|---|
//! | `config` | configuration |
//! | `stream` | the interface to the driver, which has the sockets |
//! | `negotiate` | the parameters that the two ends agree on |
//! | `conn` | one connection and its states |
//! | `half_open` | peers that have not sent their request |
//! | `active`, `passive` | the two sides |

mod active;
mod config;
mod conn;
mod counters;
mod half_open;
mod negotiate;
mod passive;
mod stream;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use core::net::SocketAddr;

use rdmux_transport::Time;
use rdmux_transport::iwarp::StreamParams;
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::mpa::Startup;

pub use self::config::{Config, Markers, Revision};
use self::conn::Conn;
pub(crate) use self::conn::{Active, ConnEvent, Request, State};
pub use self::counters::Counters;
use self::half_open::HalfOpen;
pub(crate) use self::negotiate::Wishes;
pub use self::stream::{StreamId, StreamWish};
use crate::error::errno;
use crate::sink::{IdHandle, Sink};
use crate::timers::Timers;

/// The iWARP connections of a host.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    /// The most RDMA Reads that a queue pair serves at a time.
    most_ird: u16,
    conns: BTreeMap<StreamId, Conn>,
    /// Streams by queue pair, from connect or accept until the stream's end.
    by_qpn: BTreeMap<Qpn, StreamId>,
    timers: Timers<StreamId>,
    /// Connections whose peers have not sent their request.
    half_open: HalfOpen,
    /// Requests that wait for a listener with room, in order of arrival, and their number per address.
    queue: VecDeque<StreamId>,
    queue_lengths: BTreeMap<SocketAddr, usize>,
    /// Whether a listener may have room for a queued request.
    room: bool,
    last: u64,
}

/// An event of a connection, with its owner.
pub(crate) type Upcall = (StreamId, IdHandle, ConnEvent);

/// The result of processing the bytes received so far.
enum Step {
    /// The frame is not complete.
    More,
    /// The frame was complete and has been handled.
    Done(Option<ConnEvent>),
}

impl Streams {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            most_ird: config.max_ird.into(),
            config,
            counters: Counters::default(),
            conns: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            timers: Timers::new(),
            half_open: HalfOpen::default(),
            queue: VecDeque::new(),
            queue_lengths: BTreeMap::new(),
            room: false,
            last: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.conns.len()
    }
    /// Returns the number of pending deadlines.
    pub(crate) fn deadlines(&self) -> usize {
        self.timers.len()
    }
    pub(crate) fn get(&self, stream: StreamId) -> Option<&Conn> {
        self.conns.get(&stream)
    }
    /// Returns whether a queue pair has a stream, or will get one.
    pub(crate) fn has_stream(&self, qpn: Qpn) -> bool {
        self.by_qpn.contains_key(&qpn)
    }
    /// Returns whether an address accepts another peer: not while too many requests wait for its listener to have room.
    pub(crate) fn accepts(&self, local: SocketAddr) -> bool {
        let waiting = self.queue_lengths.get(&listener_of(local));
        waiting.is_none_or(|&waiting| waiting < self.config.max_half_open)
    }

    /// Returns the half-open connection to reset so that an address has room for another; none if there is room.
    pub(crate) fn to_shed(&self, local: SocketAddr) -> Option<StreamId> {
        if self.half_open.len_at(local) >= self.config.max_half_open {
            self.half_open.victim_at(local)
        } else if self.half_open.len() >= self.config.max_half_open_in_all {
            self.half_open.victim()
        } else {
            None
        }
    }

    /// Returns the half-open connection to reset when the driver has run out of descriptors.
    pub(crate) fn to_shed_anywhere(&self) -> Option<StreamId> {
        self.half_open.victim()
    }

    /// Resets a half-open connection, to make room for another.
    pub(crate) fn shed(&mut self, stream: StreamId, sink: &mut impl Sink) {
        if matches!(self.conns.get(&stream), Some(conn) if matches!(conn.state, State::AwaitRequest))
        {
            self.counters.shed += 1;
            self.reset(stream, sink);
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.room && !self.queue.is_empty() { Some(Time::ZERO) } else { self.timers.next() }
    }

    fn insert(&mut self, conn: Conn) -> StreamId {
        self.last += 1;
        let stream = StreamId(self.last);
        self.conns.insert(stream, conn);
        stream
    }

    /// Forgets a connection without sending anything.
    fn forget(&mut self, stream: StreamId) {
        let Some(mut conn) = self.conns.remove(&stream) else { return };
        self.timers.clear(&mut conn.deadline, stream);
        self.half_open.remove(conn.ends, stream);
        self.leave_queue(conn.ends.0, stream);
        if let Some(qpn) = conn.qpn {
            self.by_qpn.remove(&qpn);
        }
    }

    fn reset(&mut self, stream: StreamId, sink: &mut impl Sink) {
        self.forget(stream);
        sink.stream(StreamWish::Reset { stream });
    }

    /// Hands the stream over to the queue pair.
    fn hand_over(&mut self, stream: StreamId, params: StreamParams, sink: &mut impl Sink) {
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        let Some(qpn) = conn.qpn else { return };
        self.timers.clear(&mut conn.deadline, stream);
        conn.state = State::Up;
        self.counters.established += 1;
        sink.stream(StreamWish::HandOver { stream, qpn, params });
    }

    fn send_startup(&mut self, stream: StreamId, frame: &Startup<'_>, sink: &mut impl Sink) {
        let mut bytes = vec![0; frame.len()];
        frame.emit(&mut bytes);
        self.counters.frames_sent += 1;
        sink.stream(StreamWish::Send { stream, bytes });
    }

    /// Handles received bytes. Bytes beyond the number that [`Conn::wants`] returns are dropped.
    pub(crate) fn handle_data(
        &mut self,
        stream: StreamId,
        mut bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let owner = self.conns.get(&stream)?.owner;
        loop {
            let conn = self.conns.get_mut(&stream)?;
            let (taken, rest) = bytes.split_at_checked(conn.wants()).unwrap_or((bytes, &[]));
            if taken.is_empty() {
                return None;
            }
            conn.input.extend_from_slice(taken);
            bytes = rest;
            let step = match conn.state {
                State::AwaitReply(_) => self.take_reply(stream, sink),
                State::AwaitRequest => self.take_request(stream, sink),
                State::AwaitRtr(params) => self.take_rtr(stream, params, sink),
                _ => return None,
            };
            if let Step::Done(event) = step {
                return event.map(|event| (stream, owner, event));
            }
        }
    }

    /// Handles a failed TCP connection or the end of a stream, with an errno, or 0 if it ended in order.
    pub(crate) fn handle_ended(
        &mut self,
        now: Time,
        stream: StreamId,
        errno: i32,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let conn = self.conns.get_mut(&stream)?;
        let owner = conn.owner;
        let errno = if errno == 0 { errno::ECONNRESET } else { errno.abs() };
        if let State::AwaitReply(active) = &conn.state
            && active.revision == Revision::V2
        {
            self.fall_back(now, stream, sink);
            return None;
        }
        let what = match conn.state {
            State::AwaitRequest | State::Queued(_) | State::Requested(_) => None,
            // The program knows, or is about to learn, that the connection was established.
            State::Up | State::Closing => Some(ConnEvent::Disconnected),
            State::Connecting(_) | State::AwaitReply(_) | State::AwaitRtr(_) => {
                Some(failure(errno))
            }
        };
        self.forget(stream);
        what.map(|what| (stream, owner, what))
    }

    /// Handles the end of a queue pair's stream. The queue pair may have another one by now.
    pub(crate) fn handle_qp_ended(&mut self, qpn: Qpn, stream: StreamId) -> Option<Upcall> {
        self.by_qpn.get(&qpn).filter(|&&current| current == stream)?;
        let conn = self.conns.get(&stream)?;
        let owner = conn.owner;
        if !matches!(conn.state, State::Up | State::Closing) {
            return None;
        }
        self.forget(stream);
        Some((stream, owner, ConnEvent::Disconnected))
    }

    /// Returns the queue pairs selected by `of` that have streams, and the streams.
    pub(crate) fn qps(&self, of: impl Fn(Qpn) -> bool) -> vec::Vec<(Qpn, StreamId)> {
        let all = self.by_qpn.iter().map(|(&qpn, &stream)| (qpn, stream));
        all.filter(|&(qpn, _)| of(qpn)).collect()
    }

    /// Returns the connections whose deadline has passed.
    pub(crate) fn due(&self, now: Time) -> vec::Vec<StreamId> {
        self.timers.due(now).collect()
    }

    /// Removes the earliest timer that has expired, if there is one, and returns its connection.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<StreamId> {
        self.timers.pop_due(now)
    }

    /// Handles the deadline of a connection whose peer does not answer.
    pub(crate) fn handle_timeout(
        &mut self,
        stream: StreamId,
        sink: &mut impl Sink,
    ) -> Option<Upcall> {
        let conn = self.conns.get(&stream)?;
        let owner = conn.owner;
        let told = match conn.state {
            State::AwaitRequest | State::Queued(_) => {
                self.counters.silent += 1;
                false
            }
            _ => {
                self.counters.timeouts += 1;
                true
            }
        };
        self.reset(stream, sink);
        told.then_some((stream, owner, ConnEvent::Unreachable(-errno::ETIMEDOUT)))
    }

    /// Ends a connection that is established or about to be. Returns whether an event reports that now.
    ///
    /// # Errors
    /// When neither side has accepted it yet.
    pub(crate) fn disconnect(
        &mut self,
        stream: StreamId,
        sink: &mut impl Sink,
    ) -> Result<bool, ()> {
        let conn = self.conns.get_mut(&stream).ok_or(())?;
        match (&conn.state, conn.qpn) {
            (State::Up, Some(qpn)) => {
                conn.state = State::Closing;
                sink.stream(StreamWish::CloseQp { stream, qpn });
                Ok(false)
            }
            (State::Closing, _) => Ok(false),
            (State::AwaitRtr(_), _) => {
                self.reset(stream, sink);
                Ok(true)
            }
            _ => Err(()),
        }
    }

    /// Ends a connection that no id owns any more.
    pub(crate) fn release(&mut self, stream: StreamId, sink: &mut impl Sink) {
        let Some(conn) = self.conns.get(&stream) else { return };
        match (&conn.state, conn.qpn) {
            (State::Requested(_), _) => self.reject(stream, &[], sink),
            (State::Up, Some(qpn)) => {
                self.forget(stream);
                sink.stream(StreamWish::CloseQp { stream, qpn });
            }
            (State::Up | State::Closing, _) => self.forget(stream),
            _ => self.reset(stream, sink),
        }
    }
}

/// Returns the address that identifies a listener: without the interface, which a connection's link-local address has.
fn listener_of(local: SocketAddr) -> SocketAddr {
    SocketAddr::new(local.ip(), local.port())
}

/// Returns the event for an errno of TCP.
fn failure(errno: i32) -> ConnEvent {
    match errno {
        errno::ECONNREFUSED | errno::ECONNRESET => {
            ConnEvent::Rejected { status: -errno, private_data: vec::Vec::new() }
        }
        errno::ETIMEDOUT | errno::EHOSTUNREACH | errno::ENETUNREACH => {
            ConnEvent::Unreachable(-errno)
        }
        _ => ConnEvent::Failed(-errno),
    }
}
