//! The client's commands for the connection manager (rdma_cm(7)).
//!
//! Results arrive as events. A method whose name ends in `_soon` does not wait for the service. It is for commands that
//! can only fail if the id's state changes meanwhile; an event then reports the failure. Ids are plain numbers here. The
//! layer that wraps them in objects counts events: [`destroy_id`](HostClient::destroy_id) returns how many events the id
//! ever had, and the object must not be freed before as many were acknowledged.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdmux_cm::{
    Addr, ChannelId, ConnParam, Event, EventKind, GroupWish, IdHandle, IdInfo, IdOption,
    LocalAddress, PathData, PortSpace,
};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::Control as _;
use rdmux_verbs::control::DeviceKind;
use rdmux_wire::sa::McMemberRecord;

use super::control::HostClient;
use crate::error::HostError;
use crate::names::{ServiceKey, peer_to_peer};
use crate::proto::cm::group_record;
use crate::proto::socket::{self, MessageError};
use crate::proto::{CmReply, CmRequest, MAX_EVENTS_MESSAGE, Request, Response};

/// The number of id numbers that a process reserves at a time.
const RESERVED: u32 = 256;

/// A channel on which events arrive (`rdma_event_channel`; rdma_create_event_channel(3)).
///
/// Its descriptor polls readable while an event waits, and may be made non-blocking with fcntl(2). Dropping the channel
/// destroys the ids that are still on it.
#[derive(Debug)]
pub struct EventChannel {
    client: Arc<HostClient>,
    id: ChannelId,
    socket: OwnedFd,
    batch: Mutex<Batch>,
}

/// The events of the next message in the socket. The message stays in the socket until its last event is taken, so that
/// the descriptor polls readable until then.
#[derive(Debug, Default)]
struct Batch {
    buf: Vec<u8>,
    /// The range of `buf` that holds events not yet taken.
    rest: std::ops::Range<usize>,
}

impl EventChannel {
    /// Opens a channel. Its descriptor blocks.
    ///
    /// # Errors
    /// [`HostError::Refused`] when the service has no descriptor left; [`HostError::ServiceGone`].
    pub fn open(client: &Arc<HostClient>) -> Result<Self, HostError> {
        let what = || "open an event channel".to_owned();
        match client.session.call_with_fds(&Request::OpenChannel, &[], what)? {
            (Response::Channel(id), mut fds) if fds.len() == 1 => Ok(Self {
                client: Arc::clone(client),
                id,
                socket: fds.remove(0),
                batch: Mutex::default(),
            }),
            (other, _) => Err(client.session.unexpected(&other)),
        }
    }

    /// Returns the channel's id at the service.
    pub fn id(&self) -> ChannelId {
        self.id
    }

    /// Returns the client that the channel belongs to.
    pub fn client(&self) -> &Arc<HostClient> {
        &self.client
    }

    /// Sets whether [`get_event`](Self::get_event) returns at once when no event is queued.
    ///
    /// # Errors
    /// None that occur.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), HostError> {
        socket::set_nonblocking(&self.socket, nonblocking)
            .map_err(|e| HostError::io("change an event channel", e))
    }

    /// Returns the next event. If there is none, waits if the descriptor blocks, else returns `None`.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`], also for callers that are waiting when the service ends.
    pub fn get_event(&self) -> Result<Option<Event>, HostError> {
        loop {
            if let Some(event) = self.try_get_event()? {
                return Ok(Some(event));
            }
            match socket::await_readable(self.socket.as_fd()) {
                Ok(()) => {}
                Err(MessageError::WouldBlock) => return Ok(None),
                Err(_) => return Err(self.client.session.set_gone()),
            }
        }
    }

    /// Returns the next event, if any. Never waits, even if the descriptor blocks.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn try_get_event(&self) -> Result<Option<Event>, HostError> {
        self.try_get_event_if(|_| true)
    }

    /// Returns the next event if `is_wanted` accepts it; otherwise it stays. `is_wanted` must take no other event.
    /// Never waits.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn try_get_event_if(
        &self,
        is_wanted: impl FnOnce(&Event) -> bool,
    ) -> Result<Option<Event>, HostError> {
        let session = &self.client.session;
        let (event, more) = match self.batch.lock().next(self.socket.as_fd(), is_wanted) {
            Ok(Some(next)) => next,
            Ok(None) | Err(MessageError::WouldBlock) => return Ok(None),
            // The messages after it are read as usual.
            Err(e @ (MessageError::Decode(_) | MessageError::TooLong)) => {
                let why = match e {
                    MessageError::Decode(e) => format!("an invalid event: {e}"),
                    _ => format!("a message of events of more than {MAX_EVENTS_MESSAGE} bytes"),
                };
                return Err(HostError::Protocol { host: self.client.host().clone(), why });
            }
            Err(_) => return Err(session.set_gone()),
        };
        self.client.judge_path(&event);
        // If the service has ended, this event is delivered even so, and what the channel returns after the last one shows the end.
        if event.kind == EventKind::ConnectRequest {
            // The request no longer counts towards the listener's backlog.
            let take = Request::CmSoon(CmRequest::Take { id: event.id });
            let _ = session.tell_with_next(&take);
        }
        if !more {
            let _ = session.flush();
        }
        Ok(Some(event))
    }
}

impl Batch {
    /// Returns the next event if it is accepted, and whether more events of its message are left.
    fn next(
        &mut self,
        socket: BorrowedFd<'_>,
        is_wanted: impl FnOnce(&Event) -> bool,
    ) -> Result<Option<(Event, bool)>, MessageError> {
        if self.rest.is_empty() {
            self.buf.resize(MAX_EVENTS_MESSAGE, 0);
            let peeked = socket::peek_bytes(socket, &mut self.buf).map(<[u8]>::len);
            if let Err(MessageError::TooLong) = peeked {
                socket::discard(socket);
            }
            self.rest = 0..peeked?;
        }
        let decoded = socket::decode_first::<Event>(&self.buf[self.rest.clone()]);
        let (event, more) = match decoded {
            Ok((event, _)) if !is_wanted(&event) => return Ok(None),
            Ok((event, rest)) => (Ok(event), rest.len()),
            Err(e) => (Err(e), 0),
        };
        self.rest.start = self.rest.end - more;
        if more == 0 {
            socket::discard(socket);
        }
        event.map(|event| Some((event, more > 0)))
    }

    /// Passes all events that were not taken to `put_back`, encoded, a few at a time, and empties the socket. Events
    /// that `put_back` refuses stay.
    fn drain(
        &mut self,
        socket: BorrowedFd<'_>,
        mut put_back: impl FnMut(&[u8]) -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        if !self.rest.is_empty() {
            put_back(&self.buf[self.rest.clone()])?;
            self.rest = 0..0;
            socket::discard(socket);
        }
        self.buf.resize(MAX_EVENTS_MESSAGE, 0);
        loop {
            match socket::peek_bytes(socket, &mut self.buf) {
                Ok(events) => put_back(events)?,
                Err(MessageError::TooLong) => {}
                Err(_) => return Ok(()),
            }
            socket::discard(socket);
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Errors of all these: [`HostError::Refused`] with rdma_cm's errno, and [`HostError::ServiceGone`]. Each command is
/// described at the method of [`rdmux_cm::Manager`] of the same name.
impl HostClient {
    /// Creates an id (rdma_create_id(3)). `context` is returned with each of its events.
    ///
    /// # Errors
    /// See above.
    pub fn create_id(
        &self,
        channel: &EventChannel,
        space: PortSpace,
        qp_type: QpType,
        context: u64,
    ) -> Result<IdHandle, HostError> {
        self.create_id_on(channel, space, qp_type, Some(self.info().kind), context)
    }

    /// Creates an id for the device of one kind, or for all. `$RDMUX_PEER_TO_PEER`, 0 or 1, sets its initial
    /// [`IdOption::PeerToPeer`]. [`create_id`](Self::create_id) creates ids for the kind of this connection's device.
    ///
    /// # Errors
    /// See above.
    pub fn create_id_on(
        &self,
        channel: &EventChannel,
        space: PortSpace,
        qp_type: QpType,
        only: Option<DeviceKind>,
        context: u64,
    ) -> Result<IdHandle, HostError> {
        let is_own = std::ptr::eq(Arc::as_ptr(&channel.client), self);
        let channel = channel.id;
        let mode = peer_to_peer::of_environment().map_err(|why| HostError::Refused {
            what: "create an id".to_owned(),
            why: why.to_string(),
            errno: libc::EINVAL,
        })?;
        let fits = match space {
            PortSpace::Tcp => qp_type != QpType::Ud,
            PortSpace::Udp | PortSpace::IpoIb => qp_type == QpType::Ud,
            PortSpace::Ib => true,
        };
        let request = |id| CmRequest::CreateId { id, channel, space, qp_type, only, context };
        let id = if fits && is_own {
            self.use_reserved(|id| self.cm_soon(request(Some(id))))?
        } else {
            // The service reports the reason of the failure.
            match self.cm(request(None), || "create an id".to_owned())? {
                Response::Cm(CmReply::Id(id)) => id,
                other => return Err(self.session.unexpected(&other)),
            }
        };
        if let Some(mode) = mode.filter(|_| qp_type == QpType::Rc) {
            self.set_option(id, IdOption::PeerToPeer(mode))?;
        }
        Ok(id)
    }

    /// Makes `create` send a reserved number for a new id. The numbers are sent in order.
    fn use_reserved(
        &self,
        create: impl FnOnce(IdHandle) -> Result<(), HostError>,
    ) -> Result<IdHandle, HostError> {
        let mut reserved = self.reserved.lock();
        if reserved.is_empty() {
            let request = CmRequest::Reserve { count: RESERVED };
            match self.cm(request, || "create an id".to_owned())? {
                Response::Cm(CmReply::Reserved(IdHandle(first))) => {
                    *reserved = first..first + u64::from(RESERVED);
                }
                other => return Err(self.session.unexpected(&other)),
            }
        }
        let id = IdHandle(reserved.start);
        reserved.start += 1;
        create(id).map(|()| id)
    }

    /// Destroys an id (rdma_destroy_id(3)). Returns the number of events that were ever put into its channels for it.
    ///
    /// # Errors
    /// See above.
    pub fn destroy_id(&self, id: IdHandle) -> Result<u32, HostError> {
        let events = self.cm_events(CmRequest::Destroy { id }, || format!("destroy {id}"));
        // Not before: a path that ACM has found meanwhile can be given to the id until now.
        self.forget_path(id);
        events
    }

    /// Like [`destroy_id`](Self::destroy_id), without waiting for the service, and without the number of events. The
    /// port is free for this process's next request, but for other processes only a moment later.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn destroy_id_soon(&self, id: IdHandle) -> Result<(), HostError> {
        let sent = self.cm_soon(CmRequest::Destroy { id });
        self.forget_path(id);
        sent
    }

    /// Binds an id to an address (rdma_bind_addr(3)). Returns the address with its port.
    ///
    /// # Errors
    /// See above; `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
    pub fn bind_addr(&self, id: IdHandle, addr: impl Into<Addr>) -> Result<Addr, HostError> {
        self.bind_addr_at(id, addr).map(|(addr, _)| addr)
    }

    /// Like [`bind_addr`](Self::bind_addr). Also returns the device and port that have the address, unless it is a
    /// wildcard.
    ///
    /// # Errors
    /// See above.
    pub fn bind_addr_at(
        &self,
        id: IdHandle,
        addr: impl Into<Addr>,
    ) -> Result<(Addr, Option<Box<LocalAddress>>), HostError> {
        let addr = addr.into();
        self.cm_bound(CmRequest::Bind { id, addr }, || format!("bind {id} to {addr}"))
    }

    /// Listens for connection requests (rdma_listen(3)). Returns the id's address with its port.
    ///
    /// # Errors
    /// See above.
    pub fn listen(&self, id: IdHandle, backlog: u32) -> Result<Addr, HostError> {
        self.be_found();
        let bound = self.cm_bound(CmRequest::Listen { id, backlog }, || format!("listen on {id}"));
        bound.map(|(addr, _)| addr)
    }

    /// Resolves the local address and device for `dst` (rdma_resolve_addr(3)).
    ///
    /// # Errors
    /// See above.
    pub fn resolve_addr(
        &self,
        id: IdHandle,
        src: Option<Addr>,
        dst: impl Into<Addr>,
        timeout: Duration,
    ) -> Result<(), HostError> {
        let dst = dst.into();
        self.cm_done(CmRequest::ResolveAddr { id, src, dst, timeout }, || {
            format!("resolve {dst} for {id}")
        })
    }

    /// Like [`resolve_addr`](Self::resolve_addr), for a new id and a `dst` that is no wildcard. ADDR_ERROR reports that
    /// no port is left.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn resolve_addr_soon(
        &self,
        id: IdHandle,
        dst: impl Into<Addr>,
        timeout: Duration,
    ) -> Result<(), HostError> {
        let dst = dst.into();
        self.cm_soon(CmRequest::ResolveAddr { id, src: None, dst, timeout })
    }

    /// Resolves the path (rdma_resolve_route(3)).
    ///
    /// # Errors
    /// See above.
    pub fn resolve_route(&self, id: IdHandle, timeout: Duration) -> Result<(), HostError> {
        self.cm_done(CmRequest::ResolveRoute { id, timeout }, || {
            format!("resolve the route of {id}")
        })
    }

    /// Like [`resolve_route`](Self::resolve_route), for an id that has reported ADDR_RESOLVED.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn resolve_route_soon(&self, id: IdHandle, timeout: Duration) -> Result<(), HostError> {
        self.cm_soon(CmRequest::ResolveRoute { id, timeout })
    }

    /// Supplies path records in place of [`resolve_route`](Self::resolve_route) (`RDMA_OPTION_IB_PATH`).
    ///
    /// # Errors
    /// See above.
    pub fn set_paths(&self, id: IdHandle, records: &[PathData]) -> Result<(), HostError> {
        self.along(id, records, || self.give_paths(id, records))
    }

    /// Does what [`set_paths`](Self::set_paths) does, with paths whose source the caller knows.
    pub(super) fn give_paths(&self, id: IdHandle, records: &[PathData]) -> Result<(), HostError> {
        let records = on_the_way(records);
        self.cm_done(CmRequest::SetPaths { id, records }, || format!("set the paths of {id}"))
    }

    /// Supplies addresses and path records in place of [`resolve_addr`](Self::resolve_addr) and
    /// [`resolve_route`](Self::resolve_route). ROUTE_RESOLVED follows; errors are returned at once.
    ///
    /// # Errors
    /// See above.
    pub fn resolve_along(
        &self,
        id: IdHandle,
        src: Option<Addr>,
        dst: Addr,
        records: &[PathData],
    ) -> Result<(), HostError> {
        self.along(id, records, || {
            let records = on_the_way(records);
            self.cm_done(CmRequest::ResolveAlong { id, src, dst, records }, || {
                format!("take the paths from {id} to {dst}")
            })
        })
    }

    /// Connects (rdma_connect(3)).
    ///
    /// # Errors
    /// See above.
    pub fn connect_id(&self, id: IdHandle, param: &ConnParam) -> Result<(), HostError> {
        let param = param.clone();
        self.cm_done(CmRequest::Connect { id, param }, || format!("connect {id}"))
    }

    /// Like [`connect_id`](Self::connect_id), for an id that has reported ROUTE_RESOLVED, with parameters that the device
    /// supports.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn connect_id_soon(&self, id: IdHandle, param: ConnParam) -> Result<(), HostError> {
        self.cm_soon(CmRequest::Connect { id, param })
    }

    /// Accepts a request (rdma_accept(3)).
    ///
    /// # Errors
    /// See above.
    pub fn accept(&self, id: IdHandle, param: &ConnParam) -> Result<(), HostError> {
        let param = param.clone();
        self.cm_done(CmRequest::Accept { id, param }, || format!("accept {id}"))
    }

    /// Like [`accept`](Self::accept), for a request that is not answered yet, with parameters that the device supports.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn accept_soon(&self, id: IdHandle, param: ConnParam) -> Result<(), HostError> {
        self.cm_soon(CmRequest::Accept { id, param })
    }

    /// Rejects a request (rdma_reject(3)). `reason` is REJ's, 28 for a program's rejection (IBTA table 108).
    ///
    /// # Errors
    /// See above.
    pub fn reject(&self, id: IdHandle, reason: u16, private_data: &[u8]) -> Result<(), HostError> {
        let private_data = private_data.to_vec();
        self.cm_done(CmRequest::Reject { id, reason, private_data }, || format!("reject {id}"))
    }

    /// Completes a connection (rdma_establish(3)): after CONNECT_RESPONSE, with the queue pair in RTS, notifies the peer.
    ///
    /// # Errors
    /// See above.
    pub fn establish(&self, id: IdHandle) -> Result<(), HostError> {
        self.cm_done(CmRequest::Establish { id }, || format!("establish {id}"))
    }

    /// Like [`establish`](Self::establish), for an id that has reported CONNECT_RESPONSE.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn establish_soon(&self, id: IdHandle) -> Result<(), HostError> {
        self.cm_soon(CmRequest::Establish { id })
    }

    /// Like [`disconnect`](Self::disconnect), for an id that was connected.
    ///
    /// # Errors
    /// [`HostError::ServiceGone`].
    pub fn disconnect_soon(&self, id: IdHandle) -> Result<(), HostError> {
        self.cm_soon(CmRequest::Disconnect { id })
    }

    /// Ends a connection (rdma_disconnect(3)).
    ///
    /// # Errors
    /// See above.
    pub fn disconnect(&self, id: IdHandle) -> Result<(), HostError> {
        self.cm_done(CmRequest::Disconnect { id }, || format!("disconnect {id}"))
    }

    /// Reports that the queue pair received data before the connection was established (rdma_notify(3)).
    ///
    /// # Errors
    /// See above.
    pub fn notify(&self, id: IdHandle) -> Result<(), HostError> {
        self.cm_done(CmRequest::Notify { id }, || format!("notify {id}"))
    }

    /// Moves an id, with its unread events, from one channel to another (rdma_migrate_id(3)). Returns the number of
    /// events that the id ever had.
    ///
    /// # Errors
    /// See above.
    pub fn migrate_id(
        &self,
        id: IdHandle,
        from: &EventChannel,
        to: &EventChannel,
    ) -> Result<u32, HostError> {
        let _one_at_a_time = self.migrating.lock();
        // No events are taken meanwhile.
        let mut batch = from.batch.lock();
        let what = || format!("migrate {id}");
        self.done(&Request::HoldChannel { channel: from.id }, what)?;
        let put_back = batch.drain(from.socket.as_fd(), |events| {
            self.done(&Request::PutBack { events: events.to_vec() }, what)
        });
        // Also after a failure: it releases the channel.
        let request = Request::Cm(CmRequest::Migrate { id, channel: to.id });
        let reply = self.session.call(&request, what)?;
        put_back?;
        match reply {
            Response::Cm(CmReply::Events(events)) => Ok(events),
            other => Err(self.session.unexpected(&other)),
        }
    }

    /// Puts an event of the program into the id's channel (rdma_write_cm_event(3)).
    ///
    /// # Errors
    /// See above; `EINVAL` for a kind that programs may not send.
    pub fn write_event(
        &self,
        id: IdHandle,
        kind: EventKind,
        status: i32,
        arg: u64,
    ) -> Result<(), HostError> {
        self.cm_done(CmRequest::WriteEvent { id, kind, status, arg }, || {
            format!("write an event of {id}")
        })
    }

    /// Queries subnet administration for services by ID or name, from the port that the id is bound to. An event
    /// AddrinfoResolved with [`EventParam::Services`](rdmux_cm::EventParam::Services), or AddrinfoError, follows.
    ///
    /// # Errors
    /// See above; `EINVAL` for an id that is bound to no port of a subnet.
    pub fn resolve_service(
        &self,
        id: IdHandle,
        service: &ServiceKey,
        timeout: Duration,
    ) -> Result<(), HostError> {
        let request = CmRequest::ResolveService { id, service: service.clone(), timeout };
        self.cm_done(request, || format!("look for service {service}"))
    }

    /// Sets an option (rdma_set_option(3)).
    ///
    /// # Errors
    /// See above.
    pub fn set_option(&self, id: IdHandle, option: IdOption) -> Result<(), HostError> {
        self.cm_done(CmRequest::SetOption { id, option }, || format!("set {option:?} on {id}"))
    }

    /// Returns an id's addresses, path and state.
    ///
    /// # Errors
    /// See above.
    pub fn query_id(&self, id: IdHandle) -> Result<IdInfo, HostError> {
        match self.cm(CmRequest::Query { id }, || format!("query {id}"))? {
            Response::Cm(CmReply::Info(info)) => Ok(*info),
            other => Err(self.session.unexpected(&other)),
        }
    }

    /// Joins a multicast group (rdma_join_multicast(3)). The event carries `context`, which names the group at this id.
    ///
    /// # Errors
    /// See above; `EINVAL` with the name of the invalid field.
    pub fn join_multicast(
        &self,
        id: IdHandle,
        wish: GroupWish,
        context: u64,
    ) -> Result<(), HostError> {
        let group = wish.group();
        let what = || format!("join {group} with {id}");
        // Fields that are too large cannot be encoded.
        wish.check().map_err(|fault| HostError::Refused {
            what: what(),
            why: fault.to_string(),
            errno: libc::EINVAL,
        })?;
        self.cm_done(CmRequest::Join { id, wish: wish.into(), context }, what)
    }

    /// Leaves the group that was joined with `context` (rdma_leave_multicast(3)). Returns the number of events that the group
    /// had.
    ///
    /// # Errors
    /// See above.
    pub fn leave_multicast(&self, id: IdHandle, context: u64) -> Result<u32, HostError> {
        self.cm_events(CmRequest::Leave { id, context }, || format!("leave a group with {id}"))
    }

    /// Returns subnet administration's MCMemberRecord of the group that was joined with `context`.
    ///
    /// # Errors
    /// See above; `EADDRNOTAVAIL` when the id has not joined it, `ENOTCONN` until subnet administration has answered, and
    /// afterwards the error that the event MULTICAST_ERROR reported.
    pub fn group(&self, id: IdHandle, context: u64) -> Result<McMemberRecord, HostError> {
        match self.cm(CmRequest::Group { id, context }, || format!("query a group of {id}"))? {
            Response::Cm(CmReply::Group(record)) => Ok(group_record(&record)),
            other => Err(self.session.unexpected(&other)),
        }
    }

    fn cm(&self, request: CmRequest, what: impl FnOnce() -> String) -> Result<Response, HostError> {
        self.session.call(&Request::Cm(request), what)
    }

    fn cm_soon(&self, request: CmRequest) -> Result<(), HostError> {
        self.session.tell(&Request::CmSoon(request))
    }

    /// Sends a connection manager's command whose reply is empty.
    pub(super) fn cm_done(
        &self,
        request: CmRequest,
        what: impl FnOnce() -> String,
    ) -> Result<(), HostError> {
        self.done(&Request::Cm(request), what)
    }

    fn cm_events(
        &self,
        request: CmRequest,
        what: impl FnOnce() -> String,
    ) -> Result<u32, HostError> {
        match self.cm(request, what)? {
            Response::Cm(CmReply::Events(events)) => Ok(events),
            other => Err(self.session.unexpected(&other)),
        }
    }

    fn cm_bound(
        &self,
        request: CmRequest,
        what: impl FnOnce() -> String,
    ) -> Result<(Addr, Option<Box<LocalAddress>>), HostError> {
        match self.cm(request, what)? {
            Response::Cm(CmReply::Bound(addr, device)) => Ok((addr, device)),
            other => Err(self.session.unexpected(&other)),
        }
    }
}

/// Encodes path records for a request.
pub(super) fn on_the_way(records: &[PathData]) -> Vec<(u32, Vec<u8>)> {
    records.iter().map(|data| (data.flags, data.record.to_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::proto::socket;

    /// Drains a batch. Returns the messages that `put_back` received, and whether draining succeeded. `put_back` fails unless
    /// `takes` is set.
    fn drain(batch: &mut Batch, socket: BorrowedFd<'_>, takes: bool) -> (Vec<Vec<u8>>, bool) {
        let mut taken = Vec::new();
        let drained = batch.drain(socket, |events| {
            if !takes {
                return Err(HostError::io("migrate", std::io::ErrorKind::OutOfMemory));
            }
            taken.push(events.to_vec());
            Ok(())
        });
        (taken, drained.is_ok())
    }

    #[test]
    fn events_that_cannot_be_put_back_stay_in_their_channel() {
        let (service, program) = socket::pair().unwrap();
        let program = program.as_fd();
        let mut batch = Batch::default();
        socket::send_bytes(service.as_fd(), b"first", &[]).unwrap();
        socket::send_bytes(service.as_fd(), b"second", &[]).unwrap();
        // As after an earlier event of the first message was taken.
        batch.buf = b"..first".to_vec();
        batch.rest = 2..7;
        assert_eq!(drain(&mut batch, program, false), (vec![], false));
        assert_eq!(&batch.buf[batch.rest.clone()], b"first");
        let all = vec![b"first".to_vec(), b"second".to_vec()];
        assert_eq!(drain(&mut batch, program, true), (all, true));
        assert!(batch.rest.is_empty() && !socket::is_readable(program));
        socket::send_bytes(service.as_fd(), b"third", &[]).unwrap();
        assert_eq!(drain(&mut batch, program, false), (vec![], false));
        assert_eq!(drain(&mut batch, program, true), (vec![b"third".to_vec()], true));
    }

    fn event(context: u64) -> Event {
        Event {
            id: IdHandle(1),
            context,
            listen_id: None,
            kind: EventKind::User,
            status: 0,
            param: rdmux_cm::EventParam::None,
            route: None,
            negotiated: None,
            mad: None,
        }
    }

    #[test]
    fn oversized_event_message_is_too_long_and_next_one_is_read() {
        let (ours, theirs) = socket::pair().unwrap();
        let too_long = [0; MAX_EVENTS_MESSAGE + 1];
        socket::send_bytes(theirs.as_fd(), &too_long, &[]).unwrap();
        socket::send(theirs.as_fd(), &event(7), &[], &mut Vec::new()).unwrap();
        let mut batch = Batch::default();
        let first = batch.next(ours.as_fd(), |_| true);
        assert!(matches!(first, Err(MessageError::TooLong)), "{first:?}");
        assert_eq!(batch.next(ours.as_fd(), |_| true).unwrap(), Some((event(7), false)));

        socket::send_bytes(theirs.as_fd(), &too_long, &[]).unwrap();
        socket::send_bytes(theirs.as_fd(), b"last", &[]).unwrap();
        assert_eq!(drain(&mut batch, ours.as_fd(), true), (vec![b"last".to_vec()], true));
    }
}
