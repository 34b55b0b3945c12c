//! Helpers shared by the tests of several crates: unit tests, `sim`, `fuzz` and `benches/instructions`.
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

/// Creates an empty directory, in the folder for temporary files, which is removed with its
/// contents when the value is dropped.
///
/// # Panics
/// If it cannot be created.
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("rdmux-test-")
        .tempdir()
        .expect("a directory in the folder for temporary files")
}

/// Returns a command that runs the program in its arguments in a user namespace with a PID namespace
/// of its own, to whose processes the kernel does not show those outside of it. The program is killed
/// with the command. Prints the reason and returns none if such a namespace cannot be created.
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
