//! The groups that a port is a member of at subnet administration, and for whom.
//!
//! A port is a member of a group once, whoever on the host wants it: the join states of all are added up. What is wanted that
//! the port has already is answered from its record; the port leaves with the last who wanted a state. Questions about one group
//! follow one another, as with Linux (drivers/infiniband/core/multicast.c).
//!
//! ```text
//!   join ---> Administration::join ---> answered ---> Administration::joined, with the group's record
//!                                          |
//!   leave of the last one ------> Administration::leave
//!
//!   lost: subnet administration has forgotten the groups; everybody is told, and joins again if it wants to
//! ```
//!
//! A question that is open when the groups are lost may reach administration, or be repeated, after it has forgotten them. Its
//! answer is awaited before anything else is asked about the group, and a membership that it may have brought is ended.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt::Debug;

use rdmux_wire::Gid;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask, Selector};

/// What the driver does for the machine.
pub trait Administration<M> {
    /// Asks to join (SubnAdmSet) with a record and the components of it that count.
    fn join(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask);

    /// Asks to leave (SubnAdmDelete).
    fn leave(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask);

    /// Somebody's group is joined, and this is its record; or it is not, or no longer, with a positive errno.
    fn joined(&mut self, member: M, result: Result<McMemberRecord, i32>);
}

/// A wish to be a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The record, which administration gets as it is. Of its join state at least one bit is set. A GID of zero, or one that does
    /// not count, asks for a group with a GID that administration chooses.
    pub record: McMemberRecord,
    /// Which components of it count.
    pub mask: McMemberRecordMask,
}

/// Errno of who wanted a group that has other parameters (EINVAL), and of who lost it (ENETRESET).
const EINVAL: i32 = 22;
const ENETRESET: i32 = 102;

/// The memberships of a port. `M` names who wants to be a member: each name is in use once.
#[derive(Debug)]
pub struct Memberships<M> {
    groups: BTreeMap<Key, Group<M>>,
    members: BTreeMap<M, Key>,
    questions: BTreeMap<u64, Key>,
    last: u64,
}

/// A group by its GID, or by a number as long as it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Group(Gid),
    New(u64),
}

#[derive(Debug)]
struct Group<M> {
    /// As subnet administration has it, once it is joined.
    record: Option<McMemberRecord>,
    /// What the port is at subnet administration.
    states: JoinState,
    members: BTreeMap<M, JoinState>,
    waiting: VecDeque<(M, Join)>,
    open: Option<Open<M>>,
}

/// A question that is not answered.
#[derive(Clone, Copy, Debug)]
enum Open<M> {
    /// Who wanted it; nobody if it is wanted no more.
    Join(Option<M>, JoinState),
    /// To join, from before the groups were lost: the port may be a member then, or not.
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
    /// No groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wants `member` to be a member. [`Administration::joined`] follows, at once or later, unless it leaves before.
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

    /// `member` wants its group no more.
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

    /// Subnet administration has answered a question: with the group's record, or a positive errno.
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
                    // A member of no group.
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
            // What cannot be left is forgotten: it was repeated often enough.
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

    /// A new group has got its GID: that of a group that the port has already if administration gives it twice.
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

    /// Subnet administration has forgotten the port's groups: all members are told, and those whose question is open. Who waits
    /// behind them goes on waiting.
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

    /// The record of a group that the port is a member of.
    pub fn record(&self, mgid: Gid) -> Option<&McMemberRecord> {
        self.groups.get(&Key::Group(mgid))?.record.as_ref()
    }

    /// The groups, what the port is in each, and how many want it.
    pub fn groups(&self) -> impl Iterator<Item = (&McMemberRecord, JoinState, usize)> {
        let row = |group: &'_ Group<M>| (group.states, group.members.len());
        self.groups.values().filter_map(move |group| {
            let (states, members) = row(group);
            Some((group.record.as_ref()?, states, members))
        })
    }

    /// How many groups there are, those that are being joined or left included.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Does the next thing for a group.
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

    /// Leaves what the port is and nobody wants, or forgets the group.
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

/// Whether a group is what somebody wants, by the components that count.
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

/// Whether a value is one that was asked for.
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
