//! Subnet administration, as far as groups are concerned: who is what in which, and what it was asked.

use std::collections::BTreeMap;

use rdmux_ipoib::membership::Administration;
use rdmux_wire::Gid;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask};

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) record: McMemberRecord,
    pub(super) is_join: bool,
}

/// What a host's machine wants done.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) questions: Vec<Question>,
    pub(super) told: Vec<(u32, Result<McMemberRecord, i32>)>,
}

impl Administration<u32> for Wanted {
    fn join(&mut self, number: u64, record: &McMemberRecord, _: McMemberRecordMask) {
        self.questions.push(Question { number, record: *record, is_join: true });
    }
    fn leave(&mut self, number: u64, record: &McMemberRecord, _: McMemberRecordMask) {
        self.questions.push(Question { number, record: *record, is_join: false });
    }
    fn joined(&mut self, member: u32, result: Result<McMemberRecord, i32>) {
        self.told.push((member, result));
    }
}

/// The groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: BTreeMap<(Gid, usize), JoinState>,
    made: u8,
}

impl Groups {
    /// Takes a host into a group, or lets it go; the record of the group.
    pub(super) fn answer(&mut self, host: usize, question: &Question) -> McMemberRecord {
        let mut record = question.record;
        if record.mgid.is_zero() {
            self.made = self.made.wrapping_add(1);
            record.mgid = Gid([self.made | 0x80; 16]);
        }
        let at = (record.mgid, host);
        let before = self.members.remove(&at).unwrap_or_default();
        let asked = question.record.join_state;
        let after = if question.is_join { before | asked } else { before - asked };
        if !after.is_empty() {
            self.members.insert(at, after);
        }
        record
    }

    /// What a host is in a group.
    pub(super) fn state(&self, host: usize, mgid: Gid) -> JoinState {
        self.members.get(&(mgid, host)).copied().unwrap_or_default()
    }

    /// Forgets all of them.
    pub(super) fn forget(&mut self) {
        self.members.clear();
    }

    /// Whether nobody is a member.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}
