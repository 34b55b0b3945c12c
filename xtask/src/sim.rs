//! `cargo xtask sim`: deterministic simulation over many seeds.

use std::path::PathBuf;

use anyhow::Result;

use crate::report::Report;
use crate::sh;

/// The package and its program.
const PROGRAM: &str = "rdmux-sim";

/// The seeds to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of seeds of each simulation
    #[arg(long, default_value_t = 100_000)]
    seeds: u64,
    /// The first seed; with `--seeds 1` this replays one that failed
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Build without the optimisation of the release profile
    #[arg(long)]
    dev: bool,
    /// Run only one simulation, by its option of `rdmux-sim`: `acm`, `fabric`, `connections` and so on
    only: Option<String>,
}

impl Args {
    /// Returns the arguments of each test run.
    pub(crate) fn brief() -> Self {
        Self { seeds: 300, start: 0, dev: true, only: None }
    }
}

/// Runs all simulations, which print a failing seed and how to replay it.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("simulation");
    let program = match build(args.dev) {
        Ok(program) => program,
        Err(e) => return report.fail("simulation", &format!("{e:#}")),
    };
    let simulations = [
        ("queue pairs", None),
        ("connections", Some("--connections")),
        ("queue pairs over streams", Some("--streams")),
        ("management datagrams", Some("--datagrams")),
        ("subnet managers", Some("--subnet")),
        ("queue pairs over a fabric", Some("--fabric")),
        ("IP addresses and groups on InfiniBand", Some("--ipoib")),
        ("multicast on InfiniBand", Some("--multicast")),
        ("paths by ACM", Some("--acm")),
    ];
    let is_wanted = |choice: Option<&str>| {
        let option = choice.map(|choice| choice.trim_start_matches('-'));
        args.only.is_none() || option.is_some() && option == args.only.as_deref()
    };
    if !simulations.iter().any(|(_, choice)| is_wanted(*choice)) {
        let only = args.only.as_deref().unwrap_or_default();
        return report.fail("simulation", &format!("there is no simulation of '{only}'"));
    }
    for (name, choice) in simulations.into_iter().filter(|(_, choice)| is_wanted(*choice)) {
        let mut sim = sh::command(&program);
        sim.args(["--seeds", &args.seeds.to_string(), "--start", &args.start.to_string()]);
        sim.args(choice);
        report.check(&format!("simulation of {name}"), sh::run(&mut sim));
    }
}

/// Builds the simulations. Returns their folder.
fn build(dev: bool) -> Result<PathBuf> {
    if dev {
        return Ok(sh::build(&[PROGRAM])?.join(PROGRAM));
    }
    sh::run(sh::cargo().args(["build", "--quiet", "--release", "-p", PROGRAM]))?;
    Ok(sh::target_dir().join("release").join(PROGRAM))
}
