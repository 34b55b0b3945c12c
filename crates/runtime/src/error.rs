//! Why a directory cannot be used.

use std::path::{Path, PathBuf};

/// A directory, or a file in it, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {}: {why}; set RDMUX_RUNTIME_DIR to a directory of your own", path.display())]
pub struct DirectoryError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

impl DirectoryError {
    /// An error about this path.
    pub fn new(path: &Path, why: impl ToString) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}
