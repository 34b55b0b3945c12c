//! `rdmux doctor`: reports the state of this machine, with advice.

mod checks;
mod surroundings;
mod system;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::Global;
use rdmux_command::output;
use rdmux_command::say;

/// How to print.
#[derive(Args)]
#[command(after_help = "Exit status: 1 if something that rdmux requires is missing, else 0.")]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Everything works.
    Ok,
    /// Something is slower, or does not work, for some programs.
    Warn,
    /// Nothing works.
    Fail,
}

/// A check.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// The finding.
    found: String,
    /// The advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), advice: None }
    }
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Ok, found)
    }
    fn warn(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Warn, found)
    }
    fn fail(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, State::Fail, found)
    }
    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// Runs `rdmux doctor`.
pub(crate) fn run(global: &Global, args: &DoctorArgs) -> Result<ExitCode> {
    let host = global.host_name()?;
    let mut all = checks::all(&host);
    all.extend(system::all());
    if args.json {
        output::json(&all)?;
    } else {
        all.iter().for_each(print);
    }
    let failed = all.iter().any(|check| check.state == State::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(check: &Check) {
    let state = match check.state {
        State::Ok => "ok",
        State::Warn => "warn",
        State::Fail => "FAIL",
    };
    say!("{state:<5} {:<12} {}", check.name, check.found);
    if let Some(advice) = &check.advice {
        say!("{:<18} -> {advice}", "");
    }
}
