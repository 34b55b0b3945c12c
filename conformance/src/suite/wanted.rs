//! The selection of checks.

use super::{Check, Siw, siw, table};

/// A selection of checks.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only the checks that have a row with this text, brief or not.
    pub only: Option<String>,
    /// Whether the checks that are not brief are selected too.
    pub all: bool,
}

impl Wanted {
    /// Returns the checks against `rdma_rxe`, with their numbers, which do not depend on the selection.
    pub fn checks(&self) -> impl Iterator<Item = (u16, Check)> {
        (1..).zip(table()).filter(|(_, check)| self.has(check.brief, &check.rows()))
    }

    /// Returns the checks against `siw`, likewise with their numbers.
    pub fn checks_of_siw(&self) -> impl Iterator<Item = (u16, Siw)> {
        (1..).zip(siw()).filter(|(_, check)| self.has(check.brief, &[check.row()]))
    }

    /// Returns whether a check is selected: `--only` selects among all of them, otherwise the brief ones are the default.
    fn has(&self, brief: bool, rows: &[String]) -> bool {
        match &self.only {
            Some(text) => rows.iter().any(|row| row.contains(text)),
            None => self.all || brief,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Check, Siw, Wanted, siw, table};

    const ALL: Wanted = Wanted { only: None, all: true };

    #[test]
    fn brief_checks_are_wanted_if_nothing_is_said() {
        assert_eq!(ALL.checks().count(), table().len());
        assert_eq!(ALL.checks_of_siw().count(), siw().len());
        assert!(Wanted::default().checks().all(|(_, check)| check.brief));
        assert!(Wanted::default().checks_of_siw().all(|(_, check)| check.brief));
    }

    #[test]
    fn only_chooses_among_all_checks_and_keeps_their_numbers() {
        let (n, check) = ALL.checks().find(|(_, check)| !check.brief).unwrap();
        let only = Wanted { only: Some(check.rows().remove(0)), all: false };
        let found: Vec<u16> = only.checks().map(|(n, _)| n).collect();
        assert_eq!(found, [n]);
    }

    /// Returns the columns of a row's name; the first is the part, or "siw".
    fn columns(rows: &[String]) -> impl Iterator<Item = String> {
        rows.iter().flat_map(|row| row.split(" | ").skip(1)).map(|c| c.trim().to_owned())
    }

    #[test]
    fn brief_checks_have_every_exchange_family_side_and_wire() {
        let brief = Wanted::default();
        let of = |checks: Vec<Check>| -> BTreeSet<String> {
            checks.iter().flat_map(|c| columns(&c.rows()).collect::<Vec<_>>()).collect()
        };
        assert_eq!(of(brief.checks().map(|(_, c)| c).collect()), of(table()));
        let of = |checks: Vec<Siw>| -> BTreeSet<String> {
            checks.iter().flat_map(|c| columns(&[c.row()]).collect::<Vec<_>>()).collect()
        };
        assert_eq!(of(brief.checks_of_siw().map(|(_, c)| c).collect()), of(siw()));
    }
}
