//! Each port's IP interface, as far as connections need one: the host's addresses lead to the port, and other hosts' addresses
//! are resolved by ARP and neighbour discovery on the broadcast group (RFC 4391), which this host answers for its own. Of several
//! ports on one fabric, one sends and answers queries. If there are several fabrics, all are queried, and the first answer
//! counts.
//!
//! No network interface exists, and no IP packet is sent. The interface is up while the port is a member of the broadcast
//! group of its first partition, which subnet administration must know already.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use rdmux_cm::{IdHandle, Resolved, RouteQuery, Time};
use rdmux_ipoib::{Join, Neighbours, Source, To, neighbours};
use rdmux_link::wire::Arrival;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::ipoib::{LinkAddress, Resolution, group};
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask};
use rdmux_wire::{Gid, Lid, Pkey, Qkey, Qpn};

use super::adapters::PortAt;
use super::groups::Member;
use super::{Ib, gsi};
use crate::service::core::Core;
use crate::service::counters::Count;

/// The interface's queue pair, one of those that belong to no process.
pub(super) const INTERFACE: Qpn = Qpn::new(2);
/// The first and the longest interval between attempts to join the broadcast group.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(16);
/// Maximum number of outstanding lookups.
const MAX_PENDING: usize = 65536;

/// The IP interface of a port.
#[derive(Debug)]
pub(in crate::service) struct Interface {
    neighbours: Neighbours,
    /// The broadcast group, while the port is a member.
    broadcast: Option<McMemberRecord>,
    /// Whether a join of the group is outstanding at subnet administration.
    is_joining: bool,
    /// Time at which to try to join again.
    retry: Option<Time>,
    pause: Duration,
    /// Ids that wait for the interface to be up, or for an address.
    pending: BTreeMap<IdHandle, Pending>,
}

/// An id that waits for a neighbour's address.
#[derive(Debug, Clone, Copy)]
struct Pending {
    query: RouteQuery,
    src: IpAddr,
    until: Time,
}

impl Default for Interface {
    fn default() -> Self {
        Self {
            neighbours: Neighbours::new(),
            broadcast: None,
            is_joining: false,
            retry: None,
            pause: FIRST_RETRY,
            pending: BTreeMap::new(),
        }
    }
}

impl Interface {
    /// Returns when the next action is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let over = self.pending.values().map(|pending| pending.until).min();
        [self.neighbours.poll_timeout(), self.retry, over].into_iter().flatten().min()
    }

    /// Returns the broadcast group, whose parameters all other groups of the partition have.
    pub(super) fn broadcast(&self) -> Option<&McMemberRecord> {
        self.broadcast.as_ref()
    }

    /// Returns whether subnet administration will soon answer about the broadcast group.
    pub(super) fn is_joining(&self) -> bool {
        self.is_joining
    }

    /// Returns whether an id waits for an address, or for the interface.
    fn is_looking_for(&self, id: IdHandle) -> bool {
        self.pending.contains_key(&id)
    }

    /// Returns whether a group's datagrams are for the interface.
    pub(super) fn hears(&self, mgid: Gid) -> bool {
        self.broadcast.as_ref().is_some_and(|group| group.mgid == mgid)
    }
}

/// The requests of the neighbours' state machine.
struct Out<'a> {
    own: LinkAddress,
    /// The addresses that the interface answers for, and whether other machines may have the same ones.
    addresses: &'a [(IpAddr, bool)],
    sends: Vec<(Option<Source>, Resolution)>,
    resolved: Vec<(IpAddr, Option<LinkAddress>)>,
}

impl neighbours::Link for Out<'_> {
    fn send(&mut self, to: To<'_>, datagram: &Resolution) {
        let to = match to {
            To::All => None,
            To::Sender(source) => Some(*source),
        };
        self.sends.push((to, *datagram));
    }
    fn resolved(&mut self, ip: IpAddr, found: Option<LinkAddress>) {
        self.resolved.push((ip, found));
    }
    fn own(&self, ip: IpAddr, asking: &Source) -> Option<LinkAddress> {
        let (_, is_of_machine) = self.addresses.iter().find(|(own, _)| *own == ip)?;
        (asking.is_near || !is_of_machine).then_some(self.own)
    }
}

impl Core {
    /// Calls the neighbours' state machine, and carries out its requests.
    fn with_neighbours<R>(
        &mut self,
        at: PortAt,
        f: impl FnOnce(&mut Neighbours, &mut Out<'_>, Time) -> R,
    ) -> R {
        let now = self.now();
        let answers = self.adapter.speakers().contains(&at);
        let rows = self.addresses.rows().filter(|_| answers);
        let addresses: Vec<(IpAddr, bool)> =
            rows.map(|(_, row)| (row.ip, row.is_of_machine())).collect();
        let own = LinkAddress::datagrams(INTERFACE, self.adapter[at].port_gid(self.node_guid));
        let mut out = Out { own, addresses: &addresses, sends: Vec::new(), resolved: Vec::new() };
        let result = f(&mut self.adapter[at].interface.neighbours, &mut out, now);
        let Out { sends, resolved, .. } = out;
        for (to, datagram) in sends {
            self.send_resolution(at, to.as_ref(), &datagram);
        }
        for (ip, found) in resolved {
            self.address_found(at, ip, found);
        }
        result
    }

    fn send_resolution(&mut self, at: PortAt, to: Option<&Source>, datagram: &Resolution) {
        let Some(group) = self.adapter[at].interface.broadcast else { return };
        let Some(pkey_index) = self.adapter[at].device_port(self.node_guid).pkey_index(group.pkey)
        else {
            return;
        };
        let (av, qpn) = match to {
            Some(source) => (source.av, source.qpn),
            None => (to_group(at, &group), Qpn::MULTICAST),
        };
        let bytes = datagram.to_bytes();
        let sent =
            self.send_datagram(at, (INTERFACE, qpn), group.qkey, pkey_index, &av, bytes.as_slice());
        self.counts.add(if sent { Count::TxResolutions } else { Count::TxErrors });
    }

    /// Handles a datagram to the interface's queue pair, or to the broadcast group.
    pub(super) fn process_resolution(
        &mut self,
        at: PortAt,
        arrival: &Arrival<'_>,
    ) -> Result<(), Count> {
        let datagram = self.datagram(at, arrival)?;
        let qkey = self.adapter[at].interface.broadcast.map(|group| group.qkey);
        if qkey != Some(datagram.qkey) {
            return Err(Count::DropQkey);
        }
        let gsi::Datagram { av, src_qpn: qpn, payload, .. } = datagram;
        // Replies go by LID, whether or not a group's GRH was present.
        let av = AddressVector { is_global: false, ..av };
        let source = Source { av, qpn, is_near: arrival.src.ip().is_loopback() };
        self.counts.add(Count::RxResolutions);
        let taken = self.with_neighbours(at, |neighbours, out, now| {
            neighbours.handle(now, &source, payload, out)
        });
        taken.map_err(|_| Count::DropMalformed)
    }

    /// Resolves the GID of an id's peer.
    pub(super) fn find_ib_peer(&mut self, id: IdHandle, query: &RouteQuery) {
        let src = match self.source_of(query) {
            Ok(src) => src,
            Err(errno) => return self.resolved(id, Err(errno)),
        };
        let dst = query.dst.ip();
        if self.addresses.find(dst).is_some() {
            let at = self.adapter.of_ip();
            let own = self.adapter[at].port_gid(self.node_guid);
            return self.peer_found(at, id, query, src, own);
        }
        let speakers = self.adapter.speakers();
        if speakers.is_empty() {
            return self.resolved(id, Err(libc::ENETDOWN));
        }
        let is_full = |at: &PortAt| self.adapter[*at].interface.pending.len() >= MAX_PENDING;
        if speakers.iter().any(is_full) {
            return self.resolved(id, Err(libc::ENOBUFS));
        }
        let until = self.now().after(query.timeout);
        let pending = Pending { query: *query, src, until };
        for &at in &speakers {
            self.adapter[at].interface.pending.insert(id, pending);
        }
        for at in speakers {
            // Another fabric may have answered at once.
            if self.adapter[at].interface.pending.contains_key(&id) {
                self.look_for(at, id, &pending);
            }
        }
    }

    /// Returns the local address that an id's packets are sent from.
    fn source_of(&self, query: &RouteQuery) -> Result<IpAddr, i32> {
        if query.src_hint.is_none() && self.addresses.find(query.dst.ip()).is_some() {
            return Ok(query.dst.ip());
        }
        // A group's interface is that of the id's own address (`imr_interface`, ip(7)). The machine's routes are for its
        // own interfaces, and those on loopback addresses have none to IPv6 groups.
        let of_group = query
            .src_hint
            .filter(|src| query.dst.ip().is_multicast() && src.is_ipv4() == query.dst.is_ipv4());
        let src = of_group.map_or_else(|| self.source(query), Ok)?;
        self.addresses.find(src).map(|_| src).ok_or(libc::EADDRNOTAVAIL)
    }

    /// Continues a lookup, if the interface is up.
    fn look_for(&mut self, at: PortAt, id: IdHandle, pending: &Pending) {
        let Pending { query, src, .. } = *pending;
        let Some(broadcast) = self.adapter[at].interface.broadcast else { return };
        let dst = query.dst.ip();
        if dst.is_multicast() {
            let scope = broadcast.mgid.0[1] & 0xf;
            let gid = group::of(dst, broadcast.pkey, scope, group::Signature::Ip);
            return self.peer_found(at, id, &query, src, gid);
        }
        let found = self.with_neighbours(at, |neighbours, out, now| {
            let from = (src, out.own);
            neighbours.resolve(now, dst, from, out)
        });
        if let Some(found) = found {
            self.peer_found(at, id, &query, src, found.gid);
        }
    }

    /// Delivers the result to the ids that wait for an address.
    fn address_found(&mut self, at: PortAt, ip: IpAddr, found: Option<LinkAddress>) {
        let waits = |pending: &Pending| pending.query.dst.ip() == ip;
        let waiting: Vec<(IdHandle, Pending)> = self.adapter[at]
            .interface
            .pending
            .iter()
            .filter(|(_, pending)| waits(pending))
            .map(|(&id, pending)| (id, *pending))
            .collect();
        for (id, Pending { query, src, .. }) in waiting {
            match found {
                Some(found) => self.peer_found(at, id, &query, src, found.gid),
                None => {
                    self.adapter[at].interface.pending.remove(&id);
                    // Another fabric may have the address.
                    if !self.adapter.iter().any(|other| other.interface.is_looking_for(id)) {
                        self.resolved(id, Err(libc::EHOSTUNREACH));
                    }
                }
            }
        }
    }

    /// Ends an id's lookup.
    pub(in crate::service) fn forget_peer(&mut self, id: IdHandle) {
        for adapter in self.adapter.iter_mut() {
            adapter.interface.pending.remove(&id);
        }
    }

    fn peer_found(&mut self, at: PortAt, id: IdHandle, query: &RouteQuery, src: IpAddr, dgid: Gid) {
        self.forget_peer(id);
        let port_num = at.number();
        let answer = Resolved { dgid, port_num, ..query.over_ip(src, Ib::KIND as u32) };
        self.resolved(id, Ok(answer));
    }

    /// Joins the broadcast group, if the port is active and not a member. A port that goes down leaves it.
    pub(in crate::service) fn follow_interface(&mut self, at: PortAt) {
        let now = self.now();
        let interface = &mut self.adapter[at].interface;
        if interface.broadcast.is_some() || interface.retry.is_some_and(|at| at > now) {
            return;
        }
        if !self.has_sa(at) || self.options.config.fabric.without_ip {
            return;
        }
        let port = self.adapter[at].device_port(self.node_guid);
        let pkey = Pkey(port.pkeys.first().map_or(0xffff, |key| key.0 | 0x8000));
        let record = McMemberRecord {
            mgid: group::broadcast(pkey, group::LINK_LOCAL),
            port_gid: self.adapter[at].port_gid(self.node_guid),
            pkey,
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        };
        let mask = McMemberRecordMask::MGID
            | McMemberRecordMask::PORT_GID
            | McMemberRecordMask::PKEY
            | McMemberRecordMask::JOIN_STATE;
        // Another attempt waits for the answer.
        let pause = self.adapter[at].interface.pause;
        let interface = &mut self.adapter[at].interface;
        interface.retry = Some(now.after(pause.max(super::groups::TIMEOUT)));
        interface.is_joining = true;
        self.want_group(at, Member::Interface, Join { record, mask });
    }

    /// Handles the result of joining the broadcast group, or its loss.
    pub(super) fn broadcast_joined(&mut self, at: PortAt, group: Result<McMemberRecord, i32>) {
        let now = self.now();
        let interface = &mut self.adapter[at].interface;
        interface.is_joining = false;
        match group {
            Ok(record) => {
                tracing::debug!("broadcast group {} is MLID {:#06x}", record.mgid, record.mlid.0);
                (interface.broadcast, interface.retry) = (Some(record), None);
                interface.pause = FIRST_RETRY;
                self.follow_broadcast(at);
                self.follow_ports();
                self.look_for_all(at);
            }
            Err(errno) => {
                // Lost while a member or before the answer: it is joined again at once.
                let is_lost = interface.broadcast.take().is_some() || errno == libc::ENETRESET;
                self.follow_broadcast(at);
                let interface = &mut self.adapter[at].interface;
                if is_lost {
                    interface.retry = Some(now);
                } else {
                    interface.retry = Some(now.after(interface.pause));
                    interface.pause = (interface.pause * 2).min(LAST_RETRY);
                    tracing::info!(errno, "cannot join the broadcast group; trying again later");
                    self.counts.add(Count::BroadcastRefused);
                }
            }
        }
        self.go_on_with_groups(at);
    }

    /// Handles the loss of the port's groups, with its link or its manager.
    pub(super) fn interface_lost(&mut self, at: PortAt) {
        let interface = &mut self.adapter[at].interface;
        (interface.broadcast, interface.retry) = (None, None);
        interface.pause = FIRST_RETRY;
        self.follow_broadcast(at);
    }

    /// Forgets all neighbours, because other ports have these addresses now, or this host has others. Outstanding lookups continue
    /// if the interface is up, or when it is up again.
    pub(super) fn forget_neighbours(&mut self, at: PortAt) {
        self.adapter[at].interface.neighbours.forget_all();
        self.look_for_all(at);
    }

    fn look_for_all(&mut self, at: PortAt) {
        let pending = &self.adapter[at].interface.pending;
        let all: Vec<(IdHandle, Pending)> = pending.iter().map(|(&id, p)| (id, *p)).collect();
        for (id, pending) in all {
            self.look_for(at, id, &pending);
        }
    }

    /// Handles expired timers.
    pub(super) fn poll_interface(&mut self, at: PortAt) {
        let now = self.now();
        self.with_neighbours(at, |neighbours, out, now| neighbours.handle_timeout(now, out));
        // The connection manager has given up already, and needs no answer.
        self.adapter[at].interface.pending.retain(|_, pending| pending.until > now);
        if self.adapter[at].interface.retry.is_some_and(|at| at <= now) {
            self.adapter[at].interface.retry = None;
            self.follow_interface(at);
        }
    }

    /// Returns the partition of the broadcast group, while it is joined.
    pub(super) fn interface_pkey(&self, at: PortAt) -> Option<Pkey> {
        self.adapter[at].interface.broadcast.map(|group| group.pkey)
    }

    /// Returns the Q_Key of datagrams that use the interface's groups.
    pub(super) fn interface_qkey(&self, at: PortAt) -> Qkey {
        self.adapter[at].interface.broadcast.map_or(Qkey::RDMA_UDP, |group| group.qkey)
    }
}

/// Returns the address vector of a group.
fn to_group(at: PortAt, group: &McMemberRecord) -> AddressVector {
    let Lid(dlid) = group.mlid;
    AddressVector {
        is_global: true,
        dgid: group.mgid,
        flow_label: group.flow_label,
        hop_limit: group.hop_limit,
        traffic_class: group.tclass,
        dlid,
        sl: group.sl,
        static_rate: group.rate.0,
        port_num: at.number(),
        ..AddressVector::default()
    }
}
