//! The state of a running service, and what happens when a client connects or leaves.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rdmux_cm::{ChannelId, Manager, Time};
use rdmux_link::{RxBatch, TxBatch};
use rdmux_runtime::Share;
use rdmux_runtime::closing::{Closer, Foreign};
use rdmux_verbs::control::{DeviceKind, slot_of};
use rdmux_verbs::kind::{self, PerKind};
use rdmux_verbs::port::PortEvent;
use rdmux_verbs::throttled;
use rdmux_wire::Guid;
use serde::Serialize;

use super::addresses::{Addresses, Changes};
use super::capture::Capture;
use super::clients::{Client, ClientId, Clients, Gone};
use super::cm::Outbox;
use super::counters::{Count, Counts};
use super::host_rings::HostRings;
use super::hub::HubThread;
use super::kinds::Kinds;
use super::late::Late;
use super::mad::Agents;
use super::mcast::Groups;
use super::netlink::Netlink;
use super::options::ServiceOptions;
use super::outgoing::{Lost, Outgoing};
use super::poller::{Interest, Poller, Token};
use super::ports;
use super::ports::ib::Adapters;
use super::ports::iwarp::Streams;
use super::resolve::Resolver;
use super::rings::Rings;
use super::shares::HostShares;
use super::slots::Slots;
use super::view::Views;
use crate::error::HostError;
use crate::names::NetworkNamespace;
use crate::proto::{ClientKind, EVENTS, Notify, socket};

/// Maximum number of notifications that wait for a process to read them.
const MAX_NOTIFICATIONS: usize = 4096;
/// Messages that the service receives from QP1 in one system call.
const RX_MESSAGES: usize = 16;

/// The state of a service.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) options: ServiceOptions,
    pub(super) started: Instant,
    pub(super) node_guid: Guid,
    /// The network namespace of the service.
    pub(super) network: Option<NetworkNamespace>,
    pub(super) poller: Poller,
    pub(super) netlink: Netlink,
    pub(super) clients: Clients,
    pub(super) closer: Closer,
    pub(super) shares: HostShares,
    pub(super) slots: Slots,
    pub(super) addresses: Addresses,
    pub(super) rings: Rings,
    pub(super) host_rings: HostRings,
    pub(super) groups: Groups,
    pub(super) channels: BTreeMap<ChannelId, Channel>,
    pub(super) next_channel: u64,
    /// Channels with events that were not sent yet.
    pub(super) told: Vec<ChannelId>,
    pub(super) manager: Manager,
    pub(super) outbox: Outbox,
    pub(super) streams: Streams,
    pub(super) adapter: Adapters,
    pub(super) resolver: Resolver,
    pub(super) kinds: Kinds,
    pub(super) late: Late,
    pub(super) agents: Agents,
    pub(super) capture: Capture,
    pub(super) views: Views,
    pub(super) hubs: PerKind<Option<HubThread>>,
    pub(super) counts: Counts,
    pub(super) tx: TxBatch,
    /// The receive batch. None while it is in use.
    pub(super) rx: Option<RxBatch>,
    /// The buffer in which messages are encoded.
    pub(super) scratch: Vec<u8>,
    /// Clients that are removed once nothing refers to them.
    pub(super) doomed: Vec<(ClientId, Gone)>,
    /// Whether the service was requested to end.
    pub(super) stopping: bool,
}

/// An event channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// The client that opened the channel.
    pub(super) owner: ClientId,
    /// The service's end of the channel's socket.
    pub(super) out: Outgoing,
    /// Events that were not sent yet.
    pub(super) batch: Vec<u8>,
    /// Events that its process put back, while the channel is held.
    pub(super) put_back: Option<Vec<u8>>,
    /// The share for the service's end.
    pub(super) _share: Share,
    /// The share for its ids.
    pub(super) ids: Share,
}

impl Core {
    /// Makes a service on the addresses of its options or of the machine.
    pub(super) fn new(
        options: ServiceOptions,
        poller: Poller,
        fixed: Option<Vec<IpAddr>>,
    ) -> Result<Self, HostError> {
        let netlink = Netlink::open().map_err(|e| HostError::io("open a netlink socket", e))?;
        let addresses = Addresses::new(fixed, options.config.service.port);
        let cm = super::cm::config(&options.config);
        let shares = HostShares::new(&cm);
        let mut core = Self {
            started: Instant::now(),
            node_guid: options.node_guid()?,
            network: NetworkNamespace::current(),
            poller,
            netlink,
            clients: Clients::new(),
            closer: Closer::default(),
            slots: Slots::new(shares.descriptors.clone()),
            agents: Agents::new(&shares.requests),
            shares,
            addresses,
            rings: Rings::default(),
            host_rings: HostRings::new(u64::from_ne_bytes(super::random_bytes()?)),
            groups: Groups::default(),
            channels: BTreeMap::new(),
            next_channel: 1,
            told: Vec::new(),
            manager: Manager::new(cm, super::random_bytes()?),
            outbox: Outbox::default(),
            streams: Streams::new(),
            adapter: Adapters::new(&options.fabrics()?),
            resolver: Resolver::default(),
            kinds: Kinds::default(),
            late: Late::default(),
            capture: Capture::default(),
            views: Views::default(),
            hubs: PerKind::new(|_| None),
            counts: Counts::new(),
            tx: TxBatch::new(),
            rx: Some(RxBatch::new(RX_MESSAGES)),
            scratch: Vec::new(),
            doomed: Vec::new(),
            stopping: false,
            options,
        };
        core.scan_addresses()?;
        if core.addresses.rows().next().is_none() {
            return Err(HostError::Start {
                host: core.options.host.clone(),
                why: core.options.no_address(),
            });
        }
        Ok(core)
    }

    /// Returns the present time on the service's clock.
    pub(super) fn now(&self) -> Time {
        Time::ZERO.after(self.started.elapsed())
    }

    /// Rescans the machine's addresses, and notifies processes and the connection manager of changes.
    ///
    /// # Errors
    /// [`HostError::PortInUse`] for an address that another program uses; the others are served.
    pub(super) fn scan_addresses(&mut self) -> Result<(), HostError> {
        let changes = self.addresses.scan(&mut self.netlink)?;
        let Changes { added, removed, moved, resized, refused } = changes;
        for row in &removed {
            tracing::info!("address {} was removed from {}", row.ip, row.interface.name);
            self.poller.remove(row.roce.qp1.as_fd());
        }
        for &index in &added {
            let Some(row) = self.addresses.row(index) else { continue };
            tracing::info!("GID {index} is {} on {}", row.ip, row.interface.name);
            self.poller
                .add(row.roce.qp1.as_fd(), Token::Qp1(index), Interest::Read)
                .map_err(|e| HostError::io("watch a socket", e))?;
        }
        let is_other_table = moved || !added.is_empty() || !removed.is_empty();
        if is_other_table || resized {
            let addresses = &self.addresses;
            self.groups.follow(|ip| addresses.find(ip).map(|row| row.interface.index));
            self.follow_ports();
            self.follow_addresses();
            let events = is_other_table.then_some((1, PortEvent::GidChange));
            for &kind in kind::all() {
                self.notify_ports_of(kind, events.into_iter().collect());
            }
            self.refresh_view();
            self.drain_outbox();
        }
        refused.map_or(Ok(()), Err)
    }

    /// Passes the present addresses and ports to the connection manager.
    pub(super) fn follow_ports(&mut self) {
        let now = self.now();
        let ports = kind::all().iter().flat_map(|kind| ports::of(*kind).device_ports(self, *kind));
        let ports = ports.collect();
        self.manager.set_device_ports(ports);
        let of = |kind: &DeviceKind| ports::of(*kind).addresses(self, *kind);
        let addresses = kind::all().iter().flat_map(of).collect();
        self.manager.set_addresses(now, addresses, &mut self.outbox);
    }

    /// Notifies each process with a device of this kind of the ports' present state and of events, each with its port's number.
    pub(super) fn notify_ports_of(&mut self, kind: DeviceKind, events: Vec<(u8, PortEvent)>) {
        let ports = Notify::Ports { ports: self.ports_of(kind), events };
        for id in self.clients.ids() {
            if self.clients.get(id).and_then(Client::device_kind) == Some(kind) {
                self.notify(id, &ports, Vec::new());
            }
        }
    }

    /// Adds a client for a new connection.
    pub(super) fn add_client(&mut self, rpc: OwnedFd) -> std::io::Result<ClientId> {
        let id = self.clients.add(Client::accept(rpc, &self.closer, &self.shares.descriptors)?);
        self.counts.add(Count::ClientsCame);
        if let Some(client) = self.clients.get(id) {
            let mut watched = self.poller.add(&client.rpc, Token::Rpc(id), Interest::Read);
            if let Some(pidfd) = &client.pidfd {
                watched = watched.and(self.poller.add(pidfd, Token::Pid(id), Interest::Read));
            }
            if let Err(e) = watched {
                self.clients.remove(id);
                return Err(e);
            }
        }
        Ok(id)
    }

    /// Marks a client as gone. It is removed after the current event.
    pub(super) fn doom(&mut self, id: ClientId, why: Gone) {
        if self.clients.get(id).is_some() && !self.is_doomed(id) {
            self.doomed.push((id, why));
        }
    }

    /// Handles the end of a client's process. A tool stays as long as a process has its socket: a program that opens a management
    /// interface and then becomes a daemon continues as a child (`umad_open_port(3)`, `daemon(3)`).
    pub(super) fn process_died(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.kind != Some(ClientKind::Tool) {
            self.doom(id, Gone::Died);
        } else if let Some(pidfd) = client.pidfd.take() {
            self.poller.remove(&pidfd);
        }
    }

    /// Returns whether a client is marked as gone.
    pub(super) fn is_doomed(&self, id: ClientId) -> bool {
        self.doomed.iter().any(|&(d, _)| d == id)
    }

    /// Removes the clients that are marked as gone. Notifying their peers may mark more.
    pub(super) fn bury(&mut self) {
        while let Some((id, why)) = self.doomed.pop() {
            self.remove_client(id, &why);
        }
    }

    /// Releases everything that a client had, and notifies its peers.
    fn remove_client(&mut self, id: ClientId, why: &Gone) {
        let Some(client) = self.clients.remove(id) else { return };
        self.counts.add(why.count());
        match why {
            Gone::Closed | Gone::Died => {
                tracing::debug!("process {} ({}) {why:?}", client.pid, client.comm);
            }
            _ => throttled!(
                warn,
                "process {} ({}) is disconnected: {why:?}",
                client.pid,
                client.comm
            ),
        }
        client.close();
        self.poller.remove(&client.rpc);
        if let Some(pidfd) = &client.pidfd {
            self.poller.remove(pidfd);
        }
        if let Some(device) = &client.device {
            self.poller.remove(&device.notify);
        }
        for &channel in &client.channels {
            self.remove_channel(channel);
        }
        self.drain_outbox();
        self.listening_client_gone(id);
        self.agents.client_gone(id);
        self.groups.client_gone(id);
        self.capture_client_gone(id);
        self.hub_client_gone(id);
        self.late.client_gone(id);
        self.ib_client_gone(id);
        self.offering_client_gone(id);
        for &slot in &client.slots {
            self.remove_slot(slot, None);
        }
    }

    /// Releases a slot, and notifies all processes that its owner is gone.
    pub(super) fn remove_slot(&mut self, slot: u16, next_index: Option<u16>) {
        self.rings.slot_gone(slot);
        self.host_rings_slot_gone(slot);
        self.adapter.iter_mut().for_each(|adapter| adapter.data.slot_gone(slot));
        self.slots.give_back(slot, next_index);
        let now = self.now();
        self.manager.handle_qps_gone(now, |qpn| slot_of(qpn) == slot, &mut self.outbox);
        self.drain_outbox();
        self.notify_all(&Notify::PeerGone { slot });
    }

    /// Removes an event channel and its ids.
    pub(super) fn remove_channel(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.remove(&id) else { return };
        self.poller.remove(&channel.out);
        let _ = rustix::net::shutdown(&channel.out, rustix::net::Shutdown::Both);
        let now = self.now();
        self.manager.channel_gone(now, id, &mut self.outbox);
    }

    /// Sends a process a notification. Of the ends of a slot's processes, only one waits to be read.
    pub(super) fn notify(&mut self, id: ClientId, notify: &Notify, fds: Vec<OwnedFd>) {
        let Some(device) = self.clients.get_mut(id).and_then(|c| c.device.as_mut()) else { return };
        let Some(bytes) = encode(notify, &mut self.scratch) else { return };
        let waited = device.notify.is_waiting();
        let sent = match notify {
            Notify::PeerGone { slot } if fds.is_empty() => device.notify.send_once(*slot, bytes),
            _ => device.notify.send(bytes, fds),
        };
        if let Notify::Ring { peer, .. } = notify {
            // The end of this peer must follow its rings.
            device.notify.renew(*peer);
        }
        let is_refused = device.notify.is_refused();
        if device.notify.is_waiting() != waited {
            let interest = interest(&device.notify);
            self.poller.change(&device.notify, Token::Notify(id), interest);
        }
        if is_refused {
            self.put_off_notifications(id);
        }
        self.lost(id, sent);
    }

    /// Sends a process a notification that may be lost. Returns whether it was sent.
    pub(super) fn offer(&mut self, id: ClientId, notify: &Notify) -> bool {
        let Some(device) = self.clients.get_mut(id).and_then(|c| c.device.as_mut()) else {
            return false;
        };
        let Some(bytes) = encode(notify, &mut self.scratch) else { return false };
        device.notify.offer(bytes).unwrap_or(false)
    }

    /// Sends a notification to all processes with devices.
    pub(super) fn notify_all(&mut self, notify: &Notify) {
        for id in self.clients.ids() {
            self.notify(id, notify, Vec::new());
        }
    }

    /// Continues to send notifications that waited for a process to read.
    pub(super) fn flush_notify(&mut self, id: ClientId) {
        let Some(device) = self.clients.get_mut(id).and_then(|c| c.device.as_mut()) else { return };
        let flushed = device.notify.flush();
        let (is_refused, interest) = (device.notify.is_refused(), interest(&device.notify));
        self.poller.change(&device.notify, Token::Notify(id), interest);
        if is_refused {
            self.put_off_notifications(id);
        }
        self.lost(id, flushed);
    }

    fn lost(&mut self, id: ClientId, result: Result<(), Lost>) {
        match result {
            Ok(()) => {}
            Err(Lost::Slow) => self.doom(id, Gone::Slow),
            Err(Lost::Closed) => self.doom(id, Gone::Closed),
        }
    }

    /// Returns how to keep the service's end of a socket whose other end a client gets.
    pub(super) fn keeper(&self, id: ClientId) -> impl FnOnce(OwnedFd) -> Foreign + use<> {
        let (closer, uid) = (self.closer.clone(), self.clients.get(id).map_or(0, |c| c.uid));
        move |fd| closer.socket(uid, fd)
    }

    /// Makes the notify socket of a client that greets. Returns the client's end, too.
    pub(super) fn open_notify(&mut self, id: ClientId) -> std::io::Result<(Outgoing, OwnedFd)> {
        let (ours, theirs) =
            Outgoing::pair(MAX_NOTIFICATIONS, self.waiting_of(id), self.keeper(id))?;
        self.poller.add(&ours, Token::Notify(id), Interest::Read)?;
        Ok((ours, theirs))
    }

    /// Returns the earliest deadline.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let due = [
            self.manager.poll_timeout(),
            self.agents.poll_timeout(),
            self.resolver.poll_timeout(),
            self.kinds.poll_timeout(),
            self.late.poll_timeout(),
            self.views.poll_timeout(),
            self.streams.listening.poll_timeout(),
            self.streams.lingering.poll_timeout(),
            self.adapter.poll_timeout(),
            self.host_rings.poll_timeout(),
        ];
        due.into_iter().flatten().min()
    }

    /// Handles expired timers.
    pub(super) fn handle_timeout(&mut self) {
        let now = self.now();
        if self.manager.poll_timeout().is_some_and(|due| due <= now) {
            self.read_due_streams(now);
            self.manager.handle_timeout(now, &mut self.outbox);
        }
        self.close_unused(now);
        self.retry_listening(now);
        self.close_all_lingering(now);
        self.resend_mads(now);
        self.poll_neighbours(now);
        self.poll_kinds(now);
        self.send_late();
        self.poll_adapter();
        self.expire_host_rings();
        self.poll_view();
        self.drain_outbox();
        self.bury();
    }

    /// Closes all clients' connections, before the service ends.
    pub(super) fn shut_down(&mut self) {
        let channels: Vec<_> = self.channels.keys().copied().collect();
        channels.into_iter().for_each(|c| self.remove_channel(c));
        self.drain_outbox();
        self.clients.iter().for_each(|(_, client)| client.close());
    }

    /// Returns how long the service must be idle before it ends. It continues while peers of closed connections have
    /// not been notified, because nothing else retransmits a lost DREQ.
    pub(super) fn idle_exit(&self) -> Option<Duration> {
        let done = self.is_alone() && !self.manager.says_goodbye();
        self.options.idle_exit.filter(|_| done)
    }

    /// Returns whether the host has no users.
    pub(super) fn is_alone(&self) -> bool {
        self.clients.is_idle(|id| self.is_hub(id))
    }

    /// Returns whether a client is a process with a device.
    pub(super) fn is_device(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|c| matches!(c.kind, Some(ClientKind::Device(_))))
    }
}

impl Core {
    /// Puts an event into a channel. [`flush_events`](Self::flush_events) sends it together with others.
    pub(super) fn put_event(&mut self, id: ChannelId, event: &rdmux_cm::Event) {
        if event.listen_id.is_some() {
            self.count_ids(id);
        }
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let before = channel.batch.len();
        if let Err(e) = socket::append(event, &mut channel.batch) {
            throttled!(error, "cannot encode an event: {e}");
        }
        if before == 0 {
            self.told.push(id);
        } else if channel.batch.len() > EVENTS {
            let event = channel.batch.split_off(before);
            self.send_events(id);
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.batch = event;
            }
        }
    }

    /// Sends the events that were put into channels.
    pub(super) fn flush_events(&mut self) {
        while let Some(id) = self.told.pop() {
            self.send_events(id);
        }
    }

    fn send_events(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if channel.batch.is_empty() {
            return;
        }
        let waited = channel.out.is_waiting();
        let sent = channel.out.send(&channel.batch, Vec::new());
        channel.batch.clear();
        if channel.out.is_waiting() != waited {
            self.poller.change(&channel.out, Token::Channel(id), interest(&channel.out));
        }
        match sent {
            Err(Lost::Slow) => {
                let owner = channel.owner;
                self.doom(owner, Gone::Slow);
            }
            // The socket reports the end of the channel.
            Ok(()) | Err(Lost::Closed) => {}
        }
    }

    /// Continues to send events that waited for a process to read.
    pub(super) fn flush_channel(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        // As above: the socket reports the end.
        let _ = channel.out.flush();
        self.watch_channel(id);
    }

    /// Updates what a channel's socket is polled for.
    pub(super) fn watch_channel(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get(&id) {
            self.poller.change(&channel.out, Token::Channel(id), interest(&channel.out));
        }
    }
}

/// Returns what a socket is polled for. It is read only to detect its end: the process sends nothing there.
fn interest(out: &Outgoing) -> Interest {
    if out.is_waiting() && !out.is_refused() { Interest::ReadWrite } else { Interest::Read }
}

/// Encodes a value of the service, which can only fail for lack of memory.
pub(super) fn encode<'s, T: Serialize>(value: &T, scratch: &'s mut Vec<u8>) -> Option<&'s [u8]> {
    scratch.clear();
    postcard::to_io(value, &mut *scratch)
        .inspect_err(|e| throttled!(error, "cannot encode a message: {e}"))
        .ok()?;
    Some(scratch)
}
