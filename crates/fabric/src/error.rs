//! Errors between a fabric, its clients and the file system.

use std::io;
use std::path::PathBuf;

use rdmux_runtime::{DirectoryError, process};
use rustix::process::Pid;

use crate::FabricName;

/// The reason why a fabric could not be reached or started, or why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The fabric is gone, and everything that it held for this process.
    #[error(
        "fabric \"{fabric}\" is gone; `rdmux fabric up --fabric {fabric}` brings it back with its LIDs"
    )]
    Gone {
        /// The name of the fabric.
        fabric: FabricName,
    },
    /// The fabric refused the request.
    #[error("cannot {what}: {why}")]
    Refused {
        /// The request that was refused.
        what: String,
        /// The fabric's reason.
        why: String,
        /// The errno of the C interface.
        errno: i32,
    },
    /// No fabric of this name is up.
    #[error("fabric \"{fabric}\" is not up: start it with `rdmux fabric up --fabric {fabric}`")]
    NotUp {
        /// The name of the fabric.
        fabric: FabricName,
    },
    /// A fabric of this name is up already.
    #[error("fabric \"{fabric}\" is up already; `rdmux fabric down --fabric {fabric}` ends it")]
    AlreadyUp {
        /// The name of the fabric.
        fabric: FabricName,
    },
    /// A fabric exists but does not answer: it was stopped, or hangs.
    #[error("fabric \"{fabric}\"{} does not answer: {why}; kill that process", process(*pid))]
    Unresponsive {
        /// The name of the fabric.
        fabric: FabricName,
        /// The fabric's process, if the kernel reports it.
        pid: Option<Pid>,
        /// The evidence that the fabric does not answer.
        why: String,
    },
    /// The fabric could not be started.
    #[error("cannot start fabric \"{fabric}\": {why}")]
    Start {
        /// The name of the fabric.
        fabric: FabricName,
        /// The cause, and a remedy.
        why: String,
    },
    /// A directory or file in it cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A file has invalid contents.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error, its location, and a remedy.
        why: String,
    },
    /// Fabric and client are of different versions.
    #[error(
        "fabric \"{fabric}\" speaks protocol version {theirs}, this program {ours}: end it with \
         `rdmux fabric down --fabric {fabric}`, or use programs of the same version"
    )]
    Version {
        /// The name of the fabric.
        fabric: FabricName,
        /// The version of this side.
        ours: u32,
        /// The version of the other side.
        theirs: u32,
    },
    /// The fabric sent something that the protocol does not allow.
    #[error("fabric \"{fabric}\" violated the protocol: {why}")]
    Protocol {
        /// The name of the fabric.
        fabric: FabricName,
        /// The violation.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl FabricError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// Returns the errno for this error in the C interface.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Gone { .. } => libc::EIO,
            Self::Refused { errno, .. } => *errno,
            Self::NotUp { .. } | Self::Start { .. } => libc::ENODEV,
            Self::AlreadyUp { .. } => libc::EEXIST,
            Self::Unresponsive { .. } => libc::ETIMEDOUT,
            Self::Directory(_) => libc::EACCES,
            Self::File { .. } => libc::EINVAL,
            Self::Version { .. } | Self::Protocol { .. } => libc::EPROTO,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
