//! Common errors of services: why a directory cannot be used, and how messages name a process.

use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// A directory, or a file in it, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {}: {why}; set RDMUX_RUNTIME_DIR to a directory of your own", path.display())]
pub struct DirectoryError {
    /// The path.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

impl DirectoryError {
    /// Creates an error about this path.
    pub fn new(path: &Path, why: impl ToString) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}

/// Formats a service's process to follow the service in a message; empty if it is not known.
pub fn process(pid: Option<Pid>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {})", pid.as_raw_nonzero()))
}
