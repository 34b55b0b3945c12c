//! The fuzz targets on the command line: `rdmux-fuzz [--seconds N] [--seed N] [TARGET]`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use rdmux_fuzz::{TARGETS, Target, runner};

/// Runs fuzz targets with the built-in mutator and prints a line for each
#[derive(Parser)]
struct Cli {
    /// Seconds for each target
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Seed of the mutations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of targets to run at the same time; without it the number of processors
    #[arg(long)]
    jobs: Option<usize>,
    /// Run the target once on this file, to reproduce a failure
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Folder for inputs that fail
    #[arg(long, default_value = "target/fuzz")]
    artifacts: PathBuf,
    /// Run only this target; `list` prints the names of all
    target: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    if cli.target.as_deref() == Some("list") {
        for t in TARGETS {
            println!("{:24} {}", t.name, t.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<_> =
        TARGETS.iter().filter(|t| cli.target.as_deref().is_none_or(|n| n == t.name)).collect();
    anyhow::ensure!(!wanted.is_empty(), "no such target; `list` prints their names");
    if let Some(file) = cli.input {
        (wanted[0].run)(&std::fs::read(file)?);
        return Ok(ExitCode::SUCCESS);
    }
    let options = runner::Options {
        time: Duration::from_secs(cli.seconds),
        seed: cli.seed,
        artifacts: cli.artifacts,
    };
    let jobs = cli.jobs.or_else(|| thread::available_parallelism().ok().map(Into::into));
    let (next, clean) = (AtomicUsize::new(0), AtomicBool::new(true));
    thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            while let Some(target) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                if !is_clean(target, &options)? {
                    clean.store(false, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let workers: Vec<_> = (0..jobs.unwrap_or(1).max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(outcome) => outcome,
            Err(_) => anyhow::bail!("the fuzzer itself panicked"),
        })
    })?;
    Ok(if clean.into_inner() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a target and prints its line. Returns whether no input failed.
fn is_clean(target: &Target, options: &runner::Options) -> anyhow::Result<bool> {
    let name = target.name;
    Ok(match runner::run(target, options)? {
        runner::Outcome::Clean { inputs } => {
            println!("ok {name}: {inputs} inputs");
            true
        }
        runner::Outcome::Broken { file, message } => {
            let file = file.display();
            println!(
                "FAILED {name}: {message}; reproduce it with\n  cargo run -p rdmux-fuzz -- {name} --input {file}"
            );
            false
        }
    })
}
