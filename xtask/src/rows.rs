//! The rows of a suite that runs as a separate program: the expected rows and their results.

use std::collections::BTreeMap;

use crate::report::Report;

/// The expected rows with their results. A missing row counts as failed.
#[derive(Default, Debug)]
pub(crate) struct Rows {
    ended: BTreeMap<String, Option<Ended>>,
    /// The duration of all reported rows.
    seconds: f64,
}

/// The result of a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Passed.
    Passed,
    /// Skipped, because this machine does not allow it.
    Skipped(String),
    /// Failed.
    Failed(String),
}

impl Rows {
    /// Adds the suite's own list: one row per line.
    pub(crate) fn expect(&mut self, list: &str) {
        self.ended = list.lines().map(|l| (l.trim_end().to_owned(), None)).collect();
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.ended.len()
    }

    /// Returns the duration of all reported rows in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Handles a line of the suite: `pass | ROW`, `skip | ROW | WHY` or `FAIL | ROW | WHY`, followed by ` | 1.5 s`.
    pub(crate) fn take(&mut self, line: &str) {
        let (line, seconds) = timed(line.trim_end());
        if let Some(row) = line.strip_prefix("pass | ") {
            self.seconds += seconds;
            if let Some(ended) = self.ended.get_mut(row) {
                *ended = Some(Ended::Passed);
            }
            return;
        }
        for (word, ended) in [("skip | ", Ended::Skipped as fn(_) -> _), ("FAIL | ", Ended::Failed)]
        {
            if let Some((row, why)) = line.strip_prefix(word).and_then(|l| l.rsplit_once(" | ")) {
                self.ended.insert(row.to_owned(), Some(ended(why.to_owned())));
                self.seconds += seconds;
            }
        }
    }

    /// Returns whether a row has failed.
    pub(crate) fn any_failed(&self) -> bool {
        self.ended.values().any(|e| matches!(e, None | Some(Ended::Failed(_))))
    }

    /// Adds a prefix to each name, for a program that is run twice and has the same rows each time.
    pub(crate) fn named(mut self, prefix: &str) -> Self {
        self.ended = self.ended.into_iter().map(|(row, e)| (format!("{prefix}{row}"), e)).collect();
        self
    }

    /// Counts all rows.
    pub(crate) fn report(self, report: &mut Report) {
        for (row, ended) in self.ended {
            match ended {
                Some(Ended::Passed) => report.pass(),
                Some(Ended::Skipped(why)) => report.skip(&row, &why),
                Some(Ended::Failed(why)) => report.fail(&row, &why),
                None => report.fail(&row, "no result"),
            }
        }
    }
}

/// Splits a line into its text and its last column, the row's duration in seconds.
fn timed(line: &str) -> (&str, f64) {
    let timed = || {
        let (line, seconds) = line.rsplit_once(" | ")?;
        Some((line, seconds.strip_suffix(" s")?.parse().ok()?))
    };
    timed().unwrap_or((line, 0.0))
}

#[cfg(test)]
mod tests {
    use super::{Ended, Report, Rows};

    #[test]
    fn rows_without_a_result_count_as_failed() {
        let mut rows = Rows::default();
        rows.expect("part 3 | a | MTU 1024\npart 3 | b | MTU 1024\npart 3 | c | MTU 1024");
        rows.take("pass | part 3 | a | MTU 1024");
        rows.take("FAIL | part 3 | b | MTU 1024 | wrong byte");
        assert!(rows.any_failed());
        assert_eq!(rows.ended["part 3 | a | MTU 1024"], Some(Ended::Passed));
        assert_eq!(
            rows.ended["part 3 | b | MTU 1024"],
            Some(Ended::Failed("wrong byte".to_owned()))
        );
        assert_eq!(rows.ended["part 3 | c | MTU 1024"], None);
        rows.take("pass | part 3 | b | MTU 1024");
        assert!(rows.any_failed());
        rows.take("skip | part 3 | c | MTU 1024 | no namespaces");
        assert!(!rows.any_failed());
        let named = rows.named("again: ");
        assert_eq!(named.len(), 3);
        assert_eq!(named.ended["again: part 3 | b | MTU 1024"], Some(Ended::Passed));
    }

    #[test]
    fn skipped_rows_count_as_missing_in_ci() {
        let mut rows = Rows::default();
        rows.expect("part 3 | a");
        rows.take("skip | part 3 | a | no namespaces");
        let mut report = Report::new();
        rows.report(&mut report);
        assert!(report.is_incomplete());
    }

    #[test]
    fn seconds_of_rows_add_up() {
        let mut rows = Rows::default();
        rows.expect("one host | a\none host | b\none host | c");
        rows.take("pass | one host | a | 1.5 s");
        rows.take("again | one host | b | status 1");
        rows.take("FAIL | one host | b | status 1 | 2.5 s");
        rows.take("skip | one host | c | no namespaces | 0.0 s");
        rows.take("anything else | 9.0 s");
        assert_eq!(rows.ended["one host | a"], Some(Ended::Passed));
        assert_eq!(rows.ended["one host | b"], Some(Ended::Failed("status 1".to_owned())));
        assert_eq!(rows.ended["one host | c"], Some(Ended::Skipped("no namespaces".to_owned())));
        assert!((rows.seconds() - 4.0).abs() < 1e-9, "{}", rows.seconds());
    }
}
