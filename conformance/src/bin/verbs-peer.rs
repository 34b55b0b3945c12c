//! Every verb of RC, UC and UD between two programs that share only the wire, on the crate `rdmux`.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use rdmux_conformance::peer::{client, server};

/// Every verb of RC, UC and UD between two programs that share only the wire.
#[derive(Parser)]
enum Cli {
    /// Answers clients, one session after another.
    Serve {
        /// The address to serve on
        address: IpAddr,
        /// The TCP port of the control connection
        port: u16,
    },
    /// Runs tests against a server, a line each.
    Run {
        /// The server's address
        address: IpAddr,
        /// Its port
        port: u16,
        /// Tests whose names begin so; all if none is given
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
