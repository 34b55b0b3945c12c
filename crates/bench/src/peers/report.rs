//! The results of a run of the table: rows, and those that could not be measured.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::figure::{Figure, Met, Ratio};
use super::spec::Row;
use rdmux_command::output::{self, Report};
use rdmux_command::say;

/// The results of a run.
#[derive(Default, Serialize)]
pub(super) struct Outcome {
    pub(super) rows: Vec<Figure>,
    pub(super) missing: Vec<Missing>,
}

/// A row that could not be measured.
#[derive(Serialize)]
pub(super) struct Missing {
    row: Row,
    what: &'static str,
    why: String,
}

impl Missing {
    pub(super) fn new(row: Row, why: &anyhow::Error) -> Self {
        Self { row, what: row.spec().what, why: rdmux_command::output::text(why) }
    }
}

impl Outcome {
    /// Adds a row, or the reason why it could not be measured.
    pub(super) fn take(&mut self, row: Row, figure: Result<Figure>) {
        match figure {
            Ok(figure) => self.rows.push(figure),
            Err(e) => self.missing.push(Missing::new(row, &e)),
        }
    }

    /// Returns the exit code. Only missing rows are a failure.
    pub(super) fn code(&self) -> ExitCode {
        if self.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Prints the table and the missing rows, or all of it as JSON.
    pub(super) fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        self.table().print();
        for figure in self.rows.iter().filter(|f| !f.parts.is_empty()) {
            let show = |(name, value): &(&str, f64)| format!("{name} {}", figure.unit.show(*value));
            let parts: Vec<_> = figure.parts.iter().map(show).collect();
            say!("{}: {}", figure.what, parts.join(", "));
        }
        for missing in &self.missing {
            eprintln!("rdmux: cannot measure {}: {}", missing.what, missing.why);
        }
        Ok(())
    }

    fn table(&self) -> Report {
        let headings = ["WHAT", "RDMUX", "BESIDE", "ITS FIGURE", "RATIO", "AT LEAST", "AIM", "MET"];
        let mut report = Report::new(&headings).right(&[4, 5, 6]);
        for figure in &self.rows {
            report.row(row(figure));
        }
        report
    }
}

/// Formats a row. For times and memory, the minimum goal is an upper bound, and is printed as one.
fn row(f: &Figure) -> [String; 8] {
    let sign = if f.direction == Ratio::Less { "<=" } else { ">=" };
    let goal = |goal: Option<f64>| goal.map_or(String::new(), |g| format!("{sign} {}", f.show(g)));
    let met = match f.met {
        None => "",
        Some(Met::No) => "no",
        Some(Met::AtLeast) => "yes",
        Some(Met::Aim) => "aim",
    };
    [
        f.what.to_owned(),
        f.ours.show(f.unit),
        f.peer.to_owned(),
        f.beside.map_or(String::new(), |peer| peer.show(f.unit)),
        f.beside.map_or(String::new(), |_| f.show(f.ratio)),
        goal(f.at_least),
        goal(f.aim),
        met.to_owned(),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns made-up figures, one of each kind.
    pub(in super::super) fn figures() -> Vec<Figure> {
        let mut memory = Figure::new(Row::Memory, &[3000.0], &[]);
        memory.parts = vec![("client", 1000.0), ("service", 2000.0)];
        vec![
            Figure::new(Row::SendLat, &[0.9e-6, 1.2e-6, 1e-6], &[0.5e-6]),
            Figure::new(Row::WriteBw, &[9e9], &[10e9]),
            Figure::new(Row::UdpUcx, &[3e9], &[2e9]),
            memory,
        ]
    }

    #[test]
    fn report_row_shows_goal_direction() {
        let [latency, bandwidth, reported, memory] = figures().try_into().unwrap();
        let words = |figure: Figure| row(&figure)[1..].join(" | ");
        assert_eq!(
            words(latency),
            "1.00 us (-10 +20 %) | ucx tag_lat, posix | 500 ns | 2.00 | <= 1.50 | <= 0.90 | no"
        );
        let expected =
            "9.00 GB/s | process_vm_writev | 10.00 GB/s | 0.90 | >= 0.85 | >= 0.97 | yes";
        assert_eq!(words(bandwidth), expected);
        assert_eq!(words(reported), "3.00 GB/s | ucx tag_bw, tcp | 2.00 GB/s | 1.50 |  |  | ");
        assert_eq!(words(memory), "3000 B |  |  |  | <= 16384 B | <= 4096 B | aim");
    }

    #[test]
    fn json_has_the_same_and_what_is_missing_is_a_failure() {
        let why = anyhow::anyhow!("iperf3 is missing: install the Debian package iperf3");
        let missing = vec![Missing::new(Row::UdpBw, &why)];
        let outcome = Outcome { rows: figures(), missing };
        assert_eq!(format!("{:?}", outcome.code()), format!("{:?}", ExitCode::FAILURE));
        let json = serde_json::to_value(outcome).unwrap();
        assert_eq!(json["rows"][0]["row"], "send-lat");
        assert_eq!(json["rows"][0]["ours"]["rounds"], 3);
        assert_eq!(json["rows"][0]["met"], "no");
        assert_eq!(json["rows"][2]["met"], serde_json::Value::Null);
        assert_eq!(json["rows"][3]["parts"][1][0], "service");
        assert_eq!(json["missing"][0]["row"], "udp-bw");
        let missed = Outcome { rows: figures(), missing: Vec::new() };
        assert_eq!(format!("{:?}", missed.code()), format!("{:?}", ExitCode::SUCCESS));
    }
}
