//! The service's side of the connection manager: commands in, events and datagrams out.

use std::os::fd::OwnedFd;

use rdmux_cm::error::Command;
use rdmux_cm::iw::StreamWish;
use rdmux_cm::{
    ChannelId, CmError, Event, EventKind, EventParam, IdHandle, JoinQuery, MadPath, OnlyDevice,
    Path, PathData, PathQuery, RouteQuery, Sink,
};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::kind;
use rdmux_wire::sa::{McMemberRecord, PathRecord};

use super::clients::{Client, ClientId};
use super::core::{Channel, Core};
use super::counters::Count;
use super::outgoing::Outgoing;
use super::poller::{Interest, Token};
use super::ports::{self, PortId};
use super::shares::no_descriptors;
use crate::names::Config;
use crate::proto::socket;
use crate::proto::{CmReply, CmRequest, Failure, Response};

/// Maximum number of events that wait in a channel whose process does not read.
const MAX_EVENTS: usize = 16 * 1024;
/// Maximum number of bytes of events that a process may put back: more than a socket holds.
const MAX_PUT_BACK: usize = 1024 * 1024;
/// Maximum number of event channels of one process.
const MAX_CHANNELS: usize = 4096;
/// Maximum number of reserved id numbers of one process.
const MAX_RESERVED: u32 = 4096;

/// The actions that the connection manager requested, in order. It cannot be called from within its own calls, so the
/// service runs them right after.
#[derive(Debug, Default)]
pub(super) struct Outbox(std::collections::VecDeque<Action>);

/// An action that the connection manager requested.
#[derive(Debug)]
enum Action {
    Mad(MadPath, Box<[u8; 256]>),
    /// A datagram from this host to itself.
    Deliver(PortId, MadPath, Box<[u8; 256]>),
    Event(ChannelId, Event),
    Resolve(IdHandle, RouteQuery),
    CancelResolve(IdHandle),
    Path(IdHandle, PathQuery),
    CancelPath(IdHandle, u32),
    Join(IdHandle, JoinQuery),
    Leave(IdHandle, JoinQuery),
    Stream(StreamWish),
}

impl Outbox {
    /// Queues a datagram that this host sends to itself. It arrives, as if from the network, after earlier actions are
    /// done.
    pub(super) fn deliver(&mut self, port: PortId, path: &MadPath, mad: &[u8; 256]) {
        self.0.push_back(Action::Deliver(port, *path, Box::new(*mad)));
    }
}

impl Sink for Outbox {
    fn send_mad(&mut self, path: &MadPath, mad: &[u8; 256]) {
        self.0.push_back(Action::Mad(*path, Box::new(*mad)));
    }
    fn event(&mut self, channel: ChannelId, event: Event) {
        self.0.push_back(Action::Event(channel, event));
    }
    fn resolve(&mut self, id: IdHandle, query: RouteQuery) {
        self.0.push_back(Action::Resolve(id, query));
    }
    fn cancel_resolve(&mut self, id: IdHandle) {
        self.0.push_back(Action::CancelResolve(id));
    }
    fn query_path(&mut self, id: IdHandle, query: PathQuery) {
        self.0.push_back(Action::Path(id, query));
    }
    fn cancel_path(&mut self, id: IdHandle, attempt: u32) {
        self.0.push_back(Action::CancelPath(id, attempt));
    }
    fn join_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.0.push_back(Action::Join(id, query));
    }
    fn leave_multicast(&mut self, id: IdHandle, query: JoinQuery) {
        self.0.push_back(Action::Leave(id, query));
    }
    fn stream(&mut self, wish: StreamWish) {
        self.0.push_back(Action::Stream(wish));
    }
}

/// Returns a kind of device in the form that ids use.
fn only_device(kind: DeviceKind) -> OnlyDevice {
    OnlyDevice { device: kind as u32, transport: kind.transport_type() }
}

/// Returns the connection manager's configuration.
pub(super) fn config(config: &Config) -> rdmux_cm::Config {
    let mut cm = rdmux_cm::Config {
        cm_response_timeout: config.cm.response_timeout,
        max_cm_retries: config.cm.max_retries,
        unprivileged_port_start: unprivileged_port_start(),
        ..Default::default()
    };
    for &kind in kind::all() {
        ports::of(kind).configure(config, &config.limits.of(kind), &mut cm);
    }
    cm
}

/// Returns the lowest port that all users may bind (`net.ipv4.ip_unprivileged_port_start`): as the kernel is set, else 1024.
fn unprivileged_port_start() -> u32 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|s| s.trim().parse().ok())
        .unwrap_or(1024)
}

impl Core {
    /// Runs the actions that the connection manager requested, and those that it requests in turn.
    pub(super) fn drain_outbox(&mut self) {
        while let Some(action) = self.outbox.0.pop_front() {
            match action {
                Action::Mad(path, mad) => self.send_cm_mad(&path, &mad),
                Action::Deliver(port, path, mad) => self.deliver_mad(port, &path, &mad),
                Action::Event(channel, event) => self.put_event(channel, &event),
                Action::Resolve(id, query) => self.resolve(id, &query),
                Action::CancelResolve(id) => self.cancel_resolve(id),
                Action::Path(id, query) => self.find_path(id, &query),
                Action::CancelPath(id, attempt) => {
                    for &kind in kind::all() {
                        ports::of(kind).cancel_path(self, id, attempt);
                    }
                }
                Action::Join(id, query) => self.join_for_id(id, query),
                Action::Leave(id, query) => self.leave_for_id(id, &query),
                Action::Stream(wish) => self.do_stream(wish),
            }
        }
        self.watch_streams();
    }

    fn find_path(&mut self, id: IdHandle, query: &PathQuery) {
        match kind::numbered(query.device) {
            Some(kind) => ports::of(kind).find_path(self, id, query),
            None => self.path_found(id, query, Err(libc::ENODEV)),
        }
    }

    /// Handles a port's answer to a path query.
    pub(super) fn path_found(&mut self, id: IdHandle, query: &PathQuery, path: Result<Path, i32>) {
        let now = self.now();
        self.manager.handle_path(now, id, query.attempt, path, &mut self.outbox);
    }

    fn join_for_id(&mut self, id: IdHandle, query: JoinQuery) {
        match kind::numbered(query.device) {
            Some(kind) => ports::of(kind).join_for_id(self, id, query),
            None => self.group_joined(id, query, Err(libc::ENODEV)),
        }
    }

    fn leave_for_id(&mut self, id: IdHandle, query: &JoinQuery) {
        if let Some(kind) = kind::numbered(query.device) {
            ports::of(kind).leave_for_id(self, id, query);
        }
    }

    /// Handles the result of a port's join for an id, or the loss of the membership.
    pub(super) fn group_joined(
        &mut self,
        id: IdHandle,
        query: JoinQuery,
        group: Result<McMemberRecord, i32>,
    ) {
        let now = self.now();
        self.manager.handle_joined(now, id, query, group, &mut self.outbox);
    }

    /// Opens an event channel. Returns its id and the process's end.
    pub(super) fn open_channel(
        &mut self,
        client: ClientId,
    ) -> Result<(ChannelId, OwnedFd), Failure> {
        let has = self.clients.get(client).map_or(0, |c| c.channels.len());
        if has >= MAX_CHANNELS {
            let why = format!("the process has {MAX_CHANNELS} event channels already, the maximum");
            return Err(Failure::new(libc::EMFILE, why));
        }
        let share = self.descriptors_for(client, 1);
        let share = share.map_err(|e| no_descriptors(libc::EMFILE, &e))?;
        let ids = self.shares.ids.none(self.user_of(client));
        let id = ChannelId(self.next_channel);
        let pair = Outgoing::pair(MAX_EVENTS, self.waiting_of(client), self.keeper(client));
        let opened = pair.and_then(|(out, theirs)| {
            self.poller.add(&out, Token::Channel(id), Interest::Read)?;
            Ok((out, theirs))
        });
        let (out, theirs) = opened.map_err(|e| super::requests::failure(&e))?;
        self.next_channel += 1;
        let (batch, put_back) = (Vec::new(), None);
        let channel = Channel { owner: client, out, batch, put_back, _share: share, ids };
        self.channels.insert(id, channel);
        if let Some(client) = self.clients.get_mut(client) {
            client.channels.push(id);
        }
        Ok((id, theirs))
    }

    /// Handles a channel that its process closed.
    pub(super) fn channel_closed(&mut self, id: ChannelId) {
        let owner = self.channels.get(&id).map(|c| c.owner);
        self.remove_channel(id);
        if let Some(client) = owner.and_then(|owner| self.clients.get_mut(owner)) {
            client.channels.retain(|&c| c != id);
        }
        self.drain_outbox();
    }

    /// Handles a command.
    pub(super) fn handle_cm(
        &mut self,
        client: ClientId,
        request: CmRequest,
    ) -> Result<Response, Failure> {
        let migrates = matches!(request, CmRequest::Migrate { .. });
        let reply = self.try_command(client, request);
        if migrates {
            self.move_events(client);
        }
        self.drain_outbox();
        reply
    }

    /// Handles a command whose caller does not wait. A failure becomes an event, unless an event has reported it
    /// already.
    pub(super) fn handle_cm_soon(&mut self, client: ClientId, request: CmRequest) {
        let (what, created) = (about(&request), created(&request));
        let done = self.try_command(client, request);
        if let Err(Failure { errno, why }) = done {
            tracing::debug!("an unconfirmed command failed: {why}");
            self.counts.add(Count::Refusals);
            match (what, created) {
                (_, Some((channel, event))) if self.is_channel_of(client, channel) => {
                    self.put_event(channel, &Event { status: -errno, ..event });
                }
                (Some((id, command)), _) if self.owns(client, id) => {
                    self.manager.handle_refused(id, command, errno, &mut self.outbox);
                }
                _ => {}
            }
        }
        self.drain_outbox();
    }

    /// Holds a channel, so that the process can take the unread events from its end and put them back. The service itself
    /// must not receive from a socket that the process has: a thread of the process could block it forever (by a receive
    /// into memory whose page faults the process serves).
    pub(super) fn hold_channel(
        &mut self,
        client: ClientId,
        id: ChannelId,
    ) -> Result<Response, Failure> {
        // The process finds in its socket what is already sent.
        self.flush_events();
        if let Some(held) = self.held_channel(client).filter(|&held| held != id) {
            let why = format!(
                "event channel {} of the process is held by another migration: wait for it",
                held.0
            );
            return Err(Failure::new(libc::EBUSY, why));
        }
        let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.owner == client)
        else {
            let why = format!("this process has no event channel {}", id.0);
            return Err(Failure::new(libc::ENOENT, why));
        };
        channel.out.hold();
        channel.put_back = Some(Vec::new());
        self.watch_channel(id);
        Ok(Response::Done)
    }

    /// Returns the held channel of a process; there is at most one.
    fn held_channel(&self, client: ClientId) -> Option<ChannelId> {
        let held = |id: &&ChannelId| self.channels.get(id).is_some_and(|c| c.put_back.is_some());
        self.clients.get(client)?.channels.iter().find(held).copied()
    }

    /// Keeps the events that a process took from its held channel and put back.
    pub(super) fn put_back(
        &mut self,
        client: ClientId,
        events: &[u8],
    ) -> Result<Response, Failure> {
        let held = self.held_channel(client).and_then(|id| self.channels.get_mut(&id));
        let Some(put_back) = held.and_then(|channel| channel.put_back.as_mut()) else {
            let why = "no event channel of the process is held".to_owned();
            return Err(Failure::new(libc::EINVAL, why));
        };
        if put_back.len() + events.len() > MAX_PUT_BACK {
            let why =
                format!("the events exceed {MAX_PUT_BACK} bytes, the maximum that a socket holds");
            return Err(Failure::new(libc::ENOBUFS, why));
        }
        put_back.extend_from_slice(events);
        Ok(Response::Done)
    }

    /// Moves each event of the held channel into its id's present channel, and releases the held one. Only the service
    /// writes to channels, so the order is kept.
    fn move_events(&mut self, client: ClientId) {
        self.flush_events();
        let Some(id) = self.held_channel(client) else { return };
        let Some(from) = self.channels.get_mut(&id) else { return };
        let put_back = from.put_back.take().unwrap_or_default();
        let messages: Vec<_> = [put_back].into_iter().chain(from.out.take_waiting()).collect();
        self.watch_channel(id);
        for event in messages.iter().flat_map(|message| events_of(message)) {
            let of = event.listen_id.unwrap_or(event.id);
            if self.owns(client, of)
                && let Some(channel) = self.manager.channel_of(of)
            {
                self.put_event(channel, &event);
            }
        }
    }

    fn owns(&self, client: ClientId, id: IdHandle) -> bool {
        self.manager.channel_of(id).is_some_and(|channel| self.is_channel_of(client, channel))
    }

    fn is_channel_of(&self, client: ClientId, channel: ChannelId) -> bool {
        self.channels.get(&channel).is_some_and(|c: &Channel| c.owner == client)
    }

    /// Checks that a process commands only its own ids, on its own channels.
    fn check_owner(&self, client: ClientId, request: &CmRequest) -> Result<(), Failure> {
        let no =
            |what: String| Err(Failure::new(libc::ENOENT, format!("this process has no {what}")));
        let mine = |channel| self.is_channel_of(client, channel);
        match *request {
            CmRequest::CreateId { channel, .. } | CmRequest::Migrate { channel, .. }
                if !mine(channel) =>
            {
                return no(format!("event channel {}", channel.0));
            }
            _ => {}
        }
        match request_id(request) {
            Some(id) if !self.owns(client, id) => no(id.to_string()),
            _ => Ok(()),
        }
    }

    /// Checks that the user has not used up its share of ids, before one is created or a request is accepted.
    fn check_ids(&self, request: &CmRequest) -> Result<(), Failure> {
        let (channel, more) = match *request {
            CmRequest::CreateId { channel, .. } => (Some(channel), 1),
            CmRequest::Accept { id, .. } => (self.manager.channel_of(id), 0),
            _ => return Ok(()),
        };
        let channel = channel.and_then(|channel| self.channels.get(&channel));
        let within = channel.map_or(Ok(()), |channel| channel.ids.check(more));
        within.map_err(|e| {
            Failure::new(
                libc::ENOMEM,
                format!("the user's share of connection identifiers is used up: {e}"),
            )
        })
    }

    /// Charges the ids of a channel to its user.
    pub(super) fn count_ids(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.ids.set(self.manager.ids_in(id));
        }
    }

    fn try_command(&mut self, client: ClientId, request: CmRequest) -> Result<Response, Failure> {
        self.check_owner(client, &request)?;
        self.check_ids(&request)?;
        let of = request_id(&request).and_then(|id| self.manager.channel_of(id));
        let other = match request {
            CmRequest::CreateId { channel, .. } | CmRequest::Migrate { channel, .. } => {
                Some(channel)
            }
            _ => None,
        };
        let done = self.command(client, request);
        of.into_iter().chain(other).for_each(|channel| self.count_ids(channel));
        done.map_err(|e| Failure::new(e.errno(), e.to_string()))
    }

    /// Reserves id numbers for a client.
    fn reserve(&mut self, client: ClientId, count: u32) -> Response {
        let count = count.min(MAX_RESERVED);
        let IdHandle(first) = self.manager.reserve_ids(count);
        if let Some(client) = self.clients.get_mut(client) {
            client.reserved = first..first + u64::from(count);
        }
        Response::Cm(CmReply::Reserved(IdHandle(first)))
    }

    /// Uses one of the reserved numbers. Each is used once, in order.
    fn use_reserved(&mut self, client: ClientId, id: IdHandle) -> Result<(), CmError> {
        let reserved = self.clients.get_mut(client).map(|c| &mut c.reserved);
        match reserved.filter(|reserved| reserved.contains(&id.0)) {
            Some(reserved) => {
                reserved.start = id.0 + 1;
                Ok(())
            }
            None => {
                let (command, what) = (Command::CreateId, "the number was not reserved");
                Err(CmError::Invalid { id, command, what })
            }
        }
    }

    fn command(&mut self, client: ClientId, request: CmRequest) -> Result<Response, CmError> {
        let now = self.now();
        let privileged = self.clients.get(client).is_some_and(|c: &Client| c.uid == 0);
        match &request {
            CmRequest::Connect { id, param } => {
                self.check_stream_qp(client, *id, Command::Connect, param.qp_num)?;
            }
            CmRequest::Accept { id, param } => {
                self.check_stream_qp(client, *id, Command::Accept, param.qp_num)?;
            }
            CmRequest::CreateId { id: Some(id), .. } => self.use_reserved(client, *id)?,
            _ => {}
        }
        let (manager, sink) = (&mut self.manager, &mut self.outbox);
        let events = |n: u32| Response::Cm(CmReply::Events(n));
        let done = |()| Response::Done;
        use CmRequest as R;
        match request {
            R::CreateId { id: Some(id), channel, space, qp_type, only, context } => manager
                .create_id_as(id, channel, (space, qp_type), only.map(only_device), context)
                .map(|()| Response::Cm(CmReply::Id(id))),
            R::CreateId { id: None, channel, space, qp_type, only, context } => manager
                .create_id_on(channel, space, qp_type, only.map(only_device), context)
                .map(|id| Response::Cm(CmReply::Id(id))),
            R::Destroy { id } => manager.destroy(now, id, sink).map(events),
            R::Bind { id, addr } => self.bind(id, addr, privileged).map(|addr| {
                let device = self.manager.query(id).ok().and_then(|info| info.device);
                Response::Cm(CmReply::Bound(addr, device.map(Box::new)))
            }),
            R::Listen { id, backlog } => {
                self.listen(id, backlog).map(|addr| Response::Cm(CmReply::Bound(addr, None)))
            }
            R::Reserve { count } => Ok(self.reserve(client, count)),
            R::ResolveAddr { id, src, dst, timeout } => {
                manager.resolve_addr(now, id, src, dst, timeout, privileged, sink).map(done)
            }
            R::ResolveRoute { id, timeout } => {
                manager.resolve_route(now, id, timeout, sink).map(done)
            }
            R::SetPaths { id, records } => {
                manager.set_paths(id, &path_data(&records), sink).map(done)
            }
            R::ResolveAlong { id, src, dst, records } => {
                let records = path_data(&records);
                manager.resolve_along(now, id, (src, dst), &records, privileged, sink).map(done)
            }
            R::Connect { id, param } => manager.connect(now, id, &param, sink).map(done),
            R::Accept { id, param } => manager.accept(now, id, &param, sink).map(done),
            R::Reject { id, reason, private_data } => {
                manager.reject(now, id, reason, &private_data, sink).map(done)
            }
            R::RejectWith { id, refusal } => manager.reject_with(now, id, &refusal, sink).map(done),
            R::AskForTime { id, service_timeout, private_data } => {
                manager.ask_for_time(id, service_timeout, &private_data, sink).map(done)
            }
            R::LoadAlternate { id, records, private_data } => {
                let records = path_data(&records);
                manager.load_alternate(now, id, &records, &private_data, sink).map(done)
            }
            R::AnswerAlternate { id, answer } => {
                manager.answer_alternate(id, &answer, sink).map(done)
            }
            R::SetPrivateData { id, of, private_data } => {
                manager.set_private_data(id, of, &private_data).map(done)
            }
            R::Migrated { id } => manager.migrated(id).map(done),
            R::Establish { id } => manager.establish(now, id, sink).map(done),
            R::Disconnect { id } => manager.disconnect(now, id, sink).map(done),
            R::Notify { id } => manager.notify(now, id, sink).map(done),
            R::Migrate { id, channel } => manager.migrate(id, channel).map(events),
            R::SetOption { id, option } => manager.set_option(id, option).map(done),
            R::Query { id } => {
                manager.query(id).map(|info| Response::Cm(CmReply::Info(Box::new(info))))
            }
            R::Join { id, wish, context } => {
                manager.join(now, id, wish.into(), context, sink).map(done)
            }
            R::Leave { id, context } => manager.leave(now, id, context, sink).map(events),
            R::Group { id, context } => manager
                .group(id, context)
                .map(|record| Response::Cm(CmReply::Group(record.to_bytes().to_vec()))),
            R::WriteEvent { id, kind, status, arg } => {
                manager.write_event(id, kind, status, arg, sink).map(done)
            }
            R::ResolveService { id, service, timeout } => {
                self.find_services(id, &service, timeout).map(done)
            }
            R::Take { id } => manager.take(id).map(done),
        }
    }
}

/// Decodes path records. One of a wrong length is all zeros, which no id can use.
fn path_data(records: &[(u32, Vec<u8>)]) -> Vec<PathData> {
    let record = |bytes: &[u8]| bytes.try_into().map(PathRecord::from_bytes).unwrap_or_default();
    records.iter().map(|(flags, bytes)| PathData { flags: *flags, record: record(bytes) }).collect()
}

/// Decodes the events of a message, up to the first that is malformed.
fn events_of(mut message: &[u8]) -> impl Iterator<Item = Event> + '_ {
    std::iter::from_fn(move || {
        let (event, rest) = socket::decode_first(message).ok()?;
        message = rest;
        Some(event)
    })
}

/// Returns the id of a failed command and which command it was, for an event.
fn about(request: &CmRequest) -> Option<(IdHandle, Command)> {
    match *request {
        CmRequest::ResolveAddr { id, .. } => Some((id, Command::ResolveAddr)),
        CmRequest::ResolveRoute { id, .. } => Some((id, Command::ResolveRoute)),
        CmRequest::ResolveAlong { id, .. } => Some((id, Command::ResolveAlong)),
        CmRequest::Connect { id, .. } => Some((id, Command::Connect)),
        CmRequest::Accept { id, .. } => Some((id, Command::Accept)),
        _ => None,
    }
}

/// Returns the event that reports that an id cannot be created, and its channel.
fn created(request: &CmRequest) -> Option<(ChannelId, Event)> {
    let CmRequest::CreateId { id: Some(id), channel, context, .. } = *request else { return None };
    let event = Event {
        id,
        context,
        listen_id: None,
        kind: EventKind::AddrError,
        status: 0,
        param: EventParam::None,
        route: None,
        negotiated: None,
        mad: None,
    };
    Some((channel, event))
}

/// Returns the id of a command.
fn request_id(request: &CmRequest) -> Option<IdHandle> {
    use CmRequest as R;
    match *request {
        R::CreateId { .. } | R::Reserve { .. } => None,
        R::Destroy { id }
        | R::Bind { id, .. }
        | R::Listen { id, .. }
        | R::ResolveAddr { id, .. }
        | R::ResolveRoute { id, .. }
        | R::SetPaths { id, .. }
        | R::ResolveAlong { id, .. }
        | R::Connect { id, .. }
        | R::Accept { id, .. }
        | R::Reject { id, .. }
        | R::RejectWith { id, .. }
        | R::AskForTime { id, .. }
        | R::LoadAlternate { id, .. }
        | R::AnswerAlternate { id, .. }
        | R::SetPrivateData { id, .. }
        | R::Migrated { id }
        | R::Establish { id }
        | R::Disconnect { id }
        | R::Notify { id }
        | R::Migrate { id, .. }
        | R::SetOption { id, .. }
        | R::Query { id }
        | R::Join { id, .. }
        | R::Leave { id, .. }
        | R::Group { id, .. }
        | R::WriteEvent { id, .. }
        | R::ResolveService { id, .. }
        | R::Take { id } => Some(id),
    }
}
