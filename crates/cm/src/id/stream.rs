//! iWARP: connections over TCP, with the same ids and events.

use alloc::vec::Vec;
use core::net::SocketAddr;

use rdmux_transport::Time;
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_transport::iwarp::StreamParams;
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::mpa::{Enhanced, Startup};

use super::connect::check_len;
use super::entry::{Id, IdState, Link};
use super::resolve::datagram;
use super::route::route_of;
use super::{EventBody, Manager, normalised};
use crate::address::Addr;
use crate::error::{CmError, Command};
use crate::event::{EventKind, EventParam};
use crate::iw::{Active, ConnEvent, Request, Revision, StreamId, Upcall, Wishes};
use crate::params::{ConnParam, Negotiated, Route};
use crate::ports::PortSpace;
use crate::sink::{IdHandle, LocalAddress, Sink};

/// The outcome of a request.
enum Fate {
    /// The request goes to this listener, on this device.
    For(IdHandle, LocalAddress),
    /// The backlog of its listener is full.
    Waits,
    /// There is no listener.
    Nobody,
}

impl Manager {
    /// Handles a peer's connection to a listening socket; `local` and `remote` are the socket's addresses. The driver then reads as many
    /// bytes as [`stream_wants`](Self::stream_wants) returns, or notices the stream's end.
    pub fn handle_stream_accepted(
        &mut self,
        now: Time,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> StreamId {
        self.iw.handle_accepted(now, (normalised(local), normalised(remote)))
    }

    /// Returns whether further peers of a listening socket may be accepted: not while too many of its requests wait for the
    /// listener's program to take earlier ones.
    pub fn accepts_streams(&self, local: SocketAddr) -> bool {
        self.iw.accepts(normalised(local))
    }

    /// Returns the connection without a request that must be reset before another peer of this listening socket is accepted; none
    /// if there is room. The driver passes in the bytes that have arrived on it, which may be its request, and then calls
    /// [`shed_stream`](Self::shed_stream). It repeats this until none is returned.
    pub fn stream_to_shed(&self, local: SocketAddr) -> Option<StreamId> {
        self.iw.to_shed(normalised(local))
    }

    /// Returns the connection to reset for a driver that has run out of descriptors, likewise.
    pub fn any_stream_to_shed(&self) -> Option<StreamId> {
        self.iw.to_shed_anywhere()
    }

    /// Resets a connection whose peer has not sent its request yet. Does nothing to other streams.
    pub fn shed_stream(&mut self, stream: StreamId, sink: &mut impl Sink) {
        self.iw.shed(stream, sink);
    }

    /// Returns the id that owns a stream's connection; none while it is not known.
    pub fn id_of_stream(&self, stream: StreamId) -> Option<IdHandle> {
        self.iw.get(stream).map(|conn| conn.owner).filter(|id| self.ids.contains_key(id))
    }

    /// Handles the success of [`StreamWish::Connect`](crate::iw::StreamWish::Connect): the stream is connected, from `local`.
    pub fn handle_stream_connected(
        &mut self,
        now: Time,
        stream: StreamId,
        local: SocketAddr,
        sink: &mut impl Sink,
    ) {
        let _ = now;
        let owner = self.iw.get(stream).map(|conn| conn.owner);
        if let Some(route) = owner.and_then(|id| self.ids.get_mut(&id)?.route.as_mut()) {
            // If the port was in use in TCP, the kernel took another one.
            route.src = normalised(local).into();
        }
        self.iw.handle_connected(stream, sink);
    }

    /// Returns the streams whose deadline has passed. The driver reads the bytes that have arrived on them before
    /// it calls [`handle_timeout`](Self::handle_timeout), because it may have been late itself.
    pub fn due_streams(&self, now: Time) -> Vec<StreamId> {
        self.iw.due(now)
    }

    /// Returns how many bytes of a stream may be read now. With 0 only its end matters.
    pub fn stream_wants(&self, stream: StreamId) -> usize {
        self.iw.get(stream).map_or(0, |conn| conn.wants())
    }

    /// Returns whether a queue pair has the stream, or is about to get it. A driver that notices the stream's end before the handover
    /// hands it over anyway if it can, and then does not call [`handle_stream_ended`](Self::handle_stream_ended): the queue pair can
    /// notice the end only from the stream.
    pub fn is_stream_up(&self, stream: StreamId) -> bool {
        self.iw.get(stream).is_some_and(|conn| conn.is_up())
    }

    /// Handles received bytes, at most as many as [`stream_wants`](Self::stream_wants) returns; others are lost.
    pub fn handle_stream_data(
        &mut self,
        now: Time,
        stream: StreamId,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) {
        let upcall = self.iw.handle_data(stream, bytes, sink);
        self.handle_stream_upcall(now, upcall, sink);
    }

    /// Handles a stream that could not be connected (with an errno) or that ended (with an errno, or 0
    /// for an orderly end). The driver has forgotten it.
    pub fn handle_stream_ended(
        &mut self,
        now: Time,
        stream: StreamId,
        errno: i32,
        sink: &mut impl Sink,
    ) {
        let upcall = self.iw.handle_ended(now, stream, errno, sink);
        self.handle_stream_upcall(now, upcall, sink);
    }

    /// Handles the end of this stream of a queue pair, as its process reports it, or a failed handover. Ignored if the
    /// queue pair has another stream by now.
    pub fn handle_qp_stream_ended(
        &mut self,
        now: Time,
        qpn: Qpn,
        stream: StreamId,
        sink: &mut impl Sink,
    ) {
        let upcall = self.iw.handle_qp_ended(qpn, stream);
        self.handle_stream_upcall(now, upcall, sink);
    }

    /// Handles the loss of queue pairs, with their process or its device, and of their streams.
    pub fn handle_qps_gone(&mut self, now: Time, gone: impl Fn(Qpn) -> bool, sink: &mut impl Sink) {
        for (qpn, stream) in self.iw.qps(gone) {
            self.handle_qp_stream_ended(now, qpn, stream, sink);
        }
    }

    /// Returns whether this id's connection is iWARP's, so that its queue pair must be too.
    pub fn is_iwarp(&self, id: IdHandle) -> bool {
        let device = self.ids.get(&id).and_then(|i| i.device.as_ref());
        device.is_some_and(|d| d.transport == TransportType::Iwarp)
    }

    /// Returns the address of an id's listening sockets, if its listener accepts iWARP peers: the id's address, or
    /// a wildcard, with whether it excludes IPv4. The driver opens the sockets before
    /// [`listen`](Self::listen). If they cannot be opened and iWARP is the id's only transport, the program's request to listen fails.
    pub fn stream_listener(&self, id: IdHandle) -> Option<StreamListener> {
        let found = self.ids.get(&id)?;
        let local = found.local?.socket().filter(|_| found.may_have_streams())?;
        let v6_only = found.options.af_only.unwrap_or(self.cm.config.bind_v6_only);
        let only = found.only.is_some_and(|only| only.transport == TransportType::Iwarp);
        Some(StreamListener { local, v6_only, only })
    }

    /// Handles the deadlines of streams that are due.
    pub(super) fn handle_stream_timeouts(&mut self, now: Time, sink: &mut impl Sink) {
        for (stream, request) in self.iw.queued_requests() {
            self.stream_requested(now, stream, request, sink);
        }
        while let Some(stream) = self.iw.pop_due(now) {
            let upcall = self.iw.handle_timeout(stream, sink);
            self.handle_stream_upcall(now, upcall, sink);
        }
    }

    /// Connects: opens a stream, on which the request is sent.
    pub(super) fn connect_stream(
        &mut self,
        now: Time,
        id: IdHandle,
        param: &ConnParam,
        route: &Route,
        sink: &mut impl Sink,
    ) -> Result<StreamId, CmError> {
        let command = Command::Connect;
        let revision = self.iw.config.revision;
        let taken = if revision == Revision::V2 { Enhanced::LEN } else { 0 };
        let room = Startup::MAX_PRIVATE_DATA - taken;
        check_len(id, command, param.private_data.len(), room)?;
        self.check_stream_free(id, command, param.qp_num)?;
        let options = self.get(id, command)?.options;
        let peer_to_peer =
            param.peer_to_peer.or(options.peer_to_peer).unwrap_or(self.iw.config.peer_to_peer);
        let active = Active {
            revision,
            wishes: Wishes {
                peer_to_peer,
                ord: param.initiator_depth.into(),
                ird: param.responder_resources.into(),
            },
            private_data: param.private_data.clone(),
            tos: options.tos.unwrap_or(0),
        };
        let (Addr::Ip(src), Addr::Ip(dst)) = (route.src, route.dst) else {
            return Err(CmError::Family { id, command });
        };
        Ok(self.iw.connect(now, id, (src, dst), param.qp_num, active, sink))
    }

    fn check_stream_free(&self, id: IdHandle, command: Command, qpn: Qpn) -> Result<(), CmError> {
        if self.iw.has_stream(qpn) {
            let what = "the queue pair has a connection already";
            return Err(CmError::Invalid { id, command, what });
        }
        Ok(())
    }

    /// Accepts a request. ESTABLISHED follows, at once if the peer need not send anything more.
    pub(super) fn accept_stream(
        &mut self,
        now: Time,
        id: IdHandle,
        stream: StreamId,
        param: &ConnParam,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Accept;
        let Some(room) = self.iw.answer_room(stream) else {
            return Err(self.no_request(id, command));
        };
        check_len(id, command, param.private_data.len(), room)?;
        self.check_stream_free(id, command, param.qp_num)?;
        let wishes = Wishes {
            peer_to_peer: false,
            ord: param.initiator_depth.into(),
            ird: param.responder_resources.into(),
        };
        let qpn = param.qp_num;
        let accepted = self.iw.accept(now, stream, qpn, &wishes, &param.private_data, sink);
        let (params, up) = accepted.map_err(|()| self.no_request(id, command))?;
        if up {
            self.stream_established(id, &params, Vec::new(), sink);
        }
        Ok(())
    }

    /// Refuses a request.
    pub(super) fn reject_stream(
        &mut self,
        id: IdHandle,
        stream: StreamId,
        private_data: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::Reject;
        let Some(room) = self.iw.answer_room(stream) else {
            return Err(self.no_request(id, command));
        };
        check_len(id, command, private_data.len(), room)?;
        self.iw.reject(stream, private_data, sink);
        Ok(())
    }

    /// Returns the reason why there is no request to answer: the peer is gone, or the request was answered.
    fn no_request(&self, id: IdHandle, command: Command) -> CmError {
        match self.ids.get(&id).map(|found| found.link) {
            Some(Link::Stream(stream)) if self.iw.get(stream).is_none() => {
                CmError::PeerGone { id, command }
            }
            _ => self.wrong_state(id, command),
        }
    }

    /// Disconnects a connection.
    pub(super) fn disconnect_stream(
        &mut self,
        id: IdHandle,
        stream: StreamId,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        if self.iw.get(stream).is_none() {
            return Ok(());
        }
        let ended = self.iw.disconnect(stream, sink);
        if ended.map_err(|()| self.wrong_state(id, Command::Disconnect))? {
            self.stream_over(id, EventBody::new(EventKind::Disconnected), sink);
        }
        Ok(())
    }

    fn handle_stream_upcall(&mut self, now: Time, upcall: Option<Upcall>, sink: &mut impl Sink) {
        let Some((stream, id, what)) = upcall else { return };
        match what {
            ConnEvent::Request(request) => self.stream_requested(now, stream, request, sink),
            ConnEvent::Established { params, private_data } => {
                self.stream_established(id, &params, private_data, sink);
            }
            ConnEvent::Rejected { status, private_data } => {
                let param = ConnParam { private_data, ..Default::default() };
                let body = EventBody::failed(EventKind::Rejected, status);
                self.stream_failed(id, EventBody { param: EventParam::Conn(param), ..body }, sink);
            }
            ConnEvent::Unreachable(status) => {
                self.stream_failed(id, EventBody::failed(EventKind::Unreachable, status), sink);
            }
            ConnEvent::Failed(status) => {
                self.stream_failed(id, EventBody::failed(EventKind::ConnectError, status), sink);
            }
            ConnEvent::Disconnected => {
                self.stream_over(id, EventBody::new(EventKind::Disconnected), sink);
            }
        }
    }

    fn stream_failed(&mut self, id: IdHandle, body: EventBody, sink: &mut impl Sink) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        found.link = Link::None;
        self.emit(id, body, sink);
    }

    fn stream_over(&mut self, id: IdHandle, body: EventBody, sink: &mut impl Sink) {
        let Some(found) = self.ids.get_mut(&id).filter(|i| i.state() == IdState::Connect) else {
            return;
        };
        found.link = Link::None;
        found.go(IdState::Disconnect);
        self.emit(id, body, sink);
    }

    /// Reports that a connection is established and that its queue pair has the stream.
    fn stream_established(
        &mut self,
        id: IdHandle,
        params: &StreamParams,
        private_data: Vec<u8>,
        sink: &mut impl Sink,
    ) {
        let Some(found) = self.ids.get_mut(&id) else { return };
        let depth = |n: u16| u8::try_from(n).unwrap_or(u8::MAX);
        let negotiated = found.negotiated.as_mut().map(|n| {
            n.max_rd_atomic = depth(params.ord);
            n.max_dest_rd_atomic = depth(params.ird);
            *n
        });
        let param = ConnParam {
            private_data,
            responder_resources: depth(params.ird),
            initiator_depth: depth(params.ord),
            peer_to_peer: Some(params.rtr.is_some()),
            ..Default::default()
        };
        let body = EventBody::new(EventKind::Established);
        let body = EventBody { param: EventParam::Conn(param), negotiated, ..body };
        self.emit(id, body, sink);
    }

    /// Handles a request that arrived, or that is processed again.
    fn stream_requested(
        &mut self,
        now: Time,
        stream: StreamId,
        request: Request,
        sink: &mut impl Sink,
    ) {
        let Some(ends) = self.iw.get(stream).map(|conn| conn.ends) else { return };
        match self.fate(ends.0) {
            Fate::For(listener, device) => {
                self.announce_stream(stream, &request, listener, &device, ends, sink);
            }
            Fate::Waits => self.iw.enqueue(stream, request, None),
            Fate::Nobody => {
                let grace = self.cm.config.listener_grace;
                if self.held.was_listened_to(now, ends.0.port()) && !grace.is_zero() {
                    self.iw.enqueue(stream, request, Some(now.after(grace)));
                } else {
                    self.iw.refuse(stream, sink);
                }
            }
        }
    }

    fn fate(&self, local: SocketAddr) -> Fate {
        let table = self.ports.get(&PortSpace::Tcp);
        let listener = table.and_then(|table| table.listener(local.port(), local.ip()));
        let found = listener.and_then(|l| Some((l, self.ids.get(&l)?)));
        let Some((listener, found)) = found.filter(|(_, i)| i.may_have_streams()) else {
            return Fate::Nobody;
        };
        let device = self
            .addresses
            .iter()
            .find(|a| a.ip == local.ip() && a.transport == TransportType::Iwarp);
        let Some(device) = device.cloned() else { return Fate::Nobody };
        let full = usize::try_from(found.backlog).is_ok_and(|max| found.requests.len() >= max);
        if full || self.room_in(found.channel).is_err() {
            return Fate::Waits;
        }
        Fate::For(listener, device)
    }

    /// Sends CONNECT_REQUEST to the listener's process.
    fn announce_stream(
        &mut self,
        stream: StreamId,
        request: &Request,
        listener: IdHandle,
        device: &LocalAddress,
        ends: (SocketAddr, SocketAddr),
        sink: &mut impl Sink,
    ) {
        let Some(options) = self.ids.get(&listener).map(|i| i.options) else { return };
        let ends = (ends.0.into(), ends.1.into());
        let route = route_of(&self.cm.config, device, &options, ends, device.mtu);
        let child = self.new_child(listener, device, ends, route, Link::Stream(stream));
        let Some(child) = child else { return };
        self.iw.announce(stream, child, request);
        let config = &self.cm.config;
        let depth = |asked: Option<u16>, most: u8| {
            asked.map_or(most, |n| u8::try_from(n).unwrap_or(most).min(most))
        };
        let ord = depth(request.asked.ird(), config.iwarp.max_ord);
        let ird = depth(request.asked.ord(), config.iwarp.max_ird);
        let negotiated = Negotiated {
            qp_type: QpType::Rc,
            transport: TransportType::Iwarp,
            max_rd_atomic: ord,
            max_dest_rd_atomic: ird,
            ..datagram(config, &route)
        };
        if let Some(new) = self.ids.get_mut(&child) {
            new.negotiated = Some(negotiated);
        }
        let param = ConnParam {
            private_data: request.private_data.clone(),
            responder_resources: ird,
            initiator_depth: ord,
            peer_to_peer: Some(request.asked.peer_to_peer()),
            ..Default::default()
        };
        let body = EventBody {
            param: EventParam::Conn(param),
            route: Some(route),
            negotiated: Some(negotiated),
            child: Some(child),
            ..EventBody::new(EventKind::ConnectRequest)
        };
        self.emit(listener, body, sink);
    }
}

/// The address of an id's listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamListener {
    /// An address, or a wildcard.
    pub local: SocketAddr,
    /// Whether an IPv6 wildcard excludes IPv4.
    pub v6_only: bool,
    /// Whether iWARP is the only transport on which the id can listen.
    pub only: bool,
}

impl Id {
    /// Returns whether the id's connections may use this device, which has this transport.
    pub(super) fn may_use(&self, device: u32, transport: TransportType) -> bool {
        let carried = transport == TransportType::Ib || self.may_be_a_stream();
        carried && self.only.is_none_or(|only| only.device == device)
    }

    /// Returns whether the id's connections may be iWARP's.
    pub(super) fn may_have_streams(&self) -> bool {
        let allowed = self.only.is_none_or(|only| only.transport == TransportType::Iwarp);
        allowed && self.may_be_a_stream()
    }

    fn may_be_a_stream(&self) -> bool {
        self.ps == PortSpace::Tcp && self.qp_type == QpType::Rc
    }
}
