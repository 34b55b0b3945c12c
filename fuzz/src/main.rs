//! The fuzz targets on the command line: `rdmux-fuzz [--seconds N] [--seed N] [TARGET]`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdmux_fuzz::{TARGETS, runner};

/// Runs fuzz targets with the built-in mutator and prints a line for each.
#[derive(Parser)]
struct Cli {
    /// Seconds for each target
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Seed of the mutations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run the target on this file once, to look at a failure
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Where inputs that fail are kept
    #[arg(long, default_value = "target/fuzz")]
    artifacts: PathBuf,
    /// One target only; `list` prints their names
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
    let mut clean = true;
    for target in wanted {
        match runner::run(target, &options)? {
            runner::Outcome::Clean { inputs } => println!("ok {}: {inputs} inputs", target.name),
            runner::Outcome::Broken { file, message } => {
                clean = false;
                println!("FAILED {}: {message}; see it again with", target.name);
                println!("  cargo run -p rdmux-fuzz -- {} --input {}", target.name, file.display());
            }
        }
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
