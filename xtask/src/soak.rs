//! `cargo xtask soak`: repeats an operation so often that leaks show.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::programs;
use crate::report::Report;
use crate::sh;

/// The operation to repeat.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Connect by XRC, send and disconnect
    Xrc {
        /// Number of repetitions
        #[arg(long, default_value_t = 1_000_000)]
        cycles: u64,
    },
    /// Resolve paths by ACM, cached and not, while hosts start and stop
    Acm {
        /// Number of repetitions
        #[arg(long, default_value_t = 1_000_000)]
        resolves: u64,
        /// Number of hosts that start and stop
        #[arg(long, default_value_t = 50)]
        guests: u64,
    },
    /// Have many hosts of one fabric, each with its own ACM service, resolve each other at the same time
    AcmPairs {
        /// Number of hosts
        #[arg(long, default_value_t = 64)]
        hosts: u16,
    },
}

/// A run that shows leaks quickly.
pub(crate) const SHORT: Args = Args { what: What::Xrc { cycles: 10_000 } };

/// Runs the operation.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("soak");
    match args.what {
        What::Xrc { cycles } => report.check("soak xrc", xrc(cycles)),
        What::Acm { resolves, guests } => {
            let (resolves, guests) = (resolves.to_string(), guests.to_string());
            let args = ["acm", "--resolves", &resolves, "--guests", &guests];
            report.check("soak acm", of_acm(&args));
        }
        What::AcmPairs { hosts } => {
            report.check("soak acm-pairs", of_acm(&["acm-pairs", "--hosts", &hosts.to_string()]));
        }
    }
}

/// Runs an ACM soak, which has its own directory.
fn of_acm(args: &[&str]) -> Result<()> {
    let rdmux = programs::build()?.join("rdmux");
    let mut soak = sh::command(rdmux);
    soak.arg("soak").args(args);
    ensure!(sh::run_lines(&mut soak, |_| ())?, "something grew, or went wrong");
    Ok(())
}

/// Runs the XRC soak on its own hosts: on existing ones other processes may start and end.
fn xrc(cycles: u64) -> Result<()> {
    let rdmux = programs::build()?.join("rdmux");
    let dir = std::env::temp_dir().join(format!("rdmux-soak-run-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let mut soak = sh::command(rdmux);
    soak.args(["soak", "xrc", "--cycles", &cycles.to_string()]).env("RDMUX_RUNTIME_DIR", &dir);
    let flat = sh::run_lines(&mut soak, |_| ());
    fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    ensure!(flat?, "something grew, or went wrong");
    Ok(())
}
