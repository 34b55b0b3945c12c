//! `cargo xtask peer`: the conformance suite against the kernel's drivers, in a throw-away guest.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::programs;
use crate::report::Report;
use crate::rows::Rows;
use crate::sh;

/// Static programs run in the guest whatever the C library here is.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only the checks that have a row with this text, for instance "rc/send" or "rping"
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Runs the suite. A row that is missing counts as failed.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("the kernel as peer");
    let mut rows = Rows::default();
    if let Err(e) = suite(args, &mut rows) {
        report.fail("peer", &format!("{e:#}"));
    }
    rows.report(report);
}

fn suite(args: &Args, rows: &mut Rows) -> Result<()> {
    let place = Place::new()?;
    // Idempotent, and says at once what is missing here.
    sh::run(vm().arg("build")).context("the guest")?;
    build(&place)?;
    let only: Vec<&str> = args.only.iter().flat_map(|o| ["--only", o]).collect();
    let list = sh::output(sh::command(place.program("peer-suite")).arg("list").args(&only))?;
    ensure!(!list.is_empty(), "no row has this text");
    rows.expect(&list);
    boot(&place, &only, rows)
}

/// The script that makes and boots the guest.
fn vm() -> Command {
    sh::command(sh::root().join("conformance/peer-vm/peer-vm"))
}

/// Folders under `target/peer`, which the guest sees as `/host`.
struct Place {
    root: PathBuf,
}

impl Place {
    fn new() -> Result<Self> {
        let root = sh::target_dir().join("peer");
        let place = Self { root };
        // What an earlier run left must not be taken for this one's.
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
        self.root.join("logs")
    }
    fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }
}

/// Builds our programs, and the one that speaks to the kernel's driver.
fn build(place: &Place) -> Result<()> {
    let built = place.root.join("build");
    let mut cargo = sh::cargo();
    cargo.args(["build", "--quiet", "--profile", "peer", "--target", TARGET]);
    cargo.args(["-p", "rdmux-cli", "-p", "rdmux-conformance", "--bins", "--target-dir"]);
    cargo.arg(&built).env("RUSTFLAGS", "-C target-feature=+crt-static");
    sh::run(&mut cargo)?;
    for name in ["rdmux", "verbs-peer", "peer-suite"] {
        let from = built.join(TARGET).join("peer").join(name);
        fs::copy(&from, place.program(name)).with_context(|| from.display().to_string())?;
    }
    // The C library is for dynamic programs, those of the guest.
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
    sh::run(cc.arg("-libverbs")).context("verbs_peer (it wants libibverbs-dev)")
}

/// Boots the guest and runs the suite inside.
fn boot(place: &Place, only: &[&str], rows: &mut Rows) -> Result<()> {
    let mut run = vm();
    run.args(["run", "--no-siw", "--timeout", "2400", "--share"]).arg(&place.root);
    run.arg("--log").arg(place.logs());
    run.args(["--", "bin/peer-suite", "run", "--programs", "bin", "--logs", "logs"]).args(only);
    let ended_well = sh::run_lines(&mut run, |line| rows.take(line))?;
    println!("the output of every process is in {}", place.logs().display());
    ensure!(ended_well || rows.any_failed(), "the suite did not run to its end");
    Ok(())
}
