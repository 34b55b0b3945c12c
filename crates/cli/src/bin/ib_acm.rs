//! The service `ib_acm`, also installed under the name of Linux's service, `ibacm`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rdmux_acmd::main(std::env::args_os())
}
