//! The initiator: sends the request, checks the reply, and sends the first frame.

use alloc::vec::Vec;
use core::net::SocketAddr;

use rdmux_transport::Time;
use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::ddp::{Header, Model, Untagged, queue};
use rdmux_wire::iwarp::mpa::{Flags, Startup};
use rdmux_wire::iwarp::rdmap::Opcode;
use rdmux_wire::iwarp::terminate::{Fault, Terminate};
use rdmux_wire::{Stag, iwarp::rtr};

use super::conn::{Active, Conn, ConnEvent, State, tx_framing};
use super::negotiate::{self, BadReply};
use super::{Revision, Step, StreamId, StreamWish, Streams};
use crate::error::errno;
use crate::sink::{IdHandle, Sink};

impl Streams {
    /// Starts a connection for a queue pair that has no stream.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        owner: IdHandle,
        (local, remote): (SocketAddr, SocketAddr),
        qpn: Qpn,
        active: Active,
        sink: &mut impl Sink,
    ) -> StreamId {
        let tos = active.tos;
        let mut conn = Conn::new(owner, (local, remote), State::Connecting(active));
        conn.qpn = Some(qpn);
        let stream = self.insert(conn);
        self.by_qpn.insert(qpn, stream);
        self.await_reply(now, stream);
        sink.stream(StreamWish::Connect { stream, local, remote, tos });
        stream
    }

    fn await_reply(&mut self, now: Time, stream: StreamId) {
        if let Some(conn) = self.conns.get_mut(&stream) {
            let at = now.after(self.config.reply_timeout);
            self.timers.set(&mut conn.deadline, stream, at);
        }
    }

    /// Sends the request: TCP is connected.
    pub(crate) fn handle_connected(&mut self, stream: StreamId, sink: &mut impl Sink) {
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        let State::Connecting(active) = &conn.state else { return };
        let active = active.clone();
        let Active { revision, wishes, private_data, .. } = &active;
        let request = negotiate::request(&self.config, *revision, wishes, private_data);
        let mut bytes = alloc::vec![0; request.len()];
        request.emit(&mut bytes);
        conn.state = State::AwaitReply(active);
        self.counters.frames_sent += 1;
        sink.stream(StreamWish::Send { stream, bytes });
    }

    /// Retries once with revision 1: a peer that does not know revision 2 resets or closes the stream.
    pub(super) fn fall_back(&mut self, now: Time, stream: StreamId, sink: &mut impl Sink) {
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        let State::AwaitReply(active) = &conn.state else { return };
        let active = Active { revision: Revision::V1, ..active.clone() };
        let ((local, remote), tos) = (conn.ends, active.tos);
        conn.state = State::Connecting(active);
        conn.input.clear();
        self.counters.fallbacks += 1;
        self.await_reply(now, stream);
        sink.stream(StreamWish::Connect { stream, local, remote, tos });
    }

    /// Handles the responder's frame, if it is complete.
    pub(super) fn take_reply(&mut self, stream: StreamId, sink: &mut impl Sink) -> Step {
        let Some(conn) = self.conns.get(&stream) else { return Step::Done(None) };
        let State::AwaitReply(active) = &conn.state else { return Step::Done(None) };
        let reply = match Startup::need(&conn.input) {
            Ok(need) if need > conn.input.len() => return Step::More,
            _ => Startup::parse(&conn.input),
        };
        let outcome = reply.map_err(|_| BadReply::Invalid).and_then(|reply| {
            let Active { revision, wishes, .. } = active;
            negotiate::conclude(&self.config, *revision, wishes, self.most_ird, &reply)
        });
        let private_data: Vec<u8> = reply.map_or_else(|_| Vec::new(), |r| r.private_data.into());
        let markers = reply.is_ok_and(|reply| reply.flags.has(Flags::MARKERS));
        match outcome {
            Ok(params) => {
                self.counters.frames_received += 1;
                self.send_rtr(stream, &params, sink);
                self.hand_over(stream, params, sink);
                Step::Done(Some(ConnEvent::Established { params, private_data }))
            }
            Err(BadReply::Rejected) => {
                self.counters.frames_received += 1;
                self.forget(stream);
                sink.stream(StreamWish::Close { stream });
                let status = -errno::ECONNREFUSED;
                Step::Done(Some(ConnEvent::Rejected { status, private_data }))
            }
            Err(BadReply::Invalid) => self.terminate(stream, Fault::MpaStartup, markers, sink),
            Err(BadReply::InsufficientIrd) => {
                self.terminate(stream, Fault::MpaInsufficientIrd, markers, sink)
            }
            Err(BadReply::NoMatchingRtr) => {
                self.terminate(stream, Fault::MpaNoMatchingRtr, markers, sink)
            }
        }
    }

    fn send_rtr(&mut self, stream: StreamId, params: &StreamParams, sink: &mut impl Sink) {
        let framing = tx_framing(params);
        let frame = match params.rtr {
            None => return,
            Some(Rtr::Write) => rtr::write(framing),
            Some(Rtr::Read) => rtr::read(framing),
            Some(Rtr::Send) => rtr::send(framing),
        };
        self.counters.rtrs += 1;
        sink.stream(StreamWish::Send { stream, bytes: frame.to_vec() });
    }

    /// Ends a connection with a Terminate that gives the peer the reason. The peer may want markers.
    fn terminate(
        &mut self,
        stream: StreamId,
        fault: Fault,
        markers: bool,
        sink: &mut impl Sink,
    ) -> Step {
        self.counters.bad_reply += 1;
        let untagged =
            Untagged { last: true, invalidate: Stag(0), qn: queue::TERMINATE, msn: 1, mo: 0 };
        let header = Header::new(Opcode::Terminate, Model::Untagged(untagged)).to_buf();
        let mut message = [0; Terminate::MAX_LEN];
        let len = Terminate::new(fault).emit(&mut message);
        // A peer that asked for CRCs could not read it without one. A peer that did not ask ignores them.
        let framing = rdmux_wire::iwarp::fpdu::Framing { crc: true, markers };
        let mut bytes = [0; 128];
        let len = framing.emit(0, &[&header, &message[..len]], &mut bytes);
        self.forget(stream);
        sink.stream(StreamWish::Send { stream, bytes: bytes[..len].to_vec() });
        sink.stream(StreamWish::Close { stream });
        Step::Done(Some(ConnEvent::Failed(-errno::EPROTO)))
    }
}
