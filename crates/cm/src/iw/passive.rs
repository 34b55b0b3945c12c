//! The responder: receives a request, answers it, and waits for the first frame.

use alloc::vec::Vec;
use core::net::SocketAddr;

use rdmux_transport::Time;
use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::ddp::Header;
use rdmux_wire::iwarp::mpa::{Enhanced, Startup};
use rdmux_wire::iwarp::rdmap::ReadRequest;
use rdmux_wire::iwarp::rtr;

use super::conn::{Conn, ConnEvent, Request, State, is_rtr, rx_framing, tx_framing};
use super::negotiate::{self, BadRequest, Wishes};
use super::{Step, StreamId, StreamWish, Streams, listener_of};
use crate::error::errno;
use crate::sink::{IdHandle, Sink};

/// The owner of connections that have none yet.
const NOBODY: IdHandle = IdHandle(0);

impl Streams {
    /// Handles a connected peer.
    pub(crate) fn handle_accepted(
        &mut self,
        now: Time,
        ends: (SocketAddr, SocketAddr),
    ) -> StreamId {
        let stream = self.insert(Conn::new(NOBODY, ends, State::AwaitRequest));
        self.half_open.insert(ends, stream);
        if let Some(conn) = self.conns.get_mut(&stream) {
            let at = now.after(self.config.request_timeout);
            self.timers.set(&mut conn.deadline, stream, at);
        }
        stream
    }

    /// Handles the initiator's frame, if it is complete.
    pub(super) fn take_request(&mut self, stream: StreamId, sink: &mut impl Sink) -> Step {
        let Some(conn) = self.conns.get_mut(&stream) else { return Step::Done(None) };
        let request = match Startup::need(&conn.input) {
            Ok(need) if need > conn.input.len() => return Step::More,
            _ => Startup::parse(&conn.input),
        };
        let checked = match &request {
            Ok(request) => negotiate::check_request(&self.config, request),
            Err(_) => Err(BadRequest::Reset),
        };
        match checked {
            Ok(asked) => {
                self.timers.clear(&mut conn.deadline, stream);
                self.half_open.remove(conn.ends, stream);
                let private_data = request.map_or_else(|_| Vec::new(), |r| r.private_data.into());
                conn.input.clear();
                self.counters.frames_received += 1;
                Step::Done(Some(ConnEvent::Request(Request { asked, private_data })))
            }
            Err(BadRequest::Reset) => {
                self.counters.bad_request += 1;
                self.reset(stream, sink);
                Step::Done(None)
            }
            Err(BadRequest::Refuse(asked)) => {
                conn.state = State::Requested(asked);
                self.reject(stream, &[], sink);
                Step::Done(None)
            }
        }
    }

    /// Gives a request its own id.
    pub(crate) fn announce(&mut self, stream: StreamId, owner: IdHandle, request: &Request) {
        if let Some(conn) = self.conns.get_mut(&stream) {
            self.timers.clear(&mut conn.deadline, stream);
            conn.owner = owner;
            conn.state = State::Requested(request.asked);
            let local = conn.ends.0;
            self.leave_queue(local, stream);
        }
    }

    /// Removes a request from the queue.
    pub(super) fn leave_queue(&mut self, local: SocketAddr, stream: StreamId) {
        let Some(at) = self.queue.iter().position(|&waiting| waiting == stream) else { return };
        self.queue.remove(at);
        let listener = listener_of(local);
        if let Some(count) = self.queue_lengths.get_mut(&listener) {
            *count -= 1;
            if *count == 0 {
                self.queue_lengths.remove(&listener);
            }
        }
    }

    /// Queues a request until a listener has room, but at most until `until` if that is given.
    pub(crate) fn enqueue(&mut self, stream: StreamId, request: Request, until: Option<Time>) {
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        conn.state = State::Queued(request);
        if !self.queue.contains(&stream) {
            self.queue.push_back(stream);
            *self.queue_lengths.entry(listener_of(conn.ends.0)).or_default() += 1;
        }
        match until {
            Some(at) if conn.deadline.at().is_none() => {
                self.timers.set(&mut conn.deadline, stream, at);
            }
            Some(_) => {}
            None => self.timers.clear(&mut conn.deadline, stream),
        }
    }

    /// Marks queued requests for another check, because a listener was added, was removed, or has fewer requests.
    pub(crate) fn check_queue(&mut self) {
        self.room = true;
    }

    /// Returns the queued requests to check again.
    pub(crate) fn queued_requests(&mut self) -> Vec<(StreamId, Request)> {
        if !core::mem::take(&mut self.room) {
            return Vec::new();
        }
        let waiting = |&stream: &StreamId| match &self.conns.get(&stream)?.state {
            State::Queued(request) => Some((stream, request.clone())),
            _ => None,
        };
        self.queue.iter().filter_map(waiting).collect()
    }

    /// Refuses a request that has no listener.
    pub(crate) fn refuse(&mut self, stream: StreamId, sink: &mut impl Sink) {
        self.counters.no_listener += 1;
        self.reset(stream, sink);
    }

    /// Returns the largest size of an answer's private data.
    pub(crate) fn answer_room(&self, stream: StreamId) -> Option<usize> {
        match &self.conns.get(&stream)?.state {
            State::Requested(asked) => {
                let taken = asked.enhanced.map_or(0, |_| Enhanced::LEN);
                Some(Startup::MAX_PRIVATE_DATA - taken)
            }
            _ => None,
        }
    }

    /// Accepts a request. Returns the negotiated parameters if the connection is established, or none if the first frame is
    /// awaited.
    ///
    /// # Errors
    /// When there is no request to accept.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        stream: StreamId,
        qpn: Qpn,
        wishes: &Wishes,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(StreamParams, bool), ()> {
        let conn = self.conns.get_mut(&stream).ok_or(())?;
        let State::Requested(asked) = conn.state else { return Err(()) };
        let (frame, params) = negotiate::reply(&self.config, &asked, wishes, private_data);
        conn.qpn = Some(qpn);
        self.by_qpn.insert(qpn, stream);
        if params.rtr.is_some() {
            conn.state = State::AwaitRtr(params);
            let at = now.after(self.config.rtr_timeout);
            self.timers.set(&mut conn.deadline, stream, at);
        }
        self.send_startup(stream, &frame, sink);
        let up = params.rtr.is_none();
        if up {
            self.hand_over(stream, params, sink);
        }
        Ok((params, up))
    }

    /// Refuses a request.
    pub(crate) fn reject(&mut self, stream: StreamId, private_data: &[u8], sink: &mut impl Sink) {
        let Some(conn) = self.conns.get(&stream) else { return };
        let State::Requested(asked) = conn.state else { return };
        let frame = negotiate::refusal(&asked, private_data);
        self.send_startup(stream, &frame, sink);
        self.forget(stream);
        sink.stream(StreamWish::Close { stream });
    }

    /// Handles the initiator's first frame, if it is complete.
    pub(super) fn take_rtr(
        &mut self,
        stream: StreamId,
        params: StreamParams,
        sink: &mut impl Sink,
    ) -> Step {
        let Some(conn) = self.conns.get(&stream) else { return Step::Done(None) };
        let framing = rx_framing(&params);
        let expected = params.rtr.unwrap_or(Rtr::Write);
        let need = framing.need(0, &conn.input);
        if need > conn.input.len() && need <= rtr::Frame::MAX_LEN {
            return Step::More;
        }
        let frame = framing.parse(0, &conn.input).ok().flatten();
        let Some(frame) = frame.filter(|frame| is_rtr(expected, frame)) else {
            self.counters.bad_rtr += 1;
            self.reset(stream, sink);
            return Step::Done(Some(ConnEvent::Failed(-errno::EPROTO)));
        };
        if expected == Rtr::Read {
            // A Read of zero bytes asks for no data, and is answered.
            let asked = frame.contiguous().and_then(|ulpdu| {
                ReadRequest::parse(ulpdu.get(Header::parse(ulpdu).ok()?.len()..)?).ok()
            });
            let request = asked.unwrap_or(rtr::READ_REQUEST);
            let response = rtr::read_response(tx_framing(&params), &request);
            sink.stream(StreamWish::Send { stream, bytes: response.to_vec() });
        }
        self.counters.rtrs += 1;
        self.hand_over(stream, params, sink);
        Step::Done(Some(ConnEvent::Established { params, private_data: Vec::new() }))
    }
}
