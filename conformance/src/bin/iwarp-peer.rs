//! A scripted peer of iWARP against `rdmux`, which runs in this process. All its rows together take seconds, so all are
//! brief.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use rdmux_conformance::iwarp::{ours::Hosts, rows};

/// Runs a scripted iWARP peer against a process that uses the crate rdmux.
#[derive(Parser)]
enum Cli {
    /// Print the names of the rows
    List {
        /// Select only rows that contain this text
        #[arg(long)]
        only: Option<String>,
    },
    /// Run the rows and print a line for each, which begins with "pass" or "FAIL"
    Run {
        /// Select only rows that contain this text
        #[arg(long)]
        only: Option<String>,
    },
}

fn main() -> ExitCode {
    let (only, run) = match Cli::parse() {
        Cli::List { only } => (only, false),
        Cli::Run { only } => (only, true),
    };
    let hosts = Hosts::default();
    let mut clean = true;
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    for row in rows().iter().filter(|row| wanted(&row.name)) {
        if !run {
            println!("{}", row.name);
            continue;
        }
        let start = Instant::now();
        let outcome = row.run(&hosts);
        let s = start.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => println!("pass | {} | {s:.1} s", row.name),
            Err(e) => {
                clean = false;
                let why = format!("{e:#}").replace(['\n', '|'], " ");
                println!("FAIL | {} | {why} | {s:.1} s", row.name);
            }
        }
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
