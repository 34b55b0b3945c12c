//! libibacm: its exports, and the C program that tests it with well-behaved and misbehaving services.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::exports;
use crate::report::Report;
use crate::rows::Rows;
use crate::sh;

/// The name that programs are linked with.
const NAME: &str = "libibacm.so.1";

/// The time limit of the program. Each of its tests has a limit of its own.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn run(report: &mut Report) {
    let object = match build() {
        Ok(object) => object,
        Err(e) => return report.fail(NAME, &format!("{e:#}")),
    };
    report.check(&format!("exports of {NAME}"), exports::are_listed(&object, &table()));
    if !Path::new("/usr/include/infiniband/sa.h").is_file() {
        return report.skip(&format!("behaviour of {NAME}"), "no headers (libibverbs-dev)");
    }
    let mut rows = Rows::default();
    if let Err(e) = behaviour(&object, &mut rows) {
        report.fail("acm", &format!("{e:#}"));
    }
    rows.report(report);
}

fn build() -> Result<PathBuf> {
    Ok(sh::build(&["rdmux"])?.join("deps/librdmux_ibacm.so"))
}

fn folder() -> PathBuf {
    sh::root().join("crates/ibacm")
}

fn table() -> PathBuf {
    folder().join("exports/ibacm.txt")
}

fn behaviour(object: &Path, rows: &mut Rows) -> Result<()> {
    let place = sh::target_dir().join("acm");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let (library, program) = (place.join(NAME), place.join("acm"));
    let _ = fs::remove_file(&library);
    symlink(object, &library).with_context(|| library.display().to_string())?;
    let sources = sh::root().join("conformance/c");
    let mut cc = sh::command("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    cc.arg(sources.join("acm.c")).arg(sources.join("check.c"));
    sh::run(cc.arg("-I").arg(folder().join("include")).arg(&library))?;
    let command = || {
        let mut command = sh::command(&program);
        command.env("LD_LIBRARY_PATH", &place);
        command
    };
    rows.expect(&sh::output(command().arg("--list"))?);
    let ended_well = sh::run_lines_within(LIMIT, &mut command(), |line| rows.take(line))?;
    ensure!(ended_well || rows.any_failed(), "the program did not run to its end");
    Ok(())
}
