//! Why the service does not start, or ends.

use std::io;
use std::path::{Path, PathBuf};

/// Why the service does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum AcmdError {
    /// The operating system refused something.
    #[error("cannot {what}: {why}")]
    Io {
        /// What was to be done, with the object.
        what: String,
        /// Why not.
        why: io::Error,
    },
    /// Another service has the lock.
    #[error("another service{pid} holds {}: end it first, or name another lock_file", path.display())]
    Running {
        /// The lock.
        path: PathBuf,
        /// The process, as text, if the file tells it.
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
    /// A failure to do something to a file.
    pub(crate) fn of_file(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let what = format!("{what} {}", path.display());
        move |why| Self::Io { what, why }
    }

    /// A failure to do something else.
    pub(crate) fn of(what: &str) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_owned();
        move |why| Self::Io { what, why }
    }
}
