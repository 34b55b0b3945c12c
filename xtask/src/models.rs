//! `cargo xtask models`: what processes do to each other's shared memory, in every order that can be (`rdmux_link`'s `model`).

use std::time::Duration;

use crate::report::Report;
use crate::{sh, test};

/// They take a quarter of a minute, or something goes round in circles.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds them, beside everything else since nothing else is built with that flag, and runs them.
pub(crate) fn run(report: &mut Report) {
    report.heading("models");
    let mut cargo = sh::cargo();
    cargo.args(["test", "-p", "rdmux-link", "--lib", "--quiet", "model::"]);
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", sh::target_dir().join("loom"));
    test::counted(report, "models", |line| sh::run_lines_within(LIMIT, &mut cargo, line));
}
