//! ACM at the size of large clusters, as a table, JSON and a plot.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use clap::Parser;
use rdmux_sim::acm_scale::{Outcome, Setup, document, plot, run, tables};

/// The command that writes the figures of the documentation.
const COMMAND: &str = "cargo run --profile peer -p rdmux-sim --bin rdmux-acm-scale -- --write docs";
/// The name of the files that it writes.
const NAME: &str = "acm-scale";
/// Of large subnets a 64th is simulated. Of 65,536 endpoints about 8 sampled ones then start at once, so that the outcome
/// does not depend on chance alone.
const SHARE: u32 = 64;

/// Simulates endpoints that all resolve all others at once, with the ACM service's state machine, compared with subnet administration alone.
#[derive(Debug, Parser)]
#[command(name = "rdmux-acm-scale", version)]
struct Args {
    /// How many endpoints, 2 to 65,536; each number is a separate run
    #[arg(long, value_delimiter = ',', default_value = "1024,4096,16384,65536")]
    endpoints: Vec<u32>,
    /// How many of them are simulated; each represents an equal share of the others. Default: all, or a 64th of more than
    /// --exact
    #[arg(long, value_delimiter = ',')]
    sample: Vec<u32>,
    /// The largest size at which all endpoints are simulated; at that size, samples of an eighth and a 64th are runs too
    #[arg(long, default_value_t = 4096)]
    exact: u32,
    /// Deliveries that are lost, in percent; each number is a separate run
    #[arg(long, value_delimiter = ',', default_value = "0,0.1,1")]
    loss: Vec<f64>,
    /// Receive buffers per endpoint
    #[arg(long, default_value_t = 1024)]
    recv_depth: u32,
    /// Seed of all random decisions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of simulations that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Write acm-scale.md, acm-scale.json and acm-scale.svg to this folder
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    match simulate(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdmux-acm-scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn simulate(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let outcomes = run_all(&args.setups(), args.jobs);
    tables(&outcomes).iter().for_each(|table| println!("{table}\n"));
    match &args.write {
        Some(folder) => write(&outcomes, folder),
        None => Ok(()),
    }
}

/// Runs simulations in parallel, the longest first. Returns the outcomes in the order of `setups`.
fn run_all(setups: &[Setup], jobs: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(setups.len());
    let outcomes = Mutex::new(BTreeMap::new());
    let work = || {
        while let Ok(before) = next.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)) {
            let setup = &setups[before - 1];
            let outcome = run(setup);
            let Setup { endpoints, sample, loss_ppm, .. } = setup;
            let cpu = outcome.cpu;
            eprintln!("{endpoints} endpoints, {sample} simulated, {loss_ppm} ppm lost: {cpu:.1?}");
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(before, outcome);
        }
    };
    thread::scope(|scope| (0..jobs.max(1)).for_each(|_| drop(scope.spawn(work))));
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

impl Args {
    fn setups(&self) -> Vec<Setup> {
        let mut setups = Vec::new();
        for &endpoints in &self.endpoints {
            for sample in self.samples(endpoints) {
                setups.extend(self.loss.iter().map(|loss| Setup {
                    endpoints,
                    sample,
                    loss_ppm: ppm(*loss),
                    recv_depth: self.recv_depth,
                    seed: self.seed,
                    ..Setup::default()
                }));
            }
        }
        setups
    }

    /// Returns the sample size of each run with this number of endpoints.
    fn samples(&self, endpoints: u32) -> Vec<u32> {
        if !self.sample.is_empty() {
            return self.sample.iter().map(|sample| *sample.min(&endpoints)).collect();
        }
        match endpoints {
            n if n > self.exact => vec![n / SHARE],
            n if n == self.exact => vec![n, n / 8, n / SHARE],
            n => vec![n],
        }
    }
}

fn write(outcomes: &[Outcome], folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let file = |extension| folder.join(NAME).with_extension(extension);
    fs::write(file("json"), serde_json::to_string_pretty(outcomes)? + "\n")?;
    fs::write(file("md"), document(outcomes, COMMAND, &format!("{NAME}.svg")))?;
    plot(outcomes, &file("svg"))
}

/// Converts percent to parts per million.
fn ppm(percent: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    let ppm = (percent.clamp(0.0, 100.0) * 10_000.0).round() as u32;
    ppm
}
