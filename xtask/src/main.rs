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

/// Runs the chores of the rdmux workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run every check that needs only Rust and a C compiler, and list those that could not run here
    Test,
    /// Run `test`, then the suites that need the kernel's drivers and the distribution's programs
    Ci(ci::Args),
    /// Compare the C library's symbols and layouts with the distribution's, and run programs on it
    Abi(abi::Args),
    /// Run the conformance suites against the kernel's rdma_rxe and siw, in a disposable guest
    Peer(peer::Args),
    /// Run unmodified programs of the distribution on rdmux
    Programs(programs::Args),
    /// Run the fuzz targets with the built-in mutator
    Fuzz(fuzz::Args),
    /// Install the command, the C libraries and their headers, or remove them
    Install(install::Args),
    /// Count the instructions of the hot paths under callgrind, and compare them with the recorded figures
    Instructions(instructions::Args),
    /// Check the shared-memory protocols under loom
    Models,
    /// Build the crates that do no I/O for a target without an operating system
    NoOs,
    /// Run the deterministic simulations: many seeds, or one that failed
    Sim(sim::Args),
    /// Repeat an operation many times and check that nothing grows
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
