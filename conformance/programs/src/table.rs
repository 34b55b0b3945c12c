//! All rows, by package.

mod applications;
mod ibverbs_utils;
mod iwarp;
mod mpi;
mod namespaces;
mod perftest;
mod qperf;
mod rdmacm_utils;
mod ucx;

use crate::pyverbs;
use crate::row::Row;

/// The rows, in the order in which they are run.
pub(crate) fn table() -> Vec<Row> {
    let mut rows = roce();
    let iwarp = iwarp::rows(&rows);
    rows.extend(iwarp);
    rows.extend(namespaces::rows());
    rows
}

/// Those on RoCE.
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

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<String> = super::table().iter().map(ToString::to_string).collect();
        for (n, row) in rows.iter().enumerate() {
            assert!(!rows[..n].contains(row), "twice: {row}");
            assert_eq!(row.matches(" | ").count(), 1, "{row}");
        }
        assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
    }
}
