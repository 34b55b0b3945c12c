//! The rows of a suite that runs as a program of its own: which must come, and which came.

use std::collections::BTreeMap;

use crate::report::Report;

/// The rows that must come, and how each ended. A row that is missing counts as failed.
#[derive(Default, Debug)]
pub(crate) struct Rows(BTreeMap<String, Option<Ended>>);

/// How a row ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Well.
    Passed,
    /// Not at all, because this system forbids what it wants.
    Skipped(String),
    /// Otherwise.
    Failed(String),
}

impl Rows {
    /// Takes the suite's own list: a row a line.
    pub(crate) fn expect(&mut self, list: &str) {
        self.0 = list.lines().map(|l| (l.trim_end().to_owned(), None)).collect();
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes a line of the suite: `pass | ROW`, `skip | ROW | WHY` or `FAIL | ROW | WHY`.
    pub(crate) fn take(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(row) = line.strip_prefix("pass | ") {
            if let Some(ended) = self.0.get_mut(row) {
                *ended = Some(Ended::Passed);
            }
            return;
        }
        for (word, ended) in [("skip | ", Ended::Skipped as fn(_) -> _), ("FAIL | ", Ended::Failed)]
        {
            if let Some((row, why)) = line.strip_prefix(word).and_then(|l| l.rsplit_once(" | ")) {
                self.0.insert(row.to_owned(), Some(ended(why.to_owned())));
            }
        }
    }

    /// Whether a row has ended badly.
    pub(crate) fn any_failed(&self) -> bool {
        self.0.values().any(|e| matches!(e, None | Some(Ended::Failed(_))))
    }

    /// Counts all of them.
    pub(crate) fn report(self, report: &mut Report) {
        for (row, ended) in self.0 {
            match ended {
                Some(Ended::Passed) => report.pass(),
                Some(Ended::Skipped(why)) => report.skip_optional(&row, &why),
                Some(Ended::Failed(why)) => report.fail(&row, &why),
                None => report.fail(&row, "no result"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ended, Rows};

    #[test]
    fn what_is_missing_is_noticed() {
        let mut rows = Rows::default();
        rows.expect("part 3 | a | MTU 1024\npart 3 | b | MTU 1024\npart 3 | c | MTU 1024");
        rows.take("pass | part 3 | a | MTU 1024");
        rows.take("FAIL | part 3 | b | MTU 1024 | wrong byte");
        assert!(rows.any_failed());
        assert_eq!(rows.0["part 3 | a | MTU 1024"], Some(Ended::Passed));
        assert_eq!(rows.0["part 3 | b | MTU 1024"], Some(Ended::Failed("wrong byte".to_owned())));
        assert_eq!(rows.0["part 3 | c | MTU 1024"], None);
        rows.take("pass | part 3 | b | MTU 1024");
        assert!(rows.any_failed());
        rows.take("skip | part 3 | c | MTU 1024 | no namespaces");
        assert!(!rows.any_failed());
    }
}
