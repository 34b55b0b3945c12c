//! The chores of the workspace, as one command: `cargo xtask`.
//!
//! Reading order: `report` (the outcome of a chore), `sh` (running programs), `rows` (the output of a suite), `budget` (the
//! time limits of CI), then one file per chore.
#![forbid(unsafe_code)]

mod abi;
mod budget;
mod ci;
mod floors;
mod fuzz;
mod install;
mod instructions;
mod layout;
mod models;
mod no_os;
mod peer;
mod programs;
mod report;
mod rows;
mod sh;
mod sim;
mod soak;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::report::Report;

/// The chores of the rdmux workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that needs only Rust and a C compiler; says what it could not run here.
    Test,
    /// `test`, then the suites that need the kernel's drivers and real programs.
    Ci(ci::Args),
    /// The C library: symbols and layouts beside the distribution's, and programs that try it.
    Abi(abi::Args),
    /// The conformance suite against the kernel's rdma_rxe, in a throw-away guest.
    Peer(peer::Args),
    /// Unmodified programs of the distribution, on rdmux.
    Programs(programs::Args),
    /// The fuzz targets, with the built-in mutator.
    Fuzz(fuzz::Args),
    /// Installs the command, the C libraries and their header, or removes them.
    Install(install::Args),
    /// Instructions of the hot paths under callgrind, beside the recorded figures.
    Instructions(instructions::Args),
    /// Models of shared-memory protocols, under loom.
    Models,
    /// Builds the crates that do no I/O for a target without an operating system.
    NoOs,
    /// Deterministic simulation: many seeds, or one that failed.
    Sim(sim::Args),
    /// Repeats an operation so often that leaks show.
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut report = Report::new();
    match cli.chore {
        Chore::Test => test::run(&mut report),
        Chore::Ci(args) => ci::run(&args, &mut report),
        Chore::Abi(args) => abi::run(&args, &mut report),
        Chore::Peer(args) => peer::run(&args, &mut report),
        Chore::Programs(args) => programs::run(&args, &mut report),
        Chore::Fuzz(args) => fuzz::run(&args, &mut report),
        Chore::Install(args) => install::run(&args, &mut report),
        Chore::Instructions(args) => instructions::run(&args, &mut report),
        Chore::Models => models::run(&mut report),
        Chore::NoOs => no_os::run(&mut report),
        Chore::Sim(args) => sim::run(&args, &mut report),
        Chore::Soak(args) => soak::run(&args, &mut report),
    }
    report.close()
}
