//! `cargo xtask peer`: the conformance suites against the kernel's drivers, in a throw-away guest, and against a scripted
//! iWARP peer, without a guest.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::budget;
use crate::programs;
use crate::report::Report;
use crate::rows::Rows;
use crate::sh;

/// Static programs run in the guest whatever C library the host has.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The cargo profile of the suites.
const PROFILE: &str = "guest";

/// The checks to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only one of the suites
    suite: Option<Suite>,
    /// Run only checks with a row that contains this text, for instance "rc/send" or "rping", brief or not
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Run all checks, not only the brief ones, which CI runs
    #[arg(long)]
    all: bool,
    /// Do not retry checks that fail; by default each is retried once, because the kernel's side has races
    #[arg(long)]
    strict: bool,
    /// Whether the brief checks are held to their budgets, which are for a machine that does nothing else
    #[arg(skip)]
    in_ci: bool,
}

/// A transport with its peers.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// RoCE: the kernel's rdma_rxe
    Roce,
    /// iWARP: a scripted peer, and the kernel's siw
    Iwarp,
}

/// Runs the suites. A missing row counts as failed.
pub(crate) fn run(args: &Args, report: &mut Report) {
    let wanted = |suite| args.suite.is_none_or(|only| only == suite);
    let only: Vec<&str> = args.only.iter().flat_map(|o| ["--only", o]).collect();
    let budgets = args.in_ci && !args.all;
    let mut found = 0;
    if wanted(Suite::Iwarp) {
        report.heading("a scripted peer of iWARP");
        found +=
            one(report, budgets.then_some(budget::Suite::Scripted), |rows| scripted(&only, rows));
    }
    for suite in [Suite::Iwarp, Suite::Roce].into_iter().filter(|suite| wanted(*suite)) {
        report.heading(suite.heading());
        let only = [&only[..], if args.all { &["--all"] } else { &[] }].concat();
        let budget = budgets.then_some(suite.budget());
        found += one(report, budget, |rows| in_guest(suite, &only, args.strict, rows));
    }
    if found == 0 {
        report.fail("peer", "no row contains this text");
    }
}

impl Args {
    /// Returns CI's arguments: the brief checks, or all of them.
    pub(crate) fn ci(all: bool) -> Self {
        Self { all, in_ci: true, ..Self::default() }
    }
}

/// Runs a suite and checks its budget if it has one. Returns the number of rows.
fn one(
    report: &mut Report,
    budget: Option<budget::Suite>,
    suite: impl FnOnce(&mut Rows) -> Result<()>,
) -> usize {
    let mut rows = Rows::default();
    let outcome = suite(&mut rows);
    let failed = outcome.is_err();
    if let Err(e) = outcome {
        report.fail("peer", &format!("{e:#}"));
    }
    let found = rows.len() + usize::from(failed);
    if let Some(budget) = budget {
        budget::check(report, budget, rows.seconds());
    }
    rows.report(report);
    found
}

/// Runs the checks against the scripted peer, which needs no guest.
fn scripted(only: &[&str], rows: &mut Rows) -> Result<()> {
    let peer = sh::build(&["iwarp-peer"])?.join("iwarp-peer");
    let program = |command: &str| {
        let mut program = sh::command(&peer);
        program.arg(command).args(only);
        program
    };
    rows.expect(&sh::output(&mut program("list"))?);
    let ended_well = sh::run_lines(&mut program("run"), |line| rows.take(line))?;
    ensure!(ended_well || rows.any_failed(), "the suite did not run to its end");
    Ok(())
}

fn in_guest(suite: Suite, only: &[&str], strict: bool, rows: &mut Rows) -> Result<()> {
    let place = Place::new(suite)?;
    // The command is idempotent, and reports at once if something is missing on this machine.
    sh::run(vm().arg("build")).context("building the guest")?;
    build(&place)?;
    let only = [suite.flags(), only].concat();
    let list = sh::output(sh::command(place.program("peer-suite")).arg("list").args(&only))?;
    if list.is_empty() {
        return Ok(());
    }
    rows.expect(&list);
    let args = [&only, strict.then_some("--strict").as_slice()].concat();
    boot(&place, suite, &args, rows)
}

impl Suite {
    const fn heading(self) -> &'static str {
        match self {
            Self::Roce => "the kernel's rdma_rxe as peer",
            Self::Iwarp => "the kernel's siw as peer",
        }
    }
    const fn budget(self) -> budget::Suite {
        match self {
            Self::Roce => budget::Suite::Roce,
            Self::Iwarp => budget::Suite::Iwarp,
        }
    }
    /// Returns the folder for the suite's logs.
    const fn logs(self) -> &'static str {
        match self {
            Self::Roce => "logs",
            Self::Iwarp => "logs-iwarp",
        }
    }
    /// Returns the arguments of the suite in the guest.
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Roce => &[],
            Self::Iwarp => &["--iwarp"],
        }
    }
    /// Returns the arguments of the guest.
    const fn drivers(self) -> &'static [&'static str] {
        match self {
            Self::Roce => &["--no-siw"],
            Self::Iwarp => &[],
        }
    }
}

/// Returns the command that builds and boots the guest.
fn vm() -> Command {
    sh::command(sh::root().join("conformance/peer-vm/peer-vm"))
}

/// Folders under `target/peer`, which the guest sees as `/host`.
struct Place {
    root: PathBuf,
    logs: &'static str,
}

impl Place {
    fn new(suite: Suite) -> Result<Self> {
        let root = sh::target_dir().join("peer");
        let place = Self { root, logs: suite.logs() };
        // Logs of an earlier run must not be mistaken for those of this run.
        match fs::remove_dir_all(place.logs()) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).context("removing old logs");
            }
            _ => {}
        }
        for dir in [place.logs(), place.root.join("bin")] {
            fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        Ok(place)
    }
    fn logs(&self) -> PathBuf {
        self.root.join(self.logs)
    }
    fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }
}

/// Builds rdmux's programs, and the one that uses the kernel's driver.
fn build(place: &Place) -> Result<()> {
    let built = place.root.join("build");
    let mut cargo = sh::cargo();
    cargo.args(["build", "--quiet", "--profile", PROFILE, "--target", TARGET]);
    cargo.args(["-p", "rdmux-cli", "-p", "rdmux-conformance", "--bins", "--target-dir"]);
    cargo.arg(&built).env("RUSTFLAGS", "-C target-feature=+crt-static");
    sh::run(&mut cargo)?;
    for name in ["rdmux", "verbs-peer", "peer-suite"] {
        let from = built.join(TARGET).join(PROFILE).join(name);
        fs::copy(&from, place.program(name)).with_context(|| from.display().to_string())?;
    }
    // The C library is for dynamic programs: those of the guest.
    let library = programs::library()?;
    fs::copy(&library, place.program("librdmux_capi.so"))
        .with_context(|| library.display().to_string())?;
    let sources = sh::root().join("conformance/verbs-peer");
    let mut cc = sh::command("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(place.program("verbs_peer"));
    for c in ["main.c", "control.c", "device.c", "tests.c"] {
        cc.arg(sources.join(c));
    }
    sh::run(cc.arg("-libverbs")).context("compiling verbs_peer (it needs libibverbs-dev)")?;
    let mut cc = sh::command("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(place.program("cm_words"))
        .arg(sh::root().join("conformance/cm-words/cm_words.c"));
    sh::run(cc.args(["-lrdmacm", "-libverbs"]))
        .context("compiling cm_words (it needs librdmacm-dev)")
}

/// Boots the guest and runs the suite inside.
fn boot(place: &Place, suite: Suite, args: &[&str], rows: &mut Rows) -> Result<()> {
    let mut run = vm();
    run.arg("run").args(suite.drivers());
    run.args(["--timeout", "2400", "--share"]).arg(&place.root);
    run.arg("--log").arg(place.logs());
    run.args(["--", "bin/peer-suite", "run", "--programs", "bin", "--logs", place.logs]).args(args);
    let ended_well = sh::run_lines(&mut run, |line| rows.take(line))?;
    println!("the output of every process is in {}", place.logs().display());
    ensure!(ended_well || rows.any_failed(), "the suite did not run to its end");
    Ok(())
}
