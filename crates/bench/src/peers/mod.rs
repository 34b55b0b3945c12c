//! `rdmux bench --peers`: how fast unmodified programs are on rdmux, and the subnet manager and the ACM services of a fabric, each beside the best that
//! this machine has for the same purpose, in the same run.
//!
//! In reading order: here what a run is; `spec` is the table; `rows` runs programs, `copy`, `memory`, `opensm`, `administration`
//! `infiniband`, `acm` (all on `fabrics`) and `guest` have what takes more; `parse` is what programs print, `part` our own peers' other side;
//! `figure`, `report` and `chart` are what comes out.

mod acm;
mod administration;
mod chart;
mod copy;
mod fabrics;
mod figure;
mod guest;
mod infiniband;
mod memory;
mod opensm;
mod parse;
mod part;
mod report;
mod rows;
mod spec;

use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum as _;

pub(super) use self::parse::{perftest_bandwidth, perftest_latency};
use self::report::{Missing, Outcome};
use self::rows::Bench;
pub(super) use self::spec::Row;
use super::BenchArgs;

/// Runs `rdmux bench --peers`. What could not be measured is named at the end, and is a failure; a ratio
/// that is missed is none.
pub(super) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let wanted = args.chosen::<Row>()?;
    let outcome = measure(&wanted, args.rounds)?;
    outcome.print(args.json)?;
    if let Some(file) = &args.svg {
        chart::write(&outcome.rows, file)?;
    }
    Ok(outcome.code())
}

/// The other side of what rdmux is compared with.
pub(super) fn part() -> Result<()> {
    part::run()
}

fn measure(wanted: &[Row], rounds: u32) -> Result<Outcome> {
    let bench = Bench::new(rounds)?;
    let mut outcome = Outcome::default();
    let (inside, outside): (Vec<Row>, Vec<Row>) = wanted.iter().partition(|row| row.is_in_guest());
    for row in outside {
        outcome.take(row, bench.measure(row));
    }
    if !inside.is_empty() {
        bench.say("programs in a guest");
        match guest::measure(&inside, rounds) {
            Ok(figures) => figures.into_iter().for_each(|(row, figure)| outcome.take(row, figure)),
            Err(e) => outcome.missing.extend(inside.iter().map(|row| Missing::new(*row, &e))),
        }
    }
    let place = |row: &Row| Row::value_variants().iter().position(|r| r == row);
    outcome.rows.sort_by_key(|figure| place(&figure.row));
    Ok(outcome)
}
