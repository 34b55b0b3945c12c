//! The reasons why the service does not start, or ends.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why the service does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum AcmdError {
    /// An operating system call failed.
    #[error("cannot {what}: {why}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The cause.
        why: io::Error,
    },
    /// Another service has the lock.
    #[error("another ACM service{pid} holds the lock {}: end it first, or set another lock_file", path.display())]
    Running {
        /// The lock file.
        path: PathBuf,
        /// The process's id as text, if the file contains it.
        pid: String,
    },
    /// The configuration is wrong.
    #[error("{0}")]
    Config(String),
    /// The host cannot be used.
    #[error(transparent)]
    Host(#[from] rdmux_host::HostError),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] rdmux::Error),
}

impl AcmdError {
    /// Returns a function that makes an error of an operation on a file.
    pub(crate) fn of_file(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let what = format!("{what} {}", path.display());
        move |why| Self::Io { what, why }
    }

    /// Returns a function that makes an error of another operation.
    pub(crate) fn of(what: &str) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_owned();
        move |why| Self::Io { what, why }
    }
}
