//! Subnet administration of groups: members, queries, and how queries are handled.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_ipoib::membership::Administration;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask};
use rdmux_wire::{Gid, Lid, Qkey};

/// The time after which a host gives up a query.
const GIVES_UP: Duration = Duration::from_secs(5);
const ETIMEDOUT: i32 = 110;
const EINVAL: i32 = 22;

/// A query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) number: u64,
    pub(crate) record: McMemberRecord,
    pub(crate) mask: Mask,
    pub(crate) is_join: bool,
}

/// The requests of a host's machine.
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

/// How administration handles queries, by scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The fraction of queries that it refuses.
    pub(crate) refuses: f64,
    /// The fraction of queries without an answer.
    pub(crate) silent: f64,
    /// The longest delay of an answer.
    pub(crate) think: Duration,
}

/// The fate of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// Whether the query is executed although no answer arrives: the answer is lost, not the query.
    pub(crate) is_done_unheard: bool,
    /// The error that the host gets.
    pub(crate) errno: Option<i32>,
    /// The delay of the answer.
    pub(crate) after: Duration,
}

impl Manner {
    /// Draws the fate of a query.
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

/// The members of all groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<(Gid, usize), JoinState>,
    made: u8,
}

impl Groups {
    /// Executes a host's join or leave. Returns the record of the group.
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

    /// Returns the record of the group in a query.
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

    /// Returns a host's join state in a group.
    pub(crate) fn state(&self, host: usize, mgid: Gid) -> JoinState {
        self.members.get(&(mgid, host)).copied().unwrap_or_default()
    }

    /// Forgets all members.
    pub(crate) fn forget(&mut self) {
        self.members.clear();
    }

    /// Returns whether there are no members.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}
