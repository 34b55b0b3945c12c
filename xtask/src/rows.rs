//! The rows of a suite that runs as a program of its own: which must come, and which came.

use std::collections::BTreeMap;

use crate::report::Report;

/// The rows that must come, and how each ended. A row that is missing counts as failed.
#[derive(Default, Debug)]
pub(crate) struct Rows {
    ended: BTreeMap<String, Option<Ended>>,
    /// What those that came took.
    seconds: f64,
}

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
        self.ended = list.lines().map(|l| (l.trim_end().to_owned(), None)).collect();
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ended.len()
    }

    /// What those that came took, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Takes a line of the suite: `pass | ROW`, `skip | ROW | WHY` or `FAIL | ROW | WHY`, and ` | 1.5 s` behind it.
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

    /// Whether a row has ended badly.
    pub(crate) fn any_failed(&self) -> bool {
        self.ended.values().any(|e| matches!(e, None | Some(Ended::Failed(_))))
    }

    /// The same with this before the name of each: a program that is run twice has rows of the same names.
    pub(crate) fn named(mut self, prefix: &str) -> Self {
        self.ended = self.ended.into_iter().map(|(row, e)| (format!("{prefix}{row}"), e)).collect();
        self
    }

    /// Counts all of them.
    pub(crate) fn report(self, report: &mut Report) {
        for (row, ended) in self.ended {
            match ended {
                Some(Ended::Passed) => report.pass(),
                Some(Ended::Skipped(why)) => report.skip_optional(&row, &why),
                Some(Ended::Failed(why)) => report.fail(&row, &why),
                None => report.fail(&row, "no result"),
            }
        }
    }
}

/// A line without its last column, which says how many seconds the row took, and those.
fn timed(line: &str) -> (&str, f64) {
    let timed = || {
        let (line, seconds) = line.rsplit_once(" | ")?;
        Some((line, seconds.strip_suffix(" s")?.parse().ok()?))
    };
    timed().unwrap_or((line, 0.0))
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
