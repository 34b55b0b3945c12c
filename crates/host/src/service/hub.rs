//! The hub in the service: a thread that sends requests to its own service like any process, so that it can wait
//! for a reply while the service continues. Each kind of device that has XRC has one, with a device of that
//! kind.
//!
//! The service notifies the thread of processes that connect and leave ([`Order`]). Processes send it requests
//! on sockets of their own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use rdmux_link::Doorbell;
use rdmux_runtime::Share;
use rdmux_runtime::closing::{Closer, Foreign};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::{Control, DeviceKind};
use rdmux_verbs::throttled;
use rdmux_verbs::xrc::hub::{Hub, Identity, MemberId, TargetEvent};

use super::clients::{Client, ClientId};
use super::core::Core;
use super::poller::{self, Interest, Poller, Token};
use super::requests::failure;
use super::shares::{HubShares, no_descriptors};
use crate::client::HostClient;
use crate::error::HostError;
use crate::names::HostName;
use crate::proto::socket::{self, MAX_MESSAGE, MessageError};
use crate::proto::{Failure, HubReply, HubRequest, HubResponse, Notify};

/// A message of the service to the thread.
#[derive(Debug)]
enum Order {
    /// A process connected, with the session for its requests.
    Join(ClientId, Identity, Session),
    /// A process left.
    Leave(ClientId),
}

/// A process's session with the hub.
#[derive(Debug)]
struct Session {
    socket: Foreign,
    /// The process's user.
    user: u32,
    /// The share for the socket and a pidfd.
    _share: Share,
}

/// The service's handle of the thread.
#[derive(Debug)]
pub(super) struct HubThread {
    /// The thread as a client of the service.
    client: ClientId,
    orders: Sender<Order>,
    bell: Doorbell,
    /// Set once the thread has opened the hub.
    hub: Arc<OnceLock<Arc<Hub>>>,
}

impl HubThread {
    fn order(&self, order: Order) {
        // The thread ends only when the service does.
        let _ = self.orders.send(order);
        let _ = self.bell.ring();
    }

    /// Returns the hub, once it is up.
    pub(super) fn hub(&self) -> Option<&Hub> {
        self.hub.get().map(Arc::as_ref)
    }
}

impl Drop for HubThread {
    fn drop(&mut self) {
        // The thread sees that no more orders will follow.
        self.orders = channel().0;
        let _ = self.bell.ring();
    }
}

impl Core {
    /// Returns a socket for requests to the hub of the process's kind of device, which is started if need be.
    pub(super) fn open_hub(&mut self, id: ClientId) -> Result<OwnedFd, Failure> {
        let kind = self.clients.get(id).and_then(Client::device_kind).unwrap_or_default();
        if !kind.row().services.include(QpType::XrcRecv) {
            let why = format!("{} does not support XRC", kind.row().title);
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
        if self.hubs[kind].is_none() {
            self.hubs[kind] = Some(self.start_hub(kind).map_err(|e| failure(&e))?);
        }
        let share = self.descriptors_for(id, 2).map_err(|e| no_descriptors(libc::EMFILE, &e))?;
        let (ours, theirs) = socket::pair().map_err(|e| failure(&e))?;
        socket::set_nonblocking(&ours, true).map_err(|e| failure(&e))?;
        let (Some(client), Some(thread)) = (self.clients.get(id), &self.hubs[kind]) else {
            return Err(Failure::new(libc::ESRCH, "the process is gone"));
        };
        let pidfd = client.pidfd.as_ref().and_then(|fd| fd.try_clone().ok());
        let slot = client.slots.first().copied().unwrap_or(0);
        let (pid, user, comm) = (client.pid, client.uid, client.comm.clone());
        let who = Identity { pid, user, comm, slot, pidfd };
        let socket = self.closer.socket(user, ours);
        let session = Session { socket, user, _share: share };
        thread.order(Order::Join(id, who, session));
        Ok(theirs)
    }

    fn start_hub(&mut self, kind: DeviceKind) -> io::Result<HubThread> {
        let (ours, theirs) = socket::pair()?;
        socket::set_nonblocking(&ours, true)?;
        let client = self.add_client(ours)?;
        let (orders, inbox) = channel();
        let bell = Doorbell::new()?;
        let thread = Thread {
            poller: Poller::new()?,
            inbox,
            bell: bell.try_clone()?,
            sessions: BTreeMap::new(),
            closer: self.closer.clone(),
            buf: vec![0; MAX_MESSAGE],
            scratch: Vec::new(),
        };
        let hub = Arc::<OnceLock<_>>::default();
        let (host, shared) = (self.options.host.clone(), hub.clone());
        let run = move || {
            if let Err(error) = thread.run(&host, kind, theirs, &shared) {
                throttled!(
                    error,
                    "{}: the XRC hub failed, and its receive queue pairs with it: {error}",
                    kind.row().title
                );
            }
        };
        rdmux_verbs::signals::with_blocked(|| {
            let name = format!("rdmux-hub-{}", kind.row().word);
            std::thread::Builder::new().name(name).spawn(run)
        })?;
        Ok(HubThread { client, orders, bell, hub })
    }

    /// Returns all running hubs, with the kinds of their devices.
    pub(super) fn hubs(&self) -> impl Iterator<Item = (DeviceKind, &HubThread)> {
        self.hubs.iter().filter_map(|(kind, hub)| Some((kind, hub.as_ref()?)))
    }

    /// Returns whether a client is a hub.
    pub(super) fn is_hub(&self, id: ClientId) -> bool {
        self.hubs().any(|(_, thread)| thread.client == id)
    }

    /// Returns the first slot of the hub of a kind of device.
    pub(super) fn hub_slot(&self, kind: DeviceKind) -> Option<u16> {
        let client = self.clients.get(self.hubs[kind].as_ref()?.client)?;
        client.slots.first().copied()
    }

    /// Returns how many slots the hubs have.
    pub(super) fn hub_slots(&self) -> usize {
        let clients = self.hubs().filter_map(|(_, thread)| self.clients.get(thread.client));
        clients.map(|client| client.slots.len()).sum()
    }

    /// Returns the client that owns a queue pair number on devices of a kind. Those of XRC targets are the
    /// hub's.
    pub(super) fn owner_of(&self, kind: DeviceKind, qpn: rdmux_wire::Qpn) -> Option<ClientId> {
        if rdmux_verbs::control::is_target(qpn) {
            return self.hubs[kind].as_ref().map(|thread| thread.client);
        }
        self.slots.owner(rdmux_verbs::control::slot_of(qpn))
    }

    /// Notifies the hubs that a process is gone.
    pub(super) fn hub_client_gone(&mut self, id: ClientId) {
        let own = self.hubs().find(|(_, thread)| thread.client == id).map(|(kind, _)| kind);
        if let Some(kind) = own {
            self.hubs[kind] = None;
        } else {
            self.hubs().for_each(|(_, thread)| thread.order(Order::Leave(id)));
        }
    }

    /// Notifies the processes that hold an XRC target of its event.
    pub(super) fn tell_target_event(&mut self, event: &TargetEvent) {
        let notify = Notify::Target { qpn: event.qpn, event: event.event };
        for &MemberId(id) in &event.holders {
            self.notify(ClientId(id), &notify, Vec::new());
        }
    }
}

/// The state of the thread.
#[derive(Debug)]
struct Thread {
    poller: Poller,
    inbox: Receiver<Order>,
    bell: Doorbell,
    sessions: BTreeMap<ClientId, Session>,
    closer: Closer,
    buf: Vec<u8>,
    scratch: Vec<u8>,
}

impl Thread {
    /// Opens the hub and serves until the service ends.
    fn run(
        mut self,
        host: &HostName,
        kind: DeviceKind,
        socket: OwnedFd,
        shared: &OnceLock<Arc<Hub>>,
    ) -> Result<(), HostError> {
        let client = HostClient::open_hub(host, socket, kind)?;
        let opened = Hub::open(client.clone(), Arc::new(HubShares::new()));
        let hub = Arc::new(opened.map_err(|e| HostError::io("open the hub", io::Error::other(e)))?);
        let fail = |e| HostError::io("watch a descriptor", e);
        self.poller.add(&self.bell, Token::Stop, Interest::Read).map_err(fail)?;
        let events = hub.device().async_fd();
        self.poller.add(events, Token::Events, Interest::Read).map_err(fail)?;
        let _ = shared.set(hub.clone());
        let mut ready = Vec::new();
        loop {
            poller::wait(&self.poller, None, &mut ready)
                .map_err(|e| HostError::io("wait for events", e))?;
            for event in &ready {
                match event.token {
                    Token::Stop => {
                        self.bell.clear();
                        if !self.take_orders(&hub) {
                            return Ok(());
                        }
                    }
                    Token::Events => {
                        while let Some(event) = hub.next_event() {
                            client.tell_target_event(event)?;
                        }
                        if client.is_gone() || hub.device().has_failed() {
                            return Ok(());
                        }
                    }
                    Token::Rpc(id) => self.serve(&hub, id, client.info().slot.slot),
                    _ => {}
                }
            }
        }
    }

    /// Handles the service's orders. Returns whether more may follow.
    fn take_orders(&mut self, hub: &Hub) -> bool {
        use std::sync::mpsc::TryRecvError;
        loop {
            match self.inbox.try_recv() {
                Ok(Order::Join(id, who, session)) => {
                    match self.poller.add(&session.socket, Token::Rpc(id), Interest::Read) {
                        Ok(()) => {
                            hub.join(MemberId(id.0), who);
                            self.sessions.insert(id, session);
                        }
                        // The hub's end closes, which the process detects.
                        Err(error) => {
                            throttled!(warn, %error, "cannot serve a process at the XRC hub")
                        }
                    }
                }
                Ok(Order::Leave(id)) => self.leave(hub, id),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn leave(&mut self, hub: &Hub, id: ClientId) {
        if let Some(Session { socket, .. }) = self.sessions.remove(&id) {
            self.poller.remove(&socket);
            // A child of the process may have the socket, too.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        hub.leave(MemberId(id.0));
    }

    /// Receives one request and answers it.
    fn serve(&mut self, hub: &Hub, id: ClientId, slot: u16) {
        let Some(Session { socket, user, .. }) = self.sessions.get(&id) else { return };
        let mut fds = Vec::new();
        let keep = |fd| fds.push(self.closer.foreign(*user, fd));
        let request = socket::try_recv_each(socket.as_fd(), &mut self.buf, keep)
            .and_then(socket::decode::<HubRequest>);
        if !fds.is_empty() && self.closer.is_full(*user) {
            return self.leave(hub, id);
        }
        let reply: HubReply = match request {
            Ok(HubRequest::Slot) => Ok(HubResponse::Slot(slot)),
            Ok(HubRequest::Xrc(request)) => hub
                .handle(MemberId(id.0), request, fds.last().map(AsFd::as_fd))
                .map(HubResponse::Xrc)
                .map_err(|e| Failure::new(e.errno(), reason(&e))),
            Err(MessageError::WouldBlock) => return,
            Err(_) => return self.leave(hub, id),
        };
        if socket::send(socket.as_fd(), &reply, &[], &mut self.scratch).is_err() {
            self.leave(hub, id);
        }
    }
}

/// Returns why a request failed, without its name, which the process adds.
fn reason(error: &rdmux_verbs::VerbsError) -> String {
    use rdmux_verbs::VerbsError as E;
    use rdmux_verbs::control::ControlError;
    match error {
        E::Invalid { why, .. } | E::NoMemory { why, .. } => why.clone(),
        E::Control(ControlError::Refused { why, .. }) => why.clone(),
        other => other.to_string(),
    }
}
