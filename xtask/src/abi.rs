//! `cargo xtask abi`: checks that programs can use the shared object in place of the distribution's libraries.
//!
//! `exports` compares symbols and version nodes, `headers` compares what programs have compiled in, `behaviour` runs C
//! programs on the shared object, `acm` checks libibacm, and `readme` compiles the README's example. The tables in
//! `conformance/abi` were made from rdma-core 44. If the distribution's own files are installed, they are compared as well.

mod acm;
mod behaviour;
mod exports;
mod headers;
mod readme;

use std::path::PathBuf;

use anyhow::Result;

use crate::report::Report;
use crate::sh;

/// The programs to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only these programs of `conformance/c`, or with `documented` those of the documentation, and compare nothing
    programs: Vec<String>,
}

/// The program for libibacm, which has its own requirements.
const ACM: &str = "acm";

/// Runs all checks. Comparisons that this machine does not allow are skipped.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("C ABI");
    if args.programs.is_empty() {
        exports::run(report);
        headers::run(report);
        readme::run(report);
    }
    if args.programs.is_empty() || args.programs.iter().any(|name| name == ACM) {
        acm::run(report);
    }
    let others: Vec<_> = args.programs.iter().filter(|name| *name != ACM).cloned().collect();
    if args.programs.is_empty() || !others.is_empty() {
        behaviour::run(&others, report);
    }
}

/// Returns the folder of the committed tables.
fn tables() -> PathBuf {
    sh::root().join("conformance/abi")
}

/// Builds the shared object and returns its path.
pub(crate) fn shared_object() -> Result<PathBuf> {
    Ok(sh::build(&["rdmux"])?.join("deps/librdmux_capi.so"))
}
