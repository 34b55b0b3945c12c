//! A scripted peer of iWARP against a process on `rdmux`, which is this one.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use rdmux_conformance::iwarp::{ours::Hosts, rows};

/// A scripted peer of iWARP against a process on the crate rdmux.
#[derive(Parser)]
enum Cli {
    /// Prints the names of all rows.
    List {
        /// Only the rows with this text
        #[arg(long)]
        only: Option<String>,
    },
    /// Runs the rows and prints a line for each, "pass" or "FAIL" in front.
    Run {
        /// Only the rows with this text
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
        match row.run(&hosts) {
            Ok(()) => println!("pass | {}", row.name),
            Err(e) => {
                clean = false;
                println!("FAIL | {} | {}", row.name, format!("{e:#}").replace(['\n', '|'], " "));
            }
        }
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
