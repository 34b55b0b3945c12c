//! Subnet administration, as far as groups are concerned: who is what in which, what it was asked, and how it takes that.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_ipoib::membership::Administration;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask};
use rdmux_wire::{Gid, Lid, Qkey};

/// When a host gives up a question.
const GIVES_UP: Duration = Duration::from_secs(5);
const ETIMEDOUT: i32 = 110;
const EINVAL: i32 = 22;

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) number: u64,
    pub(crate) record: McMemberRecord,
    pub(crate) mask: Mask,
    pub(crate) is_join: bool,
}

/// What a host's machine wants done.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) questions: Vec<Question>,
    pub(crate) told: Vec<(u32, Result<McMemberRecord, i32>)>,
}

impl Administration<u32> for Wanted {
    fn join(&mut self, number: u64, record: &McMemberRecord, mask: Mask) {
        self.questions.push(Question { number, record: *record, mask, is_join: true });
    }
    fn leave(&mut self, number: u64, record: &McMemberRecord, mask: Mask) {
        self.questions.push(Question { number, record: *record, mask, is_join: false });
    }
    fn joined(&mut self, member: u32, result: Result<McMemberRecord, i32>) {
        self.told.push((member, result));
    }
}

/// How it takes questions, by a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// How many it refuses: out of one.
    pub(crate) refuses: f64,
    /// How many have no answer: out of one.
    pub(crate) silent: f64,
    /// How long it takes at most.
    pub(crate) think: Duration,
}

/// What becomes of a question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// Whether it is done although no answer comes: the answer is lost, not the question.
    pub(crate) is_done_unheard: bool,
    /// The error that the host is told.
    pub(crate) errno: Option<i32>,
    /// When.
    pub(crate) after: Duration,
}

impl Manner {
    pub(crate) fn draw(&self, rng: &mut impl Rng) -> Fate {
        let is_silent = rng.random_bool(self.silent);
        let is_done_unheard = is_silent && rng.random_bool(0.5);
        let errno = if is_silent {
            Some(ETIMEDOUT)
        } else {
            rng.random_bool(self.refuses).then_some(EINVAL)
        };
        let thinks = self.think.mul_f64(rng.random_range(0.0..1.0));
        Fate { is_done_unheard, errno, after: if is_silent { GIVES_UP } else { thinks } }
    }
}

/// The groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<(Gid, usize), JoinState>,
    made: u8,
}

impl Groups {
    /// Takes a host into a group, or lets it go; the record of the group.
    pub(crate) fn answer(&mut self, host: usize, question: &Question) -> McMemberRecord {
        let record = self.record(question);
        let at = (record.mgid, host);
        let before = self.members.remove(&at).unwrap_or_default();
        let asked = question.record.join_state;
        let after = if question.is_join { before | asked } else { before - asked };
        if !after.is_empty() {
            self.members.insert(at, after);
        }
        record
    }

    /// The record of the group that a question is about.
    pub(crate) fn record(&mut self, question: &Question) -> McMemberRecord {
        let mut record = question.record;
        if record.mgid.is_zero() {
            self.made = self.made.wrapping_add(1);
            record.mgid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, self.made]);
        }
        record.qkey = Qkey(0x77);
        record.mlid = Lid(0xc000 + u16::from(record.mgid.0[15]));
        record
    }

    /// What a host is in a group.
    pub(crate) fn state(&self, host: usize, mgid: Gid) -> JoinState {
        self.members.get(&(mgid, host)).copied().unwrap_or_default()
    }

    /// Forgets all of them.
    pub(crate) fn forget(&mut self) {
        self.members.clear();
    }

    /// Whether nobody is a member.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}
