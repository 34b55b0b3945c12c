//! Multicast groups and their members (IBTA 15.2.5.17).
//!
//! A group exists while it has a full member. The groups of partitions ([`crate::partitions`]) always exist.

mod join;
mod leave;
mod query;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use rdmux_wire::sa::{JoinState, McMemberRecord, Rate, Selector};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qkey};

use super::AdministrationSink;
use super::access::is_key;
use super::request::Request;
use crate::partitions::{PartitionGroup, Partitions};

pub(super) use join::join;
pub(super) use leave::leave;
pub(super) use query::read;

/// Link-local scope (RFC 4291, section 2.7).
const LINK_LOCAL: u8 = 2;

/// The packet life time of a partition's group: 4.096 us * 2^18.
const PARTITION_LIFE: u8 = 0x12;

/// The multicast groups of a subnet.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_mgid: BTreeMap<Gid, Group>,
    by_mlid: BTreeMap<Lid, Gid>,
    /// Free MLIDs below `next`.
    free: BTreeSet<Lid>,
    /// How many MLIDs were ever allocated.
    next: u16,
    /// How many group GIDs were assigned.
    assigned: u32,
    /// How many groups all switches have room for, once it was computed.
    pub(super) capacity: Option<u16>,
    /// The groups of each port, with the port GID of each membership.
    by_port: BTreeMap<Guid, BTreeSet<(Gid, Gid)>>,
}

/// A group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) mgid: Gid,
    pub(super) mlid: Lid,
    pub(super) qkey: Qkey,
    pub(super) mtu: Mtu,
    pub(super) rate: Rate,
    pub(super) life: u8,
    pub(super) pkey: Pkey,
    pub(super) sl: u8,
    pub(super) tclass: u8,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
    /// The group exists without members.
    well_known: bool,
    /// The port that created the group; zero for a partition's group.
    by: Guid,
    /// Members by the GID that joined.
    members: BTreeMap<Gid, Member>,
    /// The number of members that keep the group in existence.
    full_members: usize,
}

/// A member of a group.
#[derive(Clone, Copy, Debug)]
struct Member {
    state: JoinState,
    /// The port's own GUID, even if the member joined with an alias.
    port: Guid,
    /// The port that sent the join.
    by: Guid,
    proxy: bool,
}

impl Member {
    /// Returns whether the member receives, which a send-only member does not.
    fn receives(&self) -> bool {
        self.state.intersects(JoinState::FULL_MEMBER | JoinState::NON_MEMBER)
    }
}

/// Join states that keep a group in existence.
const FULL: JoinState = JoinState::FULL_MEMBER.union(JoinState::SEND_ONLY_FULL_MEMBER);

impl Groups {
    /// Creates the groups of partitions, with MLIDs in the order of the file.
    pub(super) fn new(partitions: &Partitions) -> Self {
        let mut groups = Self::default();
        for group in partitions.groups() {
            groups.add(Group::of_partition(group), u16::MAX);
        }
        groups
    }

    /// Changes the partitions. Creates the groups that are new, and keeps those that are gone as long as they have members.
    /// Groups with members keep their parameters.
    pub(super) fn set_partitions(&mut self, partitions: &Partitions) {
        let known: Vec<Gid> = self.by_mgid.keys().copied().collect();
        let wanted: BTreeMap<Gid, &PartitionGroup> =
            partitions.groups().map(|group| (group.mgid, group)).collect();
        for mgid in known {
            let Some(group) = self.by_mgid.get_mut(&mgid) else { continue };
            let new = wanted.get(&mgid).map(|of| Group::of_partition(of));
            group.well_known = new.is_some();
            if !group.members.is_empty() {
                continue;
            }
            match new {
                Some(new) => *group = Group { mlid: group.mlid, ..new },
                None => self.free_if_unknown(mgid),
            }
        }
        for group in partitions.groups() {
            if !self.by_mgid.contains_key(&group.mgid) {
                self.add(Group::of_partition(group), u16::MAX);
            }
        }
    }

    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.by_mgid.get(&mgid)
    }

    fn by_mlid(&self, mlid: Lid) -> Option<&Group> {
        self.get(*self.by_mlid.get(&mlid)?)
    }

    /// Returns whether a port is a member of a group.
    pub(super) fn has_member(&self, mgid: Gid, port: Guid) -> bool {
        self.gids(mgid, port).next().is_some()
    }

    /// Returns the GIDs with which a port is a member of a group.
    fn gids(&self, mgid: Gid, port: Guid) -> impl Iterator<Item = Gid> + '_ {
        let own = self.by_port.get(&port).into_iter();
        own.flat_map(move |all| all.range((mgid, Gid([0; 16]))..=(mgid, Gid([0xff; 16]))))
            .map(|&(_, gid)| gid)
    }

    /// Returns whether a port receives the packets of a group; none if it is no member.
    pub(super) fn receives(&self, mgid: Gid, port: Guid) -> Option<bool> {
        let members = &self.get(mgid)?.members;
        let own = self.gids(mgid, port).filter_map(|gid| members.get(&gid));
        own.map(Member::receives).reduce(|some, other| some || other)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.by_mgid.values()
    }

    /// Returns the members' ports of an MLID, and whether each receives: a send-only member does not.
    pub(super) fn members(&self, mlid: Lid) -> impl Iterator<Item = (Guid, bool)> + '_ {
        let group = self.by_mlid(mlid).into_iter();
        group
            .flat_map(|group| group.members.values())
            .map(|member| (member.port, member.receives()))
    }

    /// Returns the MLIDs of all groups.
    pub(super) fn mlids(&self) -> impl Iterator<Item = Lid> + '_ {
        self.by_mlid.keys().copied()
    }

    /// Adds a group with the lowest free MLID. Returns none if all of `capacity` are in use.
    fn add(&mut self, mut group: Group, capacity: u16) -> Option<Lid> {
        let fresh = Lid(Lid::FIRST_MULTICAST.0 + self.next);
        group.mlid = match self.free.pop_first() {
            Some(mlid) => mlid,
            None if fresh.is_multicast() && self.next < capacity => {
                self.next += 1;
                fresh
            }
            None => return None,
        };
        let mlid = group.mlid;
        self.by_mlid.insert(mlid, group.mgid);
        self.by_mgid.insert(group.mgid, group);
        Some(mlid)
    }

    /// Removes a member, and the group if nothing keeps it in existence. Returns the MLID, and whether the last full member left.
    fn remove(&mut self, mgid: Gid, member: Gid) -> Option<(Lid, bool)> {
        let group = self.by_mgid.get_mut(&mgid)?;
        let old = group.members.remove(&member)?;
        let was_full = old.state.intersects(FULL);
        group.full_members -= usize::from(was_full);
        let last = was_full && group.full_members == 0;
        let (mlid, is_empty) = (group.mlid, group.members.is_empty());
        self.forget(old.port, mgid, member);
        if last {
            self.last_full_member_left(mgid);
        } else if is_empty {
            // A partition's group without a full member.
            self.free_if_unknown(mgid);
        }
        Some((mlid, last))
    }

    /// Removes all members of a group that has lost its last full member, and the group unless it is a partition's.
    fn last_full_member_left(&mut self, mgid: Gid) {
        let Some(group) = self.by_mgid.get_mut(&mgid) else { return };
        for (gid, member) in core::mem::take(&mut group.members) {
            self.forget(member.port, mgid, gid);
        }
        self.free_if_unknown(mgid);
    }

    fn free_if_unknown(&mut self, mgid: Gid) {
        if let Some(group) = self.by_mgid.get(&mgid).filter(|group| !group.well_known) {
            self.by_mlid.remove(&group.mlid);
            self.free.insert(group.mlid);
            self.by_mgid.remove(&mgid);
        }
    }

    fn forget(&mut self, port: Guid, mgid: Gid, member: Gid) {
        if let Some(groups) = self.by_port.get_mut(&port) {
            groups.remove(&(mgid, member));
            if groups.is_empty() {
                self.by_port.remove(&port);
            }
        }
    }

    /// Removes the memberships of a port for which `is_over` returns true, and notifies the manager. Returns the groups
    /// that have lost their last full member, with their partitions.
    pub(super) fn remove_members(
        &mut self,
        port: Guid,
        is_over: impl Fn(&Group, Gid) -> bool,
        sink: &mut dyn AdministrationSink,
    ) -> Vec<(Gid, Pkey)> {
        let (mut ended, mut left) = (Vec::new(), BTreeMap::new());
        for (mgid, member) in self.by_port.get(&port).cloned().unwrap_or_default() {
            let Some(group) = self.by_mgid.get(&mgid).filter(|group| is_over(group, member)) else {
                continue;
            };
            let pkey = group.pkey;
            // The last full member removes all others, including those of this port's other GIDs.
            let Some((mlid, last)) = self.remove(mgid, member) else { continue };
            if last {
                sink.group_changed(mlid);
                ended.push((mgid, pkey));
                left.remove(&mgid);
            } else {
                left.insert(mgid, mlid);
            }
        }
        for (mgid, mlid) in left {
            sink.member_changed(mlid, port, self.receives(mgid, port));
        }
        ended
    }

    /// Returns the ports that are members of groups.
    pub(super) fn ports(&self) -> impl Iterator<Item = Guid> + '_ {
        self.by_port.keys().copied()
    }
}

impl Group {
    fn of_partition(of: &PartitionGroup) -> Self {
        Self {
            mgid: of.mgid,
            mlid: Lid(0),
            qkey: of.qkey,
            mtu: of.mtu,
            rate: of.rate,
            life: PARTITION_LIFE,
            pkey: of.pkey,
            sl: of.sl,
            tclass: of.tclass,
            flow_label: of.flow_label,
            hop_limit: of.hop_limit(),
            well_known: true,
            by: Guid(0),
            members: BTreeMap::new(),
            full_members: 0,
        }
    }

    /// Returns whether the group's packets stay in the subnet.
    pub(super) fn is_link_local(&self) -> bool {
        scope(self.mgid) <= LINK_LOCAL
    }

    /// Returns whether a port has joined with this GID.
    pub(super) fn has_member_gid(&self, gid: Gid) -> bool {
        self.members.contains_key(&gid)
    }

    /// Returns whether the requester is in the group's partition.
    pub(super) fn is_visible(&self, request: &Request<'_>) -> bool {
        request.trusted || has_partition(&request.requester.pkeys, self.pkey)
    }

    /// Returns the record of the group, without any member's fields.
    fn record(&self) -> McMemberRecord {
        McMemberRecord {
            mgid: self.mgid,
            qkey: self.qkey,
            mlid: self.mlid,
            mtu_selector: Selector::EXACTLY,
            mtu: self.mtu.code(),
            tclass: self.tclass,
            pkey: self.pkey,
            rate_selector: Selector::EXACTLY,
            rate: self.rate,
            packet_life_time_selector: Selector::EXACTLY,
            packet_life_time: self.life,
            sl: self.sl,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            scope: scope(self.mgid),
            ..McMemberRecord::default()
        }
    }
}

/// Returns the scope of a multicast GID.
fn scope(mgid: Gid) -> u8 {
    mgid.0[1] & 0xf
}

/// Returns whether a port is in a partition, as a full or limited member.
pub(super) fn has_partition(keys: &[Pkey], pkey: Pkey) -> bool {
    keys.iter().any(|key| is_key(*key) && key.0 & 0x7fff == pkey.0 & 0x7fff)
}
