//! Multicast groups that this host has joined on the network, and their members.
//!
//! A group is joined on an address for every connection manager id that joined it, and for every process whose queue
//! pairs are attached. The kernel counts memberships by socket. There is one socket for all ids of a group and one for
//! each process. A socket leaves explicitly, because the process (or a child of it) may still have a duplicate.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use rdmux_cm::{IdHandle, JoinQuery};
use rdmux_link::McastSocket;
use rdmux_link::udp::{GroupOptions, OpenError};
use rdmux_runtime::Share;
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::throttled;
use rdmux_wire::{Gid, Mtu, Qpn};
use socket2::{Domain, SockRef, Socket, Type};

use super::addresses::Row;
use super::clients::{Client, ClientId};
use super::core::Core;
use super::requests::failure;
use super::shares::no_descriptors;
use crate::proto::{Failure, GroupStatus};

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Member {
    /// An id that joined, and the context of its join.
    Id(IdHandle, u64),
    /// A queue pair that was attached.
    Qp(ClientId, Qpn),
}

/// A group on an address.
#[derive(Debug)]
struct Group {
    interface: u32,
    /// Whether the host does not have the address, or joining the group again failed.
    is_stale: bool,
    members: BTreeSet<Member>,
    /// The membership for the ids: a socket that receives nothing, and the process for whose id it was made.
    ids: Option<(Socket, ClientId, Share)>,
    /// The sockets on which processes receive the group.
    processes: BTreeMap<ClientId, (McastSocket, Share)>,
}

/// All groups, by group and local address.
#[derive(Debug, Default)]
pub(super) struct Groups(BTreeMap<(IpAddr, IpAddr), Group>);

impl Groups {
    /// Joins for an id of a process. A new socket is charged to this share.
    fn join_id(
        &mut self,
        (client, share): (ClientId, Share),
        member: Member,
        group: IpAddr,
        row: &Row,
    ) -> io::Result<()> {
        let entry = self.entry(group, row);
        if entry.ids.is_none() {
            let socket =
                Socket::new(Domain::for_address(SocketAddr::new(group, 0)), Type::DGRAM, None)?;
            join(&socket, group, row.ip, row.interface.index)?;
            entry.ids = Some((socket, client, share));
        }
        entry.members.insert(member);
        Ok(())
    }

    /// Joins for a queue pair. Returns the socket that receives the group, if its process has none yet. It is charged to
    /// this share.
    fn join_qp(
        &mut self,
        (client, share): (ClientId, Share),
        qpn: Qpn,
        group: IpAddr,
        row: &Row,
        port: u16,
    ) -> Result<Option<OwnedFd>, OpenError> {
        let entry = self.entry(group, row);
        let mut fresh = None;
        if let Entry::Vacant(vacant) = entry.processes.entry(client) {
            let scope_id = row.interface.index;
            let options = GroupOptions { port, scope_id, ..Default::default() };
            let socket = McastSocket::join(group, row.ip, &options)?;
            let what = "pass a multicast socket to a process";
            let fd = socket.port().as_fd().try_clone_to_owned();
            fresh = Some(fd.map_err(|source| OpenError::Io { what, addr: group, source })?);
            vacant.insert((socket, share));
        }
        entry.members.insert(Member::Qp(client, qpn));
        Ok(fresh)
    }

    fn entry(&mut self, group: IpAddr, row: &Row) -> &mut Group {
        self.0.entry((group, row.ip)).or_insert_with(|| Group {
            interface: row.interface.index,
            is_stale: false,
            members: BTreeSet::new(),
            ids: None,
            processes: BTreeMap::new(),
        })
    }

    /// Returns whether a process receives a group on an address.
    fn hears(&self, client: ClientId, group: IpAddr, local: IpAddr) -> bool {
        self.0.get(&(group, local)).is_some_and(|entry| entry.processes.contains_key(&client))
    }

    /// Returns the address of an interface on which a process receives a group. All addresses of an interface receive
    /// the same.
    fn heard_at(&self, client: ClientId, group: IpAddr, interface: u32) -> Option<IpAddr> {
        let hears =
            |entry: &Group| entry.interface == interface && entry.processes.contains_key(&client);
        let mut groups = self.0.iter().filter(|((g, _), _)| *g == group);
        groups.find(|(_, entry)| hears(entry)).map(|(&(_, local), _)| local)
    }

    /// Returns whether the ids of a group on an address have joined it.
    fn is_joined(&self, group: IpAddr, local: IpAddr) -> bool {
        self.0.get(&(group, local)).is_some_and(|entry| entry.ids.is_some())
    }

    /// Returns whether a process receives a group on an address, or may receive another: each needs a socket of the
    /// service.
    fn may_hear(&self, client: ClientId, group: IpAddr, local: IpAddr, most: u32) -> bool {
        let hears = |entry: &&Group| entry.processes.contains_key(&client);
        let count = || self.0.values().filter(hears).count();
        self.hears(client, group, local) || count() < most as usize
    }

    /// Returns whether a process's ids may join a group: it is joined already, or the process may have one more joined.
    fn may_join(&self, client: ClientId, group: IpAddr, local: IpAddr, most: u32) -> bool {
        let is_its = |entry: &&Group| entry.ids.as_ref().is_some_and(|(_, of, _)| *of == client);
        let count = || self.0.values().filter(is_its).count();
        self.is_joined(group, local) || count() < most as usize
    }

    /// Joins groups again whose address is on another interface now, or is back. `interface_of` returns the interface of an address.
    pub(super) fn follow(&mut self, interface_of: impl Fn(IpAddr) -> Option<u32>) {
        for (&(group, local), entry) in &mut self.0 {
            match interface_of(local) {
                None => entry.is_stale = true,
                Some(now) if entry.is_stale || entry.interface != now => {
                    if let Err(e) = entry.rejoin(group, local, now) {
                        throttled!(warn, "cannot join {group} again on {local}: {e}");
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Removes a member. The group is left on the network with the last one.
    fn leave(&mut self, member: Member, group: IpAddr, local: IpAddr) {
        if let Some(entry) = self.0.get_mut(&(group, local)) {
            entry.members.remove(&member);
            entry.drop_unused(group, local);
        }
        self.drop_empty();
    }

    /// Removes a queue pair from a group, on any address. Returns whether it was a member.
    fn leave_qp(&mut self, client: ClientId, qpn: Qpn, group: IpAddr) -> bool {
        let mut was = false;
        for (&(g, local), entry) in &mut self.0 {
            if g == group && entry.members.remove(&Member::Qp(client, qpn)) {
                was = true;
                entry.drop_unused(group, local);
            }
        }
        self.drop_empty();
        was
    }

    /// Removes all memberships of a process's queue pairs.
    pub(super) fn client_gone(&mut self, client: ClientId) {
        for (&(group, local), entry) in &mut self.0 {
            entry.members.retain(|m| !matches!(m, Member::Qp(c, _) if *c == client));
            entry.drop_unused(group, local);
        }
        self.drop_empty();
    }

    /// Drops groups without members, such as one that could not be joined.
    fn drop_empty(&mut self) {
        self.0.retain(|_, entry| !entry.members.is_empty());
    }

    /// Returns an address of the host on which a process's ids joined a group: on the interface that the most of them have for each of
    /// the process's queue pairs there. So each of several ids' queue pairs gets the interface of one of them.
    fn local_of(
        &self,
        client: ClientId,
        group: IpAddr,
        is_mine: impl Fn(IdHandle) -> bool,
    ) -> Option<IpAddr> {
        // The first address of each interface with ids, and how many more ids than queue pairs there are.
        let mut interfaces = BTreeMap::<u32, (Option<IpAddr>, isize)>::new();
        let joined = self.0.iter().filter(|((g, _), entry)| *g == group && !entry.is_stale);
        for (&(_, local), entry) in joined {
            let (first, lack) = interfaces.entry(entry.interface).or_default();
            for member in &entry.members {
                match member {
                    Member::Id(id, _) if is_mine(*id) => {
                        first.get_or_insert(local);
                        *lack += 1;
                    }
                    Member::Qp(of, _) if *of == client => *lack -= 1,
                    _ => {}
                }
            }
        }
        let joined = interfaces.into_values().filter_map(|(first, lack)| Some((first?, lack)));
        joined.min_by_key(|&(first, lack)| (-lack, first)).map(|(first, _)| first)
    }

    pub(super) fn status(&self) -> Vec<GroupStatus> {
        let row = |(&(group, local), entry): (&(IpAddr, IpAddr), &Group)| GroupStatus {
            group,
            local,
            members: u32::try_from(entry.members.len()).unwrap_or(u32::MAX),
        };
        self.0.iter().map(row).collect()
    }
}

impl Group {
    /// Joins the group again with all sockets, on the interface that has the address now.
    fn rejoin(&mut self, group: IpAddr, local: IpAddr, now: u32) -> io::Result<()> {
        let before = std::mem::replace(&mut self.interface, now);
        let ids = self.ids.iter().map(|(socket, ..)| SockRef::from(socket));
        let processes = self.processes.values().map(|(socket, _)| SockRef::from(socket.port()));
        let joined = ids
            .chain(processes)
            .map(|socket| rejoin(&socket, group, local, (before, now)))
            .fold(Ok(()), Result::and);
        self.is_stale = joined.is_err();
        joined
    }

    /// Leaves the group with the sockets that no member needs any more.
    fn drop_unused(&mut self, group: IpAddr, local: IpAddr) {
        if !self.members.iter().any(|m| matches!(m, Member::Id(..))) {
            self.ids = None;
        }
        let members = &self.members;
        let interface = self.interface;
        self.processes.retain(|client, (socket, _)| {
            let used = members.iter().any(|m| matches!(m, Member::Qp(c, _) if c == client));
            if !used && let Err(e) = socket.leave(interface) {
                tracing::debug!("cannot leave {group} on {local}: {e}");
            }
            used
        });
    }
}

/// Joins a group with a socket.
fn join(socket: &Socket, group: IpAddr, local: IpAddr, interface: u32) -> io::Result<()> {
    match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => socket.join_multicast_v4(&group, &local),
        (IpAddr::V6(group), IpAddr::V6(_)) => socket.join_multicast_v6(&group, interface),
        _ => Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
}

/// Leaves a group on the interface that had the address, and joins it on the one that has it now.
fn rejoin(
    socket: &Socket,
    group: IpAddr,
    local: IpAddr,
    (before, now): (u32, u32),
) -> io::Result<()> {
    // The old interface may no longer exist.
    let _ = match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => socket.leave_multicast_v4(&group, &local),
        (IpAddr::V6(group), _) => socket.leave_multicast_v6(&group, before),
        _ => Ok(()),
    };
    join(socket, group, local, now)
}

/// Makes the error for a process that requests membership in more groups than allowed.
pub(super) fn too_many_groups(most: u32) -> Failure {
    Failure::new(
        libc::ENOMEM,
        format!("the process is in {most} groups already, the maximum (`max_mcast_grp`)"),
    )
}

impl Core {
    /// Joins a group on the IP network for an id, unless it only sends.
    pub(super) fn join_for_id_over_ip(&mut self, id: IdHandle, query: JoinQuery) {
        let joined = if query.wish.hears() { self.join_group(id, &query) } else { Ok(()) };
        let mtu = self.addresses.find(query.local).map_or(Mtu::M1024, |row| row.entry.mtu);
        let hop_limit = self.manager.config().hop_limit;
        let group = joined.map_err(|f| f.errno).and_then(|()| query.over_ip(hop_limit, mtu));
        self.group_joined(id, query, group);
    }

    /// Leaves a group on the IP network for an id.
    pub(super) fn leave_for_id_over_ip(&mut self, id: IdHandle, query: &JoinQuery) {
        let member = Member::Id(id, query.context);
        self.groups.leave(member, query.wish.group().ip(), query.local);
    }

    /// Joins a group for an id, on the address that it is bound to.
    fn join_group(&mut self, id: IdHandle, query: &JoinQuery) -> Result<(), Failure> {
        let (group, local) = (query.wish.group().ip(), query.local);
        let row = self.addresses.find(local).ok_or_else(|| {
            Failure::new(libc::EADDRNOTAVAIL, format!("{local} is not an address of this host"))
        })?;
        let Some(client) = self.client_of(id) else {
            return Err(Failure::new(libc::ENOENT, "the process is gone"));
        };
        let most = self.options.config.limits.of(DeviceKind::Roce).max_mcast_grp;
        if !self.groups.may_join(client, group, row.ip, most) {
            return Err(too_many_groups(most));
        }
        let cost = usize::from(!self.groups.is_joined(group, row.ip));
        let share = self.descriptors_for(client, cost);
        let share = share.map_err(|e| no_descriptors(libc::ENOMEM, &e))?;
        let member = Member::Id(id, query.context);
        let joined = self.groups.join_id((client, share), member, group, row);
        self.groups.drop_empty();
        joined.map_err(|e| failure(&e))
    }

    /// Attaches a queue pair to a group: on the address where an id of its process joined the group, preferably one for which no queue
    /// pair is attached yet, else on the one from which the kernel would send to it. If the process receives the group on that interface
    /// already, its existing socket is used, because two would receive everything twice.
    pub(super) fn attach_multicast(
        &mut self,
        client: ClientId,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<Option<OwnedFd>, Failure> {
        let group = mgid.ip();
        if !group.is_multicast() {
            return Err(Failure::new(libc::EINVAL, format!("{group} is not a multicast address")));
        }
        let channels = self.clients.get(client).map_or(&[][..], |c| &c.channels);
        let mine = |id| self.manager.channel_of(id).is_some_and(|c| channels.contains(&c));
        let local = self.groups.local_of(client, group, mine);
        let local = local.or_else(|| self.default_local(group));
        let row = local.and_then(|local| self.addresses.find(local)).ok_or_else(|| {
            let why = format!("this host has no address in the family of {group}");
            Failure::new(libc::EADDRNOTAVAIL, why)
        })?;
        let heard = self.groups.heard_at(client, group, row.interface.index);
        let row = heard.and_then(|local| self.addresses.find(local)).unwrap_or(row);
        let most = self.most_groups(client);
        if !self.groups.may_hear(client, group, row.ip, most) {
            return Err(too_many_groups(most));
        }
        let port = self.options.config.service.port;
        let cost = usize::from(!self.groups.hears(client, group, row.ip));
        let share = self.descriptors_for(client, cost);
        let share = share.map_err(|e| no_descriptors(libc::ENOMEM, &e))?;
        let joined = self.groups.join_qp((client, share), qpn, group, row, port);
        self.groups.drop_empty();
        joined.map_err(|e| Failure::new(e.errno(), e.to_string()))
    }

    /// Returns how many groups the queue pairs of a process may be attached to.
    pub(super) fn most_groups(&self, client: ClientId) -> u32 {
        let kind = self.clients.get(client).and_then(Client::device_kind).unwrap_or_default();
        self.options.config.limits.of(kind).max_mcast_grp
    }

    /// Detaches a queue pair.
    pub(super) fn detach_multicast(
        &mut self,
        client: ClientId,
        qpn: Qpn,
        mgid: Gid,
    ) -> Result<(), Failure> {
        if self.groups.leave_qp(client, qpn, mgid.ip()) {
            return Ok(());
        }
        let why = format!("queue pair {qpn} is not attached to {}", mgid.ip());
        Err(Failure::new(libc::EINVAL, why))
    }

    /// Returns the address from which the kernel sends to a group, if it is the host's, else the first of the family.
    fn default_local(&self, group: IpAddr) -> Option<IpAddr> {
        let any: IpAddr = match group {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let routed = UdpSocket::bind((any, 0)).ok().and_then(|socket| {
            socket.connect((group, self.options.config.service.port)).ok()?;
            Some(socket.local_addr().ok()?.ip())
        });
        let routed = routed.filter(|&ip| self.addresses.find(ip).is_some());
        let first =
            || self.addresses.rows().map(|(_, r)| r.ip).find(|i| i.is_ipv4() == group.is_ipv4());
        routed.or_else(first)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rdmux_runtime::Shares;

    use super::super::testing;
    use super::*;

    /// Returns whether the kernel has joined a group.
    fn is_joined(group: Ipv4Addr) -> bool {
        let hex = format!("{:08X}", u32::from_ne_bytes(group.octets()));
        std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&hex)
    }

    #[test]
    fn queue_pairs_of_ids_on_several_interfaces_are_attached_on_each_of_them() {
        let group = IpAddr::from([239, 1, 1, 1]);
        let (client, other) = (ClientId(1), ClientId(2));
        let ip = |n: u8| IpAddr::from([10, n, 0, 1]);
        let mut groups = Groups::default();
        // Ids 1 and 2 have an interface each, id 3 another address of the second one, and id 9 is another process's.
        for (interface, n, id) in [(7, 1, 1), (5, 2, 2), (5, 3, 3), (3, 0, 9)] {
            let members = BTreeSet::from([Member::Id(IdHandle(id), 0)]);
            let (ids, processes) = (None, BTreeMap::new());
            let entry = Group { interface, is_stale: false, members, ids, processes };
            groups.0.insert((group, ip(n)), entry);
        }
        let next = |groups: &Groups| groups.local_of(client, group, |id| id != IdHandle(9));
        let attach = |groups: &mut Groups, qpn: u32| {
            let at = next(groups).unwrap();
            let entry = groups.0.get_mut(&(group, at)).unwrap();
            entry.members.insert(Member::Qp(client, Qpn::new(qpn)));
            at
        };
        assert_eq!(groups.local_of(other, group, |id| id == IdHandle(9)), Some(ip(0)));
        let [first, second, third] = [1, 2, 3].map(|qpn| attach(&mut groups, qpn));
        assert_eq!([first, second, third], [ip(2), ip(1), ip(2)]);
        assert_eq!(next(&groups), Some(ip(1)), "all have as many: the lowest address");
        assert!(groups.leave_qp(client, Qpn::new(2), group));
        assert_eq!(attach(&mut groups, 4), ip(1));
        groups.follow(|local| (local == ip(2)).then_some(5));
        assert_eq!(next(&groups), Some(ip(2)), "the host has lost the other addresses");
        groups.follow(|_| None);
        assert_eq!(next(&groups), None);
    }

    #[test]
    fn groups_are_joined_again_when_their_address_is_back_or_on_another_interface() {
        let (core, _dir) = testing::core();
        let row = core.addresses.rows().next().unwrap().1;
        let interface = row.interface.index;
        let [high, low] = super::super::random_bytes().unwrap();
        let [of_qp, of_id] = [1, 2].map(|n| Ipv4Addr::new(239, n, high, low));
        let mut groups = Groups::default();
        let (client, share) = (ClientId(1), || Shares::new(0).none(0));
        let port = core.options.config.service.port;
        let fd = groups.join_qp((client, share()), Qpn::new(5), of_qp.into(), row, port);
        let _theirs = fd.unwrap().unwrap();
        let member = Member::Id(IdHandle(1), 0);
        groups.join_id((client, share()), member, of_id.into(), row).unwrap();
        // As the kernel does with the memberships of an interface that is deleted.
        let lose = |groups: &mut Groups| {
            for ((group, local), entry) in &groups.0 {
                let (IpAddr::V4(group), IpAddr::V4(local)) = (group, local) else { continue };
                let sockets = entry.processes.values().map(|(socket, _)| socket.leave(interface));
                let ids = entry.ids.iter().map(|(ids, ..)| ids.leave_multicast_v4(group, local));
                sockets.chain(ids).for_each(|left| left.unwrap());
            }
            assert!(!is_joined(of_qp) && !is_joined(of_id));
        };
        let are_joined = || is_joined(of_qp) && is_joined(of_id);
        assert!(are_joined());
        groups.follow(|_| Some(interface));
        assert!(are_joined());
        groups.follow(|_| None);
        lose(&mut groups);
        groups.follow(|_| Some(interface));
        assert!(are_joined(), "the address is back");
        lose(&mut groups);
        let elsewhere = interface + 1;
        groups.follow(|_| Some(elsewhere));
        assert!(are_joined(), "the address is on another interface");
        assert!(groups.heard_at(client, of_qp.into(), elsewhere).is_some());
        groups.client_gone(client);
        groups.leave(member, of_id.into(), row.ip);
        assert!(!is_joined(of_qp) && !is_joined(of_id));
    }
}
