//! The route tables of attached hosts ([`rdmux_link::routes`]), which follow the state of the subnet.
//!
//! A host gets the table of its port when it attaches, and later reports where it receives packets. From then on its table has a route to
//! each LID of every other such host, as given by the switches' tables, and the others' tables have routes to it. Nothing is computed for
//! other hosts.
//!
//! Every walk through the subnet is kept with the state that it depends on. [`Published::publish`] takes the subnet's changes, repeats
//! the walks that they affect, and writes the routes that differ. It is called before anything is sent to a client, so no client learns
//! of a change that is not in the tables yet.
//!
//! Each route has an id, under which the hosts' processes count the packets that they send (`super::counted`). A changed route gets another
//! id, even if it has the same end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdmux_link::routes::{MAX_PEERS, OwnPort, Peer, PeerId, Route, RouteError, RouteId, Way};
use rdmux_subnet::{Change, DropReason, NodeId, PacketKind, PortId, Subnet, Trail, WayFound};
use rdmux_wire::sm::PortState;
use rdmux_wire::{Lid, Mtu, Pkey};

use super::connection::{ConnectionId, Part};
use super::core::Core;
use super::counted::Counts;
use super::counters::Count;
use super::host_table::{Place, Table};
use crate::bridge::Machine;
use crate::proto::TableUpdate;

/// A walk: the port where it starts, and the destination LID. LID 0 is no walk: it is for the sender's own port and its
/// cable.
type Key = (PortId, Lid);

/// The route tables of all attached hosts.
#[derive(Debug, Default)]
pub struct Published {
    /// A random number that distinguishes the fabrics of a machine, whose hosts receive each other's IP multicast.
    number: u64,
    /// Tables of hosts that have not reported where they receive packets.
    silent: BTreeMap<PortId, Table>,
    /// Hosts that have.
    hosts: BTreeMap<PortId, Host>,
    /// The LIDs of `hosts`.
    lids: BTreeSet<Lid>,
    walks: HashMap<Key, Walk>,
    /// The walks that pass a node.
    by_node: HashMap<NodeId, HashSet<Key>>,
    /// Numbers of peers that are free again; and those that will be once no table has them any more.
    free: Vec<PeerId>,
    leaving: Vec<PeerId>,
    used: u16,
    /// The generation of the subnet that the tables show.
    generation: u64,
    /// Whether hosts have been added, removed or moved.
    hosts_changed: bool,
    /// The counts of the hosts' processes.
    pub(super) counts: Counts,
}

/// An attached host.
#[derive(Debug)]
struct Host {
    table: Table,
    id: PeerId,
    /// The peer entry for hosts of the same machine, without its LIDs, which are in `own`.
    peer: Peer,
    /// Whether hosts of other machines can send to this host, too.
    everywhere: bool,
    own: OwnPort,
}

impl Host {
    /// Returns the entry for another host in this host's table. On the same machine the other's address is a loopback address, else its
    /// machine's address as seen by the fabric. So no host can direct packets to a machine that it is not on.
    fn peer(&self, other: &Self) -> Option<Peer> {
        let known = Peer { lid: other.own.lid, lmc: other.own.lmc, ..other.peer };
        let [here, there] = [self, other].map(|host| host.table.place().map(|p| &p.machine));
        let ip = match (here, there) {
            (None, None) => return Some(known),
            (Some(here), Some(there)) if here.is(there) => return Some(known),
            (_, Some(there)) => there.far(),
            (Some(here), None) => here.near(),
        };
        let addr = SocketAddr::new(ip, known.addr.port());
        other.everywhere.then_some(Peer { addr, multicast: false, ..known })
    }
}

/// The result of a walk, the state that it depends on, and the route's id.
#[derive(Debug, Default)]
struct Walk {
    found: Vec<WayFound>,
    trail: Arc<Trail>,
    id: RouteId,
}

impl Published {
    /// Makes the tables, without hosts.
    pub fn new() -> Self {
        let mut number = [0; 8];
        if let Err(error) = getrandom::fill(&mut number) {
            tracing::warn!(%error, "cannot get a random number for the fabric; it is 0");
        }
        Self { number: u64::from_ne_bytes(number), ..Self::default() }
    }

    /// Makes the table for the port of a host that attaches, on this machine or at another place, where its bridge has a copy. Returns the
    /// descriptor for a host of this machine; none if the kernel has no memory or descriptor for it, and then the host sends no data.
    pub fn open(&mut self, port: PortId, place: Option<Place>) -> Option<OwnedFd> {
        match Table::create(self.number, place.clone()) {
            Ok((table, fd)) => {
                self.silent.insert(port, table);
                if let Some(place) = place {
                    self.counts.open_far(port, place.machine);
                }
                fd
            }
            Err(error) => {
                tracing::warn!(%error, "cannot create a route table for a host, which therefore sends no data");
                None
            }
        }
    }

    /// Removes a host.
    pub fn close(&mut self, subnet: &mut Subnet, port: PortId) {
        self.counts.close_all(subnet, port);
        self.silent.remove(&port);
        if let Some(host) = self.hosts.remove(&port) {
            self.leaving.push(host.id);
            self.hosts_changed = true;
        }
    }

    /// Sets where a host receives packets. Does nothing for a host without a table.
    pub fn set_endpoint(&mut self, port: PortId, peer: Peer, everywhere: bool) {
        if let Some(host) = self.hosts.get_mut(&port) {
            (host.peer, host.everywhere) = (peer, everywhere);
        } else if let Some(table) = self.silent.remove(&port) {
            let Some(id) = self.new_peer() else {
                tracing::warn!(
                    "too many hosts send data: a route table is full, and a host is left out"
                );
                self.silent.insert(port, table);
                return;
            };
            let own = OwnPort::default();
            self.hosts.insert(port, Host { table, id, peer, everywhere, own });
        } else {
            return;
        }
        self.hosts_changed = true;
    }

    fn new_peer(&mut self) -> Option<PeerId> {
        self.free.pop().or_else(|| {
            self.used = self.used.checked_add(1).filter(|used| *used <= MAX_PEERS)?;
            PeerId::new(self.used)
        })
    }

    /// Writes the changes since the last call into the tables. Returns whether there may have been any.
    #[inline]
    pub fn publish(&mut self, subnet: &mut Subnet) -> bool {
        let idle = self.hosts.is_empty() || self.generation == subnet.generation();
        let changed = !idle || self.hosts_changed;
        if changed {
            self.update(subnet);
        }
        changed
    }

    /// Returns whether nothing is kept: no host receives packets, and nothing is left of earlier hosts.
    pub fn is_idle(&self) -> bool {
        let Self { hosts, lids, walks, by_node, leaving, .. } = self;
        hosts.is_empty()
            && lids.is_empty()
            && walks.is_empty()
            && by_node.is_empty()
            && leaving.is_empty()
    }

    fn update(&mut self, subnet: &mut Subnet) {
        self.generation = subnet.generation();
        let changes = subnet.take_changes();
        if self.hosts.is_empty() {
            let (silent, mut counts) =
                (std::mem::take(&mut self.silent), std::mem::take(&mut self.counts));
            self.walks.values().for_each(|walk| counts.retire(walk.id));
            counts.read_changed(subnet);
            *self = Self { number: self.number, silent, counts, ..Self::default() };
            return subnet.keep_changes(false);
        }
        let hosts_changed = std::mem::take(&mut self.hosts_changed);
        let mut dirty = BTreeSet::new();
        match changes {
            Some(changes) => self.concerned(&changes, &mut dirty),
            // The list of changes is missing before the first host, or when they are too many.
            None => {
                subnet.keep_changes(true);
                dirty.extend(self.walks.keys());
            }
        }
        if hosts_changed {
            self.look_at_hosts(&mut dirty);
        }
        self.look_at_ports(subnet, &mut dirty);
        for &key in &dirty {
            self.walk(subnet, key);
        }
        self.write(dirty, hosts_changed);
        for host in self.hosts.values_mut() {
            for id in &self.leaving {
                said(host.table.set_peer(*id, None));
            }
            host.table.publish();
        }
        // No table has these numbers any more.
        self.free.append(&mut self.leaving);
        self.counts.read_changed(subnet);
    }

    /// Collects the walks that changes affect.
    fn concerned(&self, changes: &[Change], dirty: &mut BTreeSet<Key>) {
        for &change in changes {
            let Some(there) = self.by_node.get(&change.node()) else { continue };
            for key in there {
                let Some(walk) = self.walks.get(key) else { continue };
                if walk.trail.depends_on(key.1, change) {
                    dirty.insert(*key);
                }
                // The change may be to a group that had no port at the sender's switch before.
                if let (Lid::NONE, Change::Multicast { block, .. }) = (key.1, change) {
                    const GROUPS: u16 = 32;
                    let first = Lid::FIRST_MULTICAST.0.saturating_add(block * GROUPS);
                    dirty.extend((0..GROUPS).map(|n| (key.0, Lid(first.saturating_add(n)))));
                }
            }
        }
    }

    /// Collects the walks that are affected when hosts were added or removed.
    fn look_at_hosts(&self, dirty: &mut BTreeSet<Key>) {
        dirty.extend(self.walks.keys().filter(|key| !self.hosts.contains_key(&key.0)));
        let new = self.hosts.keys().map(|port| (*port, Lid::NONE));
        for (port, none) in new.filter(|key| !self.walks.contains_key(key)) {
            dirty.insert((port, none));
            dirty.extend(self.lids.iter().map(|lid| (port, *lid)));
        }
    }

    /// Updates the hosts' own ports, and the LIDs to which others have routes.
    fn look_at_ports(&mut self, subnet: &Subnet, dirty: &mut BTreeSet<Key>) {
        let own = dirty.iter().filter(|key| key.1 == Lid::NONE);
        let changed: Vec<_> = own.map(|key| key.0).collect();
        if changed.is_empty() {
            return;
        }
        for &port in &changed {
            let Some(host) = self.hosts.get_mut(&port) else { continue };
            host.own = own_port(subnet, port, host.peer.multicast);
            said(host.table.set_own(&host.own));
            let groups = subnet.groups_from(port);
            dirty.extend(groups.into_iter().map(|mlid| (port, mlid)));
            dirty.extend(self.walks.keys().filter(|key| key.0 == port));
        }
        let lids: BTreeSet<_> = self.hosts.values().flat_map(|host| lids(&host.own)).collect();
        for &lid in lids.symmetric_difference(&self.lids) {
            dirty.extend(self.hosts.keys().map(|port| (*port, lid)));
        }
        self.lids = lids;
    }

    /// Walks through the subnet, and keeps the result.
    fn walk(&mut self, subnet: &Subnet, key: Key) {
        let old = self.walks.remove(&key);
        for port in old.iter().flat_map(|old| old.trail.ports()) {
            if let Some(there) = self.by_node.get_mut(&port.node) {
                there.remove(&key);
            }
        }
        let found = self.follow(subnet, key);
        let id = old.map_or(RouteId::NONE, |old| {
            let is_same = found.as_ref().is_some_and(|(_, trail)| old.trail.counts_as(trail));
            if is_same {
                return old.id;
            }
            self.counts.retire(old.id);
            RouteId::NONE
        });
        let Some((found, trail)) = found else { return };
        for port in trail.ports() {
            self.by_node.entry(port.node).or_default().insert(key);
        }
        let trail = Arc::new(trail);
        let is_named = id != RouteId::NONE || key.1 == Lid::NONE;
        let id = if is_named { id } else { self.counts.name(key.0, &trail) };
        self.walks.insert(key, Walk { found, trail, id });
    }

    /// Returns the result of a walk; nothing if it is not kept.
    fn follow(&self, subnet: &Subnet, key: Key) -> Option<(Vec<WayFound>, Trail)> {
        let (from, lid) = key;
        if !self.hosts.contains_key(&from) {
            return None;
        }
        let mut trail = Trail::default();
        if lid == Lid::NONE {
            return Some((Vec::new(), std::iter::once(from).chain(subnet.peer(from)).collect()));
        }
        if lid.is_multicast() {
            let found = subnet.group_ways_along(from, lid, &mut trail);
            let is_kept = !found.is_empty() || self.is_group(subnet, key);
            return is_kept.then_some((found, trail));
        }
        let found = || subnet.way_along(from, lid, &mut trail).into_iter().collect();
        let found: Vec<_> = self.lids.contains(&lid).then(found)?;
        Some((found, trail))
    }

    /// Returns whether the first switch of a sender has the group, so that other switches of its tree may get it later.
    fn is_group(&self, subnet: &Subnet, (from, mlid): Key) -> bool {
        subnet.peer(from).is_some_and(|peer| !subnet.routes(peer.node, mlid).is_empty())
    }

    /// Writes the routes of walks, and those that lead back to their senders; all routes if hosts were added or removed.
    fn write(&mut self, walked: BTreeSet<Key>, hosts_changed: bool) {
        let mut concerned = walked.clone();
        if hosts_changed {
            concerned.extend(self.walks.keys());
        }
        let changed = |port| hosts_changed || walked.contains(&(port, Lid::NONE));
        let moved: Vec<_> = self.hosts.keys().copied().filter(|port| changed(*port)).collect();
        let ports: Vec<_> = self.hosts.keys().copied().collect();
        for port in ports.iter().filter(|_| !moved.is_empty()) {
            let Some(host) = self.hosts.get(port) else { continue };
            let others = moved.iter().filter_map(|other| self.hosts.get(other));
            let peers: Vec<_> = others.map(|other| (other.id, host.peer(other))).collect();
            let Some(host) = self.hosts.get_mut(port) else { continue };
            for (id, peer) in &peers {
                said(host.table.set_peer(*id, peer.as_ref()));
            }
        }
        for &(from, lid) in walked.iter().filter(|key| key.1.is_unicast()) {
            // Whether the reverse route exists may have changed.
            let ends = self.hosts.iter().filter(|(_, host)| host.own.path_bits(lid).is_some());
            let back = self.hosts.get(&from).into_iter().flat_map(|host| lids(&host.own));
            let back: Vec<_> = back.collect();
            for (&to, _) in ends {
                concerned.extend(back.iter().map(|lid| (to, *lid)));
            }
        }
        for &(from, lid) in concerned.iter().filter(|key| key.1 != Lid::NONE) {
            let walk = self.walks.get(&(from, lid));
            let (found, id) = walk.map_or_else(Default::default, |w| (&w.found[..], w.id));
            let ways: Vec<_> = found.iter().filter_map(|found| self.way(from, found)).collect();
            let Some(host) = self.hosts.get_mut(&from) else { continue };
            said(if lid.is_multicast() {
                host.table.set_group_route(lid, id, &ways)
            } else {
                let way = ways.first().filter(|way| way.hops > 0).copied();
                host.table.set_route(lid, Route { id, way })
            });
        }
    }

    /// Returns the updates for bridges, in order, with their numbers.
    pub(super) fn take_updates(&mut self) -> Vec<(Arc<Machine>, Vec<TableUpdate>)> {
        let mut all: Vec<(Arc<Machine>, Vec<TableUpdate>)> = Vec::new();
        for host in self.hosts.values_mut() {
            let updates = host.table.take_updates();
            let Some(place) = host.table.place().filter(|_| !updates.is_empty()) else { continue };
            match all.iter_mut().find(|(machine, _)| machine.is(&place.machine)) {
                Some((_, of_machine)) => of_machine.extend(updates),
                None => all.push((place.machine.clone(), updates)),
            }
        }
        for (machine, updates) in &mut all {
            if let Some(last) = updates.last_mut() {
                last.sequence = Some(machine.sequence() + 1);
            }
        }
        all
    }

    /// Returns the port of the switch that drops a host's packets to a LID because of their P_Key, if any.
    pub(super) fn enforcer(&self, from: PortId, dlid: Lid, packet: PacketKind) -> Option<PortId> {
        let (at, reason) = self.walks.get(&(from, dlid))?.trail.loss(packet)?;
        matches!(reason, DropReason::PkeyIn | DropReason::PkeyOut).then_some(at)
    }

    /// Returns the route to another host.
    fn way(&self, from: PortId, found: &WayFound) -> Option<Way> {
        let (own, to) = (&self.hosts.get(&from)?.own, self.hosts.get(&found.to)?);
        let (mut back, mut answered) = (0, u128::MAX);
        for (lid, bit) in lids(own).zip(0..) {
            let walk = self.walks.get(&(found.to, lid));
            let mut ways = walk.into_iter().flat_map(|walk| &walk.found);
            let Some(way) = ways.find(|way| way.to == from) else { continue };
            let keys = answered_keys(own, &to.own, way.pkeys);
            let takes_all = way.mtu >= found.mtu && way.sls & found.sls == found.sls;
            if to.own.active && takes_all && keys != 0 {
                back |= 1 << bit;
                answered &= keys;
            }
        }
        Some(Way {
            peer: to.id,
            hops: u8::try_from(found.hops).unwrap_or(u8::MAX),
            mtu: found.mtu,
            rate: found.rate.0,
            sls: found.sls,
            pkeys: found.pkeys,
            back,
            answered: if back == 0 { 0 } else { answered },
        })
    }
}

/// Returns the indices of those P_Keys of `own` that `to` accepts, if a matching key of `to` passes on the way back.
fn answered_keys(own: &OwnPort, to: &OwnPort, passes: u128) -> u128 {
    let theirs = |mut set: u128| {
        std::iter::from_fn(move || {
            let index = set.trailing_zeros();
            set &= set.wrapping_sub(1);
            to.pkeys.get(index as usize)
        })
    };
    let takes = |key: &Pkey| key.0 & 0x7fff != 0 && theirs(passes).any(|other| key.admits(*other));
    let ours = own.pkeys.iter().zip(0..).filter(|(key, _)| takes(key));
    ours.fold(0, |set, (_, index)| set | 1 << index)
}

/// Returns the LIDs of a port, from path bits 0 on.
fn lids(own: &OwnPort) -> impl Iterator<Item = Lid> + use<> {
    let first = own.lid_with(0).0;
    let count = if own.lid.is_unicast() { 1_u16 << own.lmc.min(7) } else { 0 };
    (0..count).map(move |bits| Lid(first.saturating_add(bits))).filter(|lid| lid.is_unicast())
}

/// Returns a host's entry for its own port.
fn own_port(subnet: &Subnet, port: PortId, multicast: bool) -> OwnPort {
    let Some(view) = subnet.port(port) else { return OwnPort::default() };
    let mut own = OwnPort {
        active: view.state() == PortState::ACTIVE,
        lid: view.lid(),
        lmc: view.lmc(),
        mtu: Mtu::from_code(view.info().neighbor_mtu).unwrap_or(Mtu::M256),
        gid_prefix: view.info().gid_prefix,
        port_guid: view.guid(),
        multicast,
        ..OwnPort::default()
    };
    own.pkeys.iter_mut().zip(view.pkeys()).for_each(|(own, key)| *own = *key);
    own
}

/// Logs an entry that could not be written. It is empty then, so that the earlier one is not used.
fn said(written: Result<(), RouteError>) {
    if let Err(error) = written {
        tracing::debug!(%error, "an entry of a route table is invalid and stays empty");
    }
}

impl Core {
    /// Sets where a host receives packets: a loopback address, so that it cannot direct other hosts of its machine elsewhere. The fabric
    /// itself determines where hosts of other machines must send ([`Host::peer`]). Returns false for an address that is not allowed.
    pub(super) fn set_endpoint(
        &mut self,
        id: ConnectionId,
        addr: SocketAddr,
        (everywhere, multicast): (bool, bool),
    ) -> bool {
        let Some(Part::Attachment { port, .. }) = self.connections.get(id).map(|c| &c.part) else {
            return true;
        };
        let port = *port;
        let port_guid = self.world.subnet().port(port).map(|view| view.guid()).unwrap_or_default();
        let is_one = addr.ip().is_loopback() && addr.port() != 0;
        if is_one {
            // A host that receives packets at all addresses is on a fabric with hosts that do not receive this
            // machine's multicast.
            let multicast = multicast && !everywhere;
            let peer = Peer { addr, port_guid, lid: Lid::NONE, lmc: 0, multicast };
            self.published.set_endpoint(port, peer, everywhere);
        }
        is_one
    }

    /// Updates the route tables, so that nothing that is sent from now on is newer than they are.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published.publish(self.world.subnet_mut()) {
            self.tell_bridges();
        }
    }

    /// Makes the ports count what hosts have sent up to now.
    pub(super) fn read_counts(&mut self) {
        // Those packets were sent by the routes that the tables had.
        self.publish();
        self.published.counts.read(self.world.subnet_mut());
        (self.has_read, self.is_fresh) = (true, true);
        self.count(Count::CountsRead);
    }

    /// Makes the ports count what the host at a port has sent and dropped up to now.
    pub(super) fn read_counts_of(&mut self, port: PortId) {
        self.publish();
        self.published.counts.read_port(self.world.subnet_mut(), port);
        self.has_read = true;
        self.count(Count::CountsRead);
    }
}
