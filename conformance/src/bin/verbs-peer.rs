//! Every verb of RC, UC and UD between two programs that share only the wire, on the crate `rdmux`.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use rdmux_conformance::peer::{client, server};

/// Tests every verb of RC, UC and UD between two programs that share only the wire.
#[derive(Parser)]
enum Cli {
    /// Serve clients, one session after another
    Serve {
        /// The address to listen on
        address: IpAddr,
        /// The TCP port of the control connection
        port: u16,
    },
    /// Run tests against a server and print a line for each
    Run {
        /// The server's address
        address: IpAddr,
        /// The server's port
        port: u16,
        /// Run only tests whose names begin with one of these; without it, run all
        tests: Vec<String>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse() {
        Cli::Serve { address, port } => server::serve(address, port)?,
        Cli::Run { address, port, tests } => {
            if !client::run(address, port, &tests)? {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
