//! Errors of verbs, and the `errno` that the C interface returns for each.

use rdmux_wire::{Gid, Qpn};

use crate::objects::control::ControlError;

/// The reason why a verb failed: the object, the operation, and the reason.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// An argument is invalid.
    #[error("cannot {what}: {why}")]
    Invalid {
        /// The operation, as in "create a queue pair".
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// A table or queue is full, or a limit of the device is reached.
    #[error("cannot {what}: {why}")]
    NoMemory {
        /// The operation.
        what: &'static str,
        /// The limit.
        why: String,
    },
    /// Memory is not mapped, or does not permit the operation.
    #[error("cannot {what}: {why}")]
    Memory {
        /// The operation.
        what: &'static str,
        /// The memory, and the reason.
        why: String,
        /// The `errno` that the C interface returns.
        errno: i32,
    },
    /// The device does not support the operation.
    #[error("cannot {what}: {why}")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// The operation needs a privileged program.
    #[error("cannot {what}: {why}")]
    NotPermitted {
        /// The operation.
        what: &'static str,
        /// The reason why it is privileged.
        why: String,
    },
    /// Something still uses the object.
    #[error("cannot {what}: {why}")]
    Busy {
        /// The operation.
        what: &'static str,
        /// The users of the object.
        why: String,
    },
    /// The queue pair is attached to this multicast group already.
    #[error("cannot attach to a multicast group: already attached to {0}")]
    Attached(Gid),
    /// The queue pair does not accept this work request.
    #[error("queue pair {qpn}: {error}")]
    Post {
        /// The queue pair.
        qpn: Qpn,
        /// The reason.
        error: rdmux_transport::error::PostError,
    },
    /// The queue pair does not permit this transition.
    #[error("queue pair {qpn}: {error}")]
    Modify {
        /// The queue pair.
        qpn: Qpn,
        /// The reason.
        error: rdmux_transport::error::ModifyError,
    },
    /// The host service refused, or is gone.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused.
    #[error("cannot {what}: {error}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The operating system's error.
        error: std::io::Error,
    },
}

impl VerbsError {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }
    pub(crate) fn no_memory(what: &'static str, why: impl Into<String>) -> Self {
        Self::NoMemory { what, why: why.into() }
    }
    pub(crate) fn unsupported(what: &'static str, why: impl Into<String>) -> Self {
        Self::Unsupported { what, why: why.into() }
    }
    pub(crate) fn memory(what: &'static str, why: impl Into<String>, errno: i32) -> Self {
        Self::Memory { what, why: why.into(), errno }
    }
    pub(crate) fn still_bound(what: &'static str, n: u32) -> Self {
        Self::Busy { what, why: format!("{n} memory windows are bound to it") }
    }
    pub(crate) fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Os { what, error }
    }

    /// Returns the `errno` that the C interface returns.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Invalid { .. } | Self::Attached(_) | Self::Modify { .. } => libc::EINVAL,
            Self::NoMemory { .. } => libc::ENOMEM,
            Self::Memory { errno, .. } => *errno,
            Self::Unsupported { .. } => libc::EOPNOTSUPP,
            Self::NotPermitted { .. } => libc::EPERM,
            Self::Busy { .. } => libc::EBUSY,
            Self::Post { error, .. } => post_errno(error),
            Self::Control(ControlError::Gone) => libc::EIO,
            Self::Control(ControlError::Refused { errno, .. }) => *errno,
            Self::Os { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Returns ENOMEM for a full queue, EINVAL for anything else, which is a mistake of the caller's.
fn post_errno(error: &rdmux_transport::error::PostError) -> i32 {
    if matches!(error, rdmux_transport::error::PostError::Full(_)) {
        libc::ENOMEM
    } else {
        libc::EINVAL
    }
}
