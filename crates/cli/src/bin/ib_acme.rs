//! `ib_acme`, the ACM tool; see `rdmux_acme`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rdmux_acme::main(std::env::args_os().skip(1))
}
