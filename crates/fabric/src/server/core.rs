//! The state of the fabric, and what happens when clients connect and leave.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdmux_link::Inbox;
use rdmux_runtime::closing::Closer;
use rdmux_runtime::socket::MAX_MESSAGE;
use rdmux_subnet::{Subnet, Time};
use serde::Serialize;

use super::ServerOptions;
use super::attachments::Attachments;
use super::connection::{Connection, ConnectionId, Connections, Part};
use super::counters::{Count, Counts};
use super::files::Files;
use super::host_table::Place;
use super::nodes::Nodes;
use super::outgoing::Lost;
use super::poller::{Poller, Ready, Token};
use super::published::Published;
use super::serving;
use super::setup::{self, DEFAULT_SHAPE, FIRST_GUID, Setup};
use super::store::Store;
use super::world::World;
use crate::bridge::{Machines, Via};
use crate::proto::{BadGreeting, Failure, Greeting, Reply, Role, VERSION};
use crate::{FabricDir, FabricError, FabricName};

/// The state of the fabric.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) dir: FabricDir,
    pub(super) setup: Setup,
    pub(super) poller: Poller,
    pub(super) connections: Connections,
    pub(super) world: World,
    pub(super) files: Files,
    pub(super) nodes: Nodes,
    pub(super) attachments: Attachments,
    pub(super) published: Published,
    pub(super) counts: Counts,
    pub(super) closer: Closer,
    pub(super) store: Store,
    pub(super) started: Instant,
    /// The address where it listens for other machines.
    pub(super) listens: Option<SocketAddr>,
    /// The machines whose hosts are connected.
    pub(super) machines: Machines,
    /// Buffers for messages and datagrams, and for assembling records.
    pub(super) buf: Vec<u8>,
    pub(super) inbox: Inbox,
    pub(super) scratch: Vec<u8>,
    /// Connections of programs to which records are sent at the end of the turn.
    pub(super) due: Vec<ConnectionId>,
    /// Whether the fabric stays when it has no clients.
    pub(super) stays: bool,
    /// Whether rows of counts were read in this turn.
    pub(super) has_read: bool,
    /// Whether the rows of all hosts were read after the datagrams that are handled now were received.
    pub(super) is_fresh: bool,
    /// Users whose connections have their next turn in the next round, because rows of counts were read for them in this one.
    pub(super) held: BTreeSet<u32>,
    users: Vec<u32>,
    served: bool,
    stopping: bool,
}

/// The reason why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The client closed it.
    Closed,
    /// The client broke the protocol.
    Broke(&'static str),
}

impl From<Lost> for Ends {
    fn from(_: Lost) -> Self {
        Self::Closed
    }
}

impl Core {
    /// Brings up the subnet that the directory describes.
    pub(super) fn open(
        dir: FabricDir,
        options: &ServerOptions,
        mut setup: Setup,
    ) -> Result<Self, FabricError> {
        let topology = match setup::load_topology(&dir)? {
            Some(topology) => topology,
            None => {
                setup.source = DEFAULT_SHAPE.to_string();
                let topology = DEFAULT_SHAPE.topology(FIRST_GUID);
                setup.keep(&dir, Some(&topology))?;
                topology
            }
        };
        let subnet = Subnet::new(&topology, rdmux_subnet::Config::default());
        let store = Store::load(&dir)?;
        let poller = Poller::new().map_err(|e| FabricError::io("make an epoll descriptor", e))?;
        let mut world = World::new(subnet);
        if let Some(config) = setup.manager.config() {
            world.start_manager(config, setup.manager.partitions()?);
        }
        Ok(Self {
            dir,
            setup,
            poller,
            connections: Connections::new(),
            world,
            files: Files::default(),
            nodes: Nodes::new(&topology),
            attachments: Attachments::default(),
            published: Published::new(),
            counts: Counts::new(),
            closer: Closer::default(),
            store,
            started: Instant::now(),
            listens: None,
            machines: Machines::default(),
            buf: vec![0; MAX_MESSAGE],
            inbox: serving::inbox(),
            scratch: Vec::new(),
            due: Vec::new(),
            stays: options.idle_exit.is_none(),
            has_read: false,
            is_fresh: false,
            held: BTreeSet::new(),
            users: options.config.users.clone(),
            served: false,
            stopping: false,
        })
    }

    pub(super) fn name(&self) -> &FabricName {
        self.dir.name()
    }

    /// Returns the time of the subnet's clock.
    pub(super) fn now(&self) -> Time {
        Time::ZERO.after(self.started.elapsed())
    }

    /// Sets the address where it listens for other machines.
    pub(super) fn listens_at(&mut self, at: Option<SocketAddr>) {
        self.listens = at;
    }

    pub(super) fn count(&mut self, count: Count) {
        self.counts.add(count);
    }

    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Returns whether the fabric has no clients, and need not stay.
    pub(super) fn is_idle(&self) -> bool {
        !self.stays && self.connections.is_idle()
    }

    /// Returns whether the fabric has had a client.
    pub(super) fn has_served(&self) -> bool {
        self.served
    }

    /// Returns how long until the next timer expires.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let now = self.now();
        let world = self.world.next_timeout().map(|due| due.since(now));
        world.into_iter().chain(self.store.due_in()).min()
    }

    /// Handles expired timers, at the end of a round.
    pub(super) fn handle_time(&mut self) {
        self.held.clear();
        let now = self.now();
        if self.world.next_timeout().is_some_and(|due| due <= now) {
            let (world, mut programs) = self.world_and_programs();
            world.handle_timeout(&mut programs, now);
        }
        for event in self.world.take_manager_events() {
            self.note_manager_event(&event);
        }
        self.tell_hosts();
        self.send_records();
        self.store.save_if_due(&self.dir, self.world.subnet());
    }

    /// Stores the subnet before the fabric ends.
    pub(super) fn shut_down(&mut self) {
        self.store.save(&self.dir, self.world.subnet());
    }

    /// Adds a client for a new connection.
    pub(super) fn add_client(&mut self, socket: OwnedFd) {
        let id = self.connections.next_id();
        let watched = Connection::new(socket, &self.closer).and_then(|connection| {
            let share = self.connections.room_for(connection.uid)?;
            self.poller.add(&connection.socket, Token::Connection(id))?;
            Ok((connection, share))
        });
        match watched {
            Ok((connection, share)) => {
                self.connections.add(connection, share);
            }
            Err(e) => {
                tracing::debug!("cannot serve a client: {e}");
                self.count(Count::ClientsRefused);
            }
        }
    }

    /// Handles an event of a connection.
    pub(super) fn handle(&mut self, id: ConnectionId, event: &Ready) {
        // Without this, a connection whose requests are not read would stay, and its end would be reported all the time.
        let is_stuck = event.ended && self.connections.get(id).is_some_and(|c| !c.may_ask());
        let result = if event.writable || is_stuck { self.flush(id) } else { Ok(()) };
        let result = result.and_then(|()| if event.readable { self.serve(id) } else { Ok(()) });
        // Sent first, because it changes what the connection is polled for.
        self.send_records();
        match result {
            Ok(()) => self.watch(id),
            Err(ends) => self.close(id, ends),
        }
        self.tell_hosts();
        self.send_records();
    }

    fn flush(&mut self, id: ConnectionId) -> Result<(), Ends> {
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        Ok(connection.out.flush(&connection.socket)?)
    }

    /// Updates what a connection is polled for. Requests are not read while answers wait.
    pub(super) fn watch(&mut self, id: ConnectionId) {
        if let Some(c) = self.connections.get_mut(id) {
            watch(&self.poller, id, c);
        }
    }

    /// Refuses a new client if its user has passed too many descriptors that are still to be closed. Its greeting, which may carry more,
    /// is not received.
    pub(super) fn refuse_if_full(&mut self, id: ConnectionId, user: u32) -> Result<(), Ends> {
        if !self.closer.is_full(user) {
            return Ok(());
        }
        self.count(Count::ClientsRefused);
        let why =
            "too many descriptors that this user passed are still being closed; try again later";
        let _ = self.welcome::<()>(id, Err(Failure::new(libc::EAGAIN, why)));
        Err(Ends::Closed)
    }

    /// Handles the first message of a client.
    pub(super) fn greet(&mut self, id: ConnectionId, message: &[u8]) -> Result<(), Ends> {
        if self.is_placed(id, message) {
            return Ok(());
        }
        let role = match Greeting::decode(message) {
            Ok(greeting) => greeting.role,
            Err(BadGreeting::Version(theirs)) => {
                let why =
                    format!("the client speaks protocol version {theirs}, the fabric {VERSION}");
                let _ = self.welcome::<()>(id, Err(Failure::new(libc::EPROTO, why)));
                return Err(Ends::Closed);
            }
            Err(BadGreeting::Malformed(_)) => {
                return Err(Ends::Broke("an invalid greeting"));
            }
        };
        self.served = true;
        if let Err(failure) = self.permit(id, &role) {
            self.count(Count::ClientsRefused);
            self.welcome::<()>(id, Err(failure))?;
            return Err(Ends::Closed);
        }
        match role {
            Role::Attach { host, node_guid, port } => self.attach(id, &host, node_guid, &port),
            Role::OpenFile(port) => self.open_file(id, &port),
            Role::Mads { file, key } => self.open_mads(id, file, &key),
            Role::IsSm { port, wait } => self.set_is_sm(id, &port, wait),
            Role::Tables => self.tell_tables(id),
            Role::Admin => {
                self.become_part(id, Part::Admin);
                self.welcome(id, Ok(()))
            }
            Role::Shutdown => {
                self.stop();
                self.welcome(id, Ok(()))
            }
            Role::Capture(port) => self.capture(id, &port),
        }
    }

    /// Handles a message that names the machine of a connection. It is accepted only from the thread of this process that relays the
    /// connection, before the client's own messages. Returns whether it was one.
    fn is_placed(&mut self, id: ConnectionId, message: &[u8]) -> bool {
        let Some(c) = self.connections.get_mut(id) else { return false };
        if c.place.is_some() || !c.is_own() {
            return false;
        }
        let place = Via::decode(message, &self.machines);
        c.place = place.map(|(machine, connection)| Place { machine, connection });
        c.place.is_some()
    }

    /// Makes a connection receive changes of its bridge's route tables.
    fn tell_tables(&mut self, id: ConnectionId) -> Result<(), Ends> {
        if self.connections.get(id).is_none_or(|c| c.place.is_none()) {
            let why = "only bridges of other machines receive route tables";
            return self.welcome::<()>(id, Err(Failure::new(libc::EPERM, why)));
        }
        self.become_part(id, Part::Tables);
        self.welcome(id, Ok(()))
    }

    /// Sends bridges the changes of their hosts' route tables.
    pub(super) fn tell_bridges(&mut self) {
        for (machine, updates) in self.published.take_updates() {
            let is_its = |c: &Connection| {
                let place = c.place.as_ref().filter(|_| matches!(c.part, Part::Tables));
                place.is_some_and(|place| place.machine.is(&machine))
            };
            // If none is left, the bridge is ending, and its hosts with it.
            let its = self.connections.iter().find(|(_, c)| is_its(c)).map(|(id, _)| id);
            let Some((id, c)) = its.and_then(|id| Some((id, self.connections.get_mut(id)?))) else {
                continue;
            };
            for update in &updates {
                let sent = postcard::to_stdvec(update)
                    .map(|message| c.out.send(&c.socket, &message, None));
                if !matches!(sent, Ok(Ok(()))) {
                    tracing::debug!("cannot send route tables to a bridge");
                }
                if let Some(sequence) = update.sequence {
                    machine.has_updates(sequence);
                }
            }
            watch(&self.poller, id, c);
        }
    }

    /// Checks a client's rights: the owner and root may do everything, the configuration's users may attach and open management
    /// interfaces.
    fn permit(&self, id: ConnectionId, role: &Role) -> Result<(), Failure> {
        let Some(c) = self.connections.get(id).filter(|c| !is_privileged(c.uid)) else {
            return Ok(());
        };
        let owner = rustix::process::geteuid().as_raw();
        let why = match role {
            Role::IsSm { .. } => {
                "may not manage its subnet: only its owner and root may run a subnet manager there"
            }
            Role::Admin | Role::Shutdown => {
                "may not change it; `users` in the table [fabric] of its owner's configuration lets others attach"
            }
            _ if self.users.contains(&c.uid) => return Ok(()),
            _ => {
                "may not attach; `users` in the table [fabric] of its owner's configuration lets others attach"
            }
        };
        let why = format!("the fabric belongs to user {owner}, and user {} {why}", c.uid);
        Err(Failure::new(libc::EPERM, why))
    }

    /// Sets the purpose of a connection.
    pub(super) fn become_part(&mut self, id: ConnectionId, part: Part) {
        if let Some(connection) = self.connections.get_mut(id) {
            connection.part = part;
        }
    }

    /// Answers a greeting.
    pub(super) fn welcome<T: Serialize>(
        &mut self,
        id: ConnectionId,
        reply: Reply<T>,
    ) -> Result<(), Ends> {
        self.send(id, &(VERSION, reply))
    }

    /// Answers a greeting, with a descriptor.
    pub(super) fn welcome_with<T: Serialize>(
        &mut self,
        id: ConnectionId,
        reply: Reply<T>,
        fd: Option<OwnedFd>,
    ) -> Result<(), Ends> {
        self.send_with(id, &(VERSION, reply), fd)
    }

    /// Sends a message, or queues it.
    pub(super) fn send(&mut self, id: ConnectionId, value: &impl Serialize) -> Result<(), Ends> {
        self.send_with(id, value, None)
    }

    fn send_with(
        &mut self,
        id: ConnectionId,
        value: &impl Serialize,
        fd: Option<OwnedFd>,
    ) -> Result<(), Ends> {
        self.publish();
        let Some(c) = self.connections.get_mut(id) else { return Ok(()) };
        let message = postcard::to_stdvec(value)
            .map_err(|_| Ends::Broke("a reply that cannot be encoded"))?;
        Ok(c.out.send(&c.socket, &message, fd)?)
    }

    /// Removes a connection without releasing what the client had by it.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(id)?;
        self.poller.remove(&connection.socket);
        Some(connection)
    }

    /// Closes a connection, and releases what the client had by it.
    pub(super) fn close(&mut self, id: ConnectionId, ends: Ends) {
        let Some(connection) = self.remove(id) else { return };
        if let Ends::Broke(why) = ends {
            tracing::debug!("process {} violated the protocol: {why}", connection.pid);
            self.count(Count::ClientsBroke);
        }
        match connection.part {
            Part::New | Part::Admin | Part::Tables => {}
            Part::Capture(port) => self.end_capture(port),
            Part::Attachment { port, .. } => self.detach(id, port),
            // The end of either connection closes both.
            Part::Control(file) => {
                // Everything that was sent before the end is still handled. Errors do not matter.
                let _ = self.drain_mads(file);
                self.close_file(file);
            }
            Part::Mads(file) => self.close_file(file),
            Part::IsSm { port, file } => {
                if let Some(file) = file {
                    self.clear_is_sm(port, file);
                }
            }
        }
    }
}

/// Returns whether a user may do everything: the fabric's owner and root.
pub(super) fn is_privileged(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Updates what a connection is polled for.
pub(super) fn watch(poller: &Poller, id: ConnectionId, c: &mut Connection) {
    let wanted = (c.may_ask(), !c.out.is_empty());
    if wanted != c.watched {
        c.watched = wanted;
        poller.change(&c.socket, Token::Connection(id), wanted.0, wanted.1);
    }
}
