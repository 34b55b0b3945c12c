//! Helpers that tests of several crates share: unit tests, `sim`, `fuzz` and `benches/instructions`.
#![forbid(unsafe_code)]

pub mod acm;
pub mod env;
pub mod ledger;
mod lingering;
pub mod memory;
pub mod qp;

use std::process::Command;

pub use lingering::{close_elsewhere, lingering};
pub use tempfile::TempDir;

/// Makes an empty directory, in the system's folder for temporary files, which is removed with all that is in it when the
/// value is dropped.
///
/// # Panics
/// If it cannot be made.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("rdmux-test-")
        .tempdir()
        .expect("a directory in the folder for temporary files")
}

/// A command that runs the program in its arguments in a user namespace with a PID namespace of its own, to whose processes
/// the kernel does not show those outside of it. The program is killed with the command. None if there can be no such namespace
/// here, which is printed.
pub fn in_pid_namespace() -> Option<Command> {
    let new = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--"]);
        command
    };
    let tried = new().arg("true").output();
    let is_possible = tried.is_ok_and(|out| out.status.success());
    if !is_possible {
        println!("SKIPPED: no PID namespace");
    }
    is_possible.then(new)
}
