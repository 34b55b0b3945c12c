//! The answer to a request according to a manager's own tables: the records that have its components.

use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::SmInfoRecord;

use super::question::{Answer, Question};
use super::records;

/// The records of each kind, from a manager's answers.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) questions: &'a [Question],
    pub(super) answers: &'a [Answer],
}

impl<'a> Own<'a> {
    /// Returns the records of a request's kind that the requester may see; none if they are refused.
    pub(super) fn table(&self, question: &Question) -> Option<&'a [Vec<u8>]> {
        let asks_for = |table: &Question| {
            table.attr_id == question.attr_id && table.is_trusted() == question.is_trusted()
        };
        let mut all = self.questions.iter().zip(self.answers);
        let (_, answer) = all.find(|(table, _)| asks_for(table))?;
        (answer.status() == Some(0)).then(|| answer.records())
    }

    /// Returns whether an answer matches the table, when only the components that `counts` returns for a record count.
    pub(super) fn says(
        &self,
        question: &Question,
        answer: &Answer,
        counts: impl Fn(&[u8]) -> u64,
    ) -> bool {
        self.says_changed(question, answer, counts, |_| {})
    }

    /// Returns the same, with each record of the table changed first.
    pub(super) fn says_changed(
        &self,
        question: &Question,
        answer: &Answer,
        counts: impl Fn(&[u8]) -> u64,
        change: impl Fn(&mut [u8]),
    ) -> bool {
        let Some(table) = self.table(question) else { return false };
        let Some(wanted) = records::matching(question, table, counts) else { return false };
        let steady = |record: &[u8]| steady(question, record);
        let mut expected: Vec<_> = wanted.iter().map(|record| steady(record)).collect();
        expected.iter_mut().for_each(|record| change(record));
        let len = wanted.first().map_or(0, |record| record.len());
        let came = answer.records().iter().filter_map(|record| record.get(..len));
        let mut came: Vec<_> = came.map(steady).collect();
        expected.sort_unstable();
        came.sort_unstable();
        match (question.method, expected.len()) {
            (Method::GET, 0) => answer.status() == Some(status::SA_NO_RECORDS),
            (Method::GET, 2..) => answer.status() == Some(status::SA_TOO_MANY_RECORDS),
            (Method::GET | Method::GET_TABLE, count) => {
                let complete = answer.records().len() == count;
                answer.status() == Some(0) && complete && came == expected
            }
            _ => false,
        }
    }
}

/// Returns a record without the fields that change with time.
fn steady(question: &Question, record: &[u8]) -> Vec<u8> {
    let mut record = record.to_vec();
    if question.attr_id == SmInfoRecord::ATTR_ID
        && let Some(act_count) = record.get_mut(20..24)
    {
        act_count.fill(0);
    }
    record
}
