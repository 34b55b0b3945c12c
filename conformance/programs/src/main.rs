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
    /// Only rows with this text, brief or not
    #[arg(long)]
    only: Option<String>,
    /// Not the brief rows alone
    #[arg(long)]
    all: bool,
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
        table::table().into_iter().filter(|row| self.has(row))
    }

    /// Whether it is wanted: `--only` chooses among all rows, else brief ones are wanted if nothing is said.
    fn has(&self, row: &Row) -> bool {
        let chosen = match &self.only {
            Some(text) => row.to_string().contains(text),
            None => self.all || row.brief,
        };
        chosen && self.device.is_none_or(|d| d == row.device)
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

#[cfg(test)]
mod tests {
    use super::Wanted;
    use crate::row::Device;
    use crate::table::table;

    fn count(device: Option<Device>, only: Option<&str>, all: bool) -> usize {
        Wanted { device, only: only.map(str::to_owned), all }.rows().count()
    }

    #[test]
    fn brief_rows_are_wanted_if_nothing_is_said() {
        let rows = table();
        assert_eq!(count(None, None, true), rows.len());
        assert_eq!(count(None, None, false), rows.iter().filter(|r| r.brief).count());
    }

    #[test]
    fn only_chooses_among_all_rows() {
        let title = "| ib_send_lat -c XRC -a -n 50";
        let rows = table();
        let named = || rows.iter().filter(|r| r.to_string().contains(title));
        assert!(named().any(|r| !r.brief));
        assert_eq!(count(None, Some(title), false), named().count());
        assert_eq!(count(None, Some(title), true), named().count());
    }

    #[test]
    fn a_device_chooses_among_what_is_wanted() {
        let [brief, all] = [false, true].map(|all| count(Some(Device::Iw), None, all));
        let rows = table();
        let iwarp = || rows.iter().filter(|r| r.device == Device::Iw);
        assert_eq!((brief, all), (iwarp().filter(|r| r.brief).count(), iwarp().count()));
    }
}
