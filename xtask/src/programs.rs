//! `cargo xtask programs`: runs unmodified programs of the distribution on rdmux.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::budget::{self, Suite};
use crate::report::Report;
use crate::rows::Rows;
use crate::sh;

/// The packages of the programs.
const PACKAGES: &[&str] = &[
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "qperf",
    "ucx-utils",
    "libfabric-bin",
    "fio",
    "python3-pyverbs",
    "openmpi-bin",
    "python3-mpi4py",
    "netpipe-openmpi",
    "iproute2",
    "opensm",
    "infiniband-diags",
    "ibsim-utils",
    "tshark",
    "ibacm",
];

/// The name of the suite's program.
const SUITE: &str = "rdmux-programs";

/// All programs that are run, soaked or counted. Building one alone selects other features and rebuilds nearly everything.
const BUILT: &[&str] =
    &[SUITE, "rdmux-cli", "rdmux-capi", "rdmux-preload", super::instructions::PROGRAM];

/// The rows to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only rows that contain this text, for instance "rping" or "two hosts | ib_", brief or not
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Run all rows, not only the brief ones, which CI runs
    #[arg(long)]
    all: bool,
    /// Run only rows on this device: roce, iw or ib
    #[arg(long, value_name = "KIND")]
    device: Option<String>,
    /// Print the names of the rows and exit
    #[arg(long)]
    list: bool,
    /// Do not retry rows that fail; by default each is retried once, because some of the programs have races
    #[arg(long)]
    strict: bool,
    /// Run only every Nth row from the Kth on, so that N machines or network namespaces share the work
    #[arg(long, value_name = "K/N")]
    part: Option<String>,
    /// Whether the brief rows are held to their budget, which is for a machine that does nothing else
    #[arg(skip)]
    in_ci: bool,
}

/// Runs the suite. A missing row or program counts as failed.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("programs of the distribution");
    let mut rows = Rows::default();
    if let Err(e) = suite(args, &mut rows) {
        report.fail("programs", &format!("{e:#}"));
    }
    if !args.list {
        if args.has_budget() {
            budget::check(report, Suite::Programs, rows.seconds());
        }
        rows.report(report);
    }
}

impl Args {
    /// Returns CI's arguments: the brief rows, or all of them.
    pub(crate) fn ci(all: bool) -> Self {
        Self { all, in_ci: true, ..Self::default() }
    }

    /// Returns whether CI runs the brief rows, which have a budget.
    fn has_budget(&self) -> bool {
        self.in_ci && !self.all
    }
}

fn suite(args: &Args, rows: &mut Rows) -> Result<()> {
    let mut place = place();
    let built = build()?;
    let suite = || sh::command(built.join("program-suite"));
    let of = |name, value: &Option<String>| value.clone().map(|value| [name, value]);
    let only = [("--only", &args.only), ("--device", &args.device), ("--part", &args.part)];
    let only = only.map(|(name, value)| of(name.to_owned(), value));
    let mut only: Vec<String> = only.into_iter().flatten().flatten().collect();
    only.extend(args.all.then(|| "--all".to_owned()));
    let list = sh::output(suite().arg("list").args(&only))?;
    ensure!(!list.is_empty(), "no row of this part and device contains this text");
    if args.list {
        println!("{list}");
        return Ok(());
    }
    rows.expect(&list);
    install();
    if let Some(part) = &args.part {
        place.push(format!("part-{}", part.replace('/', "-of-")));
    }
    let logs = place.join("logs");
    if logs.is_dir() {
        // Logs of an earlier run must not be mistaken for those of this run.
        fs::remove_dir_all(&logs).context("removing old logs")?;
    }
    let mut run = suite();
    run.args(["run", "--rdmux"]).arg(built.join("rdmux"));
    run.arg("--logs").arg(&logs).arg("--junit").arg(place.join("junit.xml"));
    run.args(&only).args(args.strict.then_some("--strict"));
    if args.has_budget() {
        // A suite that exceeds its budget fails, and must not delay later suites.
        run.args(["--within", &budget::seconds(Suite::Programs).to_string()]);
    }
    let ended_well = sh::run_lines(&mut run, |line| rows.take(line))?;
    println!("the output of every program is in {}", logs.display());
    ensure!(ended_well || rows.any_failed(), "the suite did not run to its end");
    Ok(())
}

/// Returns the path of the C library for these programs.
pub(crate) fn library() -> Result<PathBuf> {
    Ok(build()?.join("librdmux_capi.so"))
}

/// Returns the folder for all files of the suite.
fn place() -> PathBuf {
    sh::target_dir().join("programs")
}

/// Builds all programs that run optimised. Returns their folder.
pub(crate) fn build() -> Result<PathBuf> {
    let target = place().join("build");
    let mut cargo = sh::cargo();
    cargo.args(["build", "--quiet", "--profile", "peer"]);
    cargo.args(BUILT.iter().flat_map(|p| ["-p", p]));
    sh::run(cargo.arg("--target-dir").arg(&target))?;
    Ok(target.join("peer"))
}

/// Installs missing packages if that is allowed, and lists them otherwise.
fn install() {
    let missing: Vec<&str> = PACKAGES.iter().copied().filter(|p| !is_installed(p)).collect();
    if missing.is_empty() {
        return;
    }
    println!("missing packages: {}", missing.join(" "));
    let root = sh::output(Command::new("id").arg("-u")).is_ok_and(|id| id == "0");
    if !root || !sh::have("apt-get") {
        println!("install them as root; their rows fail");
        return;
    }
    let apt = |args: &[&str]| {
        let mut apt = sh::command("apt-get");
        apt.arg("-q").args(args).env("DEBIAN_FRONTEND", "noninteractive");
        sh::run(&mut apt)
    };
    let install = [&["install", "-y", "--no-install-recommends"], &missing[..]].concat();
    if let Err(e) = apt(&["update"]).and_then(|()| apt(&install)) {
        println!("{e:#}; the rows of what is missing fail");
    }
}

fn is_installed(package: &str) -> bool {
    let mut query = sh::command("dpkg-query");
    query.args(["-W", "-f=${Status}", package]).stderr(Stdio::null());
    sh::output(&mut query).is_ok_and(|s| s.ends_with("ok installed"))
}
