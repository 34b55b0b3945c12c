//! `ib_acme`: queries an ACM service for paths, counters and endpoints, verifies paths, and writes the service's files.
//!
//! Its options and output are those of ib_acme of rdma-core, so that scripts keep working. Where those are wrong,
//! `docs/acm.md` describes the difference. In reading order: `args` is the command line, `run` executes it, and
//! `screen` prints the results.
//!
//! - `range`, `address`: words of the command line
//! - `services`, `session`: the services, and queries to them
//! - `resolve`, `parallel`: paths to one destination, and to many concurrently
//! - `perf`, `endpoints`: counters and endpoints
//! - `generate` writes files
//! - `extra` has the new commands
#![forbid(unsafe_code)]

mod address;
mod args;
mod endpoints;
mod errno;
mod extra;
mod generate;
mod json;
mod parallel;
mod perf;
mod range;
mod resolve;
mod run;
mod screen;
mod services;
mod session;
mod usage;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use args::Parsed;

/// The exit status after a usage error.
const USAGE: u8 = 1;

/// Runs `ib_acme` with these arguments, which do not include the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match dispatch(args, &mut io::stdout().lock()) {
        Ok(status) => status.into(),
        // The reader has closed the pipe, as `head` does.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ib_acme: cannot print: {e}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write) -> io::Result<u8> {
    let args = match extra::command_first(args.into_iter().collect()) {
        Ok(args) => return extra::run(&args, out),
        Err(args) => args,
    };
    match args::parse(args) {
        // An exit status has only the lowest byte.
        Parsed::Run(options) => run::run(&options, out).map(|status| status.to_le_bytes()[0]),
        Parsed::Help => out.write_all(usage::TEXT.as_bytes()).map(|()| 0),
        Parsed::Version => {
            writeln!(out, "ib_acme of rdmux {}", env!("CARGO_PKG_VERSION")).map(|()| 0)
        }
        Parsed::Usage(why) => {
            if let Some(why) = why {
                eprintln!("ib_acme: {why}");
            }
            out.write_all(usage::TEXT.as_bytes()).map(|()| USAGE)
        }
    }
}
