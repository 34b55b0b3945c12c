//! The time limits of CI, in seconds per suite.
//!
//! `.ci/run` must end within 75 minutes on a machine with two processors, whatever is added. So each suite has a budget, from
//! 1.25 to 2 times its duration on such an idle machine, and all budgets together are within the limit, which a test checks.
//! A suite that exceeds its budget makes CI fail. A suite that is run separately, possibly with other load, has no budget. To
//! fix an exceeded budget, remove the mark `brief` from rows that only repeat what others show, or move seconds from another
//! suite's budget.

use std::time::Instant;

use crate::report::Report;

/// The time limit of `.ci/run` in seconds.
#[cfg(test)]
const LIMIT: u64 = 75 * 60;

/// The time for building the suites' programs and guests and for installing packages, in seconds. It depends on the network
/// and on what is built already, so it is not checked.
#[cfg(test)]
const BUILDS: u64 = 620;

/// A part of CI that has a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Suite {
    Test,
    Instructions,
    Programs,
    Soak,
    Scripted,
    Iwarp,
    Roce,
}

/// The suites with their names and their budgets in seconds. For suites with rows, the budget is for the brief ones.
const BUDGETS: &[(Suite, &str, u64)] = &[
    (Suite::Test, "cargo xtask test, builds included", 2060),
    (Suite::Instructions, "cargo xtask instructions", 120),
    (Suite::Programs, "cargo xtask programs", 840),
    (Suite::Soak, "cargo xtask soak", 60),
    (Suite::Scripted, "cargo xtask peer: scripted", 30),
    (Suite::Iwarp, "cargo xtask peer: siw", 350),
    (Suite::Roce, "cargo xtask peer: rdma_rxe", 420),
];

/// Runs a suite without rows, and checks its budget.
pub(crate) fn timed(report: &mut Report, suite: Suite, run: impl FnOnce(&mut Report)) {
    let start = Instant::now();
    run(report);
    check(report, suite, start.elapsed().as_secs_f64());
}

/// Returns the budget of a suite, in seconds.
pub(crate) fn seconds(suite: Suite) -> u64 {
    BUDGETS.iter().find(|(s, ..)| *s == suite).map_or(0, |(.., budget)| *budget)
}

/// Counts a failure if a suite exceeded its budget.
pub(crate) fn check(report: &mut Report, suite: Suite, seconds: f64) {
    let Some((_, name, budget)) = BUDGETS.iter().find(|(s, ..)| *s == suite) else { return };
    println!("     # {name}: {seconds:.0} s of {budget} s");
    if is_over(seconds, *budget) {
        let why = format!("{seconds:.0} s, may take {budget} s in CI; see xtask/src/budget.rs");
        report.fail(name, &why);
    }
}

fn is_over(seconds: f64, budget: u64) -> bool {
    seconds > budget as f64
}

#[cfg(test)]
mod tests {
    use super::{BUDGETS, BUILDS, LIMIT, Suite, check, is_over};
    use crate::report::Report;

    #[test]
    fn all_budgets_together_are_within_the_limit() {
        let all: u64 = BUDGETS.iter().map(|(_, _, budget)| budget).sum();
        assert!(all + BUILDS <= LIMIT, "{all} s and {BUILDS} s for builds");
    }

    #[test]
    fn every_suite_has_one_budget() {
        for suite in [
            Suite::Test,
            Suite::Instructions,
            Suite::Programs,
            Suite::Soak,
            Suite::Scripted,
            Suite::Iwarp,
            Suite::Roce,
        ] {
            assert_eq!(BUDGETS.iter().filter(|(s, ..)| *s == suite).count(), 1, "{suite:?}");
        }
    }

    #[test]
    fn a_suite_over_its_budget_fails_the_run() {
        assert!(!is_over(60.0, 60));
        assert!(is_over(60.5, 60));
        let mut report = Report::new();
        check(&mut report, Suite::Scripted, 29.0);
        assert_eq!(report.failed(), 0);
        check(&mut report, Suite::Scripted, 31.0);
        assert_eq!(report.failed(), 1);
    }
}
