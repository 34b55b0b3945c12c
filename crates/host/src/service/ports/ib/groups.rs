//! Multicast groups that ids join on InfiniBand. The port joins each group at subnet administration once. A group that is named
//! by its address has the parameters of the partition's broadcast group (RFC 4391 5, `cma_join_ib_multicast` in Linux); a
//! record is passed on unchanged.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use rdmux_cm::{GroupAddr, GroupWish, IdHandle, JoinQuery, PortSpace};
use rdmux_ipoib::membership::Administration;
use rdmux_ipoib::{Join, Memberships};
use rdmux_runtime::{Exceeded, Share};
use rdmux_wire::ipoib::group;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, Selector};
use rdmux_wire::{Gid, Pkey, Qkey};

use super::adapters::PortAt;
use super::sa::{Subject, question};
use crate::proto::GroupStatus;
use crate::service::core::Core;

/// Time that subnet administration may take for a join. A leave may take three times as long.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Member {
    /// The interface, a member of its broadcast group.
    Interface,
    /// An id, with the context of its join.
    Id(IdHandle, u64),
}

/// The port's memberships.
#[derive(Debug, Default)]
pub(in crate::service) struct Groups {
    memberships: Memberships<Member>,
    /// The requests of ids.
    wishes: BTreeMap<Member, Wish>,
    /// The users' shares of groups, and how many requests are for each group.
    held: BTreeMap<Held, (usize, Share)>,
    /// The ids that wait until the broadcast group is known.
    waiting: BTreeSet<Member>,
}

/// An id's request.
#[derive(Debug)]
struct Wish {
    query: JoinQuery,
    /// The group that counts for the user. None while the request waits for the broadcast group: then it has created none.
    held: Option<Held>,
}

/// A group that ids of a user have joined. A group without a GID, which subnet administration is to choose, is that of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    user: u32,
    mgid: Gid,
    of: Option<Member>,
}

impl Groups {
    /// Adds a request of a user for the group with a GID, or for a new group. `none` is an empty share of the user's groups.
    fn add(
        &mut self,
        member: Member,
        query: JoinQuery,
        (user, mgid): (u32, Option<Gid>),
        none: Share,
    ) -> Result<(), Exceeded> {
        let of = mgid.is_none().then_some(member);
        let held = Held { user, mgid: mgid.unwrap_or_default(), of };
        match self.held.entry(held) {
            Entry::Occupied(mut entry) => entry.get_mut().0 += 1,
            Entry::Vacant(entry) => {
                let mut share = none;
                share.take(1)?;
                entry.insert((1, share));
            }
        }
        self.wishes.insert(member, Wish { query, held: Some(held) });
        Ok(())
    }

    /// Adds a request that waits until the broadcast group is known.
    fn wait(&mut self, member: Member, query: JoinQuery) {
        self.wishes.insert(member, Wish { query, held: None });
        self.waiting.insert(member);
    }

    /// Removes a request.
    fn remove(&mut self, member: Member) -> Option<JoinQuery> {
        let Wish { query, held } = self.wishes.remove(&member)?;
        if let Some(held) = held
            && let Entry::Occupied(mut entry) = self.held.entry(held)
        {
            entry.get_mut().0 -= 1;
            if entry.get().0 == 0 {
                entry.remove();
            }
        }
        Some(query)
    }

    /// Returns the groups that ids are members of.
    pub(in crate::service) fn status(&self) -> Vec<GroupStatus> {
        let mut members = BTreeMap::<(IpAddr, IpAddr), u32>::new();
        for Wish { query, .. } in self.wishes.values() {
            *members.entry((query.wish.group().ip(), query.local)).or_default() += 1;
        }
        let row = |((group, local), members)| GroupStatus { group, local, members };
        members.into_iter().map(row).collect()
    }
}

/// The requests of the memberships' state machine.
#[derive(Default)]
struct Out {
    asks: Vec<(u64, Method, McMemberRecord, McMemberRecordMask)>,
    told: Vec<(Member, Result<McMemberRecord, i32>)>,
}

impl Administration<Member> for Out {
    fn join(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask) {
        self.asks.push((question, Method::SET, *record, mask));
    }
    fn leave(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask) {
        self.asks.push((question, Method::DELETE, *record, mask));
    }
    fn joined(&mut self, member: Member, result: Result<McMemberRecord, i32>) {
        self.told.push((member, result));
    }
}

impl Core {
    /// Passes something to the memberships' state machine, for a user's id if there is a user.
    fn with_memberships(
        &mut self,
        at: PortAt,
        user: Option<u32>,
        f: impl FnOnce(&mut Memberships<Member>, &mut Out),
    ) {
        let mut out = Out::default();
        f(&mut self.adapter[at].groups.memberships, &mut out);
        for (member, result) in out.told {
            self.member_told(at, member, result);
        }
        for (number, method, record, mask) in out.asks {
            let bytes = record.to_bytes();
            let mad = question(method, McMemberRecord::ATTR_ID, &bytes, mask.bits());
            let timeout = if method == Method::DELETE { TIMEOUT * 3 } else { TIMEOUT };
            self.ask_sa(at, Subject::Group(number), &mad, (timeout, user));
        }
    }

    /// Makes a member join a group.
    pub(super) fn want_group(&mut self, at: PortAt, member: Member, join: Join) {
        let user = match member {
            Member::Interface => None,
            Member::Id(id, _) => Some(self.user_of_id(id)),
        };
        self.with_memberships(at, user, |memberships, out| memberships.join(member, join, out));
    }

    /// Handles an answer of subnet administration.
    pub(super) fn group_answered(
        &mut self,
        at: PortAt,
        question: u64,
        answer: Result<McMemberRecord, i32>,
    ) {
        self.with_memberships(at, None, |memberships, out| {
            memberships.handle_answer(question, answer, out)
        });
    }

    /// Handles the loss of the port's groups: its link was down, its LID changed, or the manager requests
    /// reregistration.
    pub(super) fn lose_groups(&mut self, at: PortAt) {
        self.interface_lost(at);
        self.with_memberships(at, None, Memberships::lose_all);
    }

    /// Returns whether the port has groups of a partition that it has left, or its interface is not in its first partition.
    pub(super) fn has_left_partitions(&self, at: PortAt) -> bool {
        let port = self.adapter[at].device_port(self.node_guid);
        let is = |own: Pkey, pkey: Pkey| (own.0 ^ pkey.0) & 0x7fff == 0;
        let mut groups = self.adapter[at].groups.memberships.groups();
        let has_left = |pkey| !port.pkeys.iter().any(|own| is(*own, pkey));
        let moves = |pkey| !port.pkeys.first().is_some_and(|first| is(*first, pkey));
        groups.any(|(record, ..)| has_left(record.pkey))
            || self.interface_pkey(at).is_some_and(moves)
    }

    fn member_told(&mut self, at: PortAt, member: Member, result: Result<McMemberRecord, i32>) {
        match member {
            Member::Interface => self.broadcast_joined(at, result),
            Member::Id(id, _) => {
                let query = match result {
                    Ok(_) => self.adapter[at].groups.wishes.get(&member).map(|wish| wish.query),
                    Err(_) => self.adapter[at].groups.remove(member),
                };
                if let Some(query) = query {
                    self.group_joined(id, query, result);
                }
            }
        }
    }

    /// Joins a group for an id.
    pub(super) fn join_ib_for_id(&mut self, id: IdHandle, query: JoinQuery) {
        let Some(at) = self.adapter.at(query.port_num) else {
            return self.group_joined(id, query, Err(libc::ENODEV));
        };
        let broadcast = self.adapter[at].interface.broadcast().copied();
        let join = match (query.wish, broadcast) {
            (GroupWish::Record { record, mask }, _) => Some(Join { record, mask }),
            (GroupWish::Address { group, .. }, Some(broadcast)) => {
                Some(self.wish(at, &query, group, &broadcast))
            }
            (GroupWish::Address { .. }, None) => None,
        };
        let is_joining = self.adapter[at].interface.is_joining();
        if join.is_none() && !is_joining {
            // Linux returns this errno, too, if the broadcast group is not known.
            return self.group_joined(id, query, Err(libc::EADDRNOTAVAIL));
        }
        let member = Member::Id(id, query.context);
        let Some(join) = join else {
            // The port has just become active.
            return self.adapter[at].groups.wait(member, query);
        };
        let user = self.user_of_id(id);
        let none = self.shares.groups.none(user);
        let added = self.adapter[at].groups.add(member, query, (user, gid_of(&join)), none);
        if let Err(e) = added {
            tracing::debug!("the user's share of groups is used up: {e}");
            return self.group_joined(id, query, Err(libc::ENOMEM));
        }
        self.want_group(at, member, join);
    }

    /// Continues or fails the waiting joins, once it is decided whether the broadcast group is known.
    pub(super) fn go_on_with_groups(&mut self, at: PortAt) {
        let groups = &mut self.adapter[at].groups;
        for member in std::mem::take(&mut groups.waiting) {
            let query = self.adapter[at].groups.remove(member);
            if let (Member::Id(id, _), Some(query)) = (member, query) {
                self.join_ib_for_id(id, query);
            }
        }
    }

    /// Leaves a group for an id.
    pub(super) fn leave_ib_for_id(&mut self, id: IdHandle, query: &JoinQuery) {
        let Some(at) = self.adapter.at(query.port_num) else { return };
        let member = Member::Id(id, query.context);
        let groups = &mut self.adapter[at].groups;
        groups.remove(member);
        if groups.waiting.remove(&member) {
            return;
        }
        let user = Some(self.user_of_id(id));
        self.with_memberships(at, user, |memberships, out| memberships.leave(member, out));
    }

    fn wish(
        &self,
        at: PortAt,
        query: &JoinQuery,
        group: GroupAddr,
        broadcast: &McMemberRecord,
    ) -> Join {
        let as_ip = query.port_space == PortSpace::IpoIb;
        let record = McMemberRecord {
            mgid: match group {
                GroupAddr::Ip(ip) => mgid(ip, query.port_space, broadcast),
                GroupAddr::Gid(mgid) => mgid,
            },
            port_gid: self.adapter[at].port_gid(self.node_guid),
            qkey: if as_ip { broadcast.qkey } else { Qkey::RDMA_UDP },
            mtu_selector: Selector::EXACTLY,
            rate_selector: Selector::EXACTLY,
            join_state: query.wish.join_state(),
            mlid: McMemberRecord::default().mlid,
            ..*broadcast
        };
        let mask = McMemberRecordMask::MGID
            | McMemberRecordMask::PORT_GID
            | McMemberRecordMask::PKEY
            | McMemberRecordMask::JOIN_STATE
            | McMemberRecordMask::QKEY
            | McMemberRecordMask::SL
            | McMemberRecordMask::FLOW_LABEL
            | McMemberRecordMask::TCLASS;
        let of_ip = McMemberRecordMask::RATE
            | McMemberRecordMask::RATE_SELECTOR
            | McMemberRecordMask::MTU
            | McMemberRecordMask::MTU_SELECTOR
            | McMemberRecordMask::HOP_LIMIT;
        Join { record, mask: if as_ip { mask | of_ip } else { mask } }
    }
}

/// Returns the GID of the group that a request is for. None if it is for a new one, as [`Join::record`] defines.
fn gid_of(join: &Join) -> Option<Gid> {
    let mgid = join.record.mgid;
    (join.mask.contains(McMemberRecordMask::MGID) && mgid != Gid::ZERO).then_some(mgid)
}

/// Returns the GID of a group's address in the partition of the broadcast group.
fn mgid(ip: IpAddr, port_space: PortSpace, broadcast: &McMemberRecord) -> Gid {
    let signature = match port_space {
        PortSpace::Udp => group::Signature::Cm,
        PortSpace::Tcp | PortSpace::IpoIb | PortSpace::Ib => group::Signature::Ip,
    };
    let scope = broadcast.mgid.0[1] & 0xf;
    group::of(ip, broadcast.pkey, scope, signature)
}

#[cfg(test)]
mod tests {
    use rdmux_cm::JoinFlags;
    use rdmux_runtime::Shares;

    use super::*;

    #[test]
    fn groups_of_a_users_ids_are_its_share_until_the_last_of_them_leaves() {
        const OTHER: u32 = 4001;
        let query = JoinQuery {
            device: 0,
            port_num: 1,
            port_space: PortSpace::Udp,
            local: [10, 0, 0, 1].into(),
            context: 0,
            wish: GroupWish::Address {
                group: GroupAddr::NEW,
                pkey: Pkey::DEFAULT,
                flags: JoinFlags::FullMember,
            },
        };
        let shares = Shares::of(0, 4);
        let mut groups = Groups::default();
        let add = |groups: &mut Groups, user: u32, id: u64, mgid: Option<u8>| {
            let mgid = mgid.map(|n| Gid([n; 16]));
            let member = Member::Id(IdHandle(id), 0);
            groups.add(member, query, (user, mgid), shares.none(user)).is_ok()
        };
        assert!(add(&mut groups, OTHER, 1, Some(1)) && add(&mut groups, OTHER, 2, Some(1)));
        // A group without a GID is another one each time.
        assert!(add(&mut groups, OTHER, 3, None) && !add(&mut groups, OTHER, 4, None));
        assert!(!add(&mut groups, OTHER, 4, Some(2)));
        assert!(add(&mut groups, OTHER, 4, Some(1)));
        assert!(
            add(&mut groups, OTHER + 1, 5, Some(1)) && !add(&mut groups, OTHER + 1, 6, Some(2))
        );
        assert!((7..20).all(|id| add(&mut groups, 0, id, None)));
        for id in 20..40 {
            groups.wait(Member::Id(IdHandle(id), 0), query);
        }
        assert_eq!(groups.waiting.len(), 20, "these have no group yet");
        assert!((20..40).all(|id| groups.remove(Member::Id(IdHandle(id), 0)).is_some()));
        for id in [1, 2] {
            groups.remove(Member::Id(IdHandle(id), 0)).unwrap();
            assert!(!add(&mut groups, OTHER, 6, Some(2)));
        }
        groups.remove(Member::Id(IdHandle(4), 0)).unwrap();
        assert!(add(&mut groups, OTHER, 6, Some(2)));
    }

    #[test]
    fn record_without_a_gid_that_counts_is_for_a_new_group() {
        let record = |mgid| McMemberRecord { mgid, ..McMemberRecord::default() };
        let gid = Gid([0xff; 16]);
        let of = |mgid, mask| gid_of(&Join { record: record(mgid), mask });
        let mask = McMemberRecordMask::MGID | McMemberRecordMask::PKEY;
        assert_eq!(of(gid, mask), Some(gid));
        assert_eq!(of(gid, McMemberRecordMask::PKEY), None);
        assert_eq!(of(Gid::ZERO, mask), None);
    }
}
