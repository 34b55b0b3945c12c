//! `cargo xtask ci`: all that a change must pass.

use crate::report::Report;
use crate::{instructions, peer, programs, soak, test};

/// Everything, cheapest first.
pub(crate) fn run(report: &mut Report) {
    test::run(report);
    instructions::run(&instructions::Args::default(), report);
    programs::run(&programs::Args::default(), report);
    soak::run(&soak::SHORT, report);
    peer::run(&peer::Args::default(), report);
}
