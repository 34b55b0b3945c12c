//! `cargo xtask sim`: deterministic simulation over many seeds.

use crate::report::Report;
use crate::sh;

/// Which seeds to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many seeds to run, of queue pairs, connections, iWARP streams, management datagrams, subnet managers, queue pairs over a fabric, and IP addresses and groups on InfiniBand each
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// The first of them; with `--seeds 1` this replays one that failed
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Builds without the optimisation of the release profile
    #[arg(long)]
    dev: bool,
}

impl Args {
    /// What each test run takes.
    pub(crate) fn brief() -> Self {
        Self { seeds: 300, start: 0, dev: true }
    }
}

/// Runs all simulations; they print a seed that fails and how to replay it.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("simulation");
    let simulations = [
        ("queue pairs", None),
        ("connections", Some("--connections")),
        ("queue pairs over streams", Some("--streams")),
        ("management datagrams", Some("--datagrams")),
        ("subnet managers", Some("--subnet")),
        ("queue pairs over a fabric", Some("--fabric")),
        ("IP addresses and groups on InfiniBand", Some("--ipoib")),
        ("multicast on InfiniBand", Some("--multicast")),
    ];
    for (name, choice) in simulations {
        let mut cargo = sh::cargo();
        cargo.args(["run", "--quiet", "-p", "rdmux-sim"]);
        if !args.dev {
            cargo.arg("--release");
        }
        cargo.args(["--", "--seeds", &args.seeds.to_string(), "--start", &args.start.to_string()]);
        cargo.args(choice);
        report.check(&format!("simulation of {name}"), sh::run(&mut cargo));
    }
}
