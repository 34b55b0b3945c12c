//! `cargo xtask fuzz`: the fuzz targets with the mutator of `rdmux-fuzz`, on stable Rust.

use crate::report::Report;
use crate::sh;

/// The targets, and the time for each.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for each target
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seed of the mutations; a failure prints it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only this target; `list` prints the names of all
    target: Option<String>,
}

impl Args {
    /// Returns the arguments of each test run.
    pub(crate) fn brief() -> Self {
        Self { seconds: 3, seed: 1, target: None }
    }
}

/// Runs the targets and counts them one by one.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading("fuzzing");
    let (mut passed, mut failed) = (0, 0);
    let outcome = sh::build(&["rdmux-fuzz"]).and_then(|built| {
        let mut fuzz = sh::command(built.join("rdmux-fuzz"));
        fuzz.args(["--seconds", &args.seconds.to_string(), "--seed", &args.seed.to_string()]);
        sh::run_lines(fuzz.args(&args.target), |line| {
            passed += u64::from(line.starts_with("ok "));
            failed += u64::from(line.starts_with("FAILED "));
        })
    });
    report.add(passed, failed, 0);
    if failed > 0 {
        report.note_failure("fuzzing", &format!("{failed} targets failed, see above"));
    }
    match outcome {
        Ok(ok) if ok || failed > 0 => {}
        Ok(_) => report.fail("fuzzing", "the fuzzer itself failed"),
        Err(e) => report.fail("fuzzing", &format!("{e:#}")),
    }
}
