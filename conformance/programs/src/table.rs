//! All rows, by package.

mod applications;
mod ibverbs_utils;
mod infiniband;
mod iwarp;
mod kinds;
mod management;
mod mpi;
mod namespaces;
mod perftest;
mod ports;
mod qperf;
mod rdmacm_utils;
mod ucx;

use crate::pyverbs;
use crate::row::Row;

/// Returns the rows, in the order in which they are run.
pub(crate) fn table() -> Vec<Row> {
    let mut rows = roce();
    let iwarp = iwarp::rows(&rows);
    let infiniband = infiniband::rows(&rows);
    rows.extend(iwarp);
    rows.extend(infiniband);
    rows.extend(kinds::rows());
    rows.extend(ports::rows());
    rows.extend(namespaces::rows());
    rows.extend(namespaces::infiniband());
    rows.extend(management::rows());
    rows
}

/// Returns the rows of RoCE.
fn roce() -> Vec<Row> {
    [
        ibverbs_utils::rows(),
        rdmacm_utils::rows(),
        perftest::rows(),
        qperf::rows(),
        ucx::rows(),
        mpi::rows(),
        applications::rows(),
        pyverbs::rows(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::table;
    use crate::row::{Row, Run};

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<String> = table().iter().map(ToString::to_string).collect();
        for (n, row) in rows.iter().enumerate() {
            assert!(!rows[..n].contains(row), "twice: {row}");
            assert_eq!(row.matches(" | ").count(), 1, "{row}");
        }
        assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
    }

    /// Returns the features of a row, each of which CI must cover with at least one row: the program and the place on its device, each
    /// option, and each test of a program that has many.
    fn features(row: &Row) -> Vec<String> {
        let device = row.device.name();
        let words: Vec<&str> = row.title.split(' ').collect();
        let mut all = vec![format!("{} on {device}", words[0]), format!("{} on {device}", row.way)];
        if matches!(row.run, Run::Pyverbs(_)) {
            return all;
        }
        for (n, word) in words.iter().enumerate().filter(|(_, w)| w.starts_with('-')) {
            // A word is a choice; a number is one of many.
            let value = words.get(n + 1).filter(|v| v.starts_with(char::is_alphabetic));
            all.push(format!("{word} {} on {device}", value.unwrap_or(&"")));
        }
        all
    }

    #[test]
    fn brief_rows_cover_every_program_place_and_option() {
        let rows = table();
        let covered: BTreeSet<String> =
            rows.iter().filter(|r| r.brief).flat_map(features).collect();
        let all: BTreeSet<String> = rows.iter().flat_map(features).collect();
        let missing: Vec<&String> = all.difference(&covered).collect();
        assert!(missing.is_empty(), "CI has no row for {missing:?}");
    }

    #[test]
    fn brief_rows_are_fewer() {
        let rows = table();
        let brief = rows.iter().filter(|r| r.brief).count();
        println!("{brief} of {} rows are brief", rows.len());
        assert!(brief * 10 < rows.len() * 7, "{brief} of {}", rows.len());
    }
}
