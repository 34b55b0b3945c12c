//! `ib_acme`: asks an ACM service for paths, counters and endpoints, has paths verified, and writes the service's files.
//!
//! What it takes and prints is what ib_acme of rdma-core takes and prints, so that scripts go on working; where that is
//! wrong, `docs/acm.md` says what this does instead. In reading order: `args` is the command line, `run` what is done
//! with it, `screen` what is printed.
//!
//! - `range`, `address`: words of the command line
//! - `services`, `session`: who is asked, and one question with its answer
//! - `resolve`, `parallel`: paths to one destination, and to many at a time
//! - `perf`, `endpoints`: counters and endpoints
//! - `generate` writes files
//! - `extra` has the commands that are new
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

/// The exit status when the command line makes no sense.
const USAGE: u8 = 1;

/// Runs `ib_acme` with these arguments, of which the first is not the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match dispatch(args, &mut io::stdout().lock()) {
        Ok(status) => status.into(),
        // As `head` has it.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ib_acme: cannot print: {e}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write) -> io::Result<u8> {
    let args: Vec<_> = args.into_iter().collect();
    if extra::is_command(&args) {
        return extra::run(&args, out);
    }
    match args::parse(args) {
        // What a process can say of a status is its lowest byte.
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
