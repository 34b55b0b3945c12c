//! Runs seeds, a single one or many.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use rdmux_sim::acm::{run_acm_seed, trace_acm_seed};
use rdmux_sim::cm::{run_cm_seed, trace_cm_seed};
use rdmux_sim::fabric::{run_fabric_seed, trace_fabric_seed};
use rdmux_sim::ipoib::{run_ipoib_seed, trace_ipoib_seed};
use rdmux_sim::iwarp::{run_iwarp_seed, trace_iwarp_seed};
use rdmux_sim::mads::{run_mad_seed, trace_mad_seed};
use rdmux_sim::multicast::{run_multicast_seed, trace_multicast_seed};
use rdmux_sim::subnet::{run_subnet_seed, trace_subnet_seed};
use rdmux_sim::{run_seed, trace_seed};

/// Simulates queue pairs, connections, management datagrams or subnet managers on an unreliable network. Every seed defines a scenario:
/// nodes, connections, work, loss, reordering, duplication, corruption, cuts and crashes. A failing
/// seed is printed and replays exactly.
#[derive(Debug, Parser)]
#[command(name = "rdmux-sim", version)]
struct Args {
    /// Simulate the connection manager instead of queue pairs
    #[arg(long)]
    connections: bool,
    /// Simulate iWARP queue pairs over streams
    #[arg(long, conflicts_with = "connections")]
    streams: bool,
    /// Simulate programs that send management datagrams, with timeouts and RMPP
    #[arg(long, conflicts_with_all = ["connections", "streams"])]
    datagrams: bool,
    /// Simulate subnet managers and the subnet that they manage
    #[arg(long, conflicts_with_all = ["connections", "streams", "datagrams"])]
    subnet: bool,
    /// Simulate queue pairs over an InfiniBand fabric whose cables, tables, P_Keys and managers change
    #[arg(long, conflicts_with_all = ["connections", "streams", "datagrams", "subnet"])]
    fabric: bool,
    /// Simulate hosts of an InfiniBand subnet that resolve IP addresses and join groups
    #[arg(long, conflicts_with_all = ["connections", "streams", "datagrams", "subnet", "fabric"])]
    ipoib: bool,
    /// Simulate ids that join multicast groups of an InfiniBand subnet and send to them
    #[arg(long, conflicts_with_all = ["connections", "streams", "datagrams", "subnet", "fabric", "ipoib"])]
    multicast: bool,
    /// Simulate hosts that resolve names and addresses to paths by ACM
    #[arg(long, conflicts_with_all = ["connections", "streams", "datagrams", "subnet", "fabric", "ipoib", "multicast"])]
    acm: bool,
    /// Run only this seed
    #[arg(long, conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,
    /// Log every post, packet, timer and completion of --seed to standard error
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of seeds to run
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Number of seeds to run at the same time; without it the number of processors
    #[arg(long)]
    jobs: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.connections {
        run(&args, run_cm_seed, trace_cm_seed)
    } else if args.streams {
        run(&args, run_iwarp_seed, trace_iwarp_seed)
    } else if args.datagrams {
        run(&args, run_mad_seed, trace_mad_seed)
    } else if args.subnet {
        run(&args, run_subnet_seed, trace_subnet_seed)
    } else if args.fabric {
        run(&args, run_fabric_seed, trace_fabric_seed)
    } else if args.ipoib {
        run(&args, run_ipoib_seed, trace_ipoib_seed)
    } else if args.multicast {
        run(&args, run_multicast_seed, trace_multicast_seed)
    } else if args.acm {
        run(&args, run_acm_seed, trace_acm_seed)
    } else {
        run(&args, run_seed, trace_seed)
    }
}

/// Runs the requested seeds of a simulation, and prints the outcome.
fn run<S, F>(
    args: &Args,
    run_seed: impl Fn(u64) -> Result<S, F> + Sync,
    trace_seed: impl Fn(u64) -> Result<S, F>,
) -> ExitCode
where
    S: AddAssign + Default + Display + Send,
    F: Display + Send,
{
    let result = match args.seed {
        Some(seed) if args.trace => trace_seed(seed),
        Some(seed) => run_seed(seed),
        None => run_many(args, run_seed),
    };
    match result {
        Ok(stats) => {
            println!("{stats}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a range of seeds on several threads, and stops at the first failure.
fn run_many<S, F>(args: &Args, run_seed: impl Fn(u64) -> Result<S, F> + Sync) -> Result<S, F>
where
    S: AddAssign + Default + Send,
    F: Send,
{
    let jobs = args.jobs.or_else(|| thread::available_parallelism().ok().map(Into::into));
    let end = args.start.saturating_add(args.seeds);
    let next = AtomicU64::new(args.start);
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new((S::default(), None::<F>));
    let bar = ProgressBar::new(args.seeds);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    thread::scope(|scope| {
        for _ in 0..jobs.unwrap_or(1).max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let result = catch_unwind(AssertUnwindSafe(|| run_seed(seed)));
                    let result = result.unwrap_or_else(|panic| {
                        stop.store(true, Ordering::Relaxed);
                        eprintln!("seed {seed} panicked");
                        resume_unwind(panic)
                    });
                    let mut outcome = outcome.lock().unwrap_or_else(|e| e.into_inner());
                    match result {
                        Ok(stats) => outcome.0 += stats,
                        Err(failure) => {
                            stop.store(true, Ordering::Relaxed);
                            outcome.1.get_or_insert(failure);
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let (stats, failure) = outcome.into_inner().unwrap_or_else(|e| e.into_inner());
    failure.map_or(Ok(stats), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seeds_at_all_are_refused() {
        assert!(Args::try_parse_from(["rdmux-sim", "--seeds", "0"]).is_err());
        assert!(Args::try_parse_from(["rdmux-sim", "--seeds", "1"]).is_ok());
    }
}
