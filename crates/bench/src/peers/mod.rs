//! `rdmux bench --peers`: the speed of unmodified programs on rdmux, and of the subnet manager and the ACM services of a fabric, each
//! compared in the same run with the best alternative on this machine.
//!
//! In reading order: here a run; `spec` is the table; `rows` runs programs; `copy`, `memory`, `opensm`, `administration`, `infiniband`,
//! `acm` (all on `fabrics`) and `guest` measure rows that need more; `parse` reads the output of programs; `part` is the other side of the
//! references; `figure`, `report` and `chart` are the results.

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
use rdmux_command::signals;

pub(super) use self::parse::{perftest_bandwidth, perftest_latency};
use self::report::{Missing, Outcome};
use self::rows::Bench;
pub(super) use self::spec::Row;
use super::BenchArgs;

/// Runs `rdmux bench --peers`. Rows that could not be measured are listed at the end, and are a failure; a missed
/// ratio is not.
pub(super) fn run(args: &BenchArgs, wanted: &[Row]) -> Result<ExitCode> {
    let outcome = measure(wanted, args.rounds)?;
    outcome.print(args.json)?;
    if let Some(file) = &args.svg {
        chart::write(&outcome.rows, file)?;
    }
    Ok(outcome.code())
}

/// Runs the other side of the references.
pub(super) fn part() -> Result<()> {
    part::run()
}

fn measure(wanted: &[Row], rounds: u32) -> Result<Outcome> {
    let bench = Bench::new(rounds)?;
    let mut outcome = Outcome::default();
    let (inside, outside): (Vec<Row>, Vec<Row>) = wanted.iter().partition(|row| row.is_in_guest());
    for row in outside {
        let measured = bench.measure(row);
        signals::check()?;
        outcome.take(row, measured);
    }
    if !inside.is_empty() {
        bench.say("programs in a guest");
        let measured = guest::measure(&inside, rounds);
        signals::check()?;
        match measured {
            Ok(figures) => figures.into_iter().for_each(|(row, figure)| outcome.take(row, figure)),
            Err(e) => outcome.missing.extend(inside.iter().map(|row| Missing::new(*row, &e))),
        }
    }
    let place = |row: &Row| Row::value_variants().iter().position(|r| r == row);
    outcome.rows.sort_by_key(|figure| place(&figure.row));
    Ok(outcome)
}
