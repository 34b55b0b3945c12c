//! The groups that a port has joined at subnet administration, and their members on the host.
//!
//! A port joins a group once, for all members on the host, with the union of their join states. If the port already has the
//! requested states, the request is answered from the group's record. The port leaves a state when no member has it any
//! more. Requests about one group are sent one at a time, as in Linux (drivers/infiniband/core/multicast.c).
//!
//! ```text
//!   join ---> Administration::join ---> answered ---> Administration::joined, with the group's record
//!                                          |
//!   leave of the last one ------> Administration::leave
//!
//!   lost: subnet administration has forgotten the groups; all members are told, and may join again
//! ```
//!
//! A request that is outstanding when the groups are lost may reach administration, or be retransmitted, after it has forgotten
//! them. No other request about the group is sent before its answer, and a membership that it may have created is ended.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt::Debug;

use rdmux_wire::Gid;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask, Selector};

/// The operations that the driver does for the machine.
pub trait Administration<M> {
    /// Sends a request to join (SubnAdmSet) with a record and the components of it that count.
    fn join(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask);

    /// Sends a request to leave (SubnAdmDelete).
    fn leave(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask);

    /// Reports to a member that its group is joined, with the record; or that it is not, or no longer, with a positive errno.
    fn joined(&mut self, member: M, result: Result<McMemberRecord, i32>);
}

/// A request to be a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The record, which administration gets unchanged. At least one bit of its join state is set. A GID of zero, or one that does
    /// not count, asks for a group with a GID that administration assigns.
    pub record: McMemberRecord,
    /// The mask of its components that count.
    pub mask: McMemberRecordMask,
}

/// Errno for a member that wanted a group which has other parameters (EINVAL), and for one that lost its group (ENETRESET).
const EINVAL: i32 = 22;
const ENETRESET: i32 = 102;

/// The memberships of a port. `M` names a member: each name is in use once.
#[derive(Debug)]
pub struct Memberships<M> {
    groups: BTreeMap<Key, Group<M>>,
    members: BTreeMap<M, Key>,
    questions: BTreeMap<u64, Key>,
    last: u64,
}

/// A group by its GID, or by a number while it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Group(Gid),
    New(u64),
}

#[derive(Debug)]
struct Group<M> {
    /// The record from subnet administration, once the group is joined.
    record: Option<McMemberRecord>,
    /// The port's join state at subnet administration.
    states: JoinState,
    members: BTreeMap<M, JoinState>,
    waiting: VecDeque<(M, Join)>,
    open: Option<Open<M>>,
}

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
enum Open<M> {
    /// To join, for this member; none if it does not want the group any more.
    Join(Option<M>, JoinState),
    /// To join, sent before the groups were lost: the port may be a member then, or not.
    Lost(JoinState),
    Leave(JoinState),
}

impl<M> Default for Memberships<M> {
    fn default() -> Self {
        let (groups, members, questions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { groups, members, questions, last: 0 }
    }
}

impl<M> Group<M> {
    fn new() -> Self {
        Self {
            record: None,
            states: JoinState::default(),
            members: BTreeMap::new(),
            waiting: VecDeque::new(),
            open: None,
        }
    }

    fn is_unused(&self) -> bool {
        self.members.is_empty()
            && self.waiting.is_empty()
            && self.open.is_none()
            && self.states.is_empty()
    }
}

impl<M: Copy + Ord + Debug> Memberships<M> {
    /// Creates an instance without groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a member. [`Administration::joined`] follows, at once or later, unless it leaves before.
    pub fn join(&mut self, member: M, join: Join, sa: &mut impl Administration<M>) {
        self.leave(member, sa);
        let is_new = join.record.mgid.is_zero() || !join.mask.contains(McMemberRecordMask::MGID);
        let key = if is_new {
            self.last += 1;
            Key::New(self.last)
        } else {
            Key::Group(join.record.mgid)
        };
        self.members.insert(member, key);
        let group = self.groups.entry(key).or_insert_with(Group::new);
        group.waiting.push_back((member, join));
        self.go_on(key, sa);
    }

    /// Removes a member from its group.
    pub fn leave(&mut self, member: M, sa: &mut impl Administration<M>) {
        let Some(key) = self.members.remove(&member) else { return };
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.members.remove(&member);
        group.waiting.retain(|(waiting, _)| *waiting != member);
        if let Some(Open::Join(who, _)) = &mut group.open
            && *who == Some(member)
        {
            *who = None;
        }
        self.go_on(key, sa);
    }

    /// Handles subnet administration's answer to a request: the group's record, or a positive errno.
    pub fn handle_answer(
        &mut self,
        question: u64,
        answer: Result<McMemberRecord, i32>,
        sa: &mut impl Administration<M>,
    ) {
        let Some(mut key) = self.questions.remove(&question) else { return };
        let Some(group) = self.groups.get_mut(&key) else { return };
        match group.open.take() {
            Some(Open::Join(who, states)) => {
                match answer {
                    Ok(record) => {
                        group.record = Some(record);
                        group.states |= states;
                        if let Some(member) = who {
                            group.members.insert(member, states);
                        }
                        key = self.named(key, record.mgid);
                    }
                    // The member is in no group then.
                    Err(_) => {
                        if let Some(member) = who {
                            self.members.remove(&member);
                        }
                    }
                }
                if let Some(member) = who {
                    sa.joined(member, answer);
                }
            }
            Some(Open::Lost(states)) => {
                if let Ok(record) = answer {
                    group.record = Some(record);
                    group.states |= states;
                    key = self.named(key, record.mgid);
                    return self.leave_rest(key, sa);
                }
            }
            // A group that cannot be left is forgotten: the request was retransmitted often enough.
            Some(Open::Leave(states)) => {
                group.states -= states;
                if group.states.is_empty() {
                    group.record = None;
                }
            }
            None => {}
        }
        self.go_on(key, sa);
    }

    /// Gives a new group its GID, and merges it with the port's existing group if administration assigned that GID twice.
    fn named(&mut self, key: Key, mgid: Gid) -> Key {
        let name = Key::Group(mgid);
        if key == name || mgid.is_zero() {
            return key;
        }
        let Some(new) = self.groups.remove(&key) else { return key };
        let others = new.waiting.iter().map(|(member, _)| member);
        for member in new.members.keys().chain(others) {
            self.members.insert(*member, name);
        }
        let group = self.groups.entry(name).or_insert_with(Group::new);
        group.record = group.record.or(new.record);
        group.states |= new.states;
        group.members.extend(new.members);
        group.waiting.extend(new.waiting);
        name
    }

    /// Handles the loss of the port's groups at subnet administration: tells all members, and those whose request is outstanding. Members
    /// that wait for that request keep waiting.
    pub fn lose_all(&mut self, sa: &mut impl Administration<M>) {
        let keys: Vec<Key> = self.groups.keys().copied().collect();
        for key in keys {
            let Some(group) = self.groups.get_mut(&key) else { continue };
            (group.record, group.states) = (None, JoinState::default());
            let lost = core::mem::take(&mut group.members);
            let mut asking = None;
            if let Some(Open::Join(who, states)) = group.open {
                asking = who;
                group.open = Some(Open::Lost(states));
            }
            for member in lost.into_keys().chain(asking) {
                self.members.remove(&member);
                sa.joined(member, Err(ENETRESET));
            }
            self.go_on(key, sa);
        }
    }

    /// Returns the record of a group that the port is a member of.
    pub fn record(&self, mgid: Gid) -> Option<&McMemberRecord> {
        self.groups.get(&Key::Group(mgid))?.record.as_ref()
    }

    /// Returns the groups, the port's join state in each, and how many members each has.
    pub fn groups(&self) -> impl Iterator<Item = (&McMemberRecord, JoinState, usize)> {
        let row = |group: &'_ Group<M>| (group.states, group.members.len());
        self.groups.values().filter_map(move |group| {
            let (states, members) = row(group);
            Some((group.record.as_ref()?, states, members))
        })
    }

    /// Returns how many groups there are, including those being joined or left.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Sends the next request for a group.
    fn go_on(&mut self, key: Key, sa: &mut impl Administration<M>) {
        let Some(group) = self.groups.get_mut(&key) else { return };
        if group.open.is_some() {
            return;
        }
        while let Some((member, join)) = group.waiting.pop_front() {
            let wanted = join.record.join_state;
            let known = group.record.filter(|_| group.states.contains(wanted));
            match known {
                None => {
                    self.last += 1;
                    group.open = Some(Open::Join(Some(member), wanted));
                    self.questions.insert(self.last, key);
                    return sa.join(self.last, &join.record, join.mask);
                }
                Some(record) if fits(&record, &join) => {
                    group.members.insert(member, wanted);
                    sa.joined(member, Ok(record));
                }
                Some(_) => {
                    self.members.remove(&member);
                    sa.joined(member, Err(EINVAL));
                }
            }
        }
        self.leave_rest(key, sa);
    }

    /// Leaves the states of a group that no member wants, or forgets the group.
    fn leave_rest(&mut self, key: Key, sa: &mut impl Administration<M>) {
        let Some(group) = self.groups.get_mut(&key).filter(|group| group.open.is_none()) else {
            return;
        };
        let needed = group.members.values().fold(JoinState::default(), |all, state| all | *state);
        let left = group.states - needed;
        if let Some(record) = group.record.filter(|_| !left.is_empty()) {
            self.last += 1;
            group.open = Some(Open::Leave(left));
            self.questions.insert(self.last, key);
            let record = McMemberRecord { join_state: left, ..record };
            let mask = McMemberRecordMask::MGID
                | McMemberRecordMask::PORT_GID
                | McMemberRecordMask::JOIN_STATE;
            return sa.leave(self.last, &record, mask);
        }
        if group.is_unused() {
            self.groups.remove(&key);
        }
    }
}

/// Returns whether a group meets a request, by the components that count.
fn fits(group: &McMemberRecord, join: &Join) -> bool {
    use McMemberRecordMask as Mask;
    let (wanted, counts) = (&join.record, |component| join.mask.contains(component));
    let same = |component, equal: bool| !counts(component) || equal;
    let chosen = |value, selector, how, is: u32, asked: u32| {
        !counts(value) || !counts(selector) || admits(how, is, asked)
    };
    same(Mask::PORT_GID, wanted.port_gid == group.port_gid)
        && same(Mask::QKEY, wanted.qkey == group.qkey)
        && same(Mask::MLID, wanted.mlid == group.mlid)
        && same(Mask::TCLASS, wanted.tclass == group.tclass)
        && same(Mask::PKEY, (wanted.pkey.0 ^ group.pkey.0) & 0x7fff == 0)
        && same(Mask::SL, wanted.sl == group.sl)
        && same(Mask::FLOW_LABEL, wanted.flow_label == group.flow_label)
        && same(Mask::HOP_LIMIT, wanted.hop_limit == group.hop_limit)
        && same(Mask::SCOPE, wanted.scope == group.scope)
        && chosen(
            Mask::MTU,
            Mask::MTU_SELECTOR,
            wanted.mtu_selector,
            group.mtu.into(),
            wanted.mtu.into(),
        )
        && chosen(
            Mask::RATE,
            Mask::RATE_SELECTOR,
            wanted.rate_selector,
            group.rate.mbps(),
            wanted.rate.mbps(),
        )
        && chosen(
            Mask::PACKET_LIFE_TIME,
            Mask::PACKET_LIFE_TIME_SELECTOR,
            wanted.packet_life_time_selector,
            group.packet_life_time.into(),
            wanted.packet_life_time.into(),
        )
}

/// Returns whether a value meets a requested one.
fn admits(how: Selector, is: u32, asked: u32) -> bool {
    match how {
        Selector::GREATER_THAN => is > asked,
        Selector::LESS_THAN => is < asked,
        Selector::EXACTLY => is == asked,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
