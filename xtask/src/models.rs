//! `cargo xtask models`: shared-memory protocols under loom (`rdmux_link`'s `model`).

use std::time::Duration;

use crate::report::Report;
use crate::{sh, test};

/// The time limit. The models take a quarter of a minute, unless one loops.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds and runs the models. They are built separately, since nothing else is built with this flag.
pub(crate) fn run(report: &mut Report) {
    report.heading("models");
    let mut cargo = sh::cargo();
    cargo.args(["test", "-p", "rdmux-link", "--lib", "--quiet", "model::"]);
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", sh::target_dir().join("loom"));
    test::counted(report, "models", |line| sh::run_lines_within(LIMIT, &mut cargo, line));
}
