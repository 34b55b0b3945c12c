//! The service `ib_acm`, also by the name of Linux's, `ibacm`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rdmux_acmd::main(std::env::args_os())
}
