//! Unmodified programs of the distribution, run on rdmux, as a table of rows that must pass.
//!
//! Reading order: [`row`] defines a row, [`mod@table`] lists them by package, [`stage`] creates the
//! hosts between which they run, [`exchange`] runs a server and its clients, [`process`] one program,
//! [`proof`] checks what they printed, [`pyverbs`] runs rdma-core's own tests, [`management`] tests the manager and the
//! diagnostics of InfiniBand fabrics, [`report`] prints the results.
#![forbid(unsafe_code)]

mod exchange;
mod management;
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
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::report::Report;
use crate::row::{Device, Outcome, Row, Run};
use crate::stage::Stage;

/// Runs unmodified programs of the distribution on rdmux.
#[derive(Parser)]
enum Cli {
    /// Print the names of the rows
    List(Wanted),
    /// Run the rows and print a line for each, which begins with "pass", "skip" or "FAIL"
    Run {
        /// The program rdmux, with the shared object in the same folder
        #[arg(long)]
        rdmux: PathBuf,
        /// Folder for the output of every process
        #[arg(long)]
        logs: PathBuf,
        /// File for the outcome as JUnit XML
        #[arg(long)]
        junit: PathBuf,
        #[command(flatten)]
        wanted: Wanted,
        /// Do not retry rows that fail; by default each is retried once, because some of the programs have races
        #[arg(long)]
        strict: bool,
        /// Fail rows that have not begun after this many seconds, instead of running them
        #[arg(long, value_name = "SECONDS")]
        within: Option<u64>,
    },
}

/// Which rows.
#[derive(clap::Args)]
struct Wanted {
    /// Select only rows on this device
    #[arg(long, value_enum, value_name = "KIND")]
    device: Option<Device>,
    /// Select only rows that contain this text, brief or not
    #[arg(long)]
    only: Option<String>,
    /// Select all rows, not only the brief ones
    #[arg(long)]
    all: bool,
    /// Select only every Nth row from the Kth on, so that N machines or network namespaces share the work
    #[arg(long, value_name = "K/N", value_parser = Part::parse)]
    part: Option<Part>,
}

/// A part of the rows: every `of`th, starting with the `nth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    nth: usize,
    of: usize,
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is not K/N with 1 <= K <= N, for instance 2/4");
        let (nth, of) = text.split_once('/').ok_or_else(wrong)?;
        let (nth, of) = (nth.parse().map_err(|_| wrong())?, of.parse().map_err(|_| wrong())?);
        if (1..=of).contains(&nth) { Ok(Self { nth, of }) } else { Err(wrong()) }
    }
}

fn main() -> Result<ExitCode> {
    match Cli::parse() {
        Cli::List(wanted) => {
            for row in wanted.rows() {
                println!("{row}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Cli::Run { rdmux, logs, junit, wanted, strict, within } => {
            let mut stage = Stage::new(&rdmux, &logs)?;
            let mut report = Report::new(&junit, strict, within.map(Duration::from_secs));
            for row in wanted.rows() {
                report.take(&row, || run(&mut stage, &row));
            }
            report.close()
        }
    }
}

impl Wanted {
    fn rows(&self) -> impl Iterator<Item = Row> {
        let Part { nth, of } = self.part.unwrap_or(Part { nth: 1, of: 1 });
        table::table().into_iter().filter(|row| self.has(row)).skip(nth - 1).step_by(of)
    }

    /// Returns whether a row is selected: `--only` selects among all rows, otherwise the brief ones are the default.
    fn has(&self, row: &Row) -> bool {
        let chosen = match &self.only {
            Some(text) => row.to_string().contains(text),
            None => self.all || row.brief,
        };
        chosen && self.device.is_none_or(|d| d == row.device)
    }
}

/// Runs a row. Its programs must leave nothing in the hosts' services.
fn run(stage: &mut Stage, row: &Row) -> Outcome {
    if let Run::Management(management) = &row.run {
        return management.run(stage, &row.title);
    }
    stage.leave_ground();
    let scene = stage.scene(row)?;
    let outcome = row.run.run(stage, &scene);
    let left = scene.nothing_is_left();
    outcome?;
    left.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::{Part, Wanted};
    use crate::row::Device;
    use crate::table::table;

    fn count(device: Option<Device>, only: Option<&str>, all: bool) -> usize {
        Wanted { device, only: only.map(str::to_owned), all, part: None }.rows().count()
    }

    #[test]
    fn parts_together_are_all_rows_each_once() {
        let names = |part| -> Vec<String> {
            let wanted = Wanted { device: None, only: None, all: true, part };
            wanted.rows().map(|row| row.to_string()).collect()
        };
        let mut parts: Vec<_> = (1..=4).flat_map(|nth| names(Some(Part { nth, of: 4 }))).collect();
        let mut all = names(None);
        parts.sort();
        all.sort();
        assert_eq!(parts, all);
        assert!(Part::parse("2/4") == Ok(Part { nth: 2, of: 4 }));
        assert!(["", "2", "0/4", "5/4", "a/b", "1/0"].iter().all(|t| Part::parse(t).is_err()));
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
