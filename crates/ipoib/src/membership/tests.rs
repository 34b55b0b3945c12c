use alloc::collections::BTreeMap;

use super::*;
use rdmux_wire::Qkey;

#[derive(Default)]
struct Sa {
    joins: Vec<(u64, McMemberRecord)>,
    leaves: Vec<(u64, JoinState)>,
    told: BTreeMap<char, Result<McMemberRecord, i32>>,
}

impl Administration<char> for Sa {
    fn join(&mut self, question: u64, record: &McMemberRecord, _: McMemberRecordMask) {
        self.joins.push((question, *record));
    }
    fn leave(&mut self, question: u64, record: &McMemberRecord, mask: McMemberRecordMask) {
        assert!(mask.contains(McMemberRecordMask::JOIN_STATE));
        self.leaves.push((question, record.join_state));
    }
    fn joined(&mut self, member: char, result: Result<McMemberRecord, i32>) {
        assert!(self.told.insert(member, result).is_none(), "{member} is told twice");
    }
}

const GROUP: Gid = Gid([0xff; 16]);

fn wish(join_state: JoinState) -> Join {
    let record = McMemberRecord {
        mgid: GROUP,
        qkey: Qkey(7),
        mtu_selector: Selector::GREATER_THAN,
        mtu: 2,
        join_state,
        ..McMemberRecord::default()
    };
    let mask = McMemberRecordMask::MGID
        | McMemberRecordMask::QKEY
        | McMemberRecordMask::MTU
        | McMemberRecordMask::MTU_SELECTOR
        | McMemberRecordMask::JOIN_STATE;
    Join { record, mask }
}

/// Answers the last request to join.
fn grant(memberships: &mut Memberships<char>, sa: &mut Sa) -> McMemberRecord {
    let (question, record) = sa.joins.pop().unwrap();
    let mgid = if record.mgid.is_zero() { Gid([0xfe; 16]) } else { record.mgid };
    let record = McMemberRecord { mgid, mtu: 4, mtu_selector: Selector::EXACTLY, ..record };
    memberships.handle_answer(question, Ok(record), sa);
    record
}

fn left(memberships: &mut Memberships<char>, sa: &mut Sa) -> JoinState {
    let (question, states) = sa.leaves.pop().unwrap();
    memberships.handle_answer(question, Ok(McMemberRecord::default()), sa);
    states
}

const FULL: JoinState = JoinState::FULL_MEMBER;
const SEND_ONLY: JoinState = JoinState::SEND_ONLY_FULL_MEMBER;

#[test]
fn group_is_joined_once_for_all_and_left_by_the_last() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(FULL), &mut sa);
    all.join('b', wish(FULL), &mut sa);
    assert_eq!(sa.joins.len(), 1);
    let record = grant(&mut all, &mut sa);
    assert_eq!((sa.told[&'a'], sa.told[&'b']), (Ok(record), Ok(record)));
    assert!(sa.joins.is_empty());
    assert_eq!(all.record(GROUP), Some(&record));
    all.leave('a', &mut sa);
    assert!(sa.leaves.is_empty());
    all.leave('b', &mut sa);
    assert_eq!(left(&mut all, &mut sa), FULL);
    assert!(all.is_empty());
}

#[test]
fn full_and_send_only_join_states_are_joined_and_left_separately() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(SEND_ONLY), &mut sa);
    grant(&mut all, &mut sa);
    all.join('b', wish(FULL), &mut sa);
    grant(&mut all, &mut sa);
    all.leave('a', &mut sa);
    assert_eq!(left(&mut all, &mut sa), SEND_ONLY);
    all.leave('b', &mut sa);
    assert_eq!(left(&mut all, &mut sa), FULL);
    assert!(all.is_empty());
}

#[test]
fn join_with_other_group_attributes_is_einval_without_sa_query() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(FULL), &mut sa);
    grant(&mut all, &mut sa);
    let fits = wish(FULL);
    let qkey = Join { record: McMemberRecord { qkey: Qkey(8), ..fits.record }, ..fits };
    let mtu = Join { record: McMemberRecord { mtu: 4, ..fits.record }, ..fits };
    let unasked = Join { mask: fits.mask - McMemberRecordMask::QKEY, ..qkey };
    for (member, join, refused) in [('q', qkey, true), ('m', mtu, true), ('u', unasked, false)] {
        all.join(member, join, &mut sa);
        assert_eq!(sa.told[&member].err(), refused.then_some(EINVAL), "{member}");
    }
    assert!(sa.joins.is_empty());
}

#[test]
fn refused_join_reports_sa_error_and_leaves_no_state() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(FULL), &mut sa);
    all.join('b', wish(FULL), &mut sa);
    let (question, _) = sa.joins.pop().unwrap();
    all.handle_answer(question, Err(110), &mut sa);
    assert_eq!(sa.told[&'a'], Err(110));
    let (question, _) = sa.joins.pop().unwrap();
    all.handle_answer(question, Err(22), &mut sa);
    assert_eq!(sa.told[&'b'], Err(22));
    assert!(all.is_empty() && all.members.is_empty());
    all.handle_answer(question, Err(22), &mut sa);
}

#[test]
fn group_left_while_joining_is_left_when_the_join_is_granted() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(FULL), &mut sa);
    all.leave('a', &mut sa);
    assert_eq!(all.len(), 1, "the question is out");
    grant(&mut all, &mut sa);
    assert!(sa.told.is_empty());
    assert_eq!(left(&mut all, &mut sa), FULL);
    assert!(all.is_empty());
}

#[test]
fn join_while_the_group_is_being_left_waits_for_that() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(FULL), &mut sa);
    grant(&mut all, &mut sa);
    all.leave('a', &mut sa);
    all.join('b', wish(FULL), &mut sa);
    assert_eq!((sa.joins.len(), sa.told.len()), (0, 1));
    left(&mut all, &mut sa);
    grant(&mut all, &mut sa);
    assert!(sa.told[&'b'].is_ok());
    // A group is forgotten even if administration does not answer the leave.
    all.leave('b', &mut sa);
    let (question, _) = sa.leaves.pop().unwrap();
    all.handle_answer(question, Err(110), &mut sa);
    assert!(all.is_empty());
}

#[test]
fn joins_with_zero_mgid_create_separate_groups() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    let new =
        Join { record: McMemberRecord { mgid: Gid::ZERO, ..wish(FULL).record }, ..wish(FULL) };
    all.join('a', new, &mut sa);
    all.join('b', new, &mut sa);
    assert_eq!(sa.joins.len(), 2, "two groups");
    let record = grant(&mut all, &mut sa);
    assert_eq!(all.record(record.mgid), Some(&record));
    all.leave('b', &mut sa);
    assert_eq!(left(&mut all, &mut sa), FULL);
}

#[test]
fn lost_groups_are_enetreset_for_members_and_pending_joins_are_resent() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    all.join('a', wish(FULL), &mut sa);
    grant(&mut all, &mut sa);
    sa.told.clear();
    all.join('s', wish(SEND_ONLY), &mut sa);
    all.join('w', wish(FULL), &mut sa);
    let (old, record) = sa.joins.pop().unwrap();
    all.lose_all(&mut sa);
    assert_eq!((sa.told[&'a'], sa.told[&'s']), (Err(ENETRESET), Err(ENETRESET)));
    assert!(sa.joins.is_empty(), "the question from before may still arrive");
    all.handle_answer(old, Ok(record), &mut sa);
    assert_eq!(left(&mut all, &mut sa), SEND_ONLY, "what nobody wants");
    grant(&mut all, &mut sa);
    assert!(sa.told[&'w'].is_ok());
    all.leave('a', &mut sa);
    assert!(sa.leaves.is_empty(), "it was lost");
}

#[test]
fn join_after_loss_is_sent_once_the_old_query_fails() {
    for is_leaving in [false, true] {
        let (mut all, mut sa) = (Memberships::new(), Sa::default());
        all.join('a', wish(FULL), &mut sa);
        let old = if is_leaving {
            grant(&mut all, &mut sa);
            all.leave('a', &mut sa);
            sa.leaves.pop().unwrap().0
        } else {
            sa.joins.pop().unwrap().0
        };
        all.lose_all(&mut sa);
        all.join('b', wish(FULL), &mut sa);
        assert!(sa.joins.is_empty());
        all.handle_answer(old, Err(EINVAL), &mut sa);
        grant(&mut all, &mut sa);
        assert!(sa.told[&'b'].is_ok() && sa.leaves.is_empty());
        all.leave('b', &mut sa);
        assert_eq!(left(&mut all, &mut sa), FULL);
        assert!(all.is_empty());
    }
}

#[test]
fn group_whose_gid_is_given_twice_is_one_group() {
    let (mut all, mut sa) = (Memberships::new(), Sa::default());
    let new =
        Join { record: McMemberRecord { mgid: Gid::ZERO, ..wish(FULL).record }, ..wish(FULL) };
    let given = McMemberRecord { mgid: GROUP, ..new.record };
    for member in ['a', 'b'] {
        all.join(member, new, &mut sa);
        let (question, _) = sa.joins.pop().unwrap();
        all.handle_answer(question, Ok(given), &mut sa);
        assert_eq!(sa.told[&member].map(|record| record.mgid), Ok(GROUP));
    }
    all.leave('a', &mut sa);
    assert!(sa.leaves.is_empty(), "b is a member");
    all.leave('b', &mut sa);
    assert_eq!(left(&mut all, &mut sa), FULL);
    assert!(all.is_empty());
}
