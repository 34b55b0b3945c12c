//! Unmodified programs of the distribution, run on rdmux: what must work, as a table of rows.
//!
//! Reading order: [`row`] says what a row is, [`mod@table`] lists them by package, [`stage`] makes the
//! hosts between which they run, [`exchange`] runs a server and its clients, [`process`] one program,
//! [`proof`] reads what they printed, [`pyverbs`] runs rdma-core's own tests, [`report`] tells.
#![forbid(unsafe_code)]

mod exchange;
mod ports;
mod process;
mod proof;
mod pyverbs;
mod report;
mod row;
mod stage;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::report::Report;
use crate::row::{Device, Outcome, Row};
use crate::stage::Stage;

/// Unmodified programs of the distribution, run on rdmux.
#[derive(Parser)]
enum Cli {
    /// Prints the names of all rows.
    List(Wanted),
    /// Runs them and prints a line for each, "pass", "skip" or "FAIL" in front.
    Run {
        /// The program rdmux; the shared object lies beside it
        #[arg(long)]
        rdmux: PathBuf,
        /// Where the output of every process is kept
        #[arg(long)]
        logs: PathBuf,
        /// The outcome as JUnit XML
        #[arg(long)]
        junit: PathBuf,
        #[command(flatten)]
        wanted: Wanted,
        /// Without a second try for rows that fail: some of the programs have races of their own
        #[arg(long)]
        strict: bool,
    },
}

/// Which rows.
#[derive(clap::Args)]
struct Wanted {
    /// Only those on this device
    #[arg(long, value_enum, value_name = "KIND")]
    device: Option<Device>,
    /// Only rows with this text
    #[arg(long)]
    only: Option<String>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse() {
        Cli::List(wanted) => {
            for row in wanted.rows() {
                println!("{row}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Cli::Run { rdmux, logs, junit, wanted, strict } => {
            let mut stage = Stage::new(&rdmux, &logs)?;
            let mut report = Report::new(&junit, strict);
            for row in wanted.rows() {
                report.take(&row, || run(&mut stage, &row));
            }
            report.close()
        }
    }
}

impl Wanted {
    fn rows(&self) -> impl Iterator<Item = Row> {
        let has = |r: &Row| self.only.as_ref().is_none_or(|o| r.to_string().contains(o));
        let on = |r: &Row| self.device.is_none_or(|d| d == r.device);
        table::table().into_iter().filter(move |r| on(r) && has(r))
    }
}

/// Runs a row. Whatever its programs do, nothing of them may be left in the hosts' services.
fn run(stage: &mut Stage, row: &Row) -> Outcome {
    let scene = stage.scene(row)?;
    let outcome = row.run.run(stage, &scene);
    let left = scene.nothing_is_left();
    outcome?;
    left.map_err(Into::into)
}
