//! `cargo xtask test`: everything that needs only Rust and a C compiler.

use anyhow::{Result, bail};

use crate::report::Report;
use crate::{abi, floors, fuzz, install, layout, models, no_os, sh, sim};

/// Runs all tests; a failure does not stop the others.
pub(crate) fn run(report: &mut Report) {
    report.heading("format");
    report.check("cargo fmt", sh::run(sh::cargo().args(["fmt", "--all", "--check"])));

    report.heading("layout");
    report.check("layout", layout::check());
    report.check("floors", floors::check());

    report.heading("clippy");
    report.check("clippy", clippy());

    report.heading("tests");
    tests(report);
    models::run(report);

    report.heading("documentation");
    report.check("documentation", doc());

    abi::run(&abi::Args::default(), report);
    install::check(report);
    no_os::run(report);
    sim::run(&sim::Args::brief(), report);
    fuzz::run(&fuzz::Args::brief(), report);

    report.heading("demo");
    report.check("rdmux demo", demo());

    report.heading("dependencies");
    deny(report);
}

fn demo() -> Result<()> {
    let built = sh::build(&["rdmux", "ib_acme", "ib_acm"])?;
    sh::run(sh::command(built.join("rdmux")).arg("demo"))
}

fn clippy() -> Result<()> {
    let args = ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet"];
    sh::run(sh::cargo().args(args).args(["--", "-D", "warnings"]))
}

fn doc() -> Result<()> {
    let args = ["doc", "--workspace", "--no-deps", "--all-features", "--quiet"];
    sh::run(sh::cargo().args(args).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs unit, integration and documentation tests.
fn tests(report: &mut Report) {
    let mut cargo = sh::cargo();
    cargo.args(["test", "--workspace", "--all-features", "--no-fail-fast", "--quiet"]);
    counted(report, "tests", |line| sh::run_lines(&mut cargo, line));
}

/// Runs `cargo test` with `run`, which passes on each line of output, and counts by libtest's summaries.
pub(crate) fn counted(
    report: &mut Report,
    what: &str,
    run: impl FnOnce(&mut dyn FnMut(&str)) -> Result<bool>,
) {
    let mut counts = Counts::default();
    let outcome = run(&mut |line| counts.add(line)).and_then(|ok| {
        if !ok && counts.failed == 0 {
            bail!("cargo test failed before or beside the tests");
        }
        if counts.passed == 0 {
            bail!("no test ran");
        }
        Ok(())
    });
    report.add(counts.passed, counts.failed, 0);
    if counts.failed > 0 {
        report.note_failure(what, &format!("{} of them, see above", counts.failed));
    }
    if counts.ignored > 0 {
        let why = format!("{} are marked #[ignore]", counts.ignored);
        report.skip(what, &why);
    }
    if let Err(e) = outcome {
        report.fail(what, &format!("{e:#}"));
    }
}

/// The sums of libtest's summary lines.
#[derive(Default, Debug, PartialEq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Adds a line of output; only lines like `test result: ok. 3 passed; 0 failed; 1 ignored` count.
    fn add(&mut self, line: &str) {
        let Some((_, summary)) = line.split_once("test result: ") else { return };
        let summary = summary.split_once(". ").map_or(summary, |(_, rest)| rest);
        for part in summary.split(';') {
            let mut words = part.split_whitespace();
            let (Some(Ok(n)), Some(what)) = (words.next().map(str::parse::<u64>), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                "ignored" => self.ignored += n,
                _ => {}
            }
        }
    }
}

/// Checks licences, sources and advisories, if `cargo-deny` is installed.
fn deny(report: &mut Report) {
    if !sh::have("cargo-deny") {
        report.skip_optional("cargo deny", "not installed (cargo install --locked cargo-deny)");
        return;
    }
    let args = ["deny", "--all-features", "check", "bans", "licenses", "sources"];
    report.check("cargo deny", sh::run(sh::cargo().args(args)));
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn summaries_add_up() {
        let mut c = Counts::default();
        c.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        c.add("test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        c.add("running 9 tests");
        assert_eq!(c, Counts { passed: 5, failed: 4, ignored: 1 });
    }
}
