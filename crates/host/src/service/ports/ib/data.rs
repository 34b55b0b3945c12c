//! Where the data of the adapter's port arrives: sockets of the host's own, one for each process, which other hosts of the
//! subnet send packets to. The service hands them out, with the table of ways that the fabric keeps ([`rdmux_link::routes`]), and
//! touches no packet but those of multicast groups: each comes once for all processes of the host, and is passed on to those that
//! are members.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rdmux_fabric::proto::Violation;
use rdmux_link::UdpGroup;
use rdmux_link::ib::{IbWire, Routes, Sender};
use rdmux_link::routes::RouteView;
use rdmux_link::rows::Rows;
use rdmux_link::udp::{GroupOptions, OpenError};
use rdmux_link::wire::{Arrival, Arrivals, Frame, Gathering as _, Wire};
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
use crate::service::poller::{Interest, Token};
use crate::service::requests::failure;

/// The most queue pairs of a host that may be attached to groups.
const MAX_MEMBERS: usize = 1 << 16;
/// Rounds of receiving before others have their turn.
const MAX_ROUNDS: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::service) struct Data {
    /// The sockets, once a process wants one.
    open: Option<Open>,
    /// Whether hosts on other machines can be on the fabric, so that sockets take packets at all addresses.
    everywhere: bool,
    /// The table of the fabric that the adapter is on.
    table: Option<OwnedFd>,
    /// Who was told of it, and by which number the fabric knows the rows that it counts in.
    told: BTreeMap<ClientId, u16>,
    /// Which queue pairs hear a group.
    members: BTreeMap<Gid, Vec<Qpn>>,
    /// How many they are, each for itself.
    count: usize,
    tx: Sender,
    arrivals: Arrivals,
}

#[derive(Debug)]
struct Open {
    group: UdpGroup,
    /// The socket that gets what is for no process.
    own: Arc<IbWire>,
    routes: Arc<Routes>,
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
    /// Takes the UDP port that the system has free at an address.
    fn open(&mut self, at: PortAt, ip: IpAddr) -> Result<&mut Open, OpenError> {
        let options = GroupOptions { port: 0, header_info: false, ..GroupOptions::default() };
        let mut group = UdpGroup::open(ip, &options)?;
        let routes = Arc::new(Routes::new(at.number()));
        let own = group.socket(0).and_then(|fd| IbWire::new(fd, 0, routes.clone()));
        let what = "use a UDP socket";
        let own = own.map_err(|source| OpenError::Io { what, addr: ip, source })?;
        Ok(self.open.insert(Open { group, own: Arc::new(own), routes }))
    }

    /// Sends a packet of the service's own, at once. Whether it left, or was dropped where a switch would have dropped it.
    pub(super) fn send(&mut self, av: &AddressVector, frame: &Frame<'_>) -> bool {
        let Self { open: Some(open), tx, .. } = self else { return false };
        let sent = open.own.send(tx, av, frame).is_ok() && open.own.flush(tx).is_ok();
        if !sent {
            open.own.forget(tx);
        }
        sent
    }

    /// How many packets the service's own wire has dropped, in the order of the reasons.
    pub(in crate::service) fn drops(&self) -> Vec<u64> {
        let routes = self.open.iter().map(|open| &open.routes);
        routes.flat_map(|routes| routes.counters().map(|(_, n)| n)).collect()
    }

    /// Drops what waits in a slot's socket, before another process gets it.
    pub(in crate::service) fn recycle(&self, slot: u16) {
        if let Some(open) = &self.open {
            open.group.recycle(slot);
        }
    }

    /// A process is gone, or a slot of its.
    pub(in crate::service) fn slot_gone(&mut self, slot: u16) {
        self.members.retain(|_, qps| {
            qps.retain(|qpn| slot_of(*qpn) != slot);
            !qps.is_empty()
        });
        self.count = self.members.values().map(Vec::len).sum();
    }

    fn join(&mut self, qpn: Qpn, mgid: Gid) -> Result<(), Failure> {
        if self.count >= MAX_MEMBERS {
            let why = format!("{MAX_MEMBERS} queue pairs are members of groups already");
            return Err(Failure::new(libc::ENOMEM, why));
        }
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
        true
    }

    /// The slots of the processes that hear a group, each once.
    fn slots_of(&self, mgid: Gid) -> Vec<u16> {
        let qps = self.members.get(&mgid).into_iter().flatten();
        let mut slots: Vec<u16> = qps.map(|qpn| slot_of(*qpn)).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

impl Adapter {
    /// Rows that a process counts in, of which the fabric knows. None if there can be none: then the ports on the way do not count what it
    /// sends.
    fn new_rows(&mut self, process: u16) -> Option<OwnedFd> {
        let made = Rows::create().map_err(|error| error.to_string());
        let told = made.and_then(|rows| self.count_in(process, rows.as_fd()).map(|()| rows));
        told.map_err(|error| throttled!(warn, "packets are not counted on their way: {error}")).ok()
    }
}

impl Core {
    /// The socket of a client's slot. The client is told of the table of ways.
    pub(super) fn ib_socket(
        &mut self,
        client: ClientId,
        at: PortAt,
        wanted: &SocketWanted,
    ) -> Result<OwnedFd, Failure> {
        let &SocketWanted { slot, targets, .. } = wanted;
        // It may have been refused before, or there was no fabric yet.
        self.open_data(at);
        let open = self.adapter[at].data.open.as_mut();
        let socket = open.map_or_else(
            || Err(io::ErrorKind::NotConnected.into()),
            |open| open.socket(slot, targets),
        );
        self.tell_table(client, at);
        socket.map_err(|e| failure(&e))
    }

    /// Tells a process by which table its packets leave, and where to count them, unless it knows.
    pub(in crate::service) fn tell_table(&mut self, client: ClientId, at: PortAt) {
        if self.adapter[at].data.told.contains_key(&client) {
            return;
        }
        let table = self.adapter[at].data.table.as_ref().and_then(|fd| fd.try_clone().ok());
        let process = self.clients.get(client).and_then(|c| c.slots.first().copied());
        let mut fds = Vec::new();
        if let Some((table, process)) = table.zip(process) {
            fds.push(table);
            fds.extend(self.adapter[at].new_rows(process));
            self.adapter[at].data.told.insert(client, process);
        }
        self.notify(client, &Notify::Routes { port: at.number() }, fds);
    }

    /// A process is gone: what it has counted is read for the last time.
    pub(in crate::service) fn ib_client_gone(&mut self, client: ClientId) {
        for adapter in self.adapter.iter_mut() {
            if let Some(process) = adapter.data.told.remove(&client) {
                adapter.process_gone(process);
            }
        }
    }

    /// A process has noticed a packet with a key that does not fit, at a port.
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

    /// Whether hosts on other machines can be on the fabric that the port is on. Sockets that processes have already stay where they are.
    pub(super) fn set_everywhere(&mut self, at: PortAt, everywhere: bool) {
        let data = &mut self.adapter[at].data;
        data.everywhere = everywhere;
        let is_other = data.open.as_ref().is_some_and(|open| open.is_everywhere() != everywhere);
        // The first one is the service's own.
        if let Some(open) = data.open.take_if(|open| is_other && open.group.sockets() <= 1) {
            self.poller.remove(open.own.port());
        } else if is_other && everywhere {
            let why = "processes have sockets of a fabric that was on this machine alone";
            tracing::warn!("hosts on other machines do not reach this one: {why}");
        }
    }

    /// Where packets for this host go, and whether it takes them at all addresses. Opens the port's sockets first: at an address that only this machine
    /// reaches, unless hosts on other machines may send. Without sockets the port has no data, and management goes on.
    pub(in crate::service) fn open_data(&mut self, at: PortAt) -> Option<(SocketAddr, bool)> {
        if self.adapter[at].data.open.is_none()
            && let Err(error) = self.open_sockets(at)
        {
            throttled!(warn, "no data for the adapter's port: {error}");
        }
        let open = self.adapter[at].data.open.as_ref()?;
        let local = open.group.local_addr();
        let everywhere = open.is_everywhere();
        let ip = if everywhere { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { local.ip() };
        Some((SocketAddr::new(ip, local.port()), everywhere))
    }

    fn open_sockets(&mut self, at: PortAt) -> Result<(), OpenError> {
        let is_loopback = |ip: &IpAddr| ip.is_loopback() && ip.is_ipv4();
        let ip = self.addresses.rows().map(|(_, row)| row.ip).find(is_loopback);
        let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let ip = if self.adapter[at].data.everywhere { Ipv4Addr::UNSPECIFIED.into() } else { ip };
        let open = self.adapter[at].data.open(at, ip)?;
        let watched =
            self.poller.add(open.own.port().as_fd(), Token::IbData(at.number()), Interest::Read);
        watched.map_err(|source| OpenError::Io { what: "watch a socket", addr: ip, source })?;
        self.follow_table(at);
        self.follow_gids(at);
        Ok(())
    }

    /// The fabric gives a table, or none any more: the processes take it over.
    pub(super) fn take_table(&mut self, at: PortAt, table: Option<OwnedFd>) {
        if table.is_none() && self.adapter[at].data.table.is_none() {
            // As while a fabric refuses this host, which asks again and again.
            return;
        }
        self.adapter[at].data.table = table;
        self.adapter[at].data.told.clear();
        self.follow_table(at);
        for id in self.clients.ids() {
            if self.clients.get(id).and_then(Client::device_kind) == Some(Ib::KIND) {
                self.tell_table(id, at);
            }
        }
    }

    /// The service's own socket lets in what the port does.
    fn follow_table(&mut self, at: PortAt) {
        let adapter = &mut self.adapter[at];
        if adapter.data.open.is_none() {
            return;
        }
        let view = adapter.data.table.as_ref().map(RouteView::map).transpose();
        let view = view.unwrap_or_else(|error| {
            tracing::warn!(%error, "the fabric's table of ways cannot be read");
            None
        });
        let rows = view.as_ref().and_then(|_| adapter.new_rows(SERVICE_SLOT));
        let rows = rows.and_then(|fd| Rows::map(fd).ok());
        if let Some(open) = &adapter.data.open {
            open.routes.set_view_with(view, rows);
        }
    }

    /// The port has these GIDs from now on.
    pub(super) fn follow_gids(&mut self, at: PortAt) {
        if let Some(open) = &self.adapter[at].data.open {
            let port = self.adapter[at].port(Ib::KIND, self.node_guid);
            let gids: Vec<Gid> = port.gids().iter().map(|entry| entry.gid).collect();
            open.routes.set_gids(&gids);
        }
    }

    /// A queue pair hears a group of the subnet. Who may be a member administration says.
    pub(in crate::service) fn attach_ib_group(
        &mut self,
        at: PortAt,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        self.adapter[at].data.join(qpn, mgid)
    }

    /// It hears it no more.
    pub(in crate::service) fn detach_ib_group(
        &mut self,
        at: PortAt,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        if self.adapter[at].data.leave(qpn, mgid) {
            return Ok(());
        }
        let why = format!("queue pair {qpn} is not attached to {mgid}");
        Err(Failure::new(libc::EINVAL, why))
    }

    /// Packets have come that are for no process, or for several.
    pub(in crate::service) fn receive_ib(&mut self, at: PortAt) {
        for _ in 0..MAX_ROUNDS {
            let data = &mut self.adapter[at].data;
            let Some(open) = &data.open else { return };
            let wire = open.own.clone();
            let mut arrivals = std::mem::take(&mut data.arrivals);
            // The errors of earlier packets come up here; the next call receives again.
            let got = wire.receive(&mut arrivals).unwrap_or(0);
            for arrival in wire.intact(&arrivals, |_| true) {
                self.counts.add(Count::RxPackets);
                if let Err(reason) = self.process_ib(at, &arrival) {
                    self.counts.add(reason);
                }
            }
            self.adapter[at].data.arrivals = arrivals;
            if got == 0 {
                break;
            }
        }
        self.drain_outbox();
    }

    fn process_ib(&mut self, at: PortAt, arrival: &Arrival<'_>) -> Result<(), Count> {
        match Qpn::new(arrival.dest_qpn().ok_or(Count::DropMalformed)?) {
            Qpn::QP1 => self.process_gsi(at, arrival),
            INTERFACE => self.process_resolution(at, arrival),
            Qpn::MULTICAST if arrival.dgid().is_multicast() => {
                let mgid = arrival.dgid();
                self.pass_on(at, mgid, arrival);
                if self.adapter[at].interface.hears(mgid) {
                    self.process_resolution(at, arrival)?;
                }
                Ok(())
            }
            _ => Err(Count::DropNoQp),
        }
    }

    /// Gives a group's packet to each process that has members.
    fn pass_on(&mut self, at: PortAt, mgid: Gid, arrival: &Arrival<'_>) {
        let data = &mut self.adapter[at].data;
        let slots = data.slots_of(mgid);
        let Data { open: Some(open), tx, .. } = data else { return };
        for slot in slots {
            // What a full socket does not take is lost, as any datagram may be.
            if open.own.pass_on(tx, arrival, slot).is_err() {
                self.counts.add(Count::TxErrors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Gid = Gid([0xff; 16]);

    #[test]
    fn each_process_with_members_hears_a_group_once_until_the_last_has_left() {
        let mut data = Data::default();
        let [a, b, c] = [0x1001, 0x1002, 0x2001].map(Qpn::new);
        for qpn in [a, b, c] {
            data.join(qpn, GROUP).unwrap();
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
        assert_eq!(data.join(Qpn::new(0x1001), GROUP).unwrap_err().errno, libc::ENOMEM);
    }
}
