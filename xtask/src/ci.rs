//! `cargo xtask ci`: everything that a change must pass, each suite within its budget.

use crate::budget::{Suite, timed};
use crate::report::Report;
use crate::{instructions, peer, programs, soak, test};

/// How much to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run all rows of all suites, not only the brief ones; suites with rows then have no time budget
    #[arg(long)]
    all: bool,
}

/// Runs everything, cheapest first.
pub(crate) fn run(args: &Args, report: &mut Report) {
    timed(report, Suite::Test, test::run);
    // The time that this takes depends on what is built already, so it counts for no suite.
    report.check("programs are built", programs::build().map(drop));
    timed(report, Suite::Instructions, |report| {
        instructions::run(&instructions::Args::default(), report);
    });
    programs::run(&programs::Args::ci(args.all), report);
    timed(report, Suite::Soak, |report| soak::run(&soak::SHORT, report));
    peer::run(&peer::Args::ci(args.all), report);
}
