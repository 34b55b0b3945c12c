//! The data sockets of the adapter's port: the host has one for each process, to which other hosts of the subnet send packets. The service
//! hands them out, with the fabric's route table ([`rdmux_link::routes`]). It handles no packets itself, except those of multicast groups
//! from other machines: each arrives once for all processes of the host, and is passed on to the members. Hosts of this machine send one
//! datagram to all of it if the machine has IP multicast ([`multicast`]), and each process has a socket that receives it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rdmux_fabric::proto::Violation;
use rdmux_link::ib::{IbWire, Routes, Sender, multicast};
use rdmux_link::routes::RouteView;
use rdmux_link::rows::Rows;
use rdmux_link::udp::{GroupOptions, OpenError};
use rdmux_link::wire::{Arrival, Arrivals, Frame, Gathering as _, Wire};
use rdmux_link::{McastSocket, UdpGroup};
use rdmux_runtime::Share;
use rdmux_transport::attr::AddressVector;
use rdmux_verbs::control::{SERVICE_SLOT, slot_of};
use rdmux_verbs::throttled;
use rdmux_wire::{Gid, Qpn};

use super::adapter::Adapter;
use super::adapters::PortAt;
use super::interface::INTERFACE;
use super::{Ib, SocketWanted};
use crate::proto::{Failure, Notify};
use crate::service::clients::{Client, ClientId};
use crate::service::core::Core;
use crate::service::counters::Count;
use crate::service::mcast::too_many_groups;
use crate::service::poller::{Interest, Token};
use crate::service::requests::failure;
use crate::service::shares::no_descriptors;

/// Maximum number of queue pairs of a host that may be attached to groups.
pub(in crate::service) const MAX_MEMBERS: usize = 1 << 16;
/// Rounds of receiving before other sources get their turn.
const MAX_ROUNDS: usize = 4;

/// The data sockets of a port, with its route table and groups.
#[derive(Debug, Default)]
pub(in crate::service) struct Data {
    /// The sockets, once a process needs one.
    open: Option<Open>,
    /// Whether hosts on other machines can be on the fabric, so that the sockets are bound to the wildcard address.
    everywhere: bool,
    /// The route table of the adapter's fabric.
    table: Option<OwnedFd>,
    /// The processes to which the route table was passed, with the number by which the fabric knows their rows.
    told: BTreeMap<ClientId, u16>,
    /// Those of them that lack the table, or whose rows the fabric does not know yet. It is passed to them again.
    uncounted: BTreeSet<ClientId>,
    /// The queue pairs that receive a group.
    members: BTreeMap<Gid, Vec<Qpn>>,
    /// The sockets by which processes receive groups over IP multicast.
    sockets: BTreeMap<(ClientId, Gid), (McastSocket, Share)>,
    /// The service's own socket for the broadcast group in that case.
    broadcast: Option<Broadcast>,
    /// The number of members in all groups.
    count: usize,
    /// Each slot's share of members.
    shares: BTreeMap<u16, Share>,
    tx: Sender,
    arrivals: Arrivals,
}

/// The sockets of a port that carries data.
#[derive(Debug)]
struct Open {
    group: UdpGroup,
    /// The socket that receives packets for no process.
    own: Arc<IbWire>,
    routes: Arc<Routes>,
    /// Whether all members of groups receive them by IP multicast.
    multicast: bool,
}

#[derive(Debug)]
struct Broadcast {
    mgid: Gid,
    wire: Arc<IbWire>,
}

/// The address where the host receives packets.
#[derive(Clone, Copy, Debug)]
pub(in crate::service) struct Endpoint {
    /// The address on this machine.
    pub(in crate::service) addr: SocketAddr,
    /// Whether packets are received at all addresses.
    pub(super) everywhere: bool,
    /// Whether groups are received by IP multicast.
    pub(super) multicast: bool,
}

impl Open {
    fn is_everywhere(&self) -> bool {
        self.group.local_addr().ip().is_unspecified()
    }

    fn socket(&mut self, slot: u16, targets: bool) -> io::Result<OwnedFd> {
        let socket = self.group.socket(slot)?;
        if targets {
            self.group.steer_targets(slot)?;
        }
        Ok(socket)
    }
}

impl Data {
    /// Takes a UDP port that is free at an address.
    fn open(&mut self, at: PortAt, ip: IpAddr) -> Result<&mut Open, OpenError> {
        let options = GroupOptions { port: 0, header_info: false, ..GroupOptions::default() };
        let mut group = UdpGroup::open(ip, &options)?;
        let routes = Arc::new(Routes::new(at.number()));
        let own = group.socket(0).and_then(|fd| IbWire::new(fd, 0, routes.clone()));
        let what = "use a UDP socket";
        let own = own.map_err(|source| OpenError::Io { what, addr: ip, source })?;
        // Existing members have no socket for IP multicast.
        let hears = !ip.is_unspecified() && self.members.is_empty();
        let multicast = hears
            && multicast::probe(&own)
                .inspect_err(|error| {
                    tracing::info!("cannot receive from multicast groups by IP multicast: {error}")
                })
                .is_ok();
        Ok(self.open.insert(Open { group, own: Arc::new(own), routes, multicast }))
    }

    /// Sends a packet of the service's own, at once. Returns whether it was sent, or dropped where a switch would have
    /// dropped it.
    pub(super) fn send(&mut self, av: &AddressVector, frame: &Frame<'_>) -> bool {
        let Self { open: Some(open), tx, .. } = self else { return false };
        let sent = open.own.send(tx, av, frame).is_ok() && open.own.flush(tx).is_ok();
        if !sent {
            open.own.forget(tx);
        }
        sent
    }

    /// Returns how many packets the service's own wire has dropped, in the order of the reasons.
    pub(in crate::service) fn drops(&self) -> Vec<u64> {
        let routes = self.open.iter().map(|open| &open.routes);
        routes.flat_map(|routes| routes.counters().map(|(_, n)| n)).collect()
    }

    /// Drops the packets queued in a slot's socket, before another process gets the slot.
    pub(in crate::service) fn recycle(&self, slot: u16) {
        if let Some(open) = &self.open {
            open.group.recycle(slot);
        }
    }

    /// Removes the memberships of a slot that was released.
    pub(in crate::service) fn slot_gone(&mut self, slot: u16) {
        self.members.retain(|_, qps| {
            qps.retain(|qpn| slot_of(*qpn) != slot);
            !qps.is_empty()
        });
        self.count = self.members.values().map(Vec::len).sum();
        self.shares.remove(&slot);
    }

    /// Returns whether the process with these slots is in a group, or may join one more.
    fn may_join(&self, slots: &[u16], mgid: Gid, most: u32) -> bool {
        let is_in = |qps: &Vec<Qpn>| qps.iter().any(|qpn| slots.contains(&slot_of(*qpn)));
        let count = || self.members.values().filter(|qps| is_in(qps)).count();
        self.members.get(&mgid).is_some_and(is_in) || count() < most as usize
    }

    /// Joins a queue pair to a group. `none` is an empty share of its user's members.
    fn join(&mut self, qpn: Qpn, mgid: Gid, none: Share) -> Result<(), Failure> {
        if self.count >= MAX_MEMBERS {
            let why =
                format!("{MAX_MEMBERS} queue pairs are members of groups already, the maximum");
            return Err(Failure::new(libc::ENOMEM, why));
        }
        let share = self.shares.entry(slot_of(qpn)).or_insert(none);
        share.take(1).map_err(|e| {
            let why = format!("the user's share of group members is used up: {e}");
            Failure::new(libc::ENOMEM, why)
        })?;
        self.members.entry(mgid).or_default().push(qpn);
        self.count += 1;
        Ok(())
    }

    fn leave(&mut self, qpn: Qpn, mgid: Gid) -> bool {
        let Some(qps) = self.members.get_mut(&mgid) else { return false };
        let Some(at) = qps.iter().position(|member| *member == qpn) else { return false };
        qps.swap_remove(at);
        if qps.is_empty() {
            self.members.remove(&mgid);
        }
        self.count -= 1;
        if let Some(share) = self.shares.get_mut(&slot_of(qpn)) {
            share.set(share.count() - 1);
        }
        true
    }

    /// Returns the socket by which a process receives a group, unless it has it already, or groups arrive as copies.
    fn hear(
        &mut self,
        (client, share): (ClientId, Share),
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, OpenError> {
        let Some(open) = self.open.as_ref().filter(|open| open.multicast) else { return Ok(None) };
        let Entry::Vacant(vacant) = self.sockets.entry((client, mgid)) else { return Ok(None) };
        let local = open.group.local_addr().ip();
        let socket = multicast::hear(mgid, local)?;
        let what = "pass a multicast socket to a process";
        let fd = socket.port().as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| OpenError::Io { what, addr: local, source })?;
        vacant.insert((socket, share));
        Ok(Some(fd))
    }

    /// Returns whether a process lacks a socket to receive a group.
    fn is_deaf(&self, client: ClientId, mgid: Gid) -> bool {
        let hears = self.open.as_ref().is_some_and(|open| open.multicast);
        hears && !self.sockets.contains_key(&(client, mgid))
    }

    /// Makes a process leave a group, or all of them. The process, or a child of it, may still have the sockets.
    fn deafen(&mut self, client: ClientId, mgid: Option<Gid>) {
        let is_left =
            |(of, group): &(ClientId, Gid)| *of == client && mgid.is_none_or(|mgid| mgid == *group);
        for (_, (socket, _)) in self.sockets.extract_if(.., |key, _| is_left(key)) {
            if let Err(error) = socket.leave(0) {
                tracing::debug!(%error, "cannot leave a multicast group");
            }
        }
    }

    /// Returns the slots of the processes that receive a group, each once.
    fn slots_of(&self, mgid: Gid) -> Vec<u16> {
        let qps = self.members.get(&mgid).into_iter().flatten();
        let mut slots: Vec<u16> = qps.map(|qpn| slot_of(*qpn)).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

impl Adapter {
    /// Returns the route table with rows for a process. Returns none if there is no table, or either cannot be passed on.
    fn table_and_rows(&mut self, process: u16) -> Option<Vec<OwnedFd>> {
        let table = self.data.table.as_ref()?.try_clone().ok()?;
        Some(vec![table, self.new_rows(process)?])
    }

    /// Returns rows in which a process counts, and which the fabric knows. Returns none if that failed: then the ports on the path do
    /// not count the process's packets.
    fn new_rows(&mut self, process: u16) -> Option<OwnedFd> {
        let made = Rows::create().map_err(|error| error.to_string());
        let told = made.and_then(|rows| self.count_in(process, rows.as_fd()).map(|()| rows));
        told.map_err(|error| {
            throttled!(
                warn,
                "cannot pass counter rows to the fabric, so packets \
                 are not counted on their way: {error}"
            )
        })
        .ok()
    }
}

impl Core {
    /// Returns the socket of a client's slot, and sends the client the route table.
    pub(super) fn ib_socket(
        &mut self,
        client: ClientId,
        at: PortAt,
        wanted: &SocketWanted,
    ) -> Result<OwnedFd, Failure> {
        let &SocketWanted { slot, targets, .. } = wanted;
        self.need_data(at);
        let open = self.adapter[at].data.open.as_mut();
        let socket = open.map_or_else(
            || Err(io::ErrorKind::NotConnected.into()),
            |open| open.socket(slot, targets),
        );
        self.tell_table(client, at);
        socket.map_err(|e| failure(&e))
    }

    /// Sends a process the table by which its packets are routed, and the rows in which to count them, unless it has them already.
    pub(in crate::service) fn tell_table(&mut self, client: ClientId, at: PortAt) {
        if self.adapter[at].data.told.contains_key(&client) {
            return;
        }
        let process = self.clients.get(client).and_then(|c| c.slots.first().copied());
        let mut fds = Vec::new();
        let (now, adapter) = (self.now(), &mut self.adapter[at]);
        if let Some(process) = process.filter(|_| adapter.data.table.is_some()) {
            adapter.data.told.insert(client, process);
            match adapter.table_and_rows(process) {
                Some(both) => fds = both,
                None => {
                    // Without rows the process's packets are only not counted.
                    fds.extend(adapter.data.table.as_ref().and_then(|fd| fd.try_clone().ok()));
                    adapter.data.uncounted.insert(client);
                    adapter.report_later(now);
                }
            }
        }
        self.notify(client, &Notify::Routes { port: at.number() }, fds);
    }

    /// Passes the route table again, with rows, to the processes whose rows could not be passed to the fabric. Those for which this fails
    /// get nothing, and keep the table that they have.
    pub(super) fn tell_rows_again(&mut self, at: PortAt) {
        for client in std::mem::take(&mut self.adapter[at].data.uncounted) {
            let (now, adapter) = (self.now(), &mut self.adapter[at]);
            // None if it is gone.
            let Some(&process) = adapter.data.told.get(&client) else { continue };
            match adapter.table_and_rows(process) {
                Some(both) => self.notify(client, &Notify::Routes { port: at.number() }, both),
                None => {
                    adapter.data.uncounted.insert(client);
                    adapter.report_later(now);
                }
            }
        }
    }

    /// Handles the end of a process: its counts are read for the last time.
    pub(in crate::service) fn ib_client_gone(&mut self, client: ClientId) {
        for adapter in self.adapter.iter_mut() {
            adapter.data.deafen(client, None);
            if let Some(process) = adapter.data.told.remove(&client) {
                adapter.process_gone(process);
            }
        }
    }

    /// Handles a process's report of a packet with a key that does not match, at a port.
    pub(in crate::service) fn tell_violation(
        &mut self,
        client: ClientId,
        port: u8,
        violation: &Violation,
    ) {
        let Some(at) = self.adapter.at(port) else { return };
        if self.adapter[at].data.told.contains_key(&client) {
            self.adapter[at].key_violation(violation);
        }
    }

    /// Sets whether hosts on other machines can be on the port's fabric. Sockets that processes have already stay as they are.
    pub(super) fn set_everywhere(&mut self, at: PortAt, everywhere: bool) {
        let data = &mut self.adapter[at].data;
        data.everywhere = everywhere;
        let is_other = data.open.as_ref().is_some_and(|open| open.is_everywhere() != everywhere);
        // The only socket is the service's own.
        if let Some(open) = data.open.take_if(|open| is_other && open.group.sockets() <= 1) {
            self.poller.remove(open.own.port());
            self.follow_broadcast(at);
        } else if is_other && everywhere {
            let why = "processes still have sockets from when the fabric was local to this machine";
            tracing::warn!("hosts on other machines cannot reach this host: {why}");
        }
    }

    /// Returns the endpoint for packets to this host. Opens the port's sockets first: at an address that only this
    /// machine reaches, unless hosts on other machines may send. Without sockets the port has no data, but management
    /// works.
    pub(in crate::service) fn open_data(&mut self, at: PortAt) -> Option<Endpoint> {
        if self.adapter[at].data.open.is_none()
            && let Err(error) = self.open_sockets(at)
        {
            throttled!(
                warn,
                "cannot open the sockets of the adapter's port, which has no data: {error}"
            );
        }
        let open = self.adapter[at].data.open.as_ref()?;
        let local = open.group.local_addr();
        let everywhere = open.is_everywhere();
        let ip = if everywhere { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { local.ip() };
        let addr = SocketAddr::new(ip, local.port());
        Some(Endpoint { addr, everywhere, multicast: open.multicast })
    }

    fn open_sockets(&mut self, at: PortAt) -> Result<(), OpenError> {
        let is_loopback = |ip: &IpAddr| ip.is_loopback() && ip.is_ipv4();
        let ip = self.addresses.rows().map(|(_, row)| row.ip).find(is_loopback);
        let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let ip = if self.adapter[at].data.everywhere { Ipv4Addr::UNSPECIFIED.into() } else { ip };
        let open = self.adapter[at].data.open(at, ip)?;
        let watched =
            self.poller.add(open.own.port().as_fd(), Token::IbData(at.number()), Interest::Read);
        if let Err(source) = watched {
            // Nothing would be received.
            self.adapter[at].data.open = None;
            return Err(OpenError::Io { what: "watch a socket", addr: ip, source });
        }
        self.follow_table(at);
        self.follow_gids(at);
        self.follow_broadcast(at);
        Ok(())
    }

    /// Receives the port's present broadcast group, if groups arrive by IP multicast.
    pub(super) fn follow_broadcast(&mut self, at: PortAt) {
        let mgid = self.adapter[at].interface.broadcast().map(|group| group.mgid);
        let data = &mut self.adapter[at].data;
        let open = data.open.as_ref().filter(|open| open.multicast);
        let wanted = open.and_then(|open| Some((mgid?, open)));
        let had = data.broadcast.as_ref().map(|heard| heard.mgid);
        if had == wanted.map(|(mgid, _)| mgid) {
            return;
        }
        if let Some(heard) = data.broadcast.take() {
            self.poller.remove(heard.wire.port());
        }
        let Some((mgid, open)) = wanted else { return };
        let (local, routes) = (open.group.local_addr().ip(), open.routes.clone());
        let heard = multicast::hear(mgid, local).map_err(|error| error.to_string());
        let wire = heard.and_then(|socket| {
            let fd = socket.port().as_fd().try_clone_to_owned();
            let wire = fd.and_then(|fd| IbWire::of_group(fd, mgid, routes));
            let watched = wire.and_then(|wire| {
                self.poller.add(wire.port(), Token::IbData(at.number()), Interest::Read)?;
                Ok(wire)
            });
            watched.map_err(|error| error.to_string())
        });
        match wire {
            Ok(wire) => {
                self.adapter[at].data.broadcast = Some(Broadcast { mgid, wire: Arc::new(wire) });
            }
            Err(error) => throttled!(warn, "cannot receive from the broadcast group: {error}"),
        }
    }

    /// Sets the fabric's route table, or its absence, and passes it to the processes.
    pub(super) fn take_table(&mut self, at: PortAt, table: Option<OwnedFd>) {
        if table.is_none() && self.adapter[at].data.table.is_none() {
            // This happens repeatedly while a fabric refuses this host.
            return;
        }
        self.adapter[at].data.table = table;
        self.adapter[at].data.told.clear();
        self.adapter[at].data.uncounted.clear();
        self.follow_table(at);
        for id in self.clients.ids() {
            if self.clients.get(id).and_then(Client::device_kind) == Some(Ib::KIND) {
                self.tell_table(id, at);
            }
        }
    }

    /// Applies the port's table to the service's own socket.
    fn follow_table(&mut self, at: PortAt) {
        let adapter = &mut self.adapter[at];
        if adapter.data.open.is_none() {
            return;
        }
        let view = adapter.data.table.as_ref().map(RouteView::map).transpose();
        let view = view.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the fabric's route table");
            None
        });
        let rows = view.as_ref().and_then(|_| adapter.new_rows(SERVICE_SLOT));
        let rows = rows.and_then(|fd| Rows::map(fd).ok());
        if let Some(open) = &adapter.data.open {
            open.routes.set_view_with(view, rows);
        }
    }

    /// Applies the port's GIDs to the service's own socket.
    pub(super) fn follow_gids(&mut self, at: PortAt) {
        if let Some(open) = &self.adapter[at].data.open {
            let port = self.adapter[at].port(Ib::KIND, self.node_guid);
            let gids: Vec<Gid> = port.gids().iter().map(|entry| entry.gid).collect();
            open.routes.set_gids(&gids);
        }
    }

    /// Attaches a queue pair to a group of the subnet. Subnet administration decides who may be a member. Returns the socket by which the
    /// process receives the group, the first time.
    pub(super) fn attach_ib_group(
        &mut self,
        at: PortAt,
        client: ClientId,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, Failure> {
        self.need_data(at);
        let most = self.most_groups(client);
        let cost = usize::from(self.adapter[at].data.is_deaf(client, mgid));
        let share = self.descriptors_for(client, cost);
        let share = share.map_err(|e| no_descriptors(libc::ENOMEM, &e))?;
        let none = self.shares.members.none(self.user_of(client));
        let slots = self.clients.get(client).map_or(&[][..], |client| &client.slots);
        let data = &mut self.adapter[at].data;
        if !data.may_join(slots, mgid, most) {
            return Err(too_many_groups(most));
        }
        data.join(qpn, mgid, none)?;
        data.hear((client, share), mgid).map_err(|error| {
            data.leave(qpn, mgid);
            Failure::new(error.errno(), error.to_string())
        })
    }

    /// Detaches a queue pair from a group.
    pub(super) fn detach_ib_group(
        &mut self,
        at: PortAt,
        client: ClientId,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        let slots = self.clients.get(client).map_or(&[][..], |client| &client.slots);
        let data = &mut self.adapter[at].data;
        if data.leave(qpn, mgid) {
            if !data.slots_of(mgid).iter().any(|slot| slots.contains(slot)) {
                data.deafen(client, Some(mgid));
            }
            return Ok(());
        }
        let why = format!("queue pair {qpn} is not attached to {mgid}");
        Err(Failure::new(libc::EINVAL, why))
    }

    /// Receives packets that are for no process, or for several.
    pub(in crate::service) fn receive_ib(&mut self, at: PortAt) {
        let data = &self.adapter[at].data;
        let own = data.open.iter().map(|open| (open.own.clone(), true));
        let heard = data.broadcast.iter().map(|heard| (heard.wire.clone(), false));
        let wires: Vec<_> = own.chain(heard).collect();
        for (wire, is_copy) in wires {
            for _ in 0..MAX_ROUNDS {
                let mut arrivals = std::mem::take(&mut self.adapter[at].data.arrivals);
                // Errors of earlier packets are reported here; the next call receives again.
                let got = wire.receive(&mut arrivals).unwrap_or(0);
                for arrival in wire.intact(&arrivals, |_| true) {
                    self.counts.add(Count::RxPackets);
                    if let Err(reason) = self.process_ib(at, &arrival, is_copy) {
                        self.counts.add(reason);
                    }
                }
                self.adapter[at].data.arrivals = arrivals;
                if got == 0 {
                    break;
                }
            }
        }
        self.drain_outbox();
    }

    /// Handles a packet. One of a group is passed on if it is the host's copy, rather than one that processes have received
    /// themselves.
    fn process_ib(
        &mut self,
        at: PortAt,
        arrival: &Arrival<'_>,
        is_copy: bool,
    ) -> Result<(), Count> {
        match Qpn::new(arrival.dest_qpn().ok_or(Count::DropMalformed)?) {
            Qpn::QP1 => self.process_gsi(at, arrival),
            INTERFACE => self.process_resolution(at, arrival),
            Qpn::MULTICAST if arrival.dgid().is_multicast() => {
                let mgid = arrival.dgid();
                if is_copy {
                    self.pass_on(at, mgid, arrival);
                }
                if self.adapter[at].interface.hears(mgid) {
                    self.process_resolution(at, arrival)?;
                }
                Ok(())
            }
            _ => Err(Count::DropNoQp),
        }
    }

    /// Passes a group's packet to each process that has members.
    fn pass_on(&mut self, at: PortAt, mgid: Gid, arrival: &Arrival<'_>) {
        let data = &mut self.adapter[at].data;
        let slots = data.slots_of(mgid);
        let Data { open: Some(open), tx, .. } = data else { return };
        for slot in slots {
            // A packet for a full socket is lost, as any datagram may be.
            if open.own.pass_on(tx, arrival, slot).is_err() {
                self.counts.add(Count::TxErrors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::Shares;

    use super::*;
    use crate::service::testing;

    const GROUP: Gid = Gid([0xff; 16]);

    #[test]
    fn process_keeps_the_table_until_its_rows_can_be_passed_to_the_fabric() {
        let (mut core, _dir) = testing::core();
        let (at, process, gone) = (PortAt::FIRST, ClientId(1), ClientId(2));
        let data = &mut core.adapter[at].data;
        data.table = Some(std::fs::File::open("/dev/null").unwrap().into());
        data.told.insert(process, 7);
        data.uncounted.extend([process, gone]);
        // There is no fabric that could take the rows.
        for _ in 0..2 {
            core.tell_rows_again(at);
            let data = &core.adapter[at].data;
            assert_eq!(data.told, BTreeMap::from([(process, 7)]));
            assert_eq!(data.uncounted, BTreeSet::from([process]), "repeated later");
        }
    }

    #[test]
    fn group_is_delivered_once_per_process_until_its_last_member_leaves() {
        let mut data = Data::default();
        let [a, b, c] = [0x1001, 0x1002, 0x2001].map(Qpn::new);
        for qpn in [a, b, c] {
            data.join(qpn, GROUP, Shares::new(0).none(0)).unwrap();
        }
        assert_eq!(data.slots_of(GROUP), [1, 2]);
        assert_eq!(data.slots_of(Gid::ZERO), []);
        assert!(data.leave(a, GROUP) && !data.leave(a, GROUP) && !data.leave(a, Gid::ZERO));
        assert_eq!(data.slots_of(GROUP), [1, 2]);
        data.slot_gone(2);
        assert_eq!((data.slots_of(GROUP), data.count), (vec![1], 1));
        assert!(data.leave(b, GROUP));
        assert_eq!((data.members.len(), data.count), (0, 0));
    }

    #[test]
    fn members_of_groups_are_bounded() {
        let mut data = Data { count: MAX_MEMBERS, ..Data::default() };
        let none = Shares::new(0).none(0);
        assert_eq!(data.join(Qpn::new(0x1001), GROUP, none).unwrap_err().errno, libc::ENOMEM);
    }

    #[test]
    fn the_members_of_a_user_are_its_share_until_they_leave_or_their_slot_is_given_back() {
        const OTHER: u32 = 4001;
        let shares = Shares::new(8);
        let mut data = Data::default();
        let [a, b] = [0x1001, 0x2001].map(Qpn::new);
        for qpn in [a, a, b, b] {
            data.join(qpn, GROUP, shares.none(OTHER)).unwrap();
        }
        let e = data.join(a, GROUP, shares.none(OTHER)).unwrap_err();
        assert_eq!(e.errno, libc::ENOMEM);
        data.join(Qpn::new(0x3001), GROUP, shares.none(OTHER + 1)).unwrap();
        assert!(data.leave(a, GROUP));
        data.join(b, GROUP, shares.none(OTHER)).unwrap();
        data.slot_gone(2);
        assert!(data.join(a, GROUP, shares.none(OTHER)).is_ok() && data.count == 3);
    }
}
